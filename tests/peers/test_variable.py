"""Counts that differ: by how spread relevance is, and padding that changes nothing but the bill."""

import math

import pytest
import torch

from homunculus.errors import AllocatorError, BudgetError
from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM, look
from homunculus.peers.variable import (
    COUNTS,
    MEAN,
    THRESHOLDS,
    Padded,
    counts_of,
    padded,
    remember_padded,
    spread,
    thresholds_among,
    thresholds_for,
)
from tests.model.tiny import answers, close, noise, questions

SHARES = (400, 64, 160)


@pytest.fixture(scope="module")
def model() -> CompactVLM:
    torch.manual_seed(2)
    made = CompactVLM(tiny()).eval().requires_grad_(False)
    for layer in [*made.encoder.blocks, *made.decoder.layers]:  # loud, so that a look at padding would be heard
        layer.attention.out.weight.data *= 8
    return made


def densities(count: int = 3, seed: int = 1, power: float = 6) -> torch.Tensor:
    return torch.rand(count, 16, 16, generator=torch.Generator().manual_seed(seed)) ** power


def test_spread_is_the_number_of_equal_leaves():
    for leaves in (1, 7, 256):
        flat = torch.zeros(1, 256)
        flat[0, :leaves] = 3.0
        assert spread(flat.view(1, 16, 16)).item() == pytest.approx(leaves)
    density = densities()
    p = density.double().flatten(1) / density.double().flatten(1).sum(1, keepdim=True)
    wanted = [math.exp(-sum(v * math.log(v) for v in row if v > 0)) for row in p.tolist()]
    assert spread(density).tolist() == pytest.approx(wanted)
    assert spread(density * 1000).tolist() == pytest.approx(wanted)


def test_more_spread_is_never_fewer_tokens():
    many = torch.stack([torch.rand(16, 16) ** power for power in (0, 1, 3, 9, 30, 100)])
    given = counts_of(many)
    assert [count for _, count in sorted(zip(spread(many).tolist(), given, strict=True))] == sorted(given)
    assert set(given) <= set(COUNTS) and given[0] == 400
    for place, threshold in enumerate(THRESHOLDS):  # a threshold that is reached counts
        leaves = math.ceil(threshold)
        flat = torch.zeros(1, 16, 16)
        flat.view(-1)[:leaves] = 1.0
        assert counts_of(
            flat, [*THRESHOLDS[:place], float(leaves) - 1e-9, 300.0][: place + 1], COUNTS[: place + 2]
        ) == (COUNTS[place + 1],)


@pytest.mark.parametrize("mean", [70, 120, 200, 273, 390])
@pytest.mark.parametrize("size", [40, 500])
def test_thresholds_give_the_mean_that_was_asked_for(mean, size):
    many = (
        torch.rand(size, 12, 12, generator=torch.Generator().manual_seed(0))
        ** torch.linspace(0, 20, size)[:, None, None]
    )
    thresholds = thresholds_for(many, mean)
    given = counts_of(many, thresholds)
    assert len(thresholds) == 4 and list(thresholds) == sorted(thresholds)
    assert abs(sum(given) / size - mean) <= 400 / size
    assert thresholds == thresholds_among(spread(many).flip(0).tolist(), mean)
    if mean == 200 and size == 500:
        assert min(given.count(count) for count in COUNTS) > 30  # all of them are used


def test_the_evenest_share_with_that_mean():
    """At the mean of the counts all are used equally often."""
    given = counts_of(many := densities(500, power=8), thresholds_for(many, sum(COUNTS) / 5))
    assert [given.count(count) for count in COUNTS] == [100] * 5


