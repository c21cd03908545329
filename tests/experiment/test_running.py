"""Plans to rows: what is shared between methods changes nothing, several processes ask what one asks, and the rows of a
file are what was said."""

import copy
import gzip
import json
import lzma
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from homunculus.allocation import coverage
from homunculus.data import make
from homunculus.errors import DataError, OutputError, RelevanceError
from homunculus.eval import answers, running
from homunculus.eval.answers import Chunk, answered
from homunculus.eval.drawing import EACH, Ahead, Drawn
from homunculus.eval.plans import Plan, method_names, weights_key
from homunculus.eval.relevances import KEPT_CELLS, told_region
from homunculus.eval.rows import Kept, own_file
from homunculus.eval.running import chunk_size, evaluate, in_order, lots_of, own_memory, run, together
from homunculus.eval.suites import TURNS, Scope, plans_of
from homunculus.eval.summary import time_taken
from homunculus.eval.surroundings import sharing
from homunculus.model.answer import answer
from homunculus.model.looking import LearnedRelevance
from homunculus.model.vlm import look
from homunculus.peers import compact
from homunculus.peers.compact import every_leaf
from tests.experiment.conftest import SMALL


def test_a_density_that_is_shared_is_that_of_the_model(model, asked):
    chunk = Chunk(model, asked, (256, 256))
    shared = chunk.density(Plan("scenes", **SMALL))
    alone = torch.cat([LearnedRelevance(model)(one.image[None], [one.question.text]) for one in asked])
    assert torch.allclose(shared, alone.double() / alone.double().sum((1, 2), keepdim=True), rtol=1e-4)


@pytest.mark.parametrize(
    ("methods", "asks"),
    [
        (("topk", "peers/divprune"), set()),
        (("peers/visionzip", "peers/tome"), {"late"}),
        (("peers/visionzip", "peers/hired"), {"late", "early"}),
    ],
)
def test_a_run_pays_for_the_attention_that_its_methods_ask_for(model, monkeypatch, methods, asks):
    blocks, received = [], compact.received
    monkeypatch.setattr(compact, "received", lambda block, *rest: blocks.append(block) or received(block, *rest))
    plans = [Plan("scenes", questions=2, method=method, budget=24, **SMALL) for method in methods]
    assert run(model, plans, Kept(None))
    ends = {"late": model.encoder.blocks[-1], "early": model.encoder.blocks[0]}
    assert set(blocks) == {ends[when] for when in asks}


def test_the_first_turn_keeps_its_allocation(model, asked):
    chunk = Chunk(model, asked, (256, 256))
    kept, own = (chunk.density(Plan("scenes", relevance=words, **SMALL)) for words in ("first-turn", "predicted"))
    for i in range(len(asked)):
        assert kept[i].equal(kept[i - i % EACH])
    assert kept[0].allclose(own[0], rtol=1e-6) and not kept[1].allclose(own[1], rtol=1e-3)


@pytest.mark.parametrize("method", [*TURNS, "atlas", "whole"])
def test_cells_that_are_kept_are_told_anew(model, asked, method):
    """The first question of an image is asked as ever; others on its cells, which for a method that is deaf to
    relevance are their own."""
    plan = Plan("scenes", method=method, budget=None if method == "whole" else 64, **SMALL)
    chunk = Chunk(model, asked, plan.size)
    usual, kept, stale = (
        answered(model, replace(plan, relevance=words), chunk, range(8))
        for words in ("predicted", KEPT_CELLS, "first-turn")
    )
    deaf = method in ("uniform", "whole")
    for i, (one, other) in enumerate(zip(usual, kept, strict=True)):
        assert all(one[name] == other[name] for name in ("key", "hit", "mass", "tokens"))
        if i % EACH == 0 or deaf:
            assert (one["said"], one["logp"]) == (other["said"], pytest.approx(other["logp"], rel=1e-3))
            assert other["cell"] == one["cell"]
    said = [[row["logp"] for row in rows] for rows in (usual, kept, stale)]
    assert said[1] != said[2] and (said[0] != said[1] or method != "topk")  # a flat density gives trees alike


