"""Predictions that intervals decide: held, did not hold, or open, as planted."""

import pytest

from homunculus.eval.suites import THRICE
from homunculus.report.blocks import Table, to_markdown
from homunculus.report.numbers import Found
from homunculus.report.page import document
from homunculus.report.predictions import Prediction, is_best, keeps, large_images, level_with, outcomes
from tests.report.made_up import lines, sheet

SAME = dict.fromkeys(("topk", "uniform", "pyramid"), (70, 70, 70))


def found(right: int, of: int = 400, name: str = "a", first: int = 0) -> Found:
    """A method that has `right` questions right from the first on, an image each."""
    rows = {f"a/val/{i}#0": {"image": f"a/val/{i}", "exact": float(first <= i < first + right)} for i in range(of)}
    return Found(name, f"`{name}`", "all", rows)


def outcome(claim) -> str:
    return Prediction("", "", claim).outcome


@pytest.mark.parametrize(
    ("right", "said"),
    [
        (400, "held"),
        (396, "held"),
        (394, "open"),
        (388, "open"),
        (382, "open"),
        (376, "did not hold"),
        (0, "did not hold"),
    ],
)
def test_a_share_is_decided_by_its_interval(right, said):
    """Of 400 with 97 % right the standard error is 0.85 points: 1.5 points above are not yet sure, 3 below are."""
    claim = keeps(found(right), found(400), 97)
    assert outcome(claim) == said and f"{right / 4:.1f} of 100.0, {right / 4:.1f} [" in claim.numbers[0]
    assert ("includes 97" in claim.numbers[0]) == (said == "open")


def test_a_share_of_nothing_cannot_be_told():
    assert outcome(keeps(found(3), found(0), 97)) == "cannot be told"
    assert keeps(Found("b", "`b`", "all", {}), found(400), 97).missing == ("`b` on all",)


def p5(file, ours, whole=(80, 80, 80), **more):
    page = sheet(file, lines(SAME | {"foveated-pyramid": ours, "whole": whole}, **more))
    return next(one for one in outcomes(page.arms[0]) if one.name == "P5")


