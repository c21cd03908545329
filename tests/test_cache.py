"""Reuse: the same bits as without a cache, never more bytes than allowed."""

import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.allocation import make_allocation
from homunculus.cache import TokenCache, memory
from homunculus.errors import CacheError, ImageError
from homunculus.sampling import sample
from homunculus.structures import CELL_FIELDS, Allocation, View
from tests.test_foveate import picture

PATCH = 3 * 16 * 16 * 4  # bytes


def looks(image: torch.Tensor, budget: int = 64, allocator: str = "foveated-pyramid", leaf: int = 16):
    """Allocations of one image with the gaze in different places."""
    _, height, width = image.shape
    for x, y in ((0.2, 0.3), (0.7, 0.6), (0.2, 0.3), (0.4, 0.9)):
        tokens = homunculus.foveate(image, None, budget, allocator, (x * width, y * height), leaf=leaf)
        yield tokens.allocation


def turned(size: tuple[int, int], cells: int, seed: int) -> Allocation:
    """Rotated boxes; half of them are the same for every seed."""
    view = View(torch.ones(2, 8, 8, dtype=torch.float64), size)
    fixed, own = (torch.Generator().manual_seed(s) for s in (0, seed + 1))
    parts = [torch.rand(2, cells // 2, 5, generator=g, dtype=torch.float64) for g in (fixed, own)]
    drawn = torch.cat(parts, dim=1)
    corner = drawn[..., :2] * 5
    boxes = torch.cat((corner, corner + 0.5 + drawn[..., 2:4] * 2), dim=-1)
    return make_allocation(view, boxes, "rotated", angle=(drawn[..., 4] * 3).float())


# ------------------------------------------------------------------------------------------------------------ patches


@pytest.mark.parametrize("allocator", ["foveated-pyramid", "uniform", "topk"])
@pytest.mark.parametrize(
    ("size", "leaf", "kind"), [((256, 256), 16, "uint8"), ((300, 211), 16, "uint8"), ((250, 250), 28, "float")]
)
def test_the_same_bits_as_sampling(allocator, size, leaf, kind):
    image = picture(*size) if kind == "uint8" else picture(*size).float() / 255
    cache = TokenCache()
    for allocation in looks(image, 64, allocator, leaf):
        assert torch.equal(cache.sample(image[None], allocation), sample(image[None], allocation))
    assert cache.stats.hits >= 64  # the third look repeats the first


@pytest.mark.parametrize("cells", [2, 40])
def test_rotated_cells_too(cells):
    images = torch.stack([picture(200, 120, seed) for seed in range(2)])
    cache = TokenCache()
    for seed in range(4):
        allocation = turned((200, 120), cells, seed)
        assert torch.equal(cache.sample(images, allocation), sample(images, allocation))
    assert cache.stats.misses == 5 * cells and cache.stats.hits == 3 * cells


def test_a_batch_reuses_image_by_image():
    images = torch.stack([picture(256, 256, seed) for seed in range(3)])
    one, two = (homunculus.foveate(images, fixation=gaze, budget=64).allocation for gaze in ((50, 50), (200, 90)))
    cache = TokenCache()
    assert torch.equal(cache.sample(images[1:2], one.select([1])), sample(images[1:2], one.select([1])))
    for allocation in (one, two):
        assert torch.equal(cache.sample(images, allocation), sample(images, allocation))
    shared = sum(len(cells(one, i) & cells(two, i)) for i in range(3))
    assert cache.stats.misses == 64 * 6 - shared and cache.stats.hits == 64 + shared


def cells(allocation: Allocation, image: int) -> set[tuple[float, ...]]:
    return {tuple(box) for box in allocation.boxes[image].tolist()}


def test_only_missing_cells_are_read(monkeypatch):
    read = []

    def spy(images, allocation):
        read.append(allocation.boxes[0])
        return sample(images, allocation)

    monkeypatch.setattr(memory, "sample", spy)
    image, cache = picture(256, 256), TokenCache()
    seen: set = set()
    for allocation in looks(image):
        read.clear()
        cache.sample(image[None], allocation)
        sampled = {tuple(box) for boxes in read for box in boxes.tolist()}
        assert sampled == cells(allocation, 0) - seen
        assert sum(map(len, read)) == len(sampled)  # no cell twice
        seen |= sampled
    assert cache.stats.misses == cache.stats.entries == len(seen) and cache.stats.bytes == len(seen) * PATCH
    assert cache.stats.hits + cache.stats.misses == 4 * 64
    assert cache.stats.hit_rate == cache.stats.hits / 256 and TokenCache().stats.hit_rate == 0


def test_repeated_cells_and_repeated_images_are_read_once():
    image = picture(128, 128)
    allocation = homunculus.foveate(image, budget=16).allocation
    twice = replace(allocation, **{f: torch.cat([getattr(allocation, f)] * 2, dim=1) for f in CELL_FIELDS})
    batch, both = torch.stack((image, image)), Allocation.cat((twice, twice))
    cache = TokenCache()
    assert torch.equal(cache.sample(batch, both), sample(batch, both))
    assert (cache.stats.misses, cache.stats.hits) == (16, 48)


def test_what_looks_alike_is_not_confused():
    """The same boxes of another image, another leaf, another kind of cell, another type of pixels."""
    image = picture(256, 256)
    allocation = homunculus.allocate(torch.ones(16, 16), 64, image_size=(256, 256))
    blurred = (image.float() / 255).half()
    cases = [
        (image, allocation),
        (image.flip(0), allocation),
        (image, replace(allocation, leaf=8)),
        (image, replace(allocation, kind="box")),
        (image, replace(allocation, kind="rotated")),
        (image, replace(allocation, kind="rotated", angle=allocation.angle + 0.1)),
        (blurred, allocation),
    ]
    cache = TokenCache()
    for pixels, cells_of in cases:
        assert torch.equal(cache.sample(pixels[None], cells_of), sample(pixels[None], cells_of))
    assert cache.stats.hits == 0 and cache.stats.misses == 64 * len(cases)


def test_names_of_images_are_trusted():
    image, cache = picture(128, 128), TokenCache()
    allocation = homunculus.foveate(image, budget=16).allocation
    first = cache.sample(image[None], allocation, ["page 1"])
    assert torch.equal(cache.sample(image.flip(1)[None], allocation, ["page 1"]), first)
    assert not torch.equal(cache.sample(image.flip(1)[None], allocation, ["page 2"]), first)


# ---------------------------------------------------------------------------------------------------------- the bound


def single(image: torch.Tensor, place: int) -> Allocation:
    """One leaf of a 128 x 128 image, by number."""
    view = View(torch.ones(1, 8, 8, dtype=torch.float64), (128, 128))
    x, y = place % 8, place // 8
    return make_allocation(view, torch.tensor([[[x, y, x + 1, y + 1]]], dtype=torch.float64), "dyadic")


def test_what_was_used_longest_ago_goes_first():
    image = picture(128, 128)[None]
    cache = TokenCache(3 * PATCH)

    def misses(place: int) -> int:
        before = cache.stats.misses
        cache.sample(image, single(image[0], place), ["page"])
        return cache.stats.misses - before

    assert [misses(p) for p in (0, 1, 2, 0, 3)] == [1, 1, 1, 0, 1]  # 1 goes, not 0
    assert [misses(p) for p in (0, 2, 3)] == [0, 0, 0] and cache.stats.evictions == 1
    assert [misses(p) for p in (1, 0)] == [1, 1] and cache.stats.evictions == 3
    assert (cache.stats.entries, cache.total_bytes) == (3, 3 * PATCH)


def test_a_kept_cell_holds_no_more_memory_than_it_counts():
    image, cache = picture(128, 128)[None], TokenCache()
    cache.sample(image, homunculus.foveate(image, budget=16).allocation)
    assert [row.untyped_storage().nbytes() for _, row in cache._rows.values()] == [PATCH] * 16


@settings(max_examples=60)
@given(st.data())
def test_the_bound_holds_and_the_bits_do_not_change(data):
    """Random looks through small caches, against a list that is moved about by hand."""
    image = picture(128, 128)[None]
    room = data.draw(st.integers(1, 30))
    cache, kept, evicted = TokenCache(room * PATCH + data.draw(st.integers(0, PATCH - 1))), [], 0
    view = View(torch.ones(1, 8, 8, dtype=torch.float64), (128, 128))
    for _ in range(data.draw(st.integers(1, 6))):
        places = torch.tensor(data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=20)))
        corner = torch.stack((places % 8, places // 8), dim=1)[None].double()
        allocation = make_allocation(view, torch.cat((corner, corner + 1), dim=-1), "dyadic", in_order=True)
        before = cache.stats
        assert torch.equal(cache.sample(image, allocation, ["page"]), sample(image, allocation))
        assert cache.total_bytes <= cache.max_bytes
        new = list(dict.fromkeys(p for p in places.tolist() if p not in kept))
        for place in [p for p in places.tolist() if p in kept] + new:
            if place in kept:
                kept.remove(place)
            elif len(kept) == room:
                kept.pop(0)
                evicted += 1
            kept.append(place)
        after = cache.stats
        assert after.misses - before.misses == len(new) and after.hits - before.hits == len(places) - len(new)
        assert (after.entries, after.bytes, after.evictions) == (len(kept), len(kept) * PATCH, evicted)


def test_forgetting():
    image, cache = picture(128, 128), TokenCache()
    allocation = homunculus.foveate(image, budget=16).allocation
    cache.sample(image[None], allocation)
    cache.clear()
    assert cache.total_bytes == cache.stats.entries == 0 and cache.stats.misses == 16
    cache.sample(image[None], allocation)
    assert cache.stats.misses == 32 and repr(cache) == f"TokenCache(16 cells, {16 * PATCH:,} of 268,435,456 bytes)"


def test_several_threads():
    image, cache = picture(256, 256), TokenCache(100 * PATCH)
    allocations = list(looks(image)) * 3
    wrong = []

    def work(own: list[Allocation]) -> None:
        for allocation in own:
            patches = cache.sample(image[None], allocation, ["page"])
            if not torch.equal(patches, sample(image[None], allocation)) or cache.total_bytes > cache.max_bytes:
                wrong.append(allocation)

    threads = [threading.Thread(target=work, args=(allocations[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and cache.stats.entries * PATCH == cache.total_bytes
    assert cache.stats.hits + cache.stats.misses == 64 * len(allocations)


@pytest.mark.parametrize("bound", [0, -1, True])
def test_bounds_that_are_none(bound):
    with pytest.raises(CacheError, match="positive whole number"):
        TokenCache(bound)


def test_what_cannot_be_kept():
    image = picture(128, 128)[None]
    allocation = homunculus.foveate(image, budget=16).allocation
    with pytest.raises(CacheError, match=f"takes {PATCH} bytes"):
        TokenCache(PATCH - 1).sample(image, allocation)
    with pytest.raises(ImageError, match="do not match"):
        TokenCache().sample(picture(64, 64)[None], allocation)
    with pytest.raises(ImageError, match="2 images"):
        TokenCache().sample(image.expand(2, -1, -1, -1), allocation)
    with pytest.raises(CacheError, match="2 image keys for 1 images"):
        TokenCache().sample(image, allocation, ["a", "b"])
    with pytest.raises(CacheError, match="not gradients"):
        TokenCache().sample((image.float() / 255).requires_grad_(), allocation)


# --------------------------------------------------------------------------------------------------------- embeddings


class Embed(torch.nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.linear, self.seen = torch.nn.Linear(3 * 16 * 16, width), 0

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        self.seen += len(patches)
        return self.linear(patches.flatten(1))


def test_an_encoder_sees_new_cells_only():
    images = torch.stack([picture(256, 256, seed) for seed in range(2)])
    embed, cache = Embed(), TokenCache()
    for gaze in ((50, 50), (200, 90), (50, 50)):
        allocation = homunculus.foveate(images, fixation=gaze, budget=64).allocation
        expected = embed.linear(sample(images, allocation).flatten(2))
        found = cache.encode(images, allocation, embed)
        assert found.shape == (2, 64, 24) and not found.requires_grad
        assert torch.allclose(found, expected, atol=1e-5)
    assert embed.seen == cache.embedding_stats.misses == cache.stats.misses < 2 * 2 * 64
    assert cache.embedding_stats.hits == 3 * 2 * 64 - embed.seen
    assert cache.embedding_stats.bytes == embed.seen * 24 * 4
    assert cache.total_bytes == cache.stats.bytes + cache.embedding_stats.bytes


def test_every_encoder_has_its_own():
    image = picture(128, 128)[None]
    allocation = homunculus.foveate(image, budget=16).allocation
    first, second, cache = Embed(), Embed(8), TokenCache()
    for _ in range(2):  # a bound method is the same thing each time it is looked up
        assert cache.encode(image, allocation, first.forward).shape == (1, 16, 24)
        assert cache.encode(image, allocation, second.forward).shape == (1, 16, 8)
    assert first.seen == second.seen == cache.stats.misses == 16


def test_patches_and_embeddings_share_one_bound():
    image = picture(128, 128)[None]
    allocation = homunculus.foveate(image, budget=16).allocation
    embed, cache = Embed(256), TokenCache(20 * 1024)  # a row takes 1 KiB, a patch 3
    for _ in range(2):
        rows = cache.encode(image, allocation, embed)
        assert torch.allclose(rows, embed.linear(sample(image, allocation).flatten(2)), atol=1e-5)
        assert cache.total_bytes <= cache.max_bytes
    assert embed.seen == 16 and cache.embedding_stats.entries == 16 and cache.stats.entries == 1
    assert cache.stats.evictions == 15


@pytest.mark.parametrize(
    ("encoder", "made"),
    [
        (lambda patches: patches, r"\[16, 3, 16, 16\]"),
        (lambda patches: patches.flatten(1)[:3], r"\[3, 768\]"),
        (lambda patches: patches.flatten(1).tolist(), "list"),
    ],
)
def test_encoders_that_answer_wrongly(encoder, made):
    image = picture(128, 128)[None]
    with pytest.raises(CacheError, match=f"the encoder made {made} of 16 patches"):
        TokenCache().encode(image, homunculus.foveate(image, budget=16).allocation, encoder)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(512, 512), (500, 390)])
def test_on_the_gpu(size):
    images = torch.stack([picture(*size, seed) for seed in range(3)]).cuda()
    embed, cache = Embed().cuda(), TokenCache()
    for gaze in ((50, 50), (300, 90), (50, 50)):
        allocation = homunculus.foveate(images, fixation=gaze).allocation
        patches = cache.sample(images, allocation)
        assert patches.is_cuda and torch.equal(patches, sample(images, allocation))
        assert cache.encode(images, allocation, embed).is_cuda
    assert cache.stats.hits > 0
    on_cpu = cache.sample(images.cpu(), allocation.to("cpu"))  # the same contents, another device
    assert not on_cpu.is_cuda and torch.equal(on_cpu, sample(images.cpu(), allocation.to("cpu")))
