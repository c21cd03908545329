"""Ways to show an image to a reader of plain pictures: against ordinary allocations, slices of pixels, plain loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import homunculus
from homunculus.allocation.views import choose_grids
from homunculus.errors import ModelError
from homunculus.eval.proxy import (
    BLIND,
    ORDINARY,
    WAYS,
    Seen,
    Shower,
    cell_shares,
    exact_answers,
    one_after_another,
    ordinary_memory,
    own_places,
    pictures,
    plain_cells,
    pool_features,
    scaled_shape,
    whole_boxes,
    window_shape,
)
from homunculus.model.config import tiny
from homunculus.model.decoder import Written
from homunculus.model.encoder import cells_of
from homunculus.model.tokenizer import PAD
from homunculus.model.vlm import CompactVLM, look

SIDE = 256  # pixels: 16 x 16 leaves
BUDGET = 64


@pytest.fixture(scope="module")
def model() -> CompactVLM:
    torch.manual_seed(0)
    return CompactVLM(tiny()).requires_grad_(False)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, SIDE, SIDE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def density() -> torch.Tensor:
    """Two questions to each of two images, each about one leaf."""
    wanted = torch.zeros(4, 16, 16)
    for row, (x, y) in zip(wanted, ((2, 3), (12, 9), (8, 8), (15, 0)), strict=True):
        row[y, x] = 1.0
    return wanted


def slices(images: torch.Tensor, x: int, y: int, columns: int, rows: int) -> torch.Tensor:
    """Patches of a window of leaves, straight from the pixels."""
    cut = images[:, :, 16 * y : 16 * (y + rows), 16 * x : 16 * (x + columns)].float() / 255
    return cut.unflatten(3, (columns, 16)).unflatten(2, (rows, 16)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


# ------------------------------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize("budget", [256, 64, 16])
def test_a_picture_of_the_whole_image_is_the_uniform_grid_relabelled(model, images, budget):
    """Same pixels; places in leaves of its own grid, level 0; so the same features as cells told so."""
    side = {256: 16, 64: 8, 16: 4}[budget]
    tokens = look(images, torch.ones(2, 16, 16), budget, "uniform")
    own = pictures(images, whole_boxes(images, (16, 16)), (side, side), (16, 16))
    assert torch.allclose(own.patches, tokens.patches, atol=1e-6)
    cells = cells_of(tokens.allocation)
    assert cells.places[..., 0].unique().item() == {256: 0, 64: 1, 16: 2}[budget]
    places = cells.places / (16 // side)
    places[..., 0] = 0.0
    assert torch.equal(own_places((side, side), images.float()), places)
    told = cells._replace(
        places=places, weights=torch.full_like(cells.weights, torch.nan), forms=torch.zeros_like(cells.forms)
    )
    seen = Shower(model, budget).downscaled(images)
    assert torch.allclose(seen.features, model.encoder(tokens.patches, told), atol=1e-5)
    assert torch.equal(seen.places, places)


@given(st.integers(1, 9), st.integers(1, 9))
def test_places_are_middles_of_leaves_in_reading_order(columns, rows):
    places = own_places((columns, rows), torch.zeros(3))
    assert places.shape == (3, columns * rows, 4)
    expected = [[0.0, x + 0.5, y + 0.5, 0.0] for y in range(rows) for x in range(columns)]
    assert all(one.tolist() == expected for one in places)


def test_pictures_at_full_resolution_are_slices(images):
    boxes = torch.tensor([[3.0, 2, 8, 6], [11, 12, 16, 16]], dtype=torch.float64)
    tokens = pictures(images, boxes, (5, 4), (16, 16))
    assert torch.allclose(tokens.patches[:1], slices(images[:1], 3, 2, 5, 4), atol=1e-6)
    assert torch.allclose(tokens.patches[1:], slices(images[1:], 11, 12, 5, 4), atol=1e-6)
    assert (tokens.allocation.levels == 0).all()


def test_nothing_is_told_of_plain_cells():
    cells = plain_cells(torch.rand(2, 3, 4))
    assert (cells.places[..., 0] == 0).all() and cells.weights.isnan().all() and (cells.forms == 0).all()
    assert cells.weights.shape == (2, 3) and cells.forms.shape == (2, 3, 3)


def test_the_second_picture_lies_behind_the_first():
    first, second = (Seen(torch.rand(1, w * h, 8), own_places((w, h), torch.zeros(1))) for w, h in ((3, 2), (2, 2)))
    both = one_after_another(first, second, (3, 2))
    assert torch.equal(both.features, torch.cat((first.features, second.features), dim=1))
    assert both.places[0, :6].tolist() == first.places[0].tolist()
    assert both.places[0, 6:].tolist() == [[0, x + 3.5, y + 3.5, 0] for y in (0, 1) for x in (0, 1)]


@given(st.integers(1, 2000), st.integers(1, 80), st.integers(1, 80), st.sampled_from([0.5, 1.0, 2.0]))
def test_shapes_keep_to_the_budget_and_the_grid(budget, gw, gh, ratio):
    for columns, rows in (window_shape(budget, (gw, gh), ratio), scaled_shape(budget, (gw, gh))):
        assert 1 <= columns <= gw and 1 <= rows <= gh
        assert columns * rows <= budget or 1 in (columns, rows)


# -------------------------------------------------------------------------------------------------------------- pooling


@given(st.integers(0, 1000), st.sampled_from([(64, 64), (50, 70)]))
def test_pooling_is_a_plain_loop(seed, size):
    """Features averaged by overlap, pixel by pixel of a fine grid, for boxes that cut leaves anywhere."""
    generator = torch.Generator().manual_seed(seed)
    width, height = size
    allocation = homunculus.allocate(
        torch.rand(1, 8, 8, generator=generator), 16, "stratified", image_size=size, seed=seed
    )
    gw, gh = allocation.grids[0]
    features = torch.randn(1, gw * gh, 3, generator=generator)
    pooled = pool_features(features, allocation)
    assert torch.allclose(cell_shares(allocation).sum(-1), torch.ones(1, 16), atol=1e-5)
    for box, found in zip(allocation.boxes[0].double().tolist(), pooled[0], strict=True):
        total, mean = 0.0, torch.zeros(3, dtype=torch.float64)
        for y in range(gh):
            for x in range(gw):
                across = min(box[2], (x + 1) * width / gw) - max(box[0], x * width / gw)
                down = min(box[3], (y + 1) * height / gh) - max(box[1], y * height / gh)
                if across > 0 and down > 0:
                    total += across * down
                    mean += across * down * features[0, y * gw + x].double()
        assert torch.allclose(found.double(), mean / total, atol=1e-5)


@given(st.integers(0, 1000))
def test_pooling_keeps_the_mean(seed):
    """Cells that cover the image once, weighted by their area, have the mean of all leaves."""
    generator = torch.Generator().manual_seed(seed)
    allocation = homunculus.allocate(torch.rand(1, 16, 16, generator=generator), BUDGET)
    features = torch.randn(1, 256, 5, generator=generator)
    area = 4**allocation.levels * ~allocation.is_context
    assert area.sum() == 256
    mean = (pool_features(features, allocation) * area[..., None]).sum(1) / 256
    assert torch.allclose(mean, features.mean(1), atol=1e-5)


def test_a_leaf_keeps_its_features():
    density = torch.ones(1, 16, 16)
    density[0, 4:6, 9:12] = 100.0
    allocation = homunculus.allocate(density, BUDGET)
    features = torch.randn(1, 256, 5)
    pooled = pool_features(features, allocation)
    leaves = allocation.levels[0] == 0
    x, y = (allocation.centers[0, leaves] // 16).long().unbind(-1)
    assert leaves.any() and torch.equal(pooled[0, leaves], features[0, y * 16 + x])


# ----------------------------------------------------------------------------------------------------------------- ways


def test_the_window_shows_the_place_in_question(model, images, density):
    seen = Shower(model, BUDGET).grid(images, density)
    columns, rows = window_shape(BUDGET, (16, 16))
    assert (columns, rows) == (8, 8)
    corners = [(0, 0), (8, 5), (4, 4), (8, 0)]  # in the middle where there is room
    for i, (x, y) in enumerate(corners):
        at = density[i].nonzero()[0].tolist()
        found = [
            (a, b)
            for a in range(9)
            for b in range(9)
            if torch.allclose(alone(model, images[i // 2], a, b).features[0], seen.features[i], atol=1e-4)
        ]
        assert len(found) == 1
        assert found[0][0] <= at[1] < found[0][0] + 8 and found[0][1] <= at[0] < found[0][1] + 8
        assert abs(found[0][0] - x) <= 1 and abs(found[0][1] - y) <= 1
    assert torch.equal(seen.places, own_places((8, 8), density))


def alone(model: CompactVLM, image: torch.Tensor, x: int, y: int) -> Seen:
    """A window of 8 x 8 leaves as an image of its own."""
    cut = image[None, :, 16 * y : 16 * y + 128, 16 * x : 16 * x + 128]
    return Shower(model, BUDGET).whole(cut)


def test_with_every_leaf_all_ways_are_one(model, images):
    shower, even = Shower(model, 256), torch.ones(2, 16, 16)
    whole = shower.whole(images)
    for way in ("grid", "pre", "post", "downscaled"):
        seen = shower.seen(way, images, even)
        assert torch.equal(seen.places, whole.places), way
        assert torch.allclose(seen.features, whole.features, atol=1e-4), way


def test_pre_is_told_no_scale(model, images, density):
    """Cells as an ordinary reader gets them, centres and pixels, but for level and weight."""
    tokens = look(images.repeat_interleave(2, 0), density, BUDGET)
    cells = cells_of(tokens.allocation)
    assert len(cells.places[..., 0].unique()) > 1
    seen = Shower(model, BUDGET).pre(images, density)
    assert torch.equal(seen.places[..., 1:], cells.places[..., 1:]) and (seen.places[..., 0] == 0).all()
    assert (seen.places[..., 1:3] % 1 == 0).any() and (seen.places[..., 1:3] % 1 == 0.5).any()  # off the grid's middles
    assert torch.equal(seen.features, model.encoder(tokens.patches, plain_cells(cells.places)))
    assert not torch.allclose(seen.features, model.encoder(tokens.patches, cells), atol=1e-3)


def test_post_pools_the_features_of_the_whole_image(model, images, density):
    shower = Shower(model, BUDGET)
    seen, allocation = shower.post(images, density), look(images.repeat_interleave(2, 0), density, BUDGET).allocation
    whole = shower.whole(images).features.repeat_interleave(2, 0)
    assert torch.allclose(seen.features, pool_features(whole, allocation), atol=1e-6)
    assert torch.equal(seen.places[..., 1:3], allocation.centers / 16) and (seen.places[..., 0] == 0).all()


def test_views_are_two_pictures_that_know_nothing_of_each_other(model, images, density):
    overview, crop = choose_grids(BUDGET, (16, 16), (SIDE, SIDE))
    first = overview[0] * overview[1]
    seen = Shower(model, BUDGET).views(images, density)
    assert seen.features.shape[:2] == (4, BUDGET) and first + crop[0] * crop[1] == BUDGET
    small = Shower(model, BUDGET).picture(images, whole_boxes(images, (16, 16)), overview, (16, 16))
    assert torch.allclose(seen.features[:, :first], small.features.repeat_interleave(2, 0), atol=1e-4)
    changed = images.clone()
    changed[:, :, 15 * 16 :] = 0  # the last row of leaves, far from the first question's crop
    again = Shower(model, BUDGET).views(changed, density)
    assert torch.equal(again.features[0, first:], seen.features[0, first:])
    assert not torch.equal(again.features[0, :first], seen.features[0, :first])
    assert seen.places[:, first:, 1:3].amin() == max(overview) + 0.5


@pytest.mark.parametrize("way", WAYS)
def test_questions_are_shown_as_if_each_were_alone(model, images, density, way):
    shower = Shower(model, BUDGET)
    together = shower.memory(way, images, density)
    tokens = {"grid": 64, "downscaled": 64, "whole": 256}.get(way, BUDGET)
    assert set(together.counts) == {tokens}
    for i in range(4):
        single = shower.memory(way, images[i // 2 : i // 2 + 1], density[i : i + 1])
        for ours, own in zip(together.layers, single.layers, strict=True):
            for all_of, one in zip(ours, own, strict=True):
                assert all_of.shape[0] == 4 and torch.allclose(all_of[i : i + 1], one, atol=1e-4)


@pytest.mark.parametrize("way", BLIND)
def test_some_ways_do_not_depend_on_relevance(model, images, density, way):
    shower = Shower(model, BUDGET)
    assert torch.equal(shower.seen(way, images, density).features, shower.seen(way, images, 1 - density).features)


def test_images_of_any_size(model):
    shower = Shower(model, BUDGET)
    image, wanted = torch.rand(1, 3, 190, 330), torch.rand(1, 12, 21)
    counts = {way: shower.memory(way, image, wanted).counts[0] for way in WAYS}
    assert counts.pop("whole") >= 11 * 20
    assert counts["pre"] == counts["post"] == counts["views"] == BUDGET and min(counts.values()) > 0.8 * BUDGET
    assert max(counts.values()) <= BUDGET


def test_ways_have_names(model, images, density):
    with pytest.raises(ModelError, match="no way 'sideways' to show an image: choose one of grid, pre"):
        Shower(model).seen("sideways", images, density)
    with pytest.raises(ModelError, match="no cells stand for 'post': choose one of pre"):
        ordinary_memory(model, "post", images, density)


@pytest.mark.parametrize("way", ORDINARY)
def test_an_ordinary_reader_gets_what_it_was_trained_on(model, images, density, way):
    budget = {"whole": 256}.get(way, BUDGET)
    expected = model.see(look(images.repeat_interleave(2, 0), density, budget, ORDINARY[way]))
    found = ordinary_memory(model, way, images, density, BUDGET)
    assert set(found.counts) == {budget}
    pairs = zip(found.layers, expected.layers, strict=True)
    assert all(torch.equal(a, b) for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))


# -------------------------------------------------------------------------------------------------------------- answers


def test_answers_are_counted_by_what_is_written(model, images, density, monkeypatch):
    """One of several right answers, in any case; each batch with the images, densities and questions of its own."""
    spoken = ["AB-12", "x", "seven", "no"]
    letters = model.tokenizer.batch([model.tokenizer.spell(text) for text in spoken])
    question = torch.arange(4)[:, None] + 70
    asked = []

    def write(memory, own, longest):
        rows = own[:, 0] - 70
        asked.append((rows.tolist(), longest))
        wrote = torch.nn.functional.pad(letters[rows], (0, 2), value=PAD)
        return Written(wrote, torch.ones(wrote.shape))

    monkeypatch.setattr(model.decoder, "write", write)
    seen = []

    def remember(own_images, own_density):
        seen.append((own_images, own_density))
        return Shower(model, BUDGET).memory("downscaled", own_images, own_density)

    right = [("ab-12",), ("y", "z"), ("7", "seven"), ("nothing",)]
    found = exact_answers(model, remember, images, question, density, right, batch=1, longest=9)
    assert found == [1.0, 0.0, 1.0, 0.0]
    assert asked == [([0, 1], 9), ([2, 3], 9)]
    assert torch.equal(seen[1][0], images[1:]) and torch.equal(seen[1][1], density[2:])