def test_what_keeps_no_cells_is_refused():
    for how in ({"method": "peers/tome"}, {"method": "token-bank"}, {"method": "frequency"}, {"how": {"looks": 3}}):
        with pytest.raises(DataError, match="keeps upright cells of one look"):
            Plan("scenes", relevance=KEPT_CELLS, **how)
    with pytest.raises(RelevanceError, match="leave it alone"):
        Plan("scenes", relevance=f"0.5 {KEPT_CELLS} + 0.5 detail")


def test_a_mixture_is_the_sum_of_its_parts(model, asked):
    chunk = Chunk(model, asked, (256, 256))
    words = "0.75 true + 0.25 detail"
    mixed, true, detail = (chunk.density(Plan("scenes", relevance=own, **SMALL)) for own in (words, "true", "detail"))
    assert torch.allclose(mixed, 0.75 * true + 0.25 * detail, atol=1e-12)


def test_segments_are_those_that_the_allocator_finds(model, asked):
    plan = Plan("scenes", method="atlas", budget=64, **SMALL)
    rows = answered(model, plan, Chunk(model, asked, plan.size), [0, 4])
    for row, place in zip(rows, [0, 4], strict=True):
        one = asked[place]
        said = answer(model, one.image, one.question.text, budget=64, allocator="atlas", longest=4)
        assert row["said"] == said.text and row["logp"] == pytest.approx(said.look.logp, rel=1e-3)


def test_a_bank_pays_for_all_together(model, asked):
    plan = Plan("scenes", method="token-bank", budget=40, relevance="0.9 true + 0.1 detail", **SMALL)
    rows = answered(model, plan, Chunk(model, asked, plan.size), range(8))
    tokens = [row["tokens"] for row in rows]
    assert sum(tokens) == 8 * 40 and len(set(tokens)) > 1


def test_several_banks_are_read_at_once(model, asked):
    """Each group of images has a budget of its own, whoever is read beside it."""
    plan = Plan("scenes", method="token-bank", budget=40, relevance="0.9 true + 0.1 detail", **SMALL)
    chunk = Chunk(model, asked, plan.size)
    apart = answered(model, plan, chunk, range(8)) + answered(model, plan, chunk, range(8, 12))
    both = answered(model, plan, chunk, range(12))
    for one, other in zip(apart, both, strict=True):
        assert (one["key"], one["tokens"], one["said"]) == (other["key"], other["tokens"], other["said"])
        assert one["logp"] == pytest.approx(other["logp"], rel=1e-3)
    lots = lots_of(plan, chunk, [1, 9])
    assert lots == [list(range(8)), list(range(8, 12))] and lots_of(plan, chunk, [2]) == lots[:1]
    assert lots_of(Plan("scenes", **SMALL), chunk, [1, 9]) == [[1], [9]]


def test_what_does_not_fit_is_asked_in_halves(model, monkeypatch):
    plans = [Plan("scenes", questions=32, budget=32, method=name, **SMALL) for name in ("topk", "token-bank")]
    fitting = Kept(None)
    run(model, plans, fitting)
    tried = []

    def small(model, plan, chunk, places):
        tried.append((plan.method, len(places)))
        if (len(places) > 3 and plan.method == "topk") or len(places) > 8:
            raise torch.OutOfMemoryError
        return answered(model, plan, chunk, places)

    monkeypatch.setattr(running, "answered", small)
    monkeypatch.setattr(running, "together", lambda plan, device: 16)
    kept = Kept(None)
    run(model, plans, kept)
    assert ("topk", 2) in tried and ("token-bank", 8) in tried
    assert tried.count(("topk", 16)) == tried.count(("token-bank", 16)) == 1  # the next chunk knows
    for plan in plans:
        one, other = (found.rows[plan.mark(weights_key(model))] for found in (fitting, kept))
        assert {key: row["said"] for key, row in one.items()} == {key: row["said"] for key, row in other.items()}
    monkeypatch.setattr(running, "answered", lambda *_: small(*_[:3], range(99)))
    with pytest.raises(torch.OutOfMemoryError):  # one alone is too much
        run(model, plans, Kept(None))


