"""Dense supervision: leaves say the letters on them, to the encoder and to the scorer."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from homunculus.data.stream import make
from homunculus.model.config import tiny
from homunculus.model.tokenizer import FIRST_PIECE, PAD, default_tokenizer
from homunculus.model.vlm import CompactVLM, look
from homunculus.train.letters import SLOTS, leaf_letters, leaf_of, letter_loss, letter_targets, text_density
from homunculus.train.pool import Pool
from homunculus.train.renderers import LONGEST_READING
from homunculus.train.score import Scoring


@pytest.fixture(scope="module")
def pages() -> Pool:
    found = Pool({"documents": 1.0}, size=(512, 512), capacity=2, renewed=0, readings=48)
    found.fill()
    return found


@pytest.mark.parametrize("allocator", ["foveated-pyramid", "topk"])
def test_leaves_say_the_letters_on_them(pages, allocator):
    """Each leaf's letters, by hand; at least nine in ten are those the loss asks for (two texts may share a leaf)."""
    images, letters = pages.pages(4, step=0)
    density = text_density(letters, (512, 512), (32, 32), step=0)
    allocation = look(images, density, 300, allocator).allocation
    targets = letter_targets(letters, allocation)
    assert targets.shape == (4, 300, SLOTS)
    (gw, gh), found = allocation.grids[0], []
    for image in range(4):
        on: dict[tuple[int, int], list[int]] = {}
        for text in letters[image].tolist():
            for x, y, number in text:
                if number != PAD:
                    on.setdefault((x * gw // 512, y * gh // 512), []).append(number)
        for token in range(300):
            x, y = allocation.centers[image, token].tolist()
            said = [number for number in targets[image, token].tolist() if number != PAD]
            if allocation.levels[image, token] != 0:
                assert not said
            else:
                found.append(said == on.get((int(x * gw / 512), int(y * gh / 512)), [])[:SLOTS])
    assert sum(found) > 0.9 * len(found) and len(found) > 200
    assert ((targets != PAD).any(-1).sum(1) > 20).all() and int(targets.max()) < FIRST_PIECE


def test_density_is_where_the_letters_are(pages):
    _, letters = pages.pages(4, step=0)
    density = text_density(letters, (512, 512), (32, 32), step=0)
    assert density.shape == (4, 32, 32) and (density >= 0).all()
    near = torch.zeros(4, 34, 34)
    for image, x, y, number in ((i, *one) for i in range(4) for text in letters[i].tolist() for one in text):
        if number != PAD:
            near[image, y // 16 : y // 16 + 3, x // 16 : x // 16 + 3] = 1.0
    assert not density[near[:, 1:-1, 1:-1] == 0].any() and (density.sum((1, 2)) > 1).all()
    assert not torch.equal(density, text_density(letters, (512, 512), (32, 32), step=1))


def test_letters_of_all_texts_lie_in_their_boxes(pages):
    """Of every text of the page, in their order, the long ones of paragraphs too, which take several rows."""
    longest = 0
    for slot in range(2):
        texts = [text for text in make("documents", "train", slot, size=(512, 512)).meta["texts"] if text["letters"]]
        rows = iter(pages.rows.letters[slot].tolist())
        for text in texts:
            letters = [one for _ in range(0, len(text["text"]), LONGEST_READING) for one in next(rows)]
            (x0, y0, x1, y1), known = text["box"], [one for one in letters if one[2] != PAD]
            assert all(x0 - 1 <= x <= x1 + 1 and y0 <= y <= y1 for x, y, _ in known)
            assert [x for x, _, _ in known] == sorted(x for x, _, _ in known)
            assert default_tokenizer().decode([one[2] for one in known]) == text["text"] or not text["text"].isascii()
            longest = max(longest, len(known))
        assert not any(any(one) for row in rows for one in row)
    assert longest > LONGEST_READING


@given(st.integers(0, 1000))
def test_letter_loss_is_a_plain_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 5, (2, 6, SLOTS), generator=generator)
    counted = torch.rand(2, 6, generator=generator) < 0.6
    logits = torch.randn(2, 6, SLOTS, 5, generator=generator)
    loss, right = letter_loss(logits, targets, counted)
    sums, hits = [], []
    for i, j in counted.nonzero().tolist():
        rows = list(zip(logits[i, j].double(), targets[i, j].tolist(), strict=True))
        sums.append(sum(float(row.exp().sum().log() - row[number]) for row, number in rows))
        hits += [int(row.argmax()) == number for row, number in rows if number != PAD]
    assert loss.item() == pytest.approx(sum(sums) / max(1, len(sums)), rel=1e-4)
    assert right.item() == pytest.approx(sum(hits) / max(1, len(hits)))


def test_the_scorer_spells_what_lies_on_leaves(pages):
    """Heads that know make no mistake, on leaves that have letters first; the weight is that of a sum."""
    vlm = CompactVLM(tiny())
    scoring = Scoring(vlm, [pages], images=2, each=1)
    samples = pages.draw(2, 0)
    letters = pages.letters(samples)
    assert torch.equal(letters, pages.rows.letters[samples.slot].long())
    features = vlm.scorer.features(samples.images)
    asked = []

    class Spy(torch.nn.Module):
        def forward(self, own):
            asked.append(own)
            return torch.zeros(*own.shape[:2], SLOTS * FIRST_PIECE)

    scoring.letters = Spy()
    loss, right = scoring.spelling(features, letters, samples, 0)
    assert loss.item() == pytest.approx(SLOTS * math.log(FIRST_PIECE), rel=1e-5) and right.item() == 0
    lettered = (leaf_letters(letters, (512, 512), (32, 32))[..., 0] != PAD).sum(1)
    assert asked[0].shape == (2, 512, features.shape[-1]) and (lettered < 512).all()  # so all of them are asked for
    for image in range(2):
        rows = {tuple(row) for row in asked[0][image].tolist()}
        on = leaf_letters(letters, (512, 512), (32, 32))[image, :, 0] != PAD
        assert {tuple(row) for row in features.flatten(1, 2)[image, on].tolist()} <= rows


def test_the_weight_of_letters(pages):
    vlm = CompactVLM(tiny()).requires_grad_(False)
    losses = {}
    for weight in (0.0, 0.5, 1.0):
        torch.manual_seed(0)
        value, about = Scoring(vlm, [pages], images=2, each=2, letters=weight)(0)
        losses[weight] = value.item()
        pages.fill(0)
        assert ("letters" in about) == (weight > 0)
    assert losses[1.0] - losses[0.5] == pytest.approx(losses[0.5] - losses[0.0], rel=1e-4)


def test_a_leaf_is_counted_from_the_left_and_the_top():
    letters = torch.tensor([[[[0, 0, 9], [511, 0, 9], [0, 511, 9], [300, 17, 9]]]])
    assert leaf_of(letters, (512, 512), (32, 32)).flatten().tolist() == [0, 31, 31 * 32, 32 + 18]
