"""A reader of plain pictures: that it is shown nothing else, that it learns from them, and its benchmark, tiny."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench import proxy as bench
from homunculus import allocate
from homunculus.eval.proxy import WAYS, Shower, own_places, window_shape
from homunculus.model.config import tiny
from homunculus.model.encoder import Encoder
from homunculus.model.tokenizer import PAD
from homunculus.model.vlm import CompactVLM
from homunculus.train.curriculum import Phase, showing
from homunculus.train.journal import read_journal
from homunculus.train.letters import letter_targets
from homunculus.train.loop import Settings, fit
from homunculus.train.pool import Pool
from homunculus.train.pretrain import Pretraining
from homunculus.train.proxy import LETTERS, NATIVE, PAGES, PICTURES, RATIOS, GridReading, on_way, picture_boxes
from homunculus.train.recipe import Stage, stage_loss
from tests.devices import no_sync

SIZE, GRID = (128, 128), (8, 8)  # pixels and leaves of the small images


def model() -> CompactVLM:
    torch.manual_seed(0)
    return CompactVLM(tiny())


@pytest.fixture(scope="module")
def pool() -> Pool:
    """Four images that stay."""
    found = Pool({"scene-text": 1.0}, size=SIZE, capacity=4, renewed=0, readings=8)
    found.fill()
    return found


@pytest.fixture
def told(monkeypatch) -> list:
    """All that any encoder is told, call by call."""
    calls = []
    forward = Encoder.forward

    def spied(self, patches, cells):
        calls.append(cells)
        return forward(self, patches, cells)

    monkeypatch.setattr(Encoder, "forward", spied)
    return calls


def assert_plain(cells) -> None:
    """A whole grid at level 0, in leaves of its own, of which nothing else is told."""
    columns, rows = (int(cells.places[..., axis].max() + 0.5) for axis in (1, 2))
    assert torch.equal(cells.places, own_places((columns, rows), cells.places))
    assert cells.weights.isnan().all() and (cells.forms == 0).all()


# ---------------------------------------------------------------------------------------------------------------- boxes


@given(
    st.integers(0, 1000),
    st.sampled_from([(64, 64), (64, 48), (30, 50)]),
    st.sampled_from([(12, 12), (18, 8), (32, 32)]),
    st.booleans(),
)
def test_pictures_lie_in_the_page_and_hold_the_region(step, leaves, shape, middle):
    size = (leaves[0] * 16, leaves[1] * 16)
    generator = torch.Generator().manual_seed(step)
    corner = torch.rand(32, 1, 2, generator=generator) * torch.tensor(size) * 0.8
    region = torch.cat((corner, corner + torch.tensor([60.0, 25.0])), dim=-1)
    region = torch.nn.functional.pad(region, (0, 0, 0, 2))  # rows without a box count for nothing
    boxes = picture_boxes(region, size, leaves, shape, step, middle=middle)
    assert torch.equal(boxes, picture_boxes(region, size, leaves, shape, step, middle=middle))
    x0, y0, x1, y1 = boxes.unbind(1)
    assert (boxes >= 0).all() and (x1 <= leaves[0] + 1e-9).all() and (y1 <= leaves[1] + 1e-9).all()
    zoom = (x1 - x0) / shape[0]
    assert torch.allclose(zoom, (y1 - y0) / shape[1])  # nothing is squashed
    assert torch.equal(x0 * 16, (x0 * 16).round()) and torch.equal(y0 * 16, (y0 * 16).round())
    most = min(leaves[0] / shape[0], leaves[1] / shape[1])
    assert (zoom <= most + 1e-9).all()
    own = region[:, 0].double() / 16
    a_pixel = 1 / 16
    if most >= 1:
        assert (zoom >= 1 - 1e-9).all()
        assert (x0 <= own[:, 0]).all() and (x1 >= own[:, 2] - a_pixel).all()
        assert (y0 <= own[:, 1]).all() and (y1 >= own[:, 3] - a_pixel).all()
    if middle and most >= 1:
        assert torch.allclose(zoom, torch.ones_like(zoom))
        off = (x0 + x1 - own[:, 0] - own[:, 2]).abs() / 2
        assert ((off <= a_pixel) | (x0 == 0) | (x1 >= leaves[0] - a_pixel)).all()


def test_pictures_are_of_all_scales_and_the_region_anywhere_in_them():
    region = torch.tensor([500.0, 500, 520, 510]).expand(4000, 1, 4)
    x0, _, x1, _ = picture_boxes(region, (1024, 1024), (64, 64), (16, 16), 0).unbind(1)
    native, whole = (x1 - x0 == 16), (x1 - x0 == 64)
    assert native.double().mean().item() == pytest.approx(NATIVE, abs=0.03)
    assert whole.double().mean().item() == pytest.approx(0.2, abs=0.03) and (~native & ~whole).any()
    share = ((500 / 16 - x0) / (16 - 20 / 16))[native]  # 0: at the left edge, 1: at the right
    assert share.min() < 0.05 and share.max() > 0.95 and share.mean().item() == pytest.approx(0.5, abs=0.03)
    other = picture_boxes(region, (1024, 1024), (64, 64), (16, 16), 1)[:, 0]
    assert not torch.equal(x0, other)


def test_a_question_without_a_region_is_about_the_page():
    """Its window lies where any may lie: the middle of the page is in the middle of its places."""
    nothing = torch.zeros(1, 3, 4)
    assert picture_boxes(nothing, (1024, 1024), (64, 64), (16, 16), 0, middle=True).tolist() == [[24, 24, 40, 40]]


def test_pages_smaller_than_a_picture_are_enlarged():
    boxes = picture_boxes(torch.tensor([[[10.0, 10, 30, 20]]]), SIZE, GRID, (16, 16), 0)
    assert boxes.tolist() == [[0.0, 0.0, 8.0, 8.0]]


# ------------------------------------------------------------------------------------------------------------- training


def test_it_is_shown_plain_pictures_and_nothing_else(pool, told):
    """In every phase, whatever is read or asked; all shapes and sizes come."""
    vlm = model()
    phases = [replace(phase, budgets={36: 1.0, 20: 1.0}) for phase in PICTURES]
    loss = GridReading(vlm, [pool], [*phases, replace(PAGES, budgets={64: 0.6, 20: 0.4})], 60, tokens=8 * 64, each=2)
    kinds = set()
    for step in range(60):
        value, _ = loss(step)
        assert value.isfinite()
        shown = showing(loss.phases, 60, step)
        kinds.add((shown.allocator, shown.readings > 0))
    assert kinds == {("picture", True), ("picture", False), ("pair", False)} or ("pair", True) in kinds
    assert len(told) == 60  # two pictures are not encoded twice
    for cells in told:
        assert_plain(cells)
    counts = {cells.places.shape[1] for cells in told}
    assert {64, 36} <= counts and counts <= {64} | {
        columns * rows for n in (36, 20) for columns, rows in (window_shape(n, GRID, ratio) for ratio in RATIOS)
    }


def test_letters_are_learned_from_plain_windows(told):
    """The same letters at the same places as cells of an ordinary lesson would have."""
    documents = Pool({"documents": 1.0}, size=(512, 512), capacity=2, renewed=0, readings=32)
    documents.fill()
    lesson = Pretraining(model(), [documents], batch=2, windows=LETTERS)
    for step, (columns, rows) in enumerate(LETTERS):
        loss, about = lesson(step)
        assert loss.isfinite() and 0 <= about["letters"] <= 1
        assert_plain(told[-1])
        assert told[-1].places.shape[1] == columns * rows
        pages = documents.pages(2, step)
        tokens, _ = lesson.shown(pages, step)
        assert (tokens.allocation.levels == 0).all()
        targets = letter_targets(pages.letters, tokens.allocation)
        assert (targets != PAD).any(-1).any(-1).all()  # every window has letters
        every = allocate(torch.ones(2, 32, 32), 1024, "uniform", image_size=(512, 512))  # each leaf, in reading order
        x, y = (tokens.allocation.centers // 16).long().unbind(-1)
        expected = letter_targets(pages.letters, every).gather(1, (32 * y + x)[..., None].expand_as(targets))
        assert torch.equal(targets, expected)


def test_it_learns_from_pictures(pool, tmp_path):
    vlm = model()
    shown = Phase(1.0, {36: 1.0}, {"picture": 1.0, "pair": 1.0})
    curve = trained(vlm, pool, shown, tmp_path, 40)
    assert sum(curve[-5:]) < 0.7 * sum(curve[:5])
    again = trained(model(), pool, shown, tmp_path / "again", 40)
    assert again == curve


def trained(vlm, pool, phase, out, steps) -> list[float]:
    stage = Stage("read", "proxy", Settings(steps, rate=3e-3, warmup=5), (phase,), {"tokens": 36 * 8, "each": 4})
    loss, parameters = stage_loss(stage, vlm, [pool], 0)
    assert isinstance(loss, GridReading)
    scorer = {name: value.clone() for name, value in vlm.scorer.state_dict().items()}
    fit(vlm, loss, stage.settings, out, name="read", trained=parameters, begin=loss.begin, progress=False)
    assert all(torch.equal(value, scorer[name]) for name, value in vlm.scorer.state_dict().items())
    return [line["loss"] for line in read_journal(out / "read.jsonl")]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_teaches_the_whole_reader(pool, way):
    """Its loss is that of the answer given the way's own memory, and encoder and decoder get gradients from it."""
    vlm = model()
    loss = GridReading(vlm, [pool], [on_way(way, 32)], 10, tokens=32 * 4, each=2)
    value, about = loss(3)
    samples = pool.draw(4, 3, 2)
    shown = showing(loss.phases, 10, 3)
    assert about["samples"] == 4 and shown.relevance in ("true", "corrupted")
    memory = Shower(vlm, 32).memory(way, samples.images, loss.relevance(samples, shown, 3))
    logits = vlm.decoder(memory, samples.question, samples.answer)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), samples.answer.flatten(), ignore_index=PAD)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    value.backward()
    for part in (vlm.encoder, vlm.decoder):
        assert all(p.grad is not None and p.grad.isfinite().all() for p in part.parameters())
    assert vlm.encoder.patch_embedding[0].weight.grad.abs().max() > 0
    assert all(p.grad is None for p in vlm.scorer.parameters())