def test_the_time_of_answers_is_kept(model, tmp_path):
    plans = [Plan("scenes", questions=8, budget=32, method=name, **SMALL) for name in ("topk", "uniform")]
    file = tmp_path / "rows.jsonl"
    run(model, plans[:1], Kept(file))
    run(model, plans, Kept(file))  # what is there takes no more time
    kept, weights = Kept(file), weights_key(model)
    assert [(line["spent"], line["questions"]) for line in kept.spent] == [(plan.mark(weights), 8) for plan in plans]
    assert all(line["seconds"] > 0 and line["torch"] == torch.__version__ for line in kept.spent)
    assert time_taken(kept, plans, weights).startswith("16 answers took")
    assert time_taken(kept, plans[1:], weights).startswith("8 answers took")
    assert time_taken(kept, plans, "others") == "no answer was timed"


def test_every_method_answers(model):
    """The tiny suite on a tiny model: every allocator, every peer, in one run."""
    plans = plans_of(["tiny"], replace(Scope(), dtype="bfloat16"))
    model = copy.deepcopy(model).requires_grad_(True)  # as the command has it: autocast keeps copies of such weights
    kept = Kept(None)
    assert run(model, plans, kept)
    methods = {about["method"] for about in kept.settings.values()}
    assert methods == set(method_names())
    for plan in plans:
        rows = kept.rows[plan.mark(weights_key(model))]
        assert len(rows) >= plan.questions
        for row in rows.values():
            assert row["exact"] in (0.0, 1.0) and row["tokens"] > 0
            assert plan.peer is not None or plan.method == "token-bank" or row["tokens"] == plan.cells[1]
            json.dumps(row, allow_nan=False)


