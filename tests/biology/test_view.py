"""The cortical view: what is drawn lies where the map says, and comes back."""

import inspect
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import homunculus
from homunculus.allocation import get_allocator
from homunculus.biology.cortex import E0, M_E0
from homunculus.biology.field import DEGREES
from homunculus.cli.look import look as command
from homunculus.errors import FixationError, ImageError
from homunculus.viz.cortex import (
    BLANK,
    cortex_figure,
    draw_sheets,
    for_the_eye,
    from_sheets,
    sample_sides,
    to_sheets,
)

CENTRE = torch.tensor([100.0, 60.0])


def waves(width=200, height=120):
    """Slow gratings, different in each channel."""
    x, y = torch.arange(width) / 40, torch.arange(height)[:, None] / 30
    return torch.stack((x.cos() + 0 * y, y.cos() + 0 * x, (x + y).sin())) / 2 + 0.5


def test_about_as_many_samples_as_asked():
    for gaze in (CENTRE, torch.tensor([0.0, 0.0]), torch.tensor([199.0, 3.0])):
        assert to_sheets(waves(), gaze, samples=20_000).samples == pytest.approx(20_000, rel=0.03)


def test_a_place_is_drawn_where_the_map_says():
    """A dot 5 degrees to the right, at the height of the gaze: 17.3 ln((5 + 0.75) / 0.75) mm from the fovea."""
    image = torch.zeros(3, 400, 400)
    image[:, 198:202, 248:252] = 1.0  # 10 pixels for a degree
    sheets = to_sheets(image, torch.tensor([200.0, 200.0]), 40.0, step=0.1)
    row, column = divmod(int(sheets.right[0].where(sheets.seen_right, 0).argmax()), sheets.right.shape[2])
    expected = M_E0 * math.log((5 + E0) / E0)
    assert (column + 0.5) * 0.1 == pytest.approx(expected, abs=0.6)
    assert sheets.top - (row + 0.5) * 0.1 == pytest.approx(0, abs=0.6)
    assert sheets.left.where(sheets.seen_left, 0).max() == 0


def test_up_is_up():
    image = torch.zeros(3, 200, 200)
    image[:, :100] = 1.0
    sheets = to_sheets(image, torch.tensor([100.0, 100.0]), samples=5000)
    half = sheets.right.shape[1] // 2
    assert sheets.right[:, : half - 2][:, sheets.seen_right[: half - 2]].min() > 0.9
    assert sheets.right[:, half + 2 :][:, sheets.seen_right[half + 2 :]].max() < 0.1


def test_a_mirrored_image_swaps_the_halves():
    image, gaze = torch.rand(3, 120, 200), torch.tensor([70.0, 50.0])
    sheets = to_sheets(image, gaze, step=0.5)
    mirrored = to_sheets(image.flip(2), torch.tensor([130.0, 50.0]), step=0.5)
    assert torch.equal(sheets.seen_left, mirrored.seen_right)
    assert torch.allclose(sheets.left, mirrored.right, atol=1e-4)
    assert torch.allclose(sheets.right, mirrored.left, atol=1e-4)


