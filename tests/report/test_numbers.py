"""Families count equally in what is said of them together, and a share of full resolution has an honest interval."""

import numpy as np
import pytest

from homunculus.eval.signs import holm
from homunculus.report.decision import DECIDE, decide
from homunculus.report.heat import accuracy_map
from homunculus.report.numbers import Found, disagreeing, paired, percent, share
from homunculus.report.sheet import THREE
from homunculus.report.tables import P_VALUES, main_table, retained
from tests.report.made_up import ACCURACY, lines, sheet

UNEQUAL = {"documents": 240, "scenes": 80, "scene-text": 40}
TWO = {"topk": (70, 72, 74), "foveated-pyramid": (82, 80, 84)}


def unequal(tmp_path, accuracy=ACCURACY, asked=UNEQUAL):
    """Six times as many questions on documents as on scene text."""
    parts = [
        lines({name: [shares[place]] for name, shares in accuracy.items()}, questions=count, families=[family])
        for place, (family, count) in enumerate(asked.items())
    ]
    return sheet(tmp_path / "rows.jsonl", *parts).arms[0]


def rate(found: Found) -> float:
    return 100 * sum(row["exact"] for row in found.rows.values()) / len(found.rows)


def test_families_count_equally(tmp_path):
    arm = unequal(tmp_path)
    for name in ("topk", "uniform"):
        each, every = [rate(arm.find(name, [family])) for family in THREE], arm.find(name)
        assert len(every.rows) == 360 and every.exact.mean == pytest.approx(sum(each) / 3)
        assert 100 * every.average("exact") == pytest.approx(sum(each) / 3)
        assert abs(rate(every) - sum(each) / 3) > 0.1  # the plain mean is another number
    first, second = arm.find("foveated-pyramid"), arm.find("topk")
    apart = [rate(arm.find("foveated-pyramid", [f])) - rate(arm.find("topk", [f])) for f in THREE]
    pair = first.against(second)
    assert pair.difference == pytest.approx(sum(apart) / 3) == pytest.approx(pair.first - pair.second)
    assert {line[0]: line for line in main_table(arm).lines}["`topk`"][1].startswith(f"{second.exact.mean:.1f} [")


def drawn(arm, name: str, other: str | None, runs: int = 4000) -> list[float]:
    """The macro mean of one method, or its ratio to that of another, of images drawn within each family; by hand."""
    chance, found = np.random.default_rng(0), []
    tables = []
    for family in THREE:
        images: dict[str, list[list[float]]] = {}
        for key, row in arm.find(name, [family]).rows.items():
            below = arm.find(other, [family]).rows[key]["exact"] if other else 1.0
            images.setdefault(row["image"], []).append([row["exact"], below, 1.0])
        tables.append(np.array([np.sum(rows, 0) for rows in images.values()]))
    for _ in range(runs):
        tops, bottoms = 0.0, 0.0
        for table in tables:
            top, below, count = table[chance.integers(0, len(table), len(table))].sum(0)
            tops, bottoms = tops + top / count / 3, bottoms + below / count / 3
        found.append(100 * tops / bottoms)
    return found


@pytest.mark.parametrize("other", [None, "whole"])
def test_intervals_are_those_of_images_drawn_by_hand(tmp_path, other):
    arm = unequal(tmp_path, {"topk": (70, 72, 74), "whole": (88, 86, 90)})
    own = arm.find("topk")
    around = own.exact if other is None else retained(own, arm.find("whole"))
    low, high = np.quantile(drawn(arm, "topk", other), (0.025, 0.975))
    assert (around.low, around.high) == pytest.approx((low, high), abs=0.12 * (high - low))


def test_the_share_of_full_resolution_is_paired(tmp_path):
    """What both miss together does not widen it."""
    arm = unequal(tmp_path)
    whole = arm.find("whole")
    assert retained(whole, whole) == (100, 100, 100)
    assert retained(arm.find("log-polar-bins"), whole) is None
    rows = {f"a/val/{i}#0": {"image": f"a/val/{i}", "exact": float(i % 2)} for i in range(200)}
    half = {key: row | {"exact": 0.5 * row["exact"]} for key, row in rows.items()}
    reach = 200 * (1 - 0.025 ** (1 / 200))  # of what never differs: next to one that has half right
    assert share(half, rows) == pytest.approx((50, 50 - reach, 50 + reach))
    none = {key: row | {"exact": 0.0} for key, row in rows.items()}
    assert share(rows, none) is None and share(none, rows) == pytest.approx((0, 0, reach))


def test_questions_of_an_image_stay_together():
    """Eight questions to an image that are kept or lost together: as wide as one question to an image."""
    rows = {f"a/val/{i}#{k}": {"image": f"a/val/{i}", "exact": 1.0} for i in range(60) for k in range(8)}
    kept = {key: row | {"exact": float(int(row["image"][6:]) % 3 > 0)} for key, row in rows.items()}
    first = {key: row for key, row in rows.items() if key.endswith("#0")}
    assert share(kept, rows) == pytest.approx(share(kept, first))


def test_a_family_of_one_image_gives_no_interval():
    rows = {f"{name}/val/{i}#0": {"image": f"{name}/val/{i}", "exact": 1.0} for name, i in (("a", 0), ("a", 1))}
    assert paired(rows, rows) is not None
    more = rows | {"b/val/0#0": {"image": "b/val/0", "exact": 0.0}}
    assert paired(more, more) is None and Found("m", "m", "all", more).exact is None
    assert Found("m", "m", "all", more).average("exact") == 0.5


