"""The joint stages: what is seen is what reading sees, gradients are those of what is computed and point the right way,
and each stage changes what it may."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homunculus.errors import ModelError
from homunculus.model.config import tiny
from homunculus.model.encoder import cells_of
from homunculus.model.scorer import as_density
from homunculus.model.tokenizer import EOS
from homunculus.model.vlm import CompactVLM, look
from homunculus.structures import rectangular
from homunculus.train import joint as joints
from homunculus.train import score
from homunculus.train.curriculum import Phase
from homunculus.train.densities import corrupted, true_density
from homunculus.train.joint import NAMES, Joint, Sight, faded, reached, relaxed, seen, tree_of, view_of, where_in
from homunculus.train.journal import read_journal
from homunculus.train.loop import Settings, fit
from homunculus.train.pool import Pool
from homunculus.train.read import Reading, answer_loss
from homunculus.train.recipe import Stage, follow
from homunculus.train.score import predicted, scored
from tests.model.tiny import NeverWaits
from tests.train.test_recipe import SMALL, losses

SIZE = (128, 128)
SHOWN = Phase(1.0, {32: 1.0}, relevance={"predicted": 1.0})
QUICK = Settings(30, rate=3e-3, warmup=5)
COLD = 1e-6


def model(seed: int = 0) -> CompactVLM:
    torch.manual_seed(seed)
    return CompactVLM(tiny())


@pytest.fixture(scope="module")
def scenes() -> Pool:
    """Four images that stay."""
    found = Pool({"scenes": 1.0}, size=SIZE, capacity=4, renewed=0)
    found.fill()
    return found


def stage(vlm: CompactVLM, pool: Pool, phase: Phase = SHOWN, steps: int = QUICK.steps, **options) -> Joint:
    return Joint(vlm, [pool], [phase], steps, **({"tokens": 32 * 8, "each": 4} | options))


def looks(seed: int, batch: int = 2, size=(256, 256), budget: int = 64):
    """Scores, a little peaked, and what is looked at by them; both of float64."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(batch, 3, size[1], size[0], generator=generator, dtype=torch.float64)
    shape = (batch, round(size[1] / 16), round(size[0] / 16))
    scores = 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return scores, look(images, as_density(scores), budget)


# ------------------------------------------------------------------------------------------- soft and hard are one tree

SIZES = st.sampled_from([((256, 256), 64), ((512, 256), 100), ((200, 136), 32), ((256, 256), 273)])


@settings(max_examples=20)
@given(st.integers(0, 1000), SIZES)
def test_cells_are_found_in_the_tree(seed, sized):
    """By their boxes, which the tree knows of each node."""
    size, budget = sized
    scores, tokens = looks(seed, size=size, budget=budget)
    view = view_of(tokens.allocation, as_density(scores))
    tree = tree_of(view, budget)
    assert tree.is_full
    boxes = torch.empty_like(tree.box)
    boxes[tree.flat] = tree.box  # in the order of places
    per_leaf = torch.tensor([size[0] / view.grid[0], size[1] / view.grid[1]] * 2, dtype=torch.float64)
    found = boxes[where_in(tree, tokens.allocation)] * per_leaf
    assert torch.allclose(found.float(), tokens.allocation.boxes)


@settings(max_examples=20)
@given(st.integers(0, 1000), SIZES)
def test_the_cold_tree_is_the_one_that_was_cut(seed, sized):
    """Of all its cells the likely ones are those chosen: same gaze, same floor, same masses."""
    size, budget = sized
    scores, tokens = looks(seed, size=size, budget=budget)
    allocation = tokens.allocation
    view = view_of(allocation, as_density(scores))
    tree = tree_of(view, budget)
    soft = relaxed(view, budget, COLD)
    where = where_in(tree, allocation)
    chosen = torch.zeros(len(scores), tree.count, dtype=torch.float64)
    chosen.scatter_(1, where, (~allocation.is_context).double())
    assert torch.allclose(tree.concatenate(soft.weights), chosen, atol=1e-6)
    assert torch.allclose(reached(tree, soft).gather(1, where), torch.ones_like(where, dtype=torch.float64), atol=1e-6)


