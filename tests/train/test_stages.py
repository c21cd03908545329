"""The stages: their losses against plain loops, what each learns and leaves alone, the same again from a seed."""

import math
from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homunculus.model.config import tiny
from homunculus.model.encoder import Cells
from homunculus.model.tokenizer import PAD
from homunculus.model.vlm import CompactVLM
from homunculus.train.augment import chosen
from homunculus.train.compiling import compiled
from homunculus.train.curriculum import ALL, Phase
from homunculus.train.journal import read_journal
from homunculus.train.loop import Settings, fit
from homunculus.train.pool import Pool
from homunculus.train.pretrain import Pretraining, laplacian_bands, laplacian_loss
from homunculus.train.read import Reading, answer_loss, enlarged, untold
from homunculus.train.score import Scoring, fill, scorer_loss

SIZE = (128, 128)
QUICK = Settings(50, rate=3e-3, warmup=5)
SHOWN = Phase(1.0, {64: 1.0}, {"foveated-pyramid": 1.0, "topk": 1.0}, {"true": 1.0, "corrupted": 1.0, "predicted": 1.0})


def model(seed: int = 0) -> CompactVLM:
    torch.manual_seed(seed)
    return CompactVLM(tiny())


def pool(families=None, size=SIZE, **options) -> Pool:
    return Pool(families or {"scenes": 1.0}, size=size, **({"capacity": 4, "renewed": 0} | options))


@pytest.fixture(scope="module")
def scenes() -> Pool:
    """Four images that stay."""
    found = pool()
    found.fill()
    return found


def stage(kind: str, vlm: CompactVLM, pools: list[Pool], steps: int = 50):
    """The loss of a stage, and what it may change, as a recipe has them."""
    if kind == "score":
        loss = Scoring(vlm, pools, images=2, each=4)
        return loss, [*vlm.scorer.parameters(), *loss.letters.parameters()]
    reader = [*vlm.encoder.parameters(), *vlm.decoder.parameters()]
    return Reading(vlm, pools, [SHOWN], steps, tokens=64 * 16, each=4), reader


def curve(loss, vlm, trained, out, settings=QUICK) -> list[float]:
    whole = loss if isinstance(loss, torch.nn.Module) else vlm  # a stage may add heads
    fit(whole, loss, settings, out, name="stage", trained=trained, begin=loss.begin, progress=False)
    return [line["loss"] for line in read_journal(out / "stage.jsonl")]


# --------------------------------------------------------------------------------------------------------------- losses