def test_a_large_family_does_not_decide_alone(tmp_path):
    """600 documents say yes, two families of 200 say no: together it is no."""
    planted = {name: ((80, 60, 60) if name == "pyramid" else (70, 70, 70)) for name in ("topk", "pyramid")}
    arm = unequal(tmp_path, planted, {"documents": 600, "scenes": 200, "scene-text": 200})
    pair = arm.find("pyramid").against(arm.find("topk"))
    plain = rate(arm.find("pyramid")) - rate(arm.find("topk"))
    assert pair.difference < -1 < 0 < plain


def test_families_that_do_not_say_the_same_are_told_apart(tmp_path):
    """Better on one and worse on another, or told from chance on one alone; silent where all agree."""
    mixed = {"topk": (60, 60, 60), "pyramid": (95, 60, 20), "uniform": (20, 20, 20), "stratified": (95, 60, 60)}
    arm = sheet(tmp_path / "rows.jsonl", lines(mixed, questions=200)).arms[0]
    first, base = arm.find("pyramid"), arm.find("topk")
    known = disagreeing(first, base)
    assert [(name, pair.sign) for name, pair in known] == [("documents", 1), ("scenes", 0), ("scene-text", -1)]
    for name, pair in known:
        assert pair == arm.find("pyramid", [name]).against(arm.find("topk", [name]))
    assert [pair.sign for _, pair in disagreeing(arm.find("stratified"), base)] == [1, 0, 0]
    assert disagreeing(arm.find("uniform"), base) == []
    assert disagreeing(arm.find("pyramid", ["documents"]), base) == []


def test_only_the_same_question_is_a_pair():
    """A key that stands for another question, or for the same words about another image."""
    rows = {
        f"a/val/{i}#0": {"image": f"a/val/{i}", "exact": 1.0, "question": "Who?", "answers": ["A"]} for i in range(6)
    }
    other = {key: row | {"exact": 0.0} for key, row in rows.items()}
    other["a/val/0#0"] |= {"answers": ["B"]}
    other["a/val/1#0"] |= {"question": "When?"}
    assert paired(rows, other).questions == 4


def test_nothing_right_is_not_surely_nothing():
    rows = {f"a/val/{i}#0": {"image": f"a/val/{i}", "exact": 0.0} for i in range(20)}
    assert percent(Found("m", "m", "all", rows).exact) == "0.0 [0.0, 16.8]"


def test_what_never_differs_is_not_surely_alike():
    """As much may differ as 40 images may not have shown; only a method and itself are surely alike."""
    right = {str(i): {"image": str(i), "exact": 1.0} for i in range(40)}
    wrong = {key: row | {"exact": 0.0} for key, row in right.items()}
    reach = 100 * (1 - 0.025 ** (1 / 40))
    pair = paired(right, dict(right))
    assert (pair.low, pair.high, pair.p) == (pytest.approx(-reach), pytest.approx(reach), 1.0) and not pair.counts
    assert tuple(paired(right, wrong))[:3] == (100.0, pytest.approx(100 - reach), 100.0)
    assert share(right, right) == (100.0, 100.0, 100.0)
    assert share(right, dict(right)) == (100.0, pytest.approx(100 - reach), pytest.approx(100 + reach))
    assert share(wrong, right) == (0.0, 0.0, pytest.approx(reach))
    half = {key: row | {"exact": float(int(key) < 20)} for key, row in right.items()}
    assert share(half, dict(half)) == (100.0, pytest.approx(100 - 2 * reach), pytest.approx(100 + 2 * reach))


def test_the_map_of_places_weighs_families_equally(tmp_path):
    arm = unequal(tmp_path, TWO)
    found = arm.find("topk")
    parts = accuracy_map(found)
    expected: dict[tuple[int, int], list[float]] = {}
    for row in found.rows.values():
        x, y = row["boxes"][0][0] + 45, row["boxes"][0][1] + 15
        own = expected.setdefault((int(x / 128), int(y / 128)), [0.0, 0.0, 0])
        weight = 1 / UNEQUAL[row["image"].partition("/")[0]]
        own[0], own[1], own[2] = own[0] + weight * row["exact"], own[1] + weight, own[2] + 1
    assert parts == {part: (pytest.approx(100 * a / b), n) for part, (a, b, n) in expected.items()}


def test_two_columns_of_p_values(tmp_path):
    arm = sheet(tmp_path / "rows.jsonl", lines(questions=120)).arms[0]
    table = main_table(arm)
    raw, after = (table.head.index(name) for name in P_VALUES)
    by_name = {line[0].strip("` ★"): line for line in table.lines}
    p = {name: arm.find(name).against(arm.find("topk")).p for name in by_name if name != "topk"}
    others = [name for name in p if name not in (*DECIDE, "whole")]
    corrected = dict(zip(others, holm([p[name] for name in others]), strict=True))
    for name, line in by_name.items():
        assert line[raw] == ("–" if name == "topk" else "< 0.001" if p[name] < 0.001 else f"{p[name]:.3f}")
        known = corrected.get(name)
        assert line[after] == ("–" if known is None else "< 0.001" if known < 0.001 else f"{known:.3f}")
    assert sum(columns for _, columns in table.groups) == len(table.head) == len(table.lines[0])
    assert corrected["stratified"] > p["stratified"] and decide(arm.sheet).arm == arm
