"""Looking again: where the looks go, what they cost, when they end, and how they are put together."""

from itertools import pairwise

import pytest
import torch

import homunculus
from homunculus.model import looking
from homunculus.model.answer import answer
from homunculus.model.config import tiny
from homunculus.model.looking import LearnedRelevance, Reader, refinements, saccades, side_by_side
from homunculus.model.vlm import CompactVLM, look
from homunculus.relevance.gaze import peak

QUESTION = "What is the total?"
QUICK = {"budget": 64, "longest": 6, "threshold": None}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return CompactVLM(tiny()).eval().requires_grad_(False)


def noise(width: int, height: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=generator)


def places(said) -> list[list[float]]:
    return said.looks[-1].fixations[:, :2].tolist()


# ------------------------------------------------------------------------------------------------- coarse to fine


def test_coarse_to_fine_is_one_nested_allocation(model):
    said = answer(model, noise(256, 256), QUESTION, progressive=True, threshold=None, longest=6)
    assert [one.tokens for one in said.looks] == [100, 273, 512] and said.tokens == 885
    for coarse, fine in pairwise(one.allocation for one in said.looks):
        x, y = fine.centers[0].unbind(-1)
        x0, y0, x1, y1 = coarse.boxes[0][~coarse.is_context[0]].T
        inside = (x0[:, None] < x) & (x < x1[:, None]) & (y0[:, None] < y) & (y < y1[:, None])
        parent = inside.int().argmax(0)  # every fine cell lies in one coarse cell and is no larger
        assert bool((inside.sum(0) >= 1)[~fine.is_context[0]].all())
        levels = coarse.levels[0][~coarse.is_context[0]][parent]
        assert bool((fine.levels[0] <= levels)[~fine.is_context[0]].all())


def test_coarse_to_fine_looks_where_homunculus_progressive_does(model):
    image = noise(200, 300)
    said = answer(model, image, QUESTION, progressive=True, budgets=(32, 64), threshold=None, longest=6)
    learned = LearnedRelevance(model)(image[None], [QUESTION])
    gw, gh = homunculus.geometry.fit_grid(200, 300, 64)[:2]  # where the peak is taken: not on the scorer's own grid
    at = peak(homunculus.density.resample_mass(learned.double(), (gw, gh)), (200, 300))
    sets = homunculus.progressive(image, None, (32, 64), at, relevance=learned)
    for one, tokens in zip(said.looks, sets, strict=True):
        assert torch.allclose(one.allocation.boxes, tokens.allocation.boxes)


def test_it_stops_as_soon_as_it_is_sure(model):
    images = [noise(128, 128, seed) for seed in range(4)]
    how = {"progressive": True, "budgets": (32, 64, 128), "longest": 4}
    whole = answer(model, images, QUESTION, threshold=None, **how)
    bar = sorted(one.looks[0].confidence for one in whole)[1] * (1 + 1e-6)  # two of four are not sure at once
    for full, one in zip(whole, answer(model, images, QUESTION, threshold=bar, **how), strict=True):
        sure = [one.confidence >= bar for one in full.looks]
        needed = sure.index(True) + 1 if any(sure) else 3
        assert len(one.looks) == needed and one.text == full.looks[needed - 1].text
        assert one.tokens == sum((32, 64, 128)[:needed])
    at_once = answer(model, images, QUESTION, threshold=0.0, **how)
    assert [one.tokens for one in at_once] == [32] * 4


def test_only_those_who_are_not_sure_are_read_again(model, monkeypatch):
    read = []
    write = type(model.decoder).write

    def watched(self, memory, ids, longest):
        read.append(len(ids))
        return write(self, memory, ids, longest)

    monkeypatch.setattr(type(model.decoder), "write", watched)
    images = torch.stack([noise(128, 128, seed) for seed in range(3)])
    reader = Reader(model, [QUESTION] * 3, longest=4)
    first = next(refinements(reader, images, (32, 64)))
    bar = sorted(one.confidence for one in first.values())[1]  # one of three is below it
    read.clear()
    stages = list(refinements(reader, images, (32, 64), threshold=bar))
    assert read == [3, 1] and [len(stage) for stage in stages] == [3, 1]


# ------------------------------------------------------------------------------------------- from place to place


def test_the_first_look_is_at_the_peak_and_in_the_middle_where_there_is_none(model):
    image = noise(256, 256)
    peaked = torch.zeros(16, 16)
    peaked[3, 12] = 1.0
    assert places(answer(model, image, QUESTION, relevance=peaked, **QUICK)) == [[12.5 * 16, 3.5 * 16]]
    assert places(answer(model, image, QUESTION, relevance="uniform", **QUICK)) == [[128.0, 128.0]]


