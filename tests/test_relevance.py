"""Relevance: what the maps respond to, where words send the gaze, how sources mix."""

import numpy as np
import pytest
import torch

from homunculus.density import total_mass
from homunculus.errors import DensityError, FixationError, RelevanceError
from homunculus.geometry import fit_grid
from homunculus.pyramid import ImagePyramid
from homunculus.relevance import (
    as_fixations,
    cosine,
    default_mixture,
    detail,
    eccentricity,
    fixation_density,
    relevance,
    saliency,
    spatial_points,
    stack_fixations,
    uniform,
)
from homunculus.relevance.maps import _promote


def pyramid_of(image: torch.Tensor, leaf: int = 16) -> ImagePyramid:
    return ImagePyramid(image, (image.shape[3] // leaf, image.shape[2] // leaf), leaf)


# ----------------------------------------------------------------------------------------------------------------- maps


@pytest.mark.parametrize("source", [uniform, detail, saliency])
def test_maps_are_densities_with_the_same_bits_alone_and_in_a_batch(source):
    images = torch.randint(0, 256, (5, 3, 192, 320), dtype=torch.uint8)
    images[1] = 200
    together = source(pyramid_of(images))
    assert together.shape == (5, 12, 20) and (together >= 0).all()
    assert torch.allclose(total_mass(together), torch.ones(1, dtype=torch.float64))
    for image in range(5):
        assert torch.equal(source(pyramid_of(images[image : image + 1]))[0], together[image])


@pytest.mark.parametrize("source", [detail, saliency])
def test_maps_mirror_with_the_image(source):
    images = torch.rand(1, 3, 256, 256)
    mirrored = source(pyramid_of(images.flip(3)))
    assert torch.allclose(source(pyramid_of(images)).flip(2), mirrored, rtol=1e-3)


@pytest.mark.parametrize("source", [detail, saliency])
@pytest.mark.parametrize("size", [(128, 128), (333, 222), (1000, 700)])
def test_a_blank_image_is_equally_relevant_everywhere(source, size):
    grid = fit_grid(*size, 64)
    blank = ImagePyramid(torch.full((1, 3, size[1], size[0]), 0.7), (grid.gw, grid.gh))
    assert source(blank).unique().numel() == 1


def test_detail_follows_texture_not_brightness():
    image = torch.rand(1, 3, 128, 128) * 0.02
    image[..., 64:, :] += 0.5
    image[..., 32:48, 32:48] = torch.rand(3, 16, 16)
    density = detail(pyramid_of(image))[0]
    assert int(density.argmax()) == 2 * 8 + 2
    assert density[2, 2] > 20 * density[7, 7]


def test_saliency_finds_the_odd_one_out():
    """Sixteen equal grey discs and one red: all have the same contrast in brightness, one stands out in colour."""
    image = torch.full((1, 3, 320, 320), 0.9)
    for i in range(4):
        for j in range(4):
            image[..., 32 + 80 * j : 48 + 80 * j, 32 + 80 * i : 48 + 80 * i] = 0.5
    image[0, :, 192:208, 112:128] = torch.tensor([0.8, 0.3, 0.4])[:, None, None]
    density = saliency(pyramid_of(image))[0]
    assert int(density.argmax()) == 12 * 20 + 7
    assert density[12, 7] > 2 * density[2, 2]


def test_saliency_counts_lonely_peaks_and_not_the_paper_beside_them():
    image = torch.full((1, 3, 512, 512), 0.9)
    image[..., 160:176, 160:176] = 0.2
    density = saliency(pyramid_of(image))[0]
    assert density[10, 10] > 20 * density[10, 12]  # blank, but next to it
    lonely = torch.zeros(2, 4, 4, dtype=torch.float64)
    lonely[0, 1, 1], lonely[1] = 1.0, 1.0
    promoted = _promote(lonely)
    assert promoted[0].max().item() == pytest.approx((1 - 1 / 16) ** 2) and promoted[1].max() == 0


def test_maps_carry_no_gradient():
    image = torch.rand(1, 3, 128, 128, requires_grad=True)
    assert not any(source(pyramid_of(image)).requires_grad for source in (uniform, detail, saliency))


def test_saliency_is_not_fooled_by_compression():
    """A grey page with faint colour noise, as JPEG leaves it: the ink stands out, the paper does not."""
    page = torch.full((1, 3, 512, 512), 0.95)
    page[..., 200:216, 100:400:3] = 0.1
    page[0, 0, 400:416, 400:416] -= 5 / 255  # a tint nobody sees
    density = saliency(pyramid_of(page))[0]
    assert density[25, 25] == 0
    assert density[12:14].sum() > 0.8
    assert saliency(pyramid_of(torch.rand(1, 3, 128, 128) * 2 / 255 + 0.5)).unique().numel() == 1


def test_cosine_gives_every_cell_its_own_score():
    features = torch.randn(2, 4, 5, 16)
    words = torch.stack((features[0, 1, 2], features[1, 3, 4]))[:, None]
    scores = cosine(features, words)
    assert scores.flatten(1).argmax(1).tolist() == [1 * 5 + 2, 3 * 5 + 4]
    assert scores.flatten(1).std(1).min() > 0


# ----------------------------------------------------------------------------------------------------------------- gaze


def test_eccentricity_is_isotropic_and_to_the_nearest_fixation():
    grid, size = (64, 32), (1024, 1024)  # leaves of 16 x 32 pixels
    unit = (16 * 32) ** 0.5
    fixations = torch.tensor([[[100.0, 100.0, 1.0], [900.0, 900.0, 1.0], [500.0, 500.0, 0.0]]], dtype=torch.float64)
    points = torch.tensor([[[100.0, 140.0], [140.0, 100.0], [500.0, 500.0]]], dtype=torch.float64)
    found = eccentricity(points, fixations, grid, size)[0]
    assert torch.allclose(found[:2] * unit, torch.tensor(40.0, dtype=torch.float64))
    assert torch.isclose(found[2] * unit, torch.tensor(400.0, dtype=torch.float64) * 2**0.5)  # padding is not looked at
    centre = eccentricity(points[:, 2:], None, grid, size)[0, 0] * unit
    assert torch.isclose(centre, torch.tensor(12.0, dtype=torch.float64) * 2**0.5)


def test_density_around_a_fixation_follows_the_law():
    fixation = torch.tensor([[[8.0, 8.0, 1.0]]], dtype=torch.float64)  # the centre of the first leaf
    density = fixation_density(fixation, (32, 32), (512, 512), e0=3.0)[0]
    assert torch.allclose(density[0] / density[0, 0], 9 / (torch.arange(32, dtype=torch.float64) + 3) ** 2)


def test_weights_of_fixations_count():
    left, right = [[8.0, 8.0, 1.0]], [[504.0, 8.0, 1.0]]
    both = torch.tensor([[[8.0, 8.0, 3.0], [504.0, 8.0, 1.0]]], dtype=torch.float64)
    parts = [fixation_density(torch.tensor([p], dtype=torch.float64), (32, 32), (512, 512)) for p in (left, right)]
    assert torch.allclose(fixation_density(both, (32, 32), (512, 512)), 0.75 * parts[0] + 0.25 * parts[1])


def test_gradients_of_the_gaze():
    fixations = torch.tensor([[[8.0, 8.0, 1.0], [70.0, 33.0, 2.0]]], dtype=torch.float64, requires_grad=True)
    fixation_density(fixations, (8, 8), (128, 128)).square().sum().backward()  # the first is exactly on a leaf's centre
    assert fixations.grad.isfinite().all()
    moved = (fixations.detach() + 1.7).requires_grad_()
    assert torch.autograd.gradcheck(lambda f: fixation_density(f, (4, 4), (128, 128)), moved)


def test_fixations_in_every_accepted_shape():
    sizes = [(100, 50), (40, 80)]
    for given, counts in [
        ((10, 20), (1, 1)),
        (np.array([10, 20]), (1, 1)),
        ([(10, 20), (30, 40)], (2, 2)),
        (torch.tensor([[[10.0, 20.0]], [[30.0, 40.0]]]), (1, 1)),
        ([[(10, 20)], [(1, 2), (3, 4)]], (1, 2)),
        ([[], [(1, 2)]], (0, 1)),
        ([None, (1, 2)], (0, 1)),
        ([[], []], (0, 0)),
        ([np.array([(10, 20)]), np.zeros((3, 2))], (1, 3)),
        (np.array([(10, 20), (30, 40)])[::-1], (2, 2)),
    ]:
        assert tuple(len(f) for f in as_fixations(given, sizes)) == counts
    assert stack_fixations([torch.zeros(0, 3, dtype=torch.float64)] * 2) is None


@pytest.mark.parametrize(
    ("fixation", "message"),
    [
        ((101, 20), r"\(101, 20\) is outside the image, which is 100x50 pixels: need 0 <= x <= 100"),
        ((-1e-3, 20), "outside"),
        ((float("nan"), 20), "outside"),
        ((1, 2, 3), "shape"),
        ("middle", "cannot read a fixation from str"),
        ([(1, 2), 3], "cannot read a fixation from int"),
        ([[(1, 2)], [(3, 4)]], "fixations for 2 images, but there are 1"),
    ],
)
def test_bad_fixations(fixation, message):
    with pytest.raises(FixationError, match=message):
        as_fixations(fixation, [(100, 50)])


def test_the_border_is_inside():
    assert as_fixations([(0, 0), (100, 50)], [(100, 50)])[0].shape == (2, 3)


# ---------------------------------------------------------------------------------------------------------------- words

LOW, MID, HIGH, FIRST, LAST = 1 / 6, 1 / 2, 5 / 6, 0.05, 0.95


@pytest.mark.parametrize(
    ("question", "points"),
    [
        ("What is at the top-left?", [(LOW, LOW)]),
        ("the code in the upper right-hand corner", [(LAST, FIRST)]),
        ("TOP LEFT corner", [(FIRST, FIRST)]),
        ("who signed at the bottom right", [(HIGH, HIGH)]),
        ("lower-left part", [(LOW, HIGH)]),
        ("What does the footer say?", [(LOW, LAST), (MID, LAST), (HIGH, LAST)]),
        ("page header", [(LOW, FIRST), (MID, FIRST), (HIGH, FIRST)]),
        ("What is in the middle of the page?", [(MID, MID)]),
        ("at the center", [(MID, MID)]),
        ("the date at the top", [(MID, LOW)]),
        ("the bottom of the receipt", [(MID, HIGH)]),
        ("the picture on the left", [(LOW, MID)]),
        ("the right column", [(HIGH, MID)]),
        ("notes in the left margin", [(FIRST, LOW), (FIRST, MID), (FIRST, HIGH)]),
        ("top left and bottom right corners", [(LOW, LOW), (LAST, LAST)]),
        ("right upper corner", [(LAST, FIRST)]),
        ("what is in the four corners", [(FIRST, FIRST), (LAST, FIRST), (FIRST, LAST), (LAST, LAST)]),
        ("compare the header and the footer", [(x, y) for y in (FIRST, LAST) for x in (LOW, MID, HIGH)]),
        ("middle right", [(HIGH, MID)]),
        ("the leftmost bottle", [(LOW, MID)]),
        ("What does the last line say?", [(LOW, LAST), (MID, LAST), (HIGH, LAST)]),
        ("the beginning of the page", [(LOW, FIRST), (MID, FIRST), (HIGH, FIRST)]),
    ],
)
def test_words_that_name_a_place(question, points):
    assert np.allclose(spatial_points(question), points)


@pytest.mark.parametrize(
    "question",
    [
        "What is the total?",
        "Is this the right answer?",
        "How much is left to pay?",
        "What is the top speed?",
        "What are the top five items?",
        "Who left the company?",
        "What is the bottom line?",
        "Are the words in the right order?",
        "What is her middle name?",
        "Is the stopwatch leftover?",
        "",
    ],
)
def test_words_that_do_not(question):
    assert spatial_points(question) == []


# -------------------------------------------------------------------------------------------------------------- mixture


def test_mixture_weighs_its_sources():
    pyramid = pyramid_of(torch.rand(1, 3, 128, 128))
    mixed = relevance(pyramid, {"detail": 3.0, "uniform": 1.0}, floor=0.0)
    assert torch.allclose(mixed, 0.75 * detail(pyramid) + 0.25 * uniform(pyramid))
    without_query = relevance(pyramid, floor=0.0)
    assert torch.allclose(without_query, 0.5 * saliency(pyramid) + 0.5 * detail(pyramid))
    hot = torch.zeros(8, 8)
    hot[2, 3] = 1.0
    with_query = relevance(pyramid, default_mixture(hot), floor=0.0)
    assert torch.isclose(with_query[0, 2, 3], 0.4 + 0.6 * without_query[0, 2, 3])


def test_any_map_or_callable_scores_the_query():
    pyramid = pyramid_of(torch.rand(2, 3, 128, 192))
    seen = []

    def scorer(images, queries):
        seen.append((images.shape, queries))
        return torch.stack([torch.full((4, 6), 1.0), torch.eye(6)[:4]])

    for source in (scorer, scorer(pyramid.images, ["a", "b"]), scorer(pyramid.images, []).numpy()):
        density = relevance(pyramid, source, queries=["a", "b"], floor=0.0)
        assert density.shape == (2, 8, 12) and density[0].unique().numel() == 1
        assert torch.allclose(density[1, :2, :2], torch.tensor(1 / 16, dtype=torch.float64))
    assert seen[0] == ((2, 3, 128, 192), ["a", "b"])
    one_for_all = relevance(pyramid, torch.rand(16, 24))
    assert torch.equal(one_for_all[0], one_for_all[1])


def test_floor_reaches_every_leaf():
    hot = torch.zeros(8, 8)
    hot[0, 0] = 1.0
    density = relevance(pyramid_of(torch.rand(1, 3, 128, 128)), hot)
    assert torch.allclose(density[0, 1:], torch.tensor(0.02 / 64, dtype=torch.float64))


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("detial", RelevanceError, "did you mean 'detail'"),
        ("gaze", RelevanceError, "choose from uniform, detail, saliency"),
        ([], RelevanceError, "pairs"),
        ([("detail", -1.0)], RelevanceError, "at least 0"),
        ({"detail": 0.0}, RelevanceError, "not all 0"),
        ([("detail", float("inf"))], RelevanceError, "finite"),
        (torch.full((4, 4), float("nan")), DensityError, "finite"),
        (lambda images, queries: None, RelevanceError, "callable returned NoneType"),
    ],
)
def test_bad_sources(source, error, message):
    with pytest.raises(error, match=message):
        relevance(pyramid_of(torch.rand(1, 3, 64, 64)), source)