@settings(max_examples=20)
@given(st.integers(0, 1000), SIZES, st.sampled_from([0.1, 1.0]))
def test_a_hard_sight_is_what_reading_sees(seed, sized, temperature):
    size, budget = sized
    scores, tokens = looks(seed, size=size, budget=budget)
    patches, cells = seen(tokens, as_density(scores), temperature, "hard")
    assert torch.equal(patches, tokens.patches)
    for ours, theirs in zip(cells, cells_of(tokens.allocation), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_certain_does_not_fade(dtype):
    patches = torch.rand(2, 5, 3, 16, 16).to(dtype)
    certain = torch.ones(2, 5, dtype=torch.float64)
    assert torch.equal(faded(patches, certain, "soft"), patches)
    assert torch.equal(faded(patches, torch.rand(2, 5), "hard"), patches)
    nothing = faded(patches, 0 * certain, "soft")
    mean = patches.mean((-2, -1), keepdim=True)
    assert torch.allclose(nothing, mean.expand_as(nothing), atol=1e-6 if dtype == torch.float32 else 0.01)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_only_unsure_cells_fade(temperature):
    """Roots always come about, children no more than parents; and the colder it is the less is lost."""
    scores, tokens = looks(3)
    view = view_of(rectangular(tokens.allocation), as_density(scores))
    tree = tree_of(view, 64)
    probability = reached(tree, relaxed(view, 64, temperature))
    own = probability[:, tree.flat]  # by node
    assert (own[:, : tree.roots] == 1).all()
    assert (own[:, tree.roots :] <= own[:, tree.parent[tree.roots :]] + 1e-12).all() and own.min() < 0.5
    warm, cold = (
        (seen(tokens, as_density(scores), degrees, "soft")[0] - tokens.patches).abs().amax((2, 3, 4))
        for degrees in (temperature, temperature / 10)
    )
    assert (warm > 0.01).any() and cold.sum() < 0.5 * warm.sum()
    sure = probability.gather(1, where_in(tree, rectangular(tokens.allocation))) > 1 - 1e-9
    assert not (warm[sure] > 1e-6).any()


def test_groups_of_images_change_no_score(scenes, monkeypatch):
    vlm, samples = model(), scenes.draw(10, 0, each=2)
    with torch.no_grad():
        at_once = scored(vlm, samples)
        monkeypatch.setattr(score, "TOGETHER", 2)
        torch.testing.assert_close(scored(vlm, samples), at_once)
        torch.testing.assert_close(predicted(vlm, samples), as_density(at_once))


def test_nothing_runs_for_a_device_to_wait_for():
    scores, tokens = (part.to("meta") for part in looks(0))
    seen(tokens, as_density(scores), 1.0)  # tables are made once
    with NeverWaits():
        seen(tokens, as_density(scores.requires_grad_()), 0.5)[0].sum().backward()
    assert scores.grad is not None


# ------------------------------------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("part", ["weights", "patches"])
@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_finite_differences(part, seed):
    """Of what is told of the cells and of what is seen of them, along random directions; the cells stay."""
    scores, tokens = looks(seed)
    generator = torch.Generator().manual_seed(seed)

    def value(given: torch.Tensor) -> torch.Tensor:
        patches, cells = seen(tokens, as_density(given), 0.5, "soft")
        return ((cells.weights if part == "weights" else patches).double() * along).sum()

    shape = tokens.patches.shape if part == "patches" else tokens.patches.shape[:2]
    along = torch.randn(shape, generator=generator, dtype=torch.float64)
    direction = torch.randn(scores.shape, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(value(scores.requires_grad_()), scores)
    with torch.no_grad():
        differences = (value(scores + 1e-3 * direction) - value(scores - 1e-3 * direction)) / 2e-3
    assert differences.abs() > 0.1
    assert (gradient * direction).sum().item() == pytest.approx(differences.item(), rel=2e-3, abs=1e-3)


@pytest.mark.parametrize(("sight", "untold"), [("soft", 1.0), ("hard", 1.0), ("hard", 0.0)])
def test_answers_alone_reach_the_scorer(scenes, sight, untold):
    """Through the tree even where nothing is told of the cells."""
    vlm = model()
    for part in (vlm.encoder, vlm.decoder):
        part.requires_grad_(False)
    loss, _ = stage(vlm, scenes, replace(SHOWN, untold=untold), sight=sight, supervised=0.0)(0)
    loss.backward()
    norms = [parameter.grad.norm() for parameter in vlm.scorer.parameters() if parameter.dim() > 1]
    assert all(norm.isfinite() and norm > 0 for norm in norms)
    assert all(parameter.grad is None for parameter in vlm.encoder.parameters())


# --------------------------------------------------------------------------------- a toy: one region holds the answer

SIDE, REGION = 256, 64  # pixels


def riddles(seed: int, count: int):
    """Noise in which one square holds one of four faint patterns, too fine for any but the finest cells."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.5 + 0.15 * torch.randn(count, 1, SIDE, SIDE, generator=generator)
    which = torch.randint(4, (count,), generator=generator)
    corner = torch.randint((SIDE - REGION) // 16 + 1, (count, 2), generator=generator) * 16
    across = torch.arange(REGION).expand(REGION, REGION)
    patterns = torch.stack((across % 2, across.T % 2, across // 2 % 2, (across + across.T) % 2)) - 0.5
    for image, pattern, (x, y) in zip(images, patterns[which], corner.tolist(), strict=True):
        image[:, y : y + REGION, x : x + REGION] += 0.06 * pattern
    truth = true_density(torch.cat((corner, corner + REGION), 1).float()[:, None], (SIDE, SIDE), (16, 16))
    answer = torch.stack((which + 70, torch.full_like(which, EOS)), dim=1)
    return images.clamp(0, 1).expand(-1, 3, -1, -1), truth, answer


def reading_loss(vlm: CompactVLM, patches, cells, answer) -> torch.Tensor:
    question = torch.full((len(answer), 3), 80)
    memory = vlm.decoder.remember(vlm.encoder(patches, cells), cells)
    return answer_loss(vlm.decoder(memory, question, answer), answer)[0]


@pytest.fixture(scope="module")
def reader() -> CompactVLM:
    """Who can tell the patterns where they are seen, and is frozen."""
    vlm = model()
    optimiser = torch.optim.Adam([*vlm.encoder.parameters(), *vlm.decoder.parameters()], lr=3e-3)
    for step in range(160):
        images, truth, answer = riddles(step, 16)
        tokens = look(images, truth if step < 80 else corrupted(truth, seed=step), 64)
        loss = reading_loss(vlm, tokens.patches, cells_of(rectangular(tokens.allocation)), answer)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return vlm.requires_grad_(False)


def descent(reader: CompactVLM, seed: int, sight: Sight, steps: int = 1, rate: float = 0.0):
    """Free scores that follow the gradient of the answers through the relaxed tree, and nothing else: by step the mass
    in the true region, the loss, and for how many riddles the gradient takes mass there."""
    images, truth, answer = riddles(1000 + seed, 32)
    inside = (truth > 0).float()
    scores = (corrupted(truth, seed=seed) + 1e-4).log().requires_grad_()
    masses, costs, right = [], [], []
    for _ in range(steps):
        density = as_density(scores)
        tokens = look(images, density, 64)
        patches, _ = seen(tokens, density, 1.0, sight)
        loss = reading_loss(reader, patches, cells_of(rectangular(tokens.allocation)), answer)
        (gradient,) = torch.autograd.grad(loss, scores, retain_graph=True)
        mass = (density * inside).sum((1, 2))
        (towards,) = torch.autograd.grad(mass.sum(), scores)
        masses.append(mass.mean().item())
        costs.append(loss.item())
        right.append(((gradient * towards).sum((1, 2)) < 0).float().mean().item())
        scores = (scores - rate * len(images) * gradient).detach().requires_grad_()
    return masses, costs, right


@pytest.fixture(scope="module")
def rights(reader) -> dict[str, float]:
    """The share of riddles whose gradient takes mass to the true region, over four seeds."""
    return {sight: sum(descent(reader, seed, sight)[2][0] for seed in range(4)) / 4 for sight in ("soft", "hard")}


def test_answers_point_to_the_region(rights):
    assert rights["soft"] > 0.85


def test_a_soft_sight_points_better_than_a_hard_one(rights):
    assert rights["soft"] > rights["hard"]


def test_density_moves_to_the_region_by_the_answers_alone(reader):
    for seed in range(3):
        masses, costs, _ = descent(reader, seed, "soft", steps=20, rate=4.0)
        assert masses[-1] > 1.02 * masses[0] and costs[-1] < 0.9 * costs[0]


# --------------------------------------------------------------------------------------------------------------- stages


def test_a_hard_sight_alone_is_reading(scenes):
    """Without the region's loss a step costs what it would cost a reader."""
    vlm, phase = model(), replace(SHOWN, untold=0.3)
    for step in range(3):
        ours, about = stage(vlm, scenes, phase, sight="hard", supervised=0.0)(step)
        theirs, read = Reading(vlm, [scenes], [phase], QUICK.steps, tokens=32 * 8, each=4)(step)
        assert ours == theirs == about["answer_loss"]
        assert all(torch.equal(about[name], read[name]) for name in ("letters", "exact"))


def test_the_loss_is_that_of_answers_and_of_the_scorers_own_stage():
    """Of the region and of the question's words, on pages that have some."""
    pages = Pool({"drills": 1.0}, size=(512, 512), capacity=2, renewed=0)
    pages.fill()
    vlm = model()
    loss, about = stage(vlm, pages, supervised=0.7)(0)
    own = about["scorer_loss"] + NAMES * about["names_loss"]
    assert loss.item() == pytest.approx((about["answer_loss"] + 0.7 * own).item(), rel=1e-6)
    told = {"answer_loss", "scorer_loss", "names_loss", "hit", "mass", "named", "letters", "exact", "samples", "waited"}
    assert set(about) == told
    samples = pages.draw(8, 0, each=4)
    scores, names = vlm.scorer.scores_and_names(
        vlm.scorer.features(samples.images).repeat_interleave(4, dim=0), samples.question
    )
    region, found = score.scorer_loss(scores, score.truth_of(samples, (32, 32)))
    naming, named = score.names_loss(names, score.on_leaves(samples.anchors, samples, (32, 32)))
    assert torch.equal(about["scorer_loss"], region) and torch.equal(about["mass"], found["mass"])
    assert torch.equal(about["names_loss"], naming) and torch.equal(about["named"], named) and naming > 0


@pytest.fixture(scope="module")
def learned(scenes, tmp_path_factory) -> dict[str, tuple[CompactVLM, list[dict]]]:
    found = {}
    for frozen in ("reader", "nothing"):
        vlm, out = model(), tmp_path_factory.mktemp(frozen)
        loss = stage(vlm, scenes, frozen=frozen)
        fit(vlm, loss, QUICK, out, name="joint", trained=loss.trained(), begin=loss.begin, progress=False)
        found[frozen] = vlm, read_journal(out / "joint.jsonl")
    return found


@pytest.mark.parametrize(("frozen", "name", "least"), [("nothing", "loss", 0.8), ("reader", "scorer_loss", 0.97)])
def test_the_loss_falls(learned, frozen, name, least):
    """That of the region also where the answers of a reader who never learned to read pull elsewhere."""
    found = [line[name] for line in learned[frozen][1]]
    assert len(found) == QUICK.steps and all(map(math.isfinite, found))
    assert sum(found[-8:]) < least * sum(found[:8])


@pytest.mark.parametrize("frozen", ["reader", "nothing"])
def test_what_is_frozen_is_left_alone(learned, frozen):
    before, after = model().state_dict(), learned[frozen][0].state_dict()
    for name, value in before.items():
        if frozen == "reader" and not name.startswith("scorer"):
            assert torch.equal(value, after[name]), name
        elif value.dim() > 1:
            assert not torch.equal(value, after[name]), name


def test_a_recipe_has_it_as_a_stage(tmp_path):
    """Of both kinds, checked by held-out questions, and out of time at every stop with the same losses."""
    few = {"tokens": 32 * 4, "each": 2}
    stages = tuple(
        Stage(frozen, "joint", replace(QUICK, steps=3), (SHOWN,), few | {"frozen": frozen})
        for frozen in ("reader", "nothing")
    )
    recipe = replace(SMALL, stages=stages, checked=2, check_every=3)
    assert follow(recipe, tmp_path / "whole")
    while not follow(recipe, tmp_path / "parts", minutes=0.0):
        pass
    assert losses(tmp_path / "whole", "reader", "nothing") == losses(tmp_path / "parts", "reader", "nothing")
    told = read_journal(tmp_path / "whole" / "nothing.jsonl")[-1]["evaluation"]
    assert set(told) == {"scenes: hit", "scenes: true", "scenes: predicted"}


@pytest.mark.parametrize("allocator", ["topk", "log-polar-rings", "views"])
def test_other_methods_teach_the_reader(scenes, allocator):
    vlm = model()
    phase = replace(SHOWN, allocators={allocator: 1.0})
    stage(vlm, scenes, phase, frozen="nothing")(0)[0].backward()
    assert all(parameter.grad is not None for parameter in (*vlm.scorer.parameters(), *vlm.encoder.parameters()))


@pytest.mark.parametrize(
    ("phase", "options", "complaint"),
    [
        (SHOWN, {"frozen": "scorer"}, "no frozen 'scorer': choose reader or nothing"),
        (SHOWN, {"sight": "blurred"}, "no sight 'blurred': choose soft or hard"),
        (SHOWN, {"supervised": -1.0}, "at least 0, got -1.0"),
        (SHOWN, {"coverage": -0.1}, "coverage is a weight of the regions left empty, at least 0, got -0.1"),
        (SHOWN, {"coverage": math.nan}, "coverage is a weight"),
        (replace(SHOWN, relevance={"predicted": 1.0, "true": 1.0}), {}, "give phases relevance="),
        (replace(SHOWN, readings=0.1), {}, "readings=0"),
        (replace(SHOWN, allocators={"foveated-pyramid": 1.0, "topk": 1.0}), {}, "leave topk out"),
        (replace(SHOWN, allocators={"topk": 1.0}), {"frozen": "nothing", "supervised": 0.0}, "supervised above 0"),
    ],
)
def test_what_teaches_the_scorer_nothing_is_refused(phase, options, complaint):
    with pytest.raises(ModelError, match=complaint):
        joints.check([phase], **({"frozen": "reader", "supervised": 0.5, "sight": "soft"} | options))