def test_the_next_look_is_where_the_density_is_unsure(model):
    """A leaf that is as good as certain says less than one that may be it; nothing is said of leaves without mass."""
    image, density = noise(256, 256), torch.full((16, 16), 1e-9)
    density[2, 2], density[12, 12], density[12, 3] = 0.9, 0.07, 0.03
    said = answer(model, image, QUESTION, looks=2, relevance=density, allocator="uniform", **QUICK)  # all is left
    assert places(said) == [[2.5 * 16, 2.5 * 16], [12.5 * 16, 12.5 * 16]]


def test_a_place_without_detail_draws_no_look(model):
    """However unsure the density is of it."""
    image, density = noise(256, 256), torch.full((16, 16), 1e-9)
    image[:, 11 * 16 : 14 * 16, 11 * 16 : 14 * 16] = 128  # flat: nothing is hidden there
    density[2, 2], density[12, 12], density[12, 3] = 0.9, 0.07, 0.03
    said = answer(model, image, QUESTION, looks=2, relevance=density, allocator="uniform", **QUICK)
    assert places(said)[1] == [3.5 * 16, 12.5 * 16]


@pytest.mark.parametrize("combine", ["tree", "concat", "best"])
def test_the_last_of_three_fills_gaps(model, combine):
    """It goes to the one place with detail that nobody thought relevant."""
    image = torch.full((3, 512, 512), 128, dtype=torch.uint8)
    image[:, :64, :64] = noise(64, 64)
    image[:, 448:, :64] = noise(64, 64, 1)
    image[:, 448:, 448:] = noise(64, 64, 2)  # the gap
    density = torch.full((32, 32), 1e-12)
    density[1, 1], density[30, 1] = 0.8, 0.2
    how = {"looks": 3, "combine": combine, "fixation_share": 1.0}  # cells go by the gaze alone
    said = answer(model, image, QUESTION, relevance=density, **how, **QUICK)
    first, second, third = places(said)
    assert max(first) < 64 and second[0] < 64 and second[1] > 448
    assert min(third) > 448
    finest = said.looks[-1].allocation
    near = finest.centers[0][finest.levels[0] == finest.levels[0].min()]
    assert bool((near > 400).all(1).any())  # and its cells show it


def test_looks_keep_their_distance(model):
    said = answer(model, noise(512, 256), QUESTION, looks=4, combine="best", relevance="uniform", **QUICK)
    spots = torch.tensor(places(said))
    apart = torch.cdist(spots, spots) + 1e9 * torch.eye(4)
    assert apart.min() > 0.5 * 0.15 * 512


def test_detail_that_was_shown_draws_no_look(model):
    """The second most likely leaf was shown to the last pixel by the first look: it is the third that is looked at."""
    image, density = noise(256, 256), torch.full((16, 16), 1e-9)
    density[2, 2], density[12, 12], density[12, 3] = 0.9, 0.07, 0.03
    said = answer(model, image, QUESTION, looks=2, relevance=density, **QUICK)
    boxes, levels = said.looks[0].allocation.boxes[0], said.looks[0].allocation.levels[0]
    over = (boxes[:, :2] <= 12.5 * 16).all(1) & (boxes[:, 2:] > 12.5 * 16).all(1)
    assert levels[over].min() == 0 and places(said)[1] != [12.5 * 16, 12.5 * 16]


def test_the_scorer_reads_the_question_and_the_draft(model, monkeypatch):
    drafts = iter(f"draft {number}" for number in range(9))
    monkeypatch.setattr(type(model.tokenizer), "decode", lambda self, letters: next(drafts))
    heard = []

    def scorer(pixels, questions):
        heard.append(list(questions))
        return torch.ones(len(pixels), 8, 8)

    images = torch.stack([noise(128, 128), noise(128, 128, 1)])
    said = answer(model, images, [QUESTION, "Who?"], relevance=scorer, looks=3, **QUICK)
    assert heard == [
        [QUESTION, "Who?"],
        [f"{QUESTION} draft 0", "Who? draft 1"],
        [f"{QUESTION} draft 2", "Who? draft 3"],
    ]
    assert [one.text for one in said] == ["draft 4", "draft 5"]


def test_a_new_density_is_looked_at(model):
    """The scorer changes its mind when it hears the draft: the next look is spent by what it says then."""
    later = torch.zeros(16, 16)
    later[4, 4] = 1.0

    answers = iter((torch.ones(1, 16, 16), later[None]))

    def scorer(pixels, questions):
        return next(answers)

    said = answer(model, noise(256, 256), QUESTION, relevance=scorer, looks=2, **QUICK)
    assert said.looks[0].density.unique().numel() == 1
    assert int(said.looks[1].density.argmax()) == 4 * 16 + 4