def test_processes_ask_what_one_asks(model, tmp_path):
    plans = [Plan("scenes", questions=24, budget=32, **SMALL), Plan("scenes", questions=8, method="topk", **SMALL)]
    plans[1] = replace(plans[1], budget=32)
    alone = Kept(None)
    run(model, plans, alone)
    file = tmp_path / "rows.jsonl"
    for process in (1, 0):
        assert run(model, plans, Kept(file, process), part=(process, 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.1.jsonl", "rows.jsonl"]
    both = Kept(file)
    for plan in plans:
        mark = plan.mark(weights_key(model))
        one, other = in_order(alone.rows[mark].values()), in_order(both.rows[mark].values())
        assert [row["key"] for row in one] == [row["key"] for row in other]
        assert [row["said"] for row in one] == [row["said"] for row in other]


def test_images_are_drawn_ahead_and_once():
    begun = []

    def draw(pictures, index, segmented):
        begun.append((index, segmented))
        return lambda: Drawn(np.full((1, 1, 3), index, np.uint8), ())

    def which(index):
        return int(drawn(pictures, index).image[0, 0, 0])

    pictures = ("scenes", "val", (256, 256))
    drawn = Ahead(draw, [(pictures, i) for i in (0, 1, 3, 4)], ahead=2, segmented=True)
    assert which(0) == 0 and [index for index, _ in begun] == [0, 1, 3]
    assert which(1) == 1 and which(3) == 3 and [index for index, _ in begun] == [0, 1, 3, 4]
    assert which(2) == 2 and which(4) == 4  # one that nobody expected
    assert sorted(index for index, _ in begun) == [0, 1, 2, 3, 4] and all(cut for _, cut in begun)


def test_chunks_are_whole_images():
    for size in ((256, 256), (1024, 1024), (4096, 4096)):
        assert chunk_size(size, torch.device("cpu")) % EACH == 0
    assert chunk_size((4096, 4096), torch.device("cpu")) == EACH


@pytest.mark.parametrize(("gibibytes", "questions"), [(140, 512), (24, 192), (0.2, EACH)])
def test_a_device_holds_what_it_has_room_for(monkeypatch, gibibytes, questions):
    memory = SimpleNamespace(total_memory=int(gibibytes * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    assert chunk_size((1024, 1024), torch.device("cuda")) == questions


@pytest.mark.parametrize(("processes", "gpus", "each"), [(3, 1, 3), (8, 8, 1), (3, 2, 2)])
def test_processes_that_share_a_device_share_its_memory(monkeypatch, processes, gpus, each):
    device, whole = torch.device("cuda"), 24 * 2**30
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=whole))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    alone = together(Plan("scenes"), device), chunk_size((1024, 1024), device)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert own_memory(device) == whole // each and sharing(torch.device("cpu")) == processes
    shared = together(Plan("scenes"), device), chunk_size((1024, 1024), device)
    assert all(small in (whole // each, whole // each - 1) for whole, small in zip(alone, shared, strict=True))


@pytest.mark.parametrize("packing", [gzip, lzma])
def test_rows_that_are_packed_are_read_but_not_added_to(model, tmp_path, packing):
    plain = tmp_path / "rows.jsonl"
    rows = evaluate(model, "scenes", questions=4, budget=32, size=(256, 256), longest=4, workers=0, file=plain)
    packed = tmp_path / ("kept.jsonl.gz" if packing is gzip else "kept.jsonl.xz")
    packed.write_bytes(packing.compress(plain.read_bytes()))
    kept = Kept(packed, process=None)
    (mark,) = kept.settings
    assert in_order(kept.rows[mark].values()) == rows
    with pytest.raises(OutputError, match="packed and cannot be added to"):
        Kept(packed)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(OutputError, match="cannot go on from"):
        Kept(packed, process=None)


def test_images_of_two_sizes_are_two_images(model, tmp_path):
    """Questions of the same number about images of another size are other questions."""
    file = tmp_path / "rows.jsonl"
    plans = [Plan("scenes", questions=8, budget=32, size=(side, side), how={"longest": 2}) for side in (256, 320)]
    for plan in plans:
        run(model, [plan], Kept(file))
    kept = Kept(file)
    for plan in plans:
        for row in kept.rows[plan.mark(weights_key(model))].values():
            record = make("scenes", "test-iid", int(row["image"].rpartition("/")[2]), size=plan.size)
            question = record.questions[int(row["key"].rpartition("#")[2])]
            assert row["question"] == question.text and row["answers"] == list(question.answers)
            assert row["boxes"] == [list(box) for box in question.boxes] and row["size"] == list(plan.size)


def test_what_another_process_asked_first_is_known(model, tmp_path):
    """Facts may be in a file that comes after the one with the answers."""
    file = tmp_path / "rows.jsonl"
    first, second = (Plan("scenes", questions=8, method=name, budget=32, **SMALL) for name in ("topk", "uniform"))
    for process in (1, 0):
        run(model, [first], Kept(file, process), part=(process, 2))
    run(model, [second], Kept(file))
    rows = Kept(file).rows[second.mark(weights_key(model))].values()
    assert len(rows) == 8 and all(row["question"] and row["image"] for row in rows)


def test_who_only_reads_changes_nothing(tmp_path):
    """A line that is being written is left out, not cut off; only who goes on with a file mends it."""
    file, other = tmp_path / "rows.jsonl", tmp_path / "rows.1.jsonl"
    for one in (file, other):
        one.write_text('{"weights":"w","tuned":null}\n{"weights":"v","tu')
    Kept(file, process=None)
    assert file.read_text().endswith('"tu') and other.read_text().endswith('"tu')
    Kept(file)
    assert file.read_text().endswith("}\n") and other.read_text().endswith('"tu')


def test_what_the_file_knows_beside_answers(tmp_path):
    file = tmp_path / "rows.jsonl"
    kept = Kept(file)
    kept.add_model("w", {"tuned": {"method": "topk", "samples": 9}})
    kept.add_model("w", {"tuned": {"method": "topk", "samples": 9}})
    kept.add_cost({"cost": {"method": "topk"}, "per_second": 3.0, "batches": 2, "batch": 8, "device": "Some GPU"})
    again = Kept(file)
    assert again.models == kept.models == {"w": {"weights": "w", "tuned": {"method": "topk", "samples": 9}}}
    assert again.costs == kept.costs and len(file.read_text().splitlines()) == 2


def test_what_has_several_names_is_asked_once(model, tmp_path):
    """hit-100 and moved-0 are the true region: one mark, one plan of a suite, one row for each question."""
    plans = [Plan("scenes", questions=4, budget=32, relevance=own, **SMALL) for own in ("hit-100", "true", "moved-0")]
    assert len({plan.mark("") for plan in plans}) == 1 and {plan.relevance for plan in plans} == {"true"}
    assert replace(plans[0], relevance="hit-90").mark("") != plans[0].mark("")
    file = tmp_path / "rows.jsonl"
    for plan in plans:
        run(model, [plan], Kept(file))
    assert len(Kept(file).settings) == 1 and file.read_text().count('"said"') == 4
    boxes, size = [(10.0, 20.0, 60.5, 33.0)], (256, 256)
    truth = told_region("true", "scenes/val/0#0", boxes, size)
    assert all(told_region(own, "scenes/val/0#0", boxes, size).equal(truth) for own in ("hit-100", "moved-0"))


def test_coverage_is_measured_for_the_first(model, asked, monkeypatch):
    monkeypatch.setattr(answers, "COVERED", 2)
    plan = Plan("scenes", method="topk", budget=64, **SMALL)
    rows = answered(model, plan, Chunk(model, asked, plan.size), range(4))
    assert [row.get("covered") for row in rows] == [0.25, 0.25, None, None]


def test_what_does_not_listen_shows_the_same(model, asked):
    """A density that hears nothing gives every question of an image the same cells; the true regions do not."""
    chunk = Chunk(model, asked, (256, 256))
    deaf, told = (
        answered(model, Plan("scenes", relevance=words, budget=64, **SMALL), chunk, range(8))
        for words in ("detail", "true")
    )
    assert [row["overlap"] for row in deaf] == [None, 1.0, 1.0, 1.0] * 2
    assert told[0]["overlap"] is None and min(row["overlap"] for row in told[1:4]) < 1
    plan = Plan("scenes", relevance="true", budget=64, **SMALL)
    again = Chunk(model, asked, (256, 256))
    one_by_one = [answered(model, plan, again, [place])[0] for place in range(8)]
    assert [row["overlap"] for row in one_by_one] == [row["overlap"] for row in told]
    fresh = answered(model, plan, Chunk(model, asked, (256, 256)), [1])
    assert fresh[0]["overlap"] is None  # what the first question showed is not at hand


def test_who_shares_a_budget_does_not_depend_on_the_run(model):
    """At once, in two goes, or by two processes: a bank sees the same eight questions."""
    plan = Plan("scenes", questions=24, method="token-bank", budget=40, relevance="0.9 true + 0.1 detail", **SMALL)
    mark = plan.mark(weights_key(model))

    def tokens(kept):
        return [row["tokens"] for row in in_order(kept.rows[mark].values())]

    once, twice, parts = Kept(None), Kept(None), Kept(None)
    run(model, [plan], once)
    run(model, [replace(plan, questions=12)], twice)
    assert tokens(twice) == tokens(once)[:12]
    run(model, [plan], twice)
    for process in (0, 1):
        run(model, [plan], parts, part=(process, 2))
    assert tokens(once) == tokens(twice) == tokens(parts) and len(set(tokens(once))) > 1


def test_families_are_asked_in_turn(model):
    plans = [Plan(family, questions=32, budget=32, **SMALL) for family in ("scenes", "scene-text")]
    order = []
    run(model, plans, Kept(None), tick=lambda plan, questions: order.append(plan.family) if questions else None)
    assert order == ["scenes", "scene-text"] * 2


@pytest.mark.parametrize("size", [(256, 256), (1016, 1016), (1000, 1300), (300, 200)])
def test_whole_is_every_leaf(size):
    allocator, budget = Plan("scenes", method="whole", budget=None, size=size).cells
    images = torch.zeros(1, 3, size[1], size[0], dtype=torch.uint8)
    cells = look(images, torch.ones(1, 8, 8), budget, allocator).allocation
    assert cells.levels.abs().max() < 0.2 and cells.budget == every_leaf(images)[0].shape[1]
    assert coverage(cells).union.item() == pytest.approx(1)


def test_every_file_tells_of_its_own_answers(model, tmp_path):
    """Two processes ask the same ways, and whoever reads one file alone knows what was asked."""
    file = tmp_path / "rows.jsonl"
    plans = [Plan("scenes", questions=16, budget=32, method=name, **SMALL) for name in ("topk", "uniform")]
    for process in (0, 1):  # the second has read what the first wrote
        run(model, plans, Kept(file, process), part=(process, 2))
    alone = file.rename(tmp_path / "alone.jsonl"), own_file(file, 1).rename(tmp_path / "other.jsonl")
    first, second = (Kept(one, None) for one in alone)
    assert first.settings.keys() == second.settings.keys() and len(first.settings) == 2
    for kept in (first, second):
        assert all(row["question"] for rows in kept.rows.values() for row in rows.values())
    keys = [{key for rows in kept.rows.values() for key in rows} for kept in (first, second)]
    assert not keys[0] & keys[1]