def test_padding_changes_no_answer(model):
    """An image alone, with its own number of tokens and no mask anywhere, says the same as padded in a batch."""
    images, density, question, answer = noise(), densities(), questions(), answers()
    tokens = padded(images, density, SHARES)
    assert tokens.patches.shape[:2] == (3, 400) and tokens.counts == SHARES
    memory = remember_padded(model, tokens)
    logits, written = model.decoder(memory, question, answer), model.decoder.write(memory, question, 9)
    for image, count in enumerate(SHARES):
        own = slice(image, image + 1)
        alone = model.see(look(images[own], density[own], count))
        assert alone.real is None and alone.counts == (count, count)
        assert close(model.decoder(alone, question[own], answer[own]), logits[own], 1e-5)
        by_itself = model.decoder.write(alone, question[own], 9)
        length = by_itself.letters.shape[1]
        assert torch.equal(by_itself.letters[0], written.letters[image, :length])
        assert close(by_itself.probabilities[0], written.probabilities[image, :length], 1e-5)


def test_nobody_looks_at_padding(model):
    """However loud it is; and without the mask it would be heard."""
    tokens, question, answer = padded(noise(), densities(), SHARES), questions(), answers()
    before = model.decoder(remember_padded(model, tokens), question, answer)
    loud = tokens._replace(
        patches=torch.where(tokens.real[..., None, None, None], tokens.patches, 50.0),
        cells=type(tokens.cells)(
            *(known.where(tokens.real.view(3, 400, *[1] * (known.ndim - 2)), 3.0) for known in tokens.cells)
        ),
    )
    memory = remember_padded(model, loud)
    assert close(model.decoder(memory, question, answer), before, 1e-5)
    heard = model.decoder(memory._replace(real=None), question, answer)
    assert not close(heard[1], before[1], 1e-3) and close(heard[0], before[0], 1e-5)
    encoded = remember_padded(model, loud._replace(real=None))._replace(real=loud.real)
    assert not close(model.decoder(encoded, question, answer)[1], before[1], 1e-3)


def test_what_is_real_comes_first_and_waste_is_counted():
    tokens = padded(noise(), densities(), SHARES)
    assert tokens.real.sum(1).tolist() == list(SHARES) and (tokens.real.int().diff(dim=1) <= 0).all()
    assert tokens.waste == pytest.approx(1 - 624 / 1200) == pytest.approx(1 - tokens.real.float().mean().item())
    assert (tokens.patches[~tokens.real] == 0).all() and (tokens.patches[tokens.real].flatten(1).std(1) > 0).all()


def test_equal_counts_need_no_mask(model):
    tokens = padded(noise(), densities(), (100,) * 3)
    assert tokens.real is None and tokens.waste == 0
    memory, plain = remember_padded(model, tokens), model.see(look(noise(), densities(), 100))
    for ours, theirs in zip(memory.layers, plain.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("images", [torch.uint8, torch.float32])
def test_in_bfloat16(model, images):
    pixels = (noise() * 255).to(torch.uint8) if images == torch.uint8 else noise()
    expected = model.decoder(remember_padded(model, padded(pixels, densities(), SHARES)), questions(), answers())
    with torch.autocast("cpu", torch.bfloat16):
        memory = remember_padded(model, padded(pixels, densities(), SHARES))
        logits = model.decoder(memory, questions(), answers())
        written = model.decoder.write(memory, questions(), 5)
    assert (logits.float() - expected).abs().mean() < 0.1 * expected.std()
    assert written.probabilities.isfinite().all()


def test_what_cannot_be_is_refused():
    for thresholds in ((1, 2, 3), (4, 3, 2, 1), (1, 2, 3, 4, 5)):
        with pytest.raises(AllocatorError, match="5 counts need 4 rising thresholds"):
            counts_of(densities(), thresholds)
    for mean in (64, 400, 1000):
        with pytest.raises(BudgetError, match="not between 64 and 400"):
            thresholds_for(densities(), mean)
    assert list(THRESHOLDS) == sorted(THRESHOLDS) and MEAN == 273
    assert Padded(torch.zeros(1, 5, 3, 16, 16), None, None, (5, 10)).waste == 0.25
