"""The benchmarks of training, tried on tiny recipes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import ablation_variants as variants
from bench import ablations
from bench import train as bench
from homunculus.model.rotary import POSITIONS
from homunculus.model.vlm import CompactVLM, look
from homunculus.model.weights import load_model, save_weights
from homunculus.train.check import same_letters
from homunculus.train.journal import read_journal
from homunculus.train.score import predicted

STAGES = {"pretrain", "score", "read", "aware", "joint", "whole"}


def test_every_stage_is_timed(capsys):
    bench.main(["--preset", "tiny", "--steps", "2", "--capacity", "2"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    timed = {line[0]: float(line[2]) for line in lines if line and line[0] in STAGES}
    assert set(timed) == STAGES and all(rate > 0 for rate in timed.values())


@pytest.fixture(scope="module")
def tried(tmp_path_factory) -> Path:
    """All parts, tiny."""
    out = tmp_path_factory.mktemp("ablations")
    ablations.main(["--preset", "tiny", "--out", str(out)])
    return out


def rows_in(out: Path) -> list[dict]:
    return json.loads((out / "ablations.json").read_text())


def test_every_variant_is_tried(tried):
    rows, own = rows_in(tried), variants.variants(variants.on_cpu())
    assert [row["variant"] for row in rows] == list(own)
    assert tuple(dict.fromkeys(row["part"] for row in rows)) == variants.PARTS
    for row in rows:
        shares = [value for name, value in row.items() if ":" in name]
        assert shares and all(-1 <= share <= 1 for share in shares)
        assert (row["seconds"] > 0) == (row["steps"] > 0) == bool(own[row["variant"]].stages)
    table = (tried / "ablations.md").read_text()
    assert all(f"| {name} | " in table for name in (*variants.PARTS, *own))
    assert table.count("| letters, Muon | 6 |") == 1


def test_one_that_is_there_is_not_trained_again(tried, tmp_path, monkeypatch):
    rows = [row for row in rows_in(tried) if row["variant"] not in ("no lesson", "coverage 0.1")]
    (tmp_path / "ablations.json").write_text(json.dumps(rows))
    again = []
    monkeypatch.setattr(ablations, "train", lambda variant, *_: again.append(variant) or {"seconds": 1.0})
    monkeypatch.setattr(ablations, "to_markdown", lambda rows: "")
    monkeypatch.setattr(ablations, "last_loss", lambda *_: 1.0)
    ablations.main(["--preset", "tiny", "--out", str(tmp_path)])
    assert [variant.part for variant in again] == ["reader", "coverage"]


def test_parts_can_be_chosen(tmp_path, capsys):
    ablations.main(["--preset", "tiny", "--out", str(tmp_path), "--only", "gap,positions"])
    assert {row["part"] for row in rows_in(tmp_path)} == {"gap", "positions"}
    with pytest.raises(SystemExit):
        ablations.main(["--only", "colours"])
    assert "no part 'colours': choose from reader" in capsys.readouterr().err


def test_out_of_time_it_goes_on_with_the_same_result(tried, tmp_path):
    """Stopped within and between variants, of which each call does a step or so, the same rows come out as at once."""
    call = ["--preset", "tiny", "--out", str(tmp_path), "--only", "gap", "--minutes", "0.001"]
    done = []
    while len(done) < 9 and (not done or done[-1] < 3):
        ablations.main(call)
        done.append(len(rows_in(tmp_path)))
    assert done == [1, 1, 1, 2, 2, 2, 3]  # one needs no step and two need three, of which each call does one
    whole = {row["variant"]: row for row in rows_in(tried)}
    for row in rows_in(tmp_path):
        assert {**row, "seconds": 0} == {**whole[row["variant"]], "seconds": 0}
        folder = row["variant"].replace(" ", "-")
        if row["steps"]:
            losses = [
                [line["loss"] for line in read_journal(out / folder / "joint.jsonl")] for out in (tried, tmp_path)
            ]
            assert losses[0] == losses[1]


def test_variants_differ_in_what_they_say():
    own = variants.variants(variants.on_gpu())
    assert [own[name].positions for name in POSITIONS] == list(POSITIONS)
    assert [own[name].stages for name in POSITIONS] == [own["letters"].stages] * len(POSITIONS)
    joint = {name: one.stages[0].options for name, one in own.items() if one.goes_on and one.stages}
    assert [joint[f"coverage {weight:g}"]["coverage"] for weight in (0, 0.01, 0.1, 1)] == [0, 0.01, 0.1, 1]
    assert {name: (how["frozen"], how.get("sight")) for name, how in joint.items() if "sight" in name} == {
        "soft sight": ("nothing", "soft"),
        "hard sight": ("nothing", "hard"),
    }


def test_what_goes_on_begins_with_weights_and_the_rest_with_nothing(tmp_path):
    scale = variants.on_cpu()
    torch.manual_seed(7)
    save_weights(CompactVLM(scale.recipe.config), tmp_path, dtype=torch.float32)
    scale, device = replace(scale, weights=tmp_path), torch.device("cpu")
    own = variants.variants(scale)
    saved = load_model(tmp_path).state_dict()
    for name in ("coverage 0.1", "soft sight", "model as it was"):
        assert all(torch.equal(v, saved[k]) for k, v in ablations.begun(own[name], scale, device).state_dict().items())
    plain, polar = (ablations.begun(own[name], scale, device).state_dict() for name in ("letters", "log-polar"))
    assert all(torch.equal(value, polar[name]) for name, value in plain.items())
    assert not all(torch.equal(value, saved[name]) for name, value in plain.items())


def test_asked_hard_is_how_the_model_answers_and_soft_is_another_question():
    """A warm tree fades what a cold one shows; by region and by family the same answers are counted."""
    scale = variants.on_cpu()
    questions = variants.Questions(replace(scale, images=3), "cpu", each=4)
    assert len(questions.regions) == len(questions.families) == len(questions.samples.question) == 12
    assert set(questions.regions) <= set(variants.REGIONS)
    torch.manual_seed(0)
    model = CompactVLM(scale.recipe.config)
    with torch.no_grad():
        hard = questions.right(model).tolist()
        density = predicted(model, questions.samples)
        tokens = look(questions.samples.images, density, scale.asked)
        letters = model.read(tokens, questions.samples.question, questions.samples.answer.shape[1]).letters
        assert hard == same_letters(letters, questions.samples.answer).tolist()
        questions.samples = replace(questions.samples, answer=letters)  # what it answers is right
        found = questions.soft_and_hard(model)
    assert found["all: hard"] == found["scenes: hard"] == 1.0
    assert found["all: lost"] == found["all: soft"] - found["all: hard"] <= 0
