"""The tables of the compact model: what is asked, drawn once and gone on with; and what the report makes of rows."""

import json
import random
import time

import pytest
import torch

from bench import compact as bench
from bench import compact_report as tables
from homunculus.errors import DataError
from homunculus.eval import answers, drawing, running
from homunculus.eval.plans import Plan, weights_key
from homunculus.eval.rows import Kept
from homunculus.eval.running import evaluate
from homunculus.model.calibration import BELIEVED, fit_calibration
from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import load_model, read_about, save_weights

SCOPE = bench.Scope(questions=6, few=4, looks=3, large=2, sides=(128, 192), longest=4)
QUICK = [
    "--questions",
    "6",
    "--questions-looks",
    "3",
    "--questions-large",
    "2",
    "--sides",
    "128",
    "192",
    "--longest",
    "4",
]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return CompactVLM(tiny()).eval().requires_grad_(False)


@pytest.fixture
def small(monkeypatch):
    """Families that can be drawn small."""
    monkeypatch.setattr(bench, "GROUPS", (("scenes", "test-iid"), ("scene-text", "test-iid")))


@pytest.fixture
def drawn(monkeypatch):
    found = []
    draw = drawing._draw
    monkeypatch.setattr(drawing, "_draw", lambda own, index, cut: found.append((own, index)) or draw(own, index, cut))
    return found


def plans(*names: str) -> list[Plan]:
    return bench.without_repeats([plan for name in names for plan in bench.plans_of(name, SCOPE)])


# ------------------------------------------------------------------------------------------------------ what is asked


def test_every_table_has_its_plans():
    scope = bench.Scope()
    count = {name: len(list(bench.plans_of(name, scope))) for name in bench.TABLES}
    assert count["main"] == count["scorer"] == count["true"] == 4 and count["budgets"] == 4 * 6
    assert count["allocators"] == 4 * len(bench.comparable()) and count["looks"] == 2 * 4 * len(bench.WAYS)
    everything = bench.without_repeats([plan for name in bench.TABLES for plan in bench.plans_of(name, scope)])
    assert len({plan.mark("") for plan in everything}) == len(everything)
    # The main table serves the scorer, its own allocator and one look at small images.
    assert len(everything) == sum(count.values()) - 3 * 4
    main = everything[:4]
    assert [plan.questions for plan in main] == [2000] * 4 and all(plan.budget == 273 for plan in main)
    assert {plan.split for plan in bench.validation(scope)} == {"val"} and len(bench.validation(scope)) == 3


def test_more_questions_of_a_later_table_count():
    few, many = Plan("scenes", questions=5), Plan("scenes", questions=9)
    assert bench.without_repeats([few, Plan("scenes", budget=64), many])[0] == many


@pytest.mark.parametrize("way", bench.WAYS)
@pytest.mark.parametrize("side", [1024, 4096])
def test_a_batch_fits(way, side):
    plan = bench.Scope().plan(("scenes", "test-iid"), 10, side, **way)
    size = running.together(plan, torch.device("cpu"))
    assert size == 1 or size * side**2 <= 2**24
    assert 1 <= size <= running.MOST


# ------------------------------------------------------------------------------------------------------ the answers


def test_rows_are_those_of_evaluate_and_images_are_drawn_once(model, drawn, monkeypatch):
    monkeypatch.setattr(bench, "GROUPS", (("scene-text", "test-iid"),))
    kept = Kept(None)
    asked = plans("main", "true", "looks")
    assert bench.run(model, asked, kept)
    assert len(drawn) == len(set(drawn)) == 2 + 1  # 6 questions of 128 x 128 and 2 of 192 x 192
    for plan in (*asked[:7], asked[8]):  # every way on small images, and one on large ones
        rows = list(kept.rows[plan.mark(weights_key(model))].values())
        told = {"budget": plan.budget, "relevance": plan.relevance, "size": plan.size, "workers": 0}
        alone = evaluate(model, plan.family, plan.split, questions=plan.questions, **told, **plan.how)
        assert [row["key"] for row in rows] == [row["key"] for row in alone]
        for one, other in zip(rows, alone, strict=True):
            assert one["said"] == other["said"] and one["tokens"] == other["tokens"]
            assert one["logp"] == pytest.approx(other["logp"], rel=1e-3)
            assert [look["said"] for look in one.get("looks", ())] == [look["said"] for look in other.get("looks", ())]


