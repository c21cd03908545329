"""The encoder: what it is told of cells, and that order, batch mates and where the image begins mean nothing to it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homunculus
from homunculus.model.config import tiny
from homunculus.model.encoder import LEVELS, WAVES, WEIGHT_RANGE, Cells, Encoder, cells_of, embedded_levels, waves
from homunculus.model.rotary import POSITIONS
from homunculus.model.vlm import look
from homunculus.structures import Allocation
from tests.model.tiny import NeverWaits, close, tokens
from tests.strategies import densities, image_sizes

BOXES = ("foveated-pyramid", "detail-tree", "uniform", "topk", "random", "stratified", "pyramid", "views")


@pytest.fixture
def encoder():
    torch.manual_seed(1)
    return Encoder(tiny())


@pytest.fixture
def seen():
    """Patches and cells of two images, 64 each."""
    found = tokens(2)
    return found.patches, cells_of(found.allocation)


# ---------------------------------------------------------------------------------------------------------------- cells


def one_by_one(allocation, density):
    """Level, x, y and weight of each box cell of one image, by hand."""
    (width, height), (gw, gh) = allocation.image_sizes[0], allocation.grids[0]
    mean = density.sum() / (gw * gh)
    for x0, y0, x1, y1 in allocation.boxes[0].double().numpy() * np.array([gw / width, gh / height] * 2):
        share_x = np.clip(np.minimum(x1, np.arange(gw) + 1) - np.maximum(x0, np.arange(gw)), 0, None)
        share_y = np.clip(np.minimum(y1, np.arange(gh) + 1) - np.maximum(y0, np.arange(gh)), 0, None)
        area = (x1 - x0) * (y1 - y0)
        inside = share_y @ density @ share_x / area
        weight = np.clip(np.log2(max(inside / mean, 1e-9)), -WEIGHT_RANGE, WEIGHT_RANGE)
        yield np.log2(area) / 2, (x0 + x1) / 2, (y0 + y1) / 2, weight


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("size", [(256, 256), (500, 300), (333, 1000)])
def test_cells_are_what_boxes_say(name, size):
    width, height = size
    images = torch.rand(1, 3, height, width)
    gw, gh = homunculus.geometry.fit_grid(width, height, 100)[:2]
    density = torch.rand(1, gh, gw, dtype=torch.float64) ** 6
    allocation = look(images, density, 100, name).allocation
    cells = cells_of(allocation)
    expected = torch.tensor(list(one_by_one(allocation, density[0].numpy())))
    assert torch.allclose(cells.places[0, :, :3].double(), expected[:, :3], atol=1e-3)
    assert torch.allclose(cells.weights[0].double(), expected[:, 3], atol=2e-3)
    assert (cells.places[..., 3] == 0).all()


@settings(max_examples=30)
@given(image_sizes(32, 1200), st.integers(16, 300), st.data())
def test_cells_are_finite_and_on_the_grid(size, budget, data):
    grid = homunculus.geometry.fit_grid(*size, budget)
    density = data.draw(densities((1, grid.gh, grid.gw)))
    allocation = homunculus.allocate(density, budget, image_size=size)
    cells = cells_of(allocation)
    assert all(known.isfinite().all() and known.dtype == torch.float32 for known in cells)
    x, y = cells.places[..., 1], cells.places[..., 2]
    half = 2 ** cells.places[..., 0] / 2
    assert (x - half > -1e-3).all() and (x + half < grid.gw + 1e-3).all()
    assert (y - half > -1e-3).all() and (y + half < grid.gh + 1e-3).all()
    assert cells.weights.abs().max() <= WEIGHT_RANGE


def test_cells_of_images_of_several_sizes_are_those_of_each():
    parts = [
        homunculus.allocate(torch.rand(gh, gw), 64, image_size=size)
        for (gw, gh), size in (((16, 16), (256, 256)), ((24, 16), (300, 200)), ((24, 16), (384, 256)))
    ]
    together = cells_of(Allocation.cat(parts))
    for i, part in enumerate(parts):
        alone = cells_of(part)
        assert all(torch.allclose(ours[i], theirs[0]) for ours, theirs in zip(together, alone, strict=True))


def sides(allocation):
    """The two sides of each cell of one image as vectors, from its corners: right and down where it is upright."""
    x0, y0, x1, y1 = allocation.boxes[0].double().numpy().T
    middle, turn = (x0 + x1 + 1j * (y0 + y1)) / 2, np.exp(1j * allocation.angle[0].double().numpy())
    corner, right, down = ((x + 1j * y - middle) * turn + middle for x, y in ((x0, y0), (x1, y0), (x0, y1)))
    return right - corner, down - corner


@pytest.mark.parametrize("size", [(256, 256), (500, 300)])
@pytest.mark.parametrize("name", ["frequency", "views", "vortex", "foveated-pyramid"])
def test_forms_are_what_the_corners_say(name, size):
    width, height = size
    allocation = look(torch.rand(1, 3, height, width), torch.rand(1, 16, 16) ** 4, 100, name).allocation
    right, down = sides(allocation)
    along = (right / abs(right)) ** 2  # half a turn changes nothing
    expected = torch.from_numpy(np.stack((np.log2(abs(right) / abs(down)), along.imag, 1 - along.real), -1))
    forms = cells_of(allocation).forms[0].double()
    assert torch.allclose(forms, expected, atol=1e-4)
    stretched, turned = forms[:, 0].abs() > 0.5, forms[:, 1].abs() + forms[:, 2] > 0.1
    assert bool(stretched.any()) == (name in ("frequency", "vortex")) and bool(turned.any()) == (name == "frequency")
    if size == (256, 256) and name in ("views", "foveated-pyramid"):
        assert forms.abs().max() < 1e-5  # upright squares


def test_a_cell_turned_by_half_a_turn_is_the_same():
    allocation = look(torch.rand(1, 3, 256, 256), torch.rand(1, 16, 16), 64, "frequency").allocation
    over = replace(allocation, angle=allocation.angle + torch.pi)
    assert torch.allclose(cells_of(over).forms, cells_of(allocation).forms, atol=1e-5)


def test_a_leaf_is_a_leaf_of_the_fitted_grid():
    """One image at two resolutions: the same cells."""
    density = torch.rand(16, 16)
    small, large = (cells_of(homunculus.allocate(density, 64, image_size=(s, s))) for s in (256, 1000))
    assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(small, large, strict=True))


# -------------------------------------------------------------------------------------------------------------- encoder


def test_order_means_nothing(encoder, seen):
    patches, cells = seen
    order = torch.randperm(64)
    shuffled = encoder(patches[:, order], Cells(*(known[:, order] for known in cells)))
    assert close(shuffled, encoder(patches, cells)[:, order])


def test_batch_mates_mean_nothing(encoder, seen):
    patches, cells = seen
    both = encoder(patches, cells)
    for i in range(2):
        own = slice(i, i + 1)
        assert close(encoder(patches[own], Cells(*(known[own] for known in cells))), both[own])
    assert not close(both[:1], both[1:], 1e-2)


def test_only_the_distance_between_cells_matters(encoder, seen):
    patches, cells = seen
    moved = cells._replace(places=cells.places + torch.tensor([0.0, 37.0, 11.5, 0.0]))
    assert close(encoder(patches, moved), encoder(patches, cells), 1e-4)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_places_matter(encoder, seen, axis):
    patches, cells = seen
    places = cells.places.clone()
    places[:, ::2, axis] += 1.0
    before = encoder(patches, cells)
    assert not close(encoder(patches, cells._replace(places=places)), before, 1e-3)
    swapped = cells._replace(places=cells.places[..., [0, 2, 1, 3]])
    assert not close(encoder(patches, swapped), before, 1e-3)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_forms_matter(encoder, seen, part):
    patches, cells = seen
    forms = cells.forms.clone()
    forms[:, ::2, part] += 0.5
    assert not close(encoder(patches, cells._replace(forms=forms)), encoder(patches, cells), 1e-3)


def test_content_that_moves_by_whole_leaves_looks_the_same(encoder):
    content, density = torch.rand(1, 3, 96, 96), torch.rand(1, 6, 6) + 0.1
    features = []
    for x, y in ((2, 3), (7, 1)):
        image, relevance = torch.ones(1, 3, 256, 256), torch.zeros(1, 16, 16)
        image[..., 16 * y : 16 * y + 96, 16 * x : 16 * x + 96] = content
        relevance[:, y : y + 6, x : x + 6] = density
        found = look(image, relevance, 36, "topk")
        features.append(encoder(found.patches, cells_of(found.allocation)))
    assert close(features[0], features[1], 1e-4)


def test_a_weight_that_is_not_told(encoder, seen):
    patches, cells = seen
    hidden = cells._replace(weights=torch.full_like(cells.weights, torch.nan))
    untold = encoder(patches, hidden)
    assert untold.isfinite().all()
    assert not close(untold, encoder(patches, cells), 1e-3)
    zero = cells._replace(weights=torch.zeros_like(cells.weights))
    assert not close(untold, encoder(patches, zero), 1e-3)  # not told is not the same as average
    one = cells.weights.clone()
    one[0] = torch.nan  # one image of two
    mixed = encoder(patches, cells._replace(weights=one))
    assert close(mixed[:1], untold[:1]) and close(mixed[1:], encoder(patches, cells)[1:])


def test_gradients_reach_everything_and_are_finite(encoder, seen):
    patches, cells = seen
    weights = cells.weights.clone()
    weights[0] = torch.nan
    told = cells._replace(weights=weights, forms=torch.rand_like(cells.forms))
    (encoder(patches, told) @ torch.randn(32)).square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(encoder, seen, dtype):
    patches, cells = seen
    expected = encoder(patches, cells)
    features = encoder.to(dtype)(patches.to(dtype), cells)
    assert features.dtype == dtype
    assert close(features.float(), expected, 0.05)


def test_autocast(encoder, seen):
    patches, cells = seen
    with torch.autocast("cpu", torch.bfloat16):
        features = encoder(patches.bfloat16(), cells)
    assert close(features.float(), encoder(patches, cells), 0.05)


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_host_never_waits(positions):
    cells = Cells(*(torch.zeros(2, 9, *last, device="meta") for last in ((4,), (), (3,))))
    encoder = encoder_by(positions).to("meta")
    with NeverWaits():
        assert encoder(torch.zeros(2, 9, 3, 16, 16, device="meta"), cells).shape == (2, 9, 32)


# ------------------------------------------------------------------------------------------------------------ positions


def encoder_by(positions):
    torch.manual_seed(1)
    return Encoder(replace(tiny(), positions=positions))


def test_only_what_is_embedded_has_parameters_of_its_own():
    """And everything else begins the same, so that nothing but positions is compared."""
    plain = Encoder(tiny()).state_dict().keys()
    weights = {name: encoder_by(name).state_dict() for name in POSITIONS}
    table = weights["embedded-level"].pop("level_embedding")
    assert table.shape == (LEVELS, 32) and (table == 0).all()
    table = weights["placed"].pop("place_embedding")
    assert table.shape == (4 * WAVES[1], 32) and (table == 0).all()
    for own in weights.values():
        assert own.keys() == plain
        assert all(torch.equal(own[name], weights["level-x-y"][name]) for name in plain)


@pytest.mark.parametrize("name", POSITIONS)
def test_whatever_the_positions(name, seen):
    """Order and where the image begins mean nothing, where cells lie to each other does; each way is another."""
    encoder, (patches, cells) = encoder_by(name), seen
    features, order = encoder(patches, cells), torch.randperm(64)
    shuffled = encoder(patches[:, order], Cells(*(known[:, order] for known in cells)))
    assert close(shuffled, features[:, order], 1e-4)
    moved = cells._replace(places=cells.places + torch.tensor([0.0, 37.0, 11.5, 0.0]))
    assert close(encoder(patches, moved), features, 1e-3)
    swapped = cells._replace(
        places=cells.places[:, order] * torch.tensor([0.0, 1, 1, 1]) + cells.places * torch.eye(4)[0]
    )
    assert not close(encoder(patches, swapped), features, 1e-3)
    alike = {"level-x-y", "placed"}  # the one begins as the other is
    for other in POSITIONS.keys() - (alike if name in alike else {name}):
        assert not close(encoder_by(other)(patches, cells), features, 1e-3)


def test_who_is_told_places_knows_where_the_image_begins(seen):
    encoder, (patches, cells) = encoder_by("placed"), seen
    assert torch.equal(encoder(patches, cells), encoder_by("level-x-y")(patches, cells))
    encoder(patches, cells).square().sum().backward()
    assert encoder.place_embedding.grad.abs().min() > 0
    with torch.no_grad():
        encoder.place_embedding.normal_()
    features = encoder(patches, cells)
    for step in ([0.0, 37.0, 0.0, 0.0], [0.0, 0.0, 11.5, 0.0]):
        assert not close(encoder(patches, cells._replace(places=cells.places + torch.tensor(step))), features, 1e-2)


def test_waves_tell_any_two_places_of_a_large_image_apart():
    """And places near each other are told alike."""
    along = torch.arange(0, 512.0, 0.5)
    told = waves(torch.stack((along, torch.zeros_like(along)), dim=-1)[None])[0]
    apart = torch.cdist(told, told)
    assert apart[~torch.eye(len(along), dtype=torch.bool)].min() > 0.05
    assert apart.diagonal(1).max() < 0.15


@pytest.mark.parametrize("name", POSITIONS)
def test_padding_means_nothing_to_any_positions(name, seen):
    encoder, (patches, cells) = encoder_by(name), seen
    more = Cells(*(torch.cat((known, torch.zeros_like(known[:, :6])), dim=1) for known in cells))
    real = torch.arange(70).expand(2, -1) < 64
    padded = encoder(torch.cat((patches, patches[:, :6]), dim=1), more, real)
    assert close(padded[:, :64], encoder(patches, cells), 1e-4)


def test_levels_are_embedded_between_their_rows():
    table = torch.randn(5, 3)
    levels = torch.tensor([[-0.5, 0.0, 2.0, 2.25, 3.5, 4.0, 7.0]])
    rows = [
        table[0],
        table[0],
        table[2],
        0.75 * table[2] + 0.25 * table[3],
        (table[3] + table[4]) / 2,
        table[4],
        table[4],
    ]
    assert torch.allclose(embedded_levels(levels, table)[0], torch.stack(rows))


def test_an_embedding_of_levels_is_learned(seen):
    encoder, (patches, cells) = encoder_by("embedded-level"), seen
    before = encoder(patches, cells)
    (before @ torch.randn(32)).square().sum().backward()
    met = cells.places[..., 0].unique().long().tolist()
    moved = encoder.level_embedding.grad.norm(dim=1)
    assert len(met) > 1 and (moved[met] > 0).all() and moved.sum() == moved[met].sum()  # of the levels that were there
    with torch.no_grad():
        encoder.level_embedding += torch.randn(LEVELS, 32)
    assert not close(encoder(patches, cells), before, 1e-2)


@pytest.mark.parametrize("name", POSITIONS)
def test_every_way_goes_with_autocast_and_waits_for_nothing(name, seen):
    encoder, (patches, cells) = encoder_by(name), seen
    with torch.autocast("cpu", torch.bfloat16):
        features = encoder(patches.bfloat16(), cells)
    assert close(features.float(), encoder(patches, cells), 0.05)
    nothing = Cells(*(torch.zeros(2, 9, *last, device="meta") for last in ((4,), (), (3,))))
    encoder.to("meta")
    with NeverWaits():
        assert encoder(torch.zeros(2, 9, 3, 16, 16, device="meta"), nothing).shape == (2, 9, 32)