def test_p5_needs_every_family(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert p5(file, (95, 95, 95), questions=1200).outcome == "held"
    failed = p5(file, (95, 95, 60), questions=1200)
    assert (
        failed.outcome == "did not hold" and len(failed.claim.numbers) == 1 and "scene-text" in failed.claim.numbers[0]
    )
    unsure = p5(file, (95, 79, 95), questions=200)
    assert unsure.outcome == "open" and len(unsure.claim.numbers) == 3


def test_open_in_the_rows_that_count_is_not_told_by_others(tmp_path):
    """Zero-shot rows that are sure do not stand in for tuned ones that are not."""
    tuned = lines(SAME | {"foveated-pyramid": (79, 79, 79), "whole": (80, 80, 80)}, tuned="samples", questions=80)
    zero = lines(SAME | {"foveated-pyramid": (95, 95, 95), "whole": (80, 80, 80)}, questions=400)
    blocks = document(sheet(tmp_path / "rows.jsonl", tuned, zero))
    table = next(block for block in blocks if isinstance(block, Table) and "prediction" in block.head)
    line = next(line for line in table.lines if line[0] == "P5")
    assert line[1] == "open" and line[-1] == "tuned" and "includes 97" in line[3]
    text = to_markdown(blocks)
    assert "P5** holds if on every family the whole interval" in text and "longer side has at least 2048" in text


def test_the_best_is_told_from_those_it_beats():
    """20 questions of 400 more, none fewer: p = 2 / 2^20; 3 more: p = 2 / 2^3."""
    best, near, far = found(300, name="frequency"), found(297, name="pyramid"), found(280, name="topk")
    assert [one.method for one in level_with(best, [far, near])] == ["pyramid"]
    cases = {
        ("frequency", "atlas"): "open",
        ("pyramid", "topk"): "open",
        ("frequency", "pyramid"): "held",
        ("topk", "atlas"): "did not hold",
    }
    for names, said in cases.items():
        assert outcome(is_best([far, near, best], names)) == said
    text = is_best([far, near, best], ("atlas",)).numbers[0]
    assert "best is `frequency` with 75.0 [" in text and "not told from it: `pyramid` (−0.8 [" in text
    assert "topk" not in text and "ahead of every other" in is_best([far, best], ("frequency",)).numbers[0]


def test_many_rivals_are_corrected_after_holm():
    """Eight questions more and one fewer: p = 2 (1 + 9) / 2^9 = 0.039, the interval excludes 0; of four, not enough."""
    best = found(300, name="best")
    rows = dict(best.rows)
    for place in [*range(8), 300]:
        key = f"a/val/{place}#0"
        rows[key] = rows[key] | {"exact": 1 - rows[key]["exact"]}
    near = Found("near", "`near`", "all", rows)
    pair = best.against(near)
    assert pair.p == pytest.approx(20 / 512, abs=1e-6) and pair.low > 0
    assert level_with(best, [near]) == []
    others = [found(297, name=f"other {i}") for i in range(3)]
    assert near in level_with(best, [near, *others])


def test_a_rival_that_was_asked_nothing_in_common_leaves_it_untold():
    alone = Found("c", "`c`", "all", {"b/val/0#0": {"image": "b/val/0", "exact": 1.0}})
    assert outcome(is_best([found(300), found(200, name="b"), alone], ["a"])) == "cannot be told"


def p7(file, accuracy):
    return next(one for one in outcomes(sheet(file, lines(accuracy)).arms[0]) if one.name == "P7")


def test_p7_on_planted_families(tmp_path):
    planted = {"frequency": (90, 60, 90), "atlas": (70, 60, 70), "pyramid": (60, 90, 60), "detail-tree": (60, 60, 60)}
    file = tmp_path / "rows.jsonl"
    assert p7(file, planted | {"topk": (50, 50, 50)}).outcome == "held"
    assert p7(file, planted | {"topk": (50, 99, 50)}).outcome == "did not hold"
    assert p7(file, planted | {"topk": (50, 50, 50), "mine": (99, 99, 99)}).outcome == "held"  # somebody's own
    unsure = p7(file, planted | {"topk": (90, 50, 50)})
    assert unsure.outcome == "open" and any("not told from it" in text for text in unsure.claim.numbers)
    assert p7(file, {"topk": (50, 50, 50)}).outcome == "cannot be told"


@pytest.mark.parametrize(
    ("size", "large"), [([512, 4096], True), ([2048, 512], True), ([2048, 2048], True), ([1536, 1536], False)]
)
def test_an_image_is_large_by_its_longer_side(tmp_path, size, large):
    ours, thrice = {"foveated-pyramid": (70, 70, 70)}, THRICE | {"combine": "tree"}
    parts = lines(ours, questions=40), lines(ours, questions=20, size=size)
    more = lines(ours, questions=40, how=thrice), lines(ours, questions=20, size=size, how=thrice)
    arm = sheet(tmp_path / "rows.jsonl", *parts, *more).arms[0]
    assert len(large_images(arm)) == large


def test_where_all_images_are_large_nothing_is_said_of_small_ones(tmp_path):
    ours, side = {"foveated-pyramid": (70, 70, 70)}, {"size": [2048, 2048], "questions": 40}
    better = {"foveated-pyramid": (95, 95, 95)}
    for again, said in ((better, "cannot be told"), (ours, "did not hold")):  # it pays on large ones, or it does not
        looks = lines(ours | {"topk": (70, 70, 70)}, **side), lines(again, how=THRICE | {"combine": "tree"}, **side)
        arm = sheet(tmp_path / "rows.jsonl", *looks).arms[0]
        assert next(one for one in outcomes(arm) if one.name == "P9").outcome == said


TREE = {"how": THRICE | {"combine": "tree"}}


def p9(file, again, sure=0.5):
    """One look of 70 % and `topk` that is so sure of all it says; looks as given, that pay on large images."""
    once = [
        line | {"confidence": sure} if "exact" in line and "topk" in line["mark"] else line
        for line in lines({"foveated-pyramid": (70, 70, 70), "topk": (70, 70, 70)})
    ]
    parts = [lines({"foveated-pyramid": (share,) * 3}, size=[2048, 2048], questions=80, **how)
             for share, how in ((70, {}), (95, TREE))]  # fmt: skip
    arm = sheet(file, iter(once), again, *parts).arms[0]
    return next(one for one in outcomes(arm) if one.name == "P9")


def test_ambiguous_is_what_another_method_is_unsure_of(tmp_path):
    """Not what the first look was unsure of, and had wrong: that would be better whatever was asked again."""
    better = {"foveated-pyramid": (95, 95, 95)}
    unsure = p9(tmp_path / "rows.jsonl", lines(better, **TREE), sure=0.5)
    assert any("`topk` is unsure: `foveated-pyramid`, combine tree" in text for text in unsure.claim.numbers)
    assert any("n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}1200" in text for text in unsure.claim.numbers)
    sure = p9(tmp_path / "rows.jsonl", lines(better, **TREE), sure=0.95)
    assert sure.outcome == "did not hold" and "`topk` is sure" in sure.claim.numbers[0]  # it pays where all is clear


def test_ways_that_stop_when_sure_do_not_speak_for_looking_on(tmp_path):
    """They cannot lose where they do not look."""
    stops = lines({"foveated-pyramid": (95, 95, 95)}, how={"looks": 3, "combine": "tree"})
    assert p9(tmp_path / "rows.jsonl", stops).outcome == "cannot be told"


@pytest.mark.parametrize(("share", "said"), [(90, "held"), (75, "open"), (50, "did not hold")])
def test_as_good_has_to_be_shown(tmp_path, share, said):
    """75 % of 80 questions may be as good as 75 % or not; 50 % are not, 90 % are."""
    ours = lines({"foveated-pyramid": (share,) * 3}, questions=80, budget=150)
    parts = lines({"topk": (75, 75, 75)}, questions=80), ours
    arm = sheet(tmp_path / "rows.jsonl", *parts).arms[0]
    assert next(one for one in outcomes(arm) if one.name == "P8").outcome == said