def test_a_stopped_run_goes_on(model, small, drawn, tmp_path, monkeypatch):
    asked = plans("main", "true")
    whole = Kept(None)
    bench.run(model, asked, whole)
    file, done = tmp_path / "rows.jsonl", 0

    def tick(plan, questions):
        nonlocal done
        done += questions
        if done > 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run(model, asked, Kept(file), tick=tick)
    assert 13 < sum(map(len, Kept(file).rows.values())) < 2 * 6 * 2
    with file.open("a") as out:
        out.write('{"key": "half a li')
    assert not bench.run(model, asked, Kept(file), until=time.monotonic() - 1)
    assert bench.run(model, asked, Kept(file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    keys = [(line.get("mark"), line.get("key")) for line in lines if "spent" not in line]
    assert len(keys) == len(set(keys))
    assert {mark: set(rows) for mark, rows in Kept(file).rows.items()} == {
        m: set(rows) for m, rows in whole.rows.items()
    }
    drawn.clear()
    ticks = []
    assert bench.run(model, asked, Kept(file), tick=lambda plan, questions: ticks.append(questions))
    assert not drawn and sum(ticks) == sum(plan.questions for plan in asked)


def test_images_with_few_questions_are_followed_by_more(model, small, monkeypatch):
    """A hundred questions are a hundred, also where an image has less than four."""
    draw = drawing._draw

    def few(own, index, cut):
        drawn = draw(own, index, cut)
        return drawn._replace(questions=drawn.questions[: 1 + index % 3])

    monkeypatch.setattr(drawing, "_draw", few)
    asked = [SCOPE.plan(("scenes", "test-iid"), 9)]
    kept = Kept(None)
    bench.run(model, asked, kept)
    (rows,) = kept.rows.values()
    assert list(rows) == [f"scenes/test-iid/{i}#{j}" for i in range(5) for j in range(1 + i % 3)][:9]


def test_too_little_memory_makes_batches_smaller(model, small, monkeypatch):
    sizes = []

    def little(model, plan, chunk, places):
        sizes.append(len(places))
        if len(places) > 2:
            raise torch.OutOfMemoryError("little memory")
        return answers.answered(model, plan, chunk, places)

    monkeypatch.setattr(running, "answered", little)
    kept = Kept(None)
    bench.run(model, plans("main"), kept)
    assert sizes == [6, 3, 1, 1, 1, 1, 1, 1] * 2 and all(len(rows) == 6 for rows in kept.rows.values())


def test_the_command(small, tmp_path, capsys):
    torch.manual_seed(0)
    save_weights(CompactVLM(tiny()), tmp_path / "weights", {"stage": "read"})
    out = tmp_path / "rows.jsonl"
    own = ["--weights", str(tmp_path / "weights"), "--out", str(out), *QUICK]
    with pytest.raises(DataError, match="no rows"):
        bench.main(["--out", str(out), "--report"])
    bench.main([*own, "--tables", "main", "--minutes", "0"])
    assert "give the command again" in capsys.readouterr().out and not out.exists()
    bench.main([*own, "--tables", "main,true,scorer,looks"])
    said = capsys.readouterr().out
    assert "all is asked" in said and "scenes test-iid 128: 1 x 273, true: 6 questions" in said
    bench.main([*own, "--calibrate"])
    assert "from 12 answers on val; expected calibration error on test-iid" in capsys.readouterr().out
    about = read_about(tmp_path / "weights")["about"]
    rows = [
        row for row in map(json.loads, out.read_text().splitlines()) if "/val/" in row.get("key", "") and "mark" in row
    ]
    fitted = fit_calibration([row["logp"] for row in rows], [row["exact"] for row in rows])
    assert load_model(tmp_path / "weights").calibration == fitted and about["stage"] == "read"
    before = out.read_text()
    bench.main([*own, "--tables", "main"])  # the calibration changes no row
    assert out.read_text() == before and "6 questions" not in capsys.readouterr().out.partition("on test-iid")[2]
    bench.main(["--out", str(out), "--report"])
    text = out.with_suffix(".md").read_text()
    for heading in ("The true region", "Where it looks", "How sure it is", "Looking again, 128", "Looking again, 192"):
        assert f"## {heading}" in text
    assert "### scenes test-iid" in text and "/val" not in text
    widths = [{line.count("|") for line in part.splitlines()} for part in text.split("\n\n") if part.startswith("|")]
    assert widths and all(len(own) == 1 for own in widths)


def test_unknown_tables_are_refused(tmp_path):
    with pytest.raises(SystemExit):
        bench.main(["--out", str(tmp_path / "rows.jsonl"), "--tables", "main,chairs"])


# ------------------------------------------------------------------------------------------------------ the report


def row(i: int, logps=(-0.1,), said=("a",), tokens=273, **more) -> dict:
    looks = [{"said": text, "logp": logp, "tokens": tokens} for logp, text in zip(logps, said, strict=True)]
    key = f"scenes/test-iid/{i // 2}#{i % 2}"
    exact = float(said[-1] == "a")
    measures = {"exact": exact, "anls": exact, "vqa": exact, "hit": 1.0, "mass": 0.5, "r2": None, "confidence": 0.0}
    about = {"key": key, "image": key.partition("#")[0], "kind": "colour", "region": "target", "answers": ["a"]}
    spoken = {"said": said[-1], "logp": logps[-1], "tokens": tokens * len(looks), "looks": looks, "of": 2}
    return about | measures | spoken


def test_stopping_early_by_hand():
    rows = [row(0, (-2.0, -0.5, -0.05), "bba"), row(1, (-0.2, -3.0, -3.0), "abb"), row(2, (-3.0, -1.0, -2.0), "bab")]
    assert tables.stopped(rows, 2.0, BELIEVED, False) == ([1.0, 0.0, 0.0], [819] * 3)
    assert tables.stopped(rows, 0.6, BELIEVED, False) == ([0.0, 1.0, 0.0], [546, 273, 819])
    assert tables.stopped(rows, 0.0, BELIEVED, False) == ([0.0, 1.0, 0.0], [273] * 3)
    assert tables.stopped(rows, 2.0, BELIEVED, True) == ([1.0, 1.0, 1.0], [819] * 3)  # the surest of the three


def test_stopping_early_is_what_a_threshold_does(model):
    """Rows that went on to the end tell what a run with a threshold does."""
    plan = {"size": (128, 128), "longest": 4, "workers": 0, "progressive": True, "budgets": (32, 64, 128)}
    whole = evaluate(model, "scenes", questions=8, threshold=None, **plan)
    bar = sorted(one["looks"][0]["logp"] for one in whole)[3]
    at = float(torch.tensor(bar).double().exp()) * (1 + 1e-4)
    early = evaluate(model, "scenes", questions=8, threshold=at, **plan)
    exact, tokens = tables.stopped(whole, at, BELIEVED, False)
    assert tokens == [one["tokens"] for one in early] and exact == [one["exact"] for one in early]
    assert 32 in {one["tokens"] for one in early} and len(set(tokens)) > 1


def test_the_rule_is_where_looking_again_gains():
    """Unsure first looks are wrong and mended, sure ones right and left alone."""
    chance = random.Random(0)
    rows = []
    for i in range(400):
        unsure = chance.random() < 0.5
        sure = chance.uniform(0.2, 0.39) if unsure else chance.uniform(0.81, 0.99)
        logp = float(torch.tensor(sure).log())
        rows.append(row(i, (logp, -0.01), ("b" if unsure else "a", "a")))
    table, below = tables.again_table("3 x 273 concat", rows, BELIEVED)
    assert below == 0.4
    lines = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in table.splitlines()[2:]}
    assert set(lines) == {"0.2 to 0.4", "0.8 to 0.9", "0.9 to 0.95", "0.95 to 1"}
    assert lines["0.2 to 0.4"][2:4] == ["0.0 [0.0, 0.0]", "100.0 [100.0, 100.0]"]
    assert lines["0.2 to 0.4"][4].startswith("+100.0") and lines["0.8 to 0.9"][4].startswith("+0.0")
    _, never = tables.again_table("3 x 273 concat", [one | {"looks": one["looks"][:1] * 2} for one in rows], BELIEVED)
    assert never == 0.0
    exact, tokens = tables.stopped(rows, below, BELIEVED, False)
    unsure = sum(one["looks"][0]["said"] == "b" for one in rows)
    assert exact == [1.0] * 400 and sum(tokens) == 273 * (400 + unsure)


def test_the_error_of_confidence_by_hand():
    chance = random.Random(1)
    sure = [chance.random() for _ in range(500)]
    rows = [{"logp": float(torch.tensor(p).double().log()), "exact": float(chance.random() < p**2)} for p in sure]
    expected = 0.0
    for k in range(15):
        own = [(p, one["exact"]) for p, one in zip(sure, rows, strict=True) if k / 15 <= p < (k + 1) / 15]
        expected += abs(sum(p for p, _ in own) - sum(right for _, right in own)) / 500
    found = tables.error_of_confidence(rows, BELIEVED)
    assert found == pytest.approx(expected, abs=1e-6)
    fitted = fit_calibration([one["logp"] for one in rows], [one["exact"] for one in rows])
    assert tables.error_of_confidence(rows, fitted) < 0.5 * found


def filled(**sets) -> Kept:
    """Rows under plans: name=(settings, rows)."""
    kept = Kept(None)
    for settings, rows in sets.values():
        weights = settings.pop("weights", "w")
        kept.add(Plan(**({"family": "scenes"} | settings)), weights, rows)
    return kept


def test_the_report_by_hand():
    right_and_wrong = [row(i, said="a" if i % 4 else "b") for i in range(40)]
    kept = filled(
        main=({}, right_and_wrong),
        true=({"relevance": "true"}, [row(i) for i in range(40)]),
        few=({"method": "uniform"}, [row(i, said="b") for i in range(20)]),
        budget=({"budget": 64}, [row(i, said="b") for i in range(40)]),
        val=({"split": "val"}, [row(i, (-0.05,), "a" if i % 2 else "b") for i in range(40)]),
    )
    text = tables.report(kept)
    assert "| scenes test-iid | 40 | 75.0 [" in text and "| 100.0 [100.0, 100.0] | +25.0 [" in text
    budgets = text.partition("## Budgets")[2].partition("##")[0].splitlines()
    assert [line.split(" ")[1] for line in budgets if line[:3] in ("| 6", "| 2")] == ["64", "273"]
    allocators = text.partition("## Allocators")[2].partition("##")[0]
    assert "20 questions" in allocators  # those that both were asked
    assert allocators.index("foveated-pyramid") < allocators.index("uniform | 0.0")
    sheet = tables.Sheet(kept)
    # Half of the answers on val were right: how sure the report says it is goes down to that.
    assert sheet.find()["scenes", "test-iid"][0]["confidence"] == pytest.approx(0.5, abs=0.1)
    assert sheet.find() != {} and sheet.find(budget=100) == {}


def test_rows_of_older_weights_are_left_out():
    kept = filled(old=({"weights": "old"}, [row(i, said="b") for i in range(4)]), new=({}, [row(i) for i in range(6)]))
    (rows,) = tables.Sheet(kept).find().values()
    assert len(rows) == 6 and all(one["exact"] for one in rows)