@pytest.mark.parametrize("combine", ["tree", "concat", "best"])
def test_what_the_decoder_has_before_it(model, combine, monkeypatch):
    counts = []
    write = type(model.decoder).write

    def watched(self, memory, ids, longest):
        counts.append(memory.counts[0])
        return write(self, memory, ids, longest)

    monkeypatch.setattr(type(model.decoder), "write", watched)
    said = answer(model, noise(256, 256), QUESTION, looks=3, combine=combine, **QUICK)
    assert counts == ([64, 128, 192] if combine == "concat" else [64, 64, 64])
    assert said.tokens == 192 and [one.tokens for one in said.looks] == [64] * 3
    surest = max(said.looks, key=lambda one: one.confidence)
    assert said.look is (surest if combine == "best" else said.looks[-1])


def test_a_tree_serves_all_fixations_and_looks_apart_their_own(model):
    image, density = noise(512, 512), torch.full((32, 32), 1e-9)
    density[2, 2], density[28, 28] = 0.6, 0.4
    for combine, near_first in (("tree", True), ("concat", False)):
        said = answer(model, image, QUESTION, looks=2, relevance=density, combine=combine, fixation_share=0.9, **QUICK)
        allocation = said.looks[1].allocation
        assert allocation.gaze[0].tolist() == said.looks[1].fixations[0 if near_first else 1, :2].tolist()


def test_side_by_side_is_what_a_decoder_would_see_of_all_cells(model):
    """Memory of two looks put together reads like one memory whose features are those of both."""
    image = noise(128, 128)[None]
    tokens = [look(image, torch.rand(1, 8, 8), 32) for _ in range(2)]
    from homunculus.model.encoder import Cells, cells_of

    cells = [cells_of(one.allocation) for one in tokens]
    features = torch.cat([model.encoder(one.patches, own) for one, own in zip(tokens, cells, strict=True)], 1)
    together = Cells(*(torch.cat(pair, 1) for pair in zip(*cells, strict=True)))
    expected = model.decoder.remember(features, together)
    found = side_by_side([model.see(one) for one in tokens])
    for pair, other in zip(expected.layers, found.layers, strict=True):
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(pair, other, strict=True))


@pytest.mark.parametrize("allocator", ["foveated-pyramid", "log-polar-rings"])
def test_one_by_one_is_each_selected(allocator):
    whole = look(
        torch.stack([noise(128, 96, seed) for seed in range(3)]), torch.rand(3, 6, 8), 32, allocator
    ).allocation
    parts = looking.one_by_one(whole)
    assert len(parts) == 3
    for i, part in enumerate(parts):
        for name, value in vars(whole.select([i])).items():
            found = getattr(part, name)
            same = torch.equal(found.nan_to_num(-1), value.nan_to_num(-1)) if torch.is_tensor(value) else found == value
            assert same, name


def test_looks_end_when_all_are_sure_and_each_keeps_its_own_end(model):
    images = [noise(128, 128, seed) for seed in range(4)]
    how = {"looks": 3, "combine": "best", "budget": 32, "longest": 4}
    whole = answer(model, images, QUESTION, threshold=None, **how)
    bar = sorted(one.looks[0].confidence for one in whole)[1] * (1 + 1e-6)
    for full, one in zip(whole, answer(model, images, QUESTION, threshold=bar, **how), strict=True):
        sure = [one.confidence >= bar for one in full.looks]
        assert len(one.looks) == (sure.index(True) + 1 if any(sure) else 3)
    assert len(list(saccades(Reader(model, [QUESTION], longest=4), images[0][None], 3, threshold=0.0))) == 1


def test_an_image_is_scored_once_for_many_questions(model, monkeypatch):
    seen = []
    features = model.scorer.features
    monkeypatch.setattr(model.scorer, "features", lambda images: seen.append(1) or features(images))
    answer(model, noise(128, 128), QUESTION, looks=3, **QUICK)
    assert len(seen) == 1
    learned, image = LearnedRelevance(model), noise(64, 64)[None]
    assert not torch.equal(learned(image, ["Who?"]), learned(image, [QUESTION])) and len(seen) == 2


def test_a_long_draft_is_cut_and_not_the_question(model):
    ids = looking.question_ids(model, ["0" * 200, "12"])
    assert ids.shape == (2, looking.LONGEST_QUESTION) and int((ids[1] > 0).sum()) == 2