@given(st.integers(0, 1000), st.sampled_from([(1, 1), (4, 5), (7, 3)]))
def test_scorer_loss_is_a_plain_loop(seed, grid):
    generator = torch.Generator().manual_seed(seed)
    gh, gw = grid
    scores = 3 * torch.randn(3, gh, gw, generator=generator)
    truth = torch.rand(3, gh, gw, generator=generator) * (torch.rand(3, gh, gw, generator=generator) < 0.3)
    truth[0] = 0.0  # a question without a region
    loss, about = scorer_loss(scores, truth)
    losses, hits, masses = [], [], []
    for one, true in zip(scores.double(), truth.double(), strict=True):
        density = one.exp() / one.exp().sum()
        total = sum(float(true[y, x] * -density[y, x].log()) for y in range(gh) for x in range(gw))
        losses.append(total / max(float(true.sum()), 1e-9))
        y, x = divmod(int(density.argmax()), gw)
        hits.append(float(true[y, x] > 0))
        masses.append(0.0)
        for y in range(gh):
            for x in range(gw):
                beside = true[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
                masses[-1] += float(density[y, x]) * bool((beside > 0).any())
    assert loss.item() == pytest.approx(sum(losses) / 3, rel=1e-4, abs=1e-6)
    assert about["hit"].item() == pytest.approx(sum(hits) / 3)
    assert about["mass"].item() == pytest.approx(sum(masses) / 3, rel=1e-4, abs=1e-6)


@given(st.integers(0, 1000), st.integers(1, 6))
def test_answer_loss_is_a_plain_loop(seed, length):
    generator = torch.Generator().manual_seed(seed)
    answer = torch.randint(1, 6, (4, length), generator=generator)
    for row, end in zip(answer, (length, 1, max(1, length - 1), max(1, length // 2)), strict=True):
        row[end:] = PAD
    logits = torch.randn(4, length, 6, generator=generator)
    logits += 4 * torch.nn.functional.one_hot(answer, 6) * (torch.rand(4, length, 1, generator=generator) < 0.7)
    loss, about = answer_loss(logits, answer)
    losses, right, exact = [], [], []
    for one, wanted in zip(logits.double(), answer.tolist(), strict=True):
        letters = [letter for letter in wanted if letter != PAD]
        for logit, letter in zip(one, letters, strict=False):
            losses.append(float(logit.exp().sum().log() - logit[letter]))
            right.append(int(logit.argmax()) == letter)
        exact.append(all(right[-len(letters) :]))
    assert loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert about["letters"].item() == pytest.approx(sum(right) / len(right))
    assert about["exact"].item() == pytest.approx(sum(exact) / 4)


@given(st.integers(0, 1000), st.sampled_from([8, 16, 32]))
def test_bands_add_up_to_the_patch(seed, side):
    patches = torch.rand(2, 5, 3, side, side, generator=torch.Generator().manual_seed(seed))
    *finer, rest = laplacian_bands(patches)
    assert len(finer) == 3
    for band in reversed(finer):
        assert torch.nn.functional.avg_pool2d(band, 2).abs().max() < 1e-6  # what halving keeps is left to the next
        rest = band + torch.nn.functional.interpolate(rest, scale_factor=2.0, mode="nearest")
    assert torch.allclose(rest.view_as(patches), patches, atol=1e-6)


@given(st.integers(0, 1000))
def test_laplacian_loss_is_nothing_where_nothing_differs(seed):
    generator = torch.Generator().manual_seed(seed)
    patches = torch.rand(2, 5, 3, 16, 16, generator=generator)
    counted = torch.zeros(2, 5)
    counted[:, ::2] = 1.0
    assert laplacian_loss(patches, patches, counted) == 0
    drawn = patches.clone()
    drawn[:, 1::2] = torch.rand(2, 2, 3, 16, 16, generator=generator)  # which do not count
    assert laplacian_loss(drawn, patches, counted) == 0
    place = tuple(int(torch.randint(n, (), generator=generator)) for n in (2, 3, 3, 16, 16))
    drawn[:, ::2][place] += 0.01
    assert laplacian_loss(drawn, patches, counted) > 0


def test_thin_strokes_weigh_as_much_as_areas():
    """Each band counts alike: an error as large as what a band holds costs the same in any band."""
    patches = torch.rand(4, 9, 3, 16, 16)
    *finer, rest = laplacian_bands(patches)
    costs = []
    for i in range(4):
        lost = [band if j == i else torch.zeros_like(band) for j, band in enumerate((*finer, rest))]
        error = lost[3]
        for band in reversed(lost[:3]):
            error = band + error.repeat_interleave(2, -1).repeat_interleave(2, -2)
        costs.append(laplacian_loss(patches - error.view_as(patches), patches, torch.ones(4, 9)).item())
    assert costs == pytest.approx([0.25] * 4, rel=1e-3)


# ------------------------------------------------------------------------------------------------------------- enlarged


@pytest.mark.parametrize("times", [1, 2, 4])
def test_enlarged_images_say_the_same(scenes, times):
    """A cell of an enlarged image is the patch of the pixels it came from; means stay."""
    images = scenes.draw(2, 0).images
    large = enlarged(images, times)
    assert large.dtype == torch.uint8 and large.shape == (2, 3, 128 * times, 128 * times)
    back = torch.nn.functional.avg_pool2d(large.float(), times)
    assert (back - images.float()).abs().mean() < 4 and abs(back.mean() - images.float().mean()) < 0.5


def test_steps_may_show_enlarged_images(scenes):
    vlm = CompactVLM(tiny()).requires_grad_(False)
    found = []
    for times in (1, 2):
        phase = Phase(1.0, {64: 1.0}, enlarged={times: 1.0}, untold=0.0)
        found.append(Reading(vlm, [scenes], [phase], 10, tokens=64 * 8, each=4)(0)[0].item())
    assert found[0] != found[1] and all(map(math.isfinite, found))


# ---------------------------------------------------------------------------------------------------------------- pools


class Walked(Pool):
    """A pool that only counts its steps."""

    def __init__(self) -> None:
        self.step = 0

    def fill(self, step: int = 0, progress=None) -> None:
        self.step = step


@given(st.integers(1, 5), st.integers(0, 40))
def test_filling_pools_in_turn_is_stepping(count, step):
    walked, filled = ([Walked() for _ in range(count)] for _ in range(2))
    for earlier in range(step):
        walked[earlier % count].step += 1
    fill(filled, step)
    assert [one.step for one in filled] == [one.step for one in walked]


@pytest.mark.parametrize("kind", ["score", "read"])
def test_each_step_draws_from_the_next_pool(kind):
    """A stage that begins anywhere sees what one that walked there sees."""
    pools = [[pool(size=size, capacity=3, renewed=1) for size in (SIZE, (96, 128))] for _ in range(2)]
    walked, jumped = (stage(kind, model(), own)[0] for own in pools)
    walked.begin(0)
    seen = [walked(step)[0].item() for step in range(4)]
    jumped.begin(3)
    assert jumped(3)[0].item() == seen[3] and len(set(seen)) == 4


# --------------------------------------------------------------------------------------------------------------- stages


@pytest.fixture(scope="module")
def pages() -> Pool:
    found = pool({"documents": 1.0}, (512, 512), capacity=2, readings=48)
    found.fill()
    return found


@pytest.fixture(scope="module")
def learned(scenes, tmp_path_factory) -> dict[str, tuple[CompactVLM, list[float]]]:
    found = {}
    for kind in ("score", "read"):
        vlm = model()
        loss, trained = stage(kind, vlm, [scenes])
        found[kind] = vlm, curve(loss, vlm, trained, tmp_path_factory.mktemp(kind))
    return found


@pytest.mark.parametrize(("kind", "least"), [("score", 0.93), ("read", 0.5)])
def test_the_loss_falls(learned, kind, least):
    losses = learned[kind][1]
    assert len(losses) == 50 and all(map(math.isfinite, losses))
    assert sum(losses[-10:]) < least * sum(losses[:10])


@pytest.mark.parametrize(("kind", "frozen"), [("score", ("encoder", "decoder")), ("read", ("scorer",))])
def test_what_is_not_its_own_is_left_alone(learned, kind, frozen):
    before, after = model().state_dict(), learned[kind][0].state_dict()
    for name, value in before.items():
        if name.startswith(frozen):
            assert torch.equal(value, after[name]), name
        elif value.dim() > 1:
            assert not torch.equal(value, after[name]), name
    assert all(parameter.requires_grad for parameter in learned[kind][0].parameters())


@pytest.mark.parametrize("kind", ["score", "read"])
def test_same_seed_same_losses(learned, scenes, kind, tmp_path):
    vlm = model()
    loss, trained = stage(kind, vlm, [scenes])
    assert curve(loss, vlm, trained, tmp_path) == learned[kind][1]
    other = model(seed=1)
    loss, trained = stage(kind, other, [scenes])
    settings = Settings(3, rate=3e-3, warmup=5)
    assert curve(loss, other, trained, tmp_path / "other", settings) != learned[kind][1][:3]


@pytest.mark.parametrize("lesson", ["letters", "bands", "both"])
def test_pretraining_learns_and_touches_the_encoder_alone(lesson, tmp_path, pages):
    vlm, before = model(), model().state_dict()
    torch.manual_seed(1)
    loss = Pretraining(vlm, [pages], lesson=lesson, budget=64, batch=2)
    heads = [*loss.letters.parameters(), *loss.bands.parameters()]
    losses = curve(loss, loss, [*vlm.encoder.parameters(), *heads], tmp_path, Settings(25, rate=3e-3, warmup=3))
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    changed = {name.split(".")[0] for name, value in vlm.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"encoder"}


@pytest.mark.parametrize("allocator", ALL)
@torch.no_grad()
def test_a_reader_is_shown_every_method(scenes, allocator):
    phase = Phase(1.0, {64: 1.0}, {allocator: 1.0}, {"corrupted": 1.0})
    loss, about = Reading(model(), [scenes], [phase], 1, tokens=64 * 4, each=2)(0)
    assert loss.isfinite() and about["samples"] == 4


@pytest.mark.parametrize(("budget", "tokens", "expected"), [(64, 64 * 9, 8), (16, 64 * 9, 24), (64, 10, 4)])
@torch.no_grad()
def test_a_batch_is_as_large_as_its_tokens_allow(scenes, budget, tokens, expected):
    """In whole images, at least one of them, and at most `largest` questions."""
    phase = Phase(1.0, {budget: 1.0})
    _, about = Reading(model(), [scenes], [phase], 1, tokens=tokens, largest=24, each=4)(0)
    assert about["samples"] == expected


def test_some_cells_are_not_told():
    cells = Cells(torch.zeros(400, 3, 4), torch.zeros(400, 3), torch.zeros(400, 3, 3))
    hidden = untold(cells, 0.3, step=5).weights.isnan()
    assert torch.equal(hidden.all(1), hidden.any(1)) and abs(hidden[:, 0].float().mean() - 0.3) < 0.1
    assert not untold(cells, 0.0, 5).weights.isnan().any() and untold(cells, 1.0, 5).weights.isnan().all()
    assert torch.equal(untold(cells, 0.3, 5).weights.isnan(), hidden)
    assert not torch.equal(untold(cells, 0.3, 6).weights.isnan(), hidden)


# ------------------------------------------------------------------------------------------------------------ compiling


def test_only_a_gpu_compiles_and_only_meanwhile(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "compile", lambda forward, **options: calls.append(options) or forward)
    layers = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    methods = [layer.forward for layer in layers]
    with compiled(methods, methods, torch.device("cpu")):
        assert not calls and not any("forward" in vars(layer) for layer in layers)
    with suppress(KeyError), compiled(methods[:1], methods[1:], torch.device("cuda")):
        assert all("forward" in vars(layer) for layer in layers)
        raise KeyError  # whatever happens
    assert [options["dynamic"] for options in calls] == [None, False]
    assert not any("forward" in vars(layer) for layer in layers)


def test_the_chosen_steps_are_augmented_and_no_others(scenes, monkeypatch):
    """By the number of the step in the whole run, which an offset gives."""
    vlm, phase, seen = model(), Phase(1.0, {64: 1.0}), []
    monkeypatch.setattr("homunculus.train.read.augmented", lambda samples, *_: seen.append("read") or samples)
    monkeypatch.setattr(
        "homunculus.train.score.augmented_with_letters", lambda *given: seen.append("score") or given[:2]
    )
    for name, stage in {
        "read": Reading(vlm, [scenes], [phase], 10, tokens=64 * 8, each=4, augment=0.5, offset=7),
        "score": Scoring(vlm, [scenes], images=2, each=4, augment=0.5, offset=7),
    }.items():
        wanted = [chosen(0.5, 7 + step) for step in range(8)]
        assert len(set(wanted)) == 2 and wanted != [chosen(0.5, step) for step in range(8)]
        for step, is_chosen in enumerate(wanted):
            seen.clear()
            stage(step)
            assert seen == [name] * is_chosen