def test_a_pair_has_the_picture_of_another_page(pool):
    vlm = model().requires_grad_(False)
    loss = GridReading(vlm, [pool], [Phase(1.0, {36: 1.0}, {"pair": 1.0})], 10, each=2)
    for step in (0, 1):
        samples = pool.samples(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]), 2)
        shown = showing(loss.phases, 10, step)
        both = loss.pictures(Shower(vlm, 36), samples, shown, step)
        alone = loss.pictures(Shower(vlm, 36), samples, replace(shown, allocator="picture"), step)
        n = alone.features.shape[1]
        own, other = (
            (both.features[:, :n], both.features[:, n:]) if step else (both.features[:, n:], both.features[:, :n])
        )
        assert torch.equal(own, alone.features)
        assert torch.equal(other, alone.features[[2, 3, 0, 1]])
        assert (both.places[:, n:, 1:3] > both.places[:, :n, 1:3].amax()).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["picture", "pair", *WAYS])
def test_a_step_waits_for_nothing(name):
    with Pool({"scene-text": 1.0}, size=(512, 512), capacity=4, renewed=0, device="cuda") as pages:
        pages.fill()
        vlm = model().cuda()
        loss = GridReading(vlm, [pages], [on_way(name)], 10, tokens=8 * 273, each=2)
        with torch.autocast("cuda", torch.bfloat16):
            loss(0)[0].backward()  # the first step may set things up
            with no_sync():
                value, _ = loss(1)
                value.backward()
        assert value.isfinite()


