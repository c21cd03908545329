"""The evaluation of answers: what each measure says against hand-made cases, the order of questions, going on."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homunculus.data import make
from homunculus.data.dice import Dice
from homunculus.data.documents.words import DATE_SHAPES, Words
from homunculus.errors import HomunculusError
from homunculus.eval import drawing
from homunculus.eval.answers import Chunk, OncePerImage, answered, exactly
from homunculus.eval.answers_table import HEADER, answer_type, summarise, to_cells, to_markdown
from homunculus.eval.drawing import EACH, to_ask
from homunculus.eval.grounding import grounding
from homunculus.eval.metrics import anls
from homunculus.eval.plans import Plan, weights_key
from homunculus.eval.rows import FACTS, Kept
from homunculus.eval.running import evaluate
from homunculus.model.answer import answer
from homunculus.model.calibration import Calibration
from homunculus.model.config import tiny
from homunculus.model.looking import LearnedRelevance
from homunculus.model.vlm import CompactVLM

QUICK = {"size": (256, 256), "budget": 32, "longest": 4, "workers": 0}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return CompactVLM(tiny()).eval().requires_grad_(False)


def test_rows_are_the_answers_one_by_one(model):
    rows = evaluate(model, "scenes", "val", questions=6, **QUICK)
    asked = [(index, place) for index in (0, 1) for place in range(EACH)][:6]
    assert [row["key"] for row in rows] == [f"scenes/val/{index}#{place}" for index, place in asked]
    for row, (index, place) in zip(rows, asked, strict=True):
        record = make("scenes", "val", index, size=(256, 256))
        question = record.questions[place]
        said = answer(model, record.image, question.text, budget=32, longest=4)
        assert (row["question"], row["kind"], row["region"]) == (question.text, question.kind, question.region)
        assert row["answers"] == list(question.answers) and row["image"] == record.key
        assert row["said"] == said.text and row["confidence"] == pytest.approx(said.confidence, rel=2e-3)
        assert row["anls"] == anls(said.text, question.answers) and row["tokens"] == 32
        found = grounding(said.density, question.boxes, (256, 256))
        for name, value in found.items():
            assert row[name] == (value if value is None else pytest.approx(value, rel=2e-3, abs=1e-4))
        json.dumps(row)


def test_a_stopped_run_goes_on(model, tmp_path, monkeypatch):
    file, ticks = tmp_path / "rows.jsonl", []
    whole = evaluate(model, "scenes", questions=9, **QUICK)
    evaluate(model, "scenes", questions=6, file=file, **QUICK)  # stops in the middle of an image
    with file.open("a") as out:
        out.write('{"key": "half a li')  # killed while writing
    drawn = []
    draw = drawing._draw
    monkeypatch.setattr(drawing, "_draw", lambda own, index, cut: drawn.append(index) or draw(own, index, cut))
    again = evaluate(model, "scenes", questions=9, file=file, tick=ticks.append, **QUICK)
    assert [row["key"] for row in again] == [row["key"] for row in whole]
    assert [row["said"] for row in again] == [row["said"] for row in whole]
    assert drawn == [1, 2] and sum(ticks) == 9
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    spent = [line for line in lines if "spent" in line]  # how long, for each time that something was asked
    assert sum(line["questions"] for line in spent) == 9 and len(spent) == 2
    assert len(lines) - 2 == 1 + 2 * 9  # what was asked, and of every question what it is and what was said
    assert all(not set(line) & set(FACTS) for line in lines[1:] if "mark" in line)
    drawn.clear()
    assert evaluate(model, "scenes", questions=9, file=file, **QUICK) == again
    assert not drawn


def test_rows_of_other_settings_and_weights_do_not_count(model, tmp_path):
    file = tmp_path / "rows.jsonl"
    evaluate(model, "scenes", questions=2, file=file, **QUICK)
    evaluate(model, "scenes", questions=2, file=file, relevance="uniform", **QUICK)
    other = CompactVLM(tiny())
    evaluate(other, "scenes", questions=2, file=file, **QUICK)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sum({"mark", "key"} <= set(line) for line in lines) == 6
    assert len({line["mark"] for line in lines if "mark" in line}) == 3
    evaluate(model, "scenes", questions=2, file=file, relevance="uniform", **QUICK)
    assert len(file.read_text().splitlines()) == len(lines)


def test_a_file_says_what_its_rows_are(model, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = evaluate(model, "scenes", questions=2, file=file, relevance="uniform", **QUICK)
    kept = Kept(file)
    (about,) = kept.settings.values()
    assert list(kept.rows[about["mark"]].values()) == rows and about["weights"] == weights_key(model)
    assert (about["family"], about["relevance"], about["size"]) == ("scenes", "uniform", [256, 256])
    assert about["how"] == {"longest": 4} and about["dtype"] == "float32"


def test_marks_know_all_that_answers_depend_on(model):
    plan = Plan("scenes")
    others = [replace(plan, **change) for change in ({"budget": 64}, {"how": {"looks": 2}}, {"dtype": "bfloat16"})]
    marks = {one.mark("weights") for one in (plan, *others)} | {plan.mark("other weights")}
    assert len(marks) == 5 and plan.mark("") == replace(plan, questions=7).mark("")
    other = copy.deepcopy(model)
    assert weights_key(other) == weights_key(model)
    other.calibration = Calibration(0.5)  # says when looking again ends
    assert weights_key(other) != weights_key(model)


def test_an_image_is_scored_once_for_all_its_questions(model, monkeypatch):
    seen = []
    features = type(model.scorer).features
    monkeypatch.setattr(
        type(model.scorer), "features", lambda self, images: seen.append(len(images)) or features(self, images)
    )
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(3, 3, 64, 96, generator=generator)[[0, 0, 1, 2, 2]]
    asked = ["Who?", "What is the total?", "Who?", "When?", "Where is it?"]
    shared = OncePerImage(model, ["a", "a", "c", "b", "b"])
    assert torch.allclose(shared(images, asked), LearnedRelevance(model)(images, asked), rtol=1e-5, atol=0)
    drafted = shared(images, [f"{text} yes" for text in asked])
    assert torch.allclose(
        drafted, LearnedRelevance(model)(images, [f"{text} yes" for text in asked]), rtol=1e-5, atol=0
    )
    assert seen == [3, 5, 5]


def test_bfloat16_answers_nearly_the_same(model):
    plan = Plan("scenes", size=(256, 256), budget=64, how={"longest": 4})
    chunk = Chunk(model, to_ask(plan.keys(0, EACH), drawing._draw(plan.pictures, 0, False)), plan.size)
    plans = [replace(plan, dtype=dtype) for dtype in ("float32", "bfloat16")]
    exact, rounded = (answered(model, one, chunk, range(EACH)) for one in plans)
    for a, b in zip(exact, rounded, strict=True):
        assert a["key"] == b["key"] and a["logp"] != b["logp"] and a["logp"] == pytest.approx(b["logp"], rel=0.05)
        assert a["mass"] == pytest.approx(b["mass"], rel=0.1)


def test_the_true_region_is_looked_at(model):
    rows = evaluate(model, "scene-text", questions=4, relevance="true", **QUICK)
    assert all(row["hit"] == 1 and row["mass"] == pytest.approx(1) for row in rows)
    assert all(row["r2"] == pytest.approx(1) for row in rows)


def test_workers_draw_the_same(model):
    here = evaluate(model, "scenes", questions=5, **QUICK)
    there = evaluate(model, "scenes", questions=5, **(QUICK | {"workers": 2}))
    assert here == there


def test_other_ways_to_look(model):
    rows = evaluate(model, "scenes", questions=2, looks=2, threshold=None, **QUICK)
    assert [row["tokens"] for row in rows] == [64, 64] and all(len(row["looks"]) == 2 for row in rows)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"family": "pages"}, "no family"),
        ({"split": "dev"}, "no split"),
        ({"questions": 1}, "at least 2"),
        ({"budget": 0}, "budget"),
        ({"method": "top"}, "unknown allocator"),
        ({"method": "peers/tom"}, "unknown peer 'tom': did you mean 'tome'"),
        ({"relevance": "clever"}, "no relevance 'clever'"),
        ({"dtype": "float16"}, "float32 or bfloat16"),
    ],
)
def test_plans_that_are_none(wrong, words):
    with pytest.raises(HomunculusError, match=words):
        Plan(**({"family": "scenes"} | wrong))


# -------------------------------------------------------------------------------------------------------- measures


@given(st.text(st.sampled_from("abAB 1-."), max_size=6), st.text(st.sampled_from("abAB 1-."), max_size=6))
def test_exact_forgives_case_and_outer_spaces_only(said, true):
    assert exactly(said, [true]) == float(said.casefold().strip(" ") == true.casefold().strip(" "))


def test_grounding_by_hand():
    """A 4 x 4 grid of 16 pixels and a box in leaf (1, 1) that leaves a pixel at its left and top."""
    density = torch.zeros(4, 4, dtype=torch.float64)
    density[0, 0], density[3, 3] = 3.0, 1.0
    found = grounding(density, [(17, 17, 32, 32)], (64, 64))
    assert found["hit"] == 0 and found["mass"] == pytest.approx(0.75 * (15 / 16) ** 2)
    true = np.zeros(16)
    true[5] = (15 / 16) ** 2
    assert found["r2"] == pytest.approx(np.corrcoef(density.numpy().ravel(), true)[0, 1] ** 2)
    for box in ((16, 16, 32, 32), (-9, -9, 1, 1)):  # half a leaf from (8, 8)
        assert grounding(density, [(40, 40, 50, 50), box], (64, 64))["hit"] == 1
    assert grounding(density, [(0, 0, 64, 64)], (64, 64)) == {"hit": 1.0, "mass": 1.0, "r2": None}


def test_types_of_answers_are_those_of_the_generator():
    words, dice = Words("train"), Dice("types")
    for _ in range(200):
        assert {answer_type(words.date(dice, shape)) for shape in range(DATE_SHAPES)} == {"date"}
        assert answer_type(words.amount(dice, dice.choice(("EUR", "$", "£", "")))) == "amount"
        assert answer_type(words.phone(dice)) == answer_type(words.iban(dice)) == "code"
        for text in (words.person(dice), words.town(dice), words.street(dice), words.company(dice), words.job(dice)):
            assert answer_type(text) == "words"
        assert answer_type(words.percentage(dice)) == answer_type(words.quantity(dice)) == "number"
    codes = [answer_type(words.code(dice)) for _ in range(2000)]
    assert codes.count("code") > 0.98 * len(codes)  # a few of the patterns may come out without a digit


def row(image: int, kind: str, right: float, **more) -> dict:
    measures = {"exact": right, "anls": right, "vqa": right, "confidence": 0.5, "hit": 1.0, "mass": 0.5, "r2": None}
    return (
        {"image": f"documents/val/{image}", "kind": kind, "region": "target", "answers": ["A-1234"]} | measures | more
    )


def test_the_summary_by_hand():
    rows = [row(i, "key", float(i % 2)) for i in range(10)]
    rows += [row(i, "place", 1.0, answers=["Ada"], region="periphery") for i in range(4)]
    lines = {(line.group, line.name): line for line in summarise(rows)}
    assert next(iter(lines)) == ("all", "") and lines["all", ""].questions == 14 and lines["all", ""].images == 10
    assert lines["all", ""].means["exact"].mean == pytest.approx(9 / 14)
    assert lines["kind", "key"].means["exact"].mean == 0.5 and lines["region", "periphery"].questions == 4
    assert lines["answer", "code"].questions == lines["by key", "values"].questions == 10
    assert lines["answer", "words"].means["exact"].mean == 1 and lines["kind", "place"].means["r2"] is None
    low, high = lines["kind", "key"].means["exact"][1:]
    assert 0.1 < low < 0.5 < high < 0.9
    table = to_markdown(list(lines.values())).splitlines()
    assert len(table) == 2 + len(lines) and all(line.count("|") == len(HEADER) + 1 for line in table)
    assert to_cells(lines["kind", "key"])[2].startswith("50.0 [")