def test_slow_waves_come_back_and_fine_ones_far_away_do_not():
    image = waves()
    for gaze in (CENTRE, torch.tensor([3.0, 115.0])):
        back = from_sheets(to_sheets(image, gaze, samples=60_000))
        assert (back - image).abs().max() < 0.03
    checks = ((torch.arange(400)[:, None] // 2 + torch.arange(400) // 2) % 2).float().expand(3, -1, -1)
    sheets = to_sheets(checks, torch.tensor([200.0, 200.0]), samples=60_000)
    back = from_sheets(sheets)
    finest, coarsest = sample_sides(sheets)
    assert finest < 0.3 and coarsest > 4
    assert (back[:, 195:205, 195:205] - checks[:, 195:205, 195:205]).abs().mean() < 0.25  # seen at the gaze
    assert (back[:, :30, :30] - 0.5).abs().max() < 0.05  # and grey far from it: averaged, not aliased


def test_constants_stay_and_nothing_bleeds_in():
    for gaze in (CENTRE, torch.tensor([0.0, 120.0])):
        sheets = to_sheets(torch.full((3, 120, 200), 0.2), gaze)
        assert torch.allclose(from_sheets(sheets), torch.tensor(0.2), atol=1e-5)
        assert torch.allclose(sheets.right[:, sheets.seen_right], torch.tensor(0.2), atol=1e-6)
        assert (sheets.right[:, ~sheets.seen_right] == BLANK).all()


def test_cells_of_v1_are_alike_on_the_cortex():
    """Equal cortical area by the law of eccentricity: on the sheet their areas differ far less than in the image."""
    allocation = homunculus.allocate(torch.ones(512, 512), 400, "v1", fixation=(4096, 4096))  # no leaf binds
    area = (allocation.boxes[0, :, 2:] - allocation.boxes[0, :, :2]).double().prod(1)
    degrees = (allocation.centers[0].double() - 4096) / 8192 * 40
    mm2 = area * (40 / 8192) ** 2 * (M_E0 / torch.hypot(degrees[:, 0].abs() + E0, degrees[:, 1])) ** 2
    inner = degrees.norm(dim=1) < 18  # squares at the border are cut
    spread = [(values[inner].quantile(0.9) / values[inner].quantile(0.1)).item() for values in (area, mm2)]
    assert spread[0] > 50 and spread[1] < 2


def test_drawing_has_its_marks():
    sheets = to_sheets(torch.zeros(3, 300, 300), torch.tensor([150.0, 150.0]), 30.0, samples=30_000)
    picture = np.asarray(draw_sheets(sheets, 600)).astype(int)
    assert picture.shape[1] == 600
    blue = (picture[..., 2] - picture[..., 0] > 60).any(0)  # the lines of eccentricity
    per_mm = (600 - 14) / (2 * sheets.right.shape[2]) / sheets.step
    for e in (1, 2, 5, 10):
        place = 300 + 7 + M_E0 * math.log((e + E0) / E0) * per_mm
        assert blue[int(place) - 2 : int(place) + 3].any()
        assert blue[600 - int(place) - 3 : 600 - int(place) + 2].any()


@pytest.mark.parametrize("size", [(64, 48), (1, 1), (7, 300), (1700, 40)])
def test_figures_of_any_shape(size):
    image = torch.rand(3, size[1], size[0])
    tokens = homunculus.foveate(image, budget=16, allocator="uniform", relevance="uniform")
    gaze = torch.tensor([size[0] / 2, size[1] / 2])
    figure = cortex_figure(image, tokens, gaze, None, get_allocator("uniform"))
    assert figure.width > 900
    small, moved, seen = for_the_eye(image, tokens, gaze)
    assert small.shape == seen.shape and max(small.shape[1:]) <= 1536
    assert moved[0].item() == pytest.approx(small.shape[2] / 2)


def test_what_is_wrong_is_said():
    with pytest.raises(FixationError, match="outside the image"):
        to_sheets(waves(), torch.tensor([300.0, 3.0]))
    with pytest.raises(ImageError, match="field of view"):
        to_sheets(waves(), CENTRE, 0.0)


# ----------------------------------------------------------------------------------------------------- the command line


def look(*arguments, cwd):
    command = [sys.executable, "-m", "homunculus", "look", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_the_command_and_the_laws_have_one_default():
    assert inspect.signature(command).parameters["degrees"].default == DEGREES


def test_look_at_the_cortex(tmp_path):
    Image.fromarray((waves(320, 200).permute(1, 2, 0) * 255).byte().numpy()).save(tmp_path / "photo.png")
    arguments = ("photo.png", "--cortex", "--allocator", "v1", "--fixation", "100,60", "--relevance", "uniform")
    done = look(*arguments, "--budget", "64", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["cortex"]
    assert report["gaze"] == [100.0, 60.0] and report["degrees"] == 40.0
    assert 0.3 < report["similarity"] <= 1 and set(report["within"]) == {"1", "2", "5", "10", "20", "40"}
    wide = json.loads(look(*arguments, "--budget", "64", "--degrees", "10", "--json", cwd=tmp_path).stdout)
    assert set(wide["cortex"]["within"]) == {"1", "2", "5", "10"}  # nothing lies farther out
    assert wide["cells"] != json.loads(done.stdout)["cells"]  # v1 is told the field of view as well
    with Image.open(tmp_path / "look.png") as picture:
        assert picture.width > 900


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--cortex", "--degrees", "0"), "field of view is the angle"),
        (("--cortex", "--degrees", "-40"), "field of view is the angle"),
        (("--cortex", "--fixation", "9999,1"), "outside the image"),
    ],
)
def test_look_refuses_in_one_line(arguments, line, tmp_path):
    done = look(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and line in done.stderr