# ------------------------------------------------------------------------------------------------------------ benchmark


def test_the_benchmark_trains_asks_and_goes_on(tmp_path, capsys, monkeypatch):
    further = ("grid", "post")
    command = ["--preset", "tiny", "--length", "0.4", "--out", str(tmp_path), "--further", *further]
    bench.main([*command, "--minutes", "0"])
    assert "the same command goes on" in capsys.readouterr().out and not (tmp_path / "proxy.md").exists()
    bench.main(command)
    assert (tmp_path / "proxy.md").read_text() in capsys.readouterr().out
    rows = table(tmp_path)
    assert {way: tokens for way, tokens, *_ in rows} == dict.fromkeys(WAYS, "64") | {"whole": "1024"}
    assert all(cells[0] and not cells[2] and bool(cells[1]) == (way in further) for way, _, *cells in rows)
    asked = (tmp_path / "asked.jsonl").read_text()
    bench.main([*command, "--weights", str(tmp_path / "weights")])  # any reader will do
    rows = table(tmp_path)
    assert len(rows) == 2 * 2 * len(WAYS)  # relevance and families
    assert all(bool(cells[2]) == (way not in ("grid", "post")) for way, _, *cells in rows)
    more = (tmp_path / "asked.jsonl").read_text()
    assert more.startswith(asked) and more != asked

    def again(*_):
        raise AssertionError("asked again")

    monkeypatch.setattr(bench, "ask", again)
    bench.main([*command, "--weights", str(tmp_path / "weights")])
    assert (tmp_path / "asked.jsonl").read_text() == more and table(tmp_path) == rows


def table(out) -> list[list[str]]:
    """The lines of all tables that are about a way."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (out / "proxy.md").read_text().splitlines()]
    return [cells for cells in lines if cells and cells[0] in WAYS]
