"""Pictures: colours that survive greyscale, text that fits, cells drawn where they are."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image

import homunculus
from homunculus.allocation import get_allocator
from homunculus.errors import ImageError
from homunculus.foveate import make_view
from homunculus.structures import rectangular
from homunculus.viz import example_page, gallery_figure, look_figure, overlay
from homunculus.viz.example import QUESTION, SIZE
from homunculus.viz.figures import MARGIN, level_counts
from homunculus.viz.overlay import mark_fixations, panel_size, relevance_panel
from homunculus.viz.palette import drawable, fitted, font, heat, level_colour


def luminance(colour) -> float:
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def test_levels_keep_their_order_in_greyscale():
    steps = [luminance(level_colour(level)) for level in range(7)]
    assert all(a - b > 20 for a, b in itertools.pairwise(steps))
    assert level_colour(50) == level_colour(6) and level_colour(-1) == level_colour(0)
    ramp = heat(torch.linspace(0, 1, 64)[None])[:, 0].T.tolist()
    brightness = [luminance(colour) for colour in ramp]
    assert all(b > a for a, b in itertools.pairwise(brightness))


def test_text_is_drawable_and_fits():
    assert drawable("Größe × 3 – naïve") == "Gro?e x 3 - naive"
    assert drawable("漢字\n") == "??"
    assert font(16).getlength(fitted("a question that goes on and on and on", 16, 120)) <= 120
    assert fitted("short", 16, 500) == "short"


def test_overlay_draws_cells_where_they_are():
    image = torch.ones(3, 256, 256)
    allocation = homunculus.allocate(torch.ones(16, 16), 16)
    drawn = np.array(overlay(image, allocation).convert("L"), dtype=int)
    assert drawn.shape == (256, 256)
    assert drawn[32, 32] == np.array(Image.new("RGB", (1, 1), level_colour(2)).convert("L"))[0, 0]
    assert (drawn[32, [64, 128, 192]] < drawn[32, 32] - 40).all()  # the lines between cells
    assert (drawn[[10, 100, 250], 30] == drawn[32, 32]).all()


def test_colours_show_on_black_too():
    allocation = homunculus.allocate(torch.ones(16, 16), 16)
    drawn = np.array(overlay(torch.zeros(3, 256, 256), allocation))
    assert luminance(drawn[32, 32]) > 30


def test_overlay_wants_the_image_that_was_allocated():
    images = [torch.rand(3, 64, 64), torch.rand(3, 64, 80)]
    allocation = homunculus.foveate(images, budget=16).allocation
    assert overlay(images, allocation, index=1).size == (80, 64)
    with pytest.raises(ImageError, match="of an image of 64x64 pixels, not of 80x64"):
        overlay(images[1], allocation)


def test_finer_cells_are_drawn_over_coarser_ones():
    image = torch.ones(3, 256, 256)
    tokens = homunculus.foveate(image, fixation=(10, 10), budget=40)
    drawn = np.array(overlay(image, tokens.allocation))
    finest = tokens.allocation.boxes[0][tokens.allocation.levels[0].argmin()]
    x, y = ((finest[:2] + finest[2:]) / 2).int().tolist()
    assert tuple(drawn[y, x]) == level_colour(tokens.allocation.levels.min().item())


@pytest.mark.parametrize("size", [(16000, 4000), (1, 5000), (1, 1), (640, 480)])
def test_panels_keep_the_aspect_and_stay_small(size):
    width, height = panel_size(size, (4000, 4000))
    assert min(width, height) >= 32 and max(width, height) <= 2048
    assert min(width, height) == 32 or abs(width / height - size[0] / size[1]) < 0.02 * size[0] / size[1]


def test_relevance_is_brighter_where_there_is_more():
    density = torch.zeros(4, 4, dtype=torch.float64)
    density[1, 2] = 1.0
    drawn = np.array(relevance_panel(torch.rand(3, 64, 64), density, (64, 64)).convert("L"))
    assert drawn[24, 40] > drawn[24, 8] + 80


def test_fixations_are_marked_even_in_a_corner():
    picture = Image.new("RGB", (200, 200), "grey")
    mark_fixations(picture, torch.tensor([[0.0, 0.0, 1.0], [150.0, 150.0, 0.0]]), (1.0, 1.0))
    drawn = np.array(picture)
    assert (drawn[:20, :20] == 255).any() and (drawn[:20, :20] == 0).any()
    assert (drawn[100:, 100:] == 128).all()  # weight 0 is padding


def test_example_page_is_the_same_everywhere():
    page = example_page()
    assert (page.shape[2], page.shape[1]) == SIZE and page.dtype == torch.uint8
    grey = page.float().mean(0)
    assert 0.02 < (grey < 128).float().mean() < 0.15  # ink on paper
    assert torch.equal(page, example_page.__wrapped__())


@pytest.fixture(scope="module")
def looked():
    page = example_page()
    return page, make_view(page, QUESTION)


def test_look_figure(looked):
    page, view = looked
    tokens = homunculus.foveate(page, QUESTION)
    figure = look_figure(page, view, tokens, QUESTION, get_allocator("foveated-pyramid"))
    assert figure.width > 3 * 600 and max(figure.size) < 2500
    drawn = np.array(figure)
    assert (drawn[:MARGIN] == 255).all() and (drawn[:, : MARGIN - 1] == 255).all()  # nothing runs over the edge
    assert (drawn[-MARGIN + 4 :] == 255).all() and (drawn[:, -MARGIN + 2 :] == 255).all()


def test_gallery_figure(looked):
    page, view = looked
    looks = {name: homunculus.foveate(page, QUESTION, allocator=name) for name in homunculus.allocators()}
    figure = gallery_figure(page, looks, view, "everything")
    assert figure.height > 2 * 500
    one = gallery_figure(page, {"topk": looks["topk"]}, view, "one")
    assert one.width < figure.width


def test_level_counts_sum_to_the_budget(looked):
    page, _ = looked
    for name in homunculus.allocators():
        allocation = rectangular(homunculus.foveate(page, allocator=name).allocation)
        counted = sum(count for _, count in level_counts(allocation))
        assert counted == 273 - allocation.is_context.sum()


@pytest.mark.parametrize("size", [(1, 1), (3, 900), (900, 3)])
def test_odd_images_can_be_drawn(size):
    image = torch.rand(3, size[1], size[0])
    figure = look_figure(image, make_view(image), homunculus.foveate(image), "x" * 5000, get_allocator("topk"))
    assert 100 < figure.width < 2500 and figure.height < 2500
