"""The cortical view: what is drawn lies where the map says, and comes back."""

import inspect
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import homunculus
from homunculus.allocation import get_allocator
from homunculus.biology import cortical_area, cutoff, magnification, pixels_per_degree
from homunculus.biology.cortex import E0, M_E0
from homunculus.biology.field import DEGREES, eccentricity_map
from homunculus.cli.look import look as command
from homunculus.errors import FixationError, ImageError
from homunculus.viz import cortex as drawing
from homunculus.viz.cortex import (
    BLANK,
    LARGEST,
    cortex_figure,
    draw_sheets,
    for_the_eye,
    from_sheets,
    image_share,
    marks_shown,
    sample_sides,
    to_sheets,
)

from ..strategies import image_sizes

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
    for gaze in (CENTRE, torch.tensor([3.0, 115.0]), torch.tensor([83.9, 66.3]), torch.tensor([140.0, 36.0])):
        back = from_sheets(to_sheets(image, gaze, samples=60_000))
        assert (back - image).abs().max() < 0.04  # at the border, the value of the nearest sample
    checks = ((torch.arange(400)[:, None] // 2 + torch.arange(400) // 2) % 2).float().expand(3, -1, -1)
    sheets = to_sheets(checks, torch.tensor([200.0, 200.0]), samples=60_000)
    back = from_sheets(sheets)
    finest, coarsest = sample_sides(sheets)
    assert finest < 0.3 and coarsest > 4
    assert (back[:, 195:205, 195:205] - checks[:, 195:205, 195:205]).abs().mean() < 0.25  # seen at the gaze
    assert (back[:, :30, :30] - 0.5).abs().max() < 0.05  # and grey far from it: averaged, not aliased


@pytest.mark.parametrize(
    ("size", "gaze", "samples"),
    [
        ((200, 120), (100.0, 60.0), 69_888),
        ((200, 120), (0.0, 120.0), 69_888),
        ((1024, 1024), (716.8, 307.2), 69_888),  # pixels of the far corner lie between samples that are seen
        ((200, 120), (83.9, 66.3), 5000),
        ((1536, 1000), (0.6, 500.0), 4096),  # a column of pixels to the left, and no sample
        ((3, 700), (1.0, 20.0), 600),
        ((1, 1), (1.0, 0.5), 4096),
    ],
)
def test_constants_stay_and_nothing_bleeds_in(size, gaze, samples):
    sheets = to_sheets(torch.full((3, size[1], size[0]), 0.6), torch.tensor(gaze), samples=samples)
    assert torch.allclose(from_sheets(sheets), torch.tensor(0.6), atol=1e-5)
    assert torch.allclose(sheets.right[:, sheets.seen_right], torch.tensor(0.6), atol=1e-6)
    assert (sheets.right[:, ~sheets.seen_right] == BLANK).all()


@given(image_sizes(high=300), st.floats(0, 1), st.floats(0, 1), st.integers(2000, 80_000), st.floats(1, 120))
@settings(max_examples=40)
def test_constants_stay_from_any_gaze(size, u, v, samples, degrees):
    gaze = torch.tensor([u * size[0], v * size[1]], dtype=torch.float64)
    back = from_sheets(to_sheets(torch.full((3, size[1], size[0]), 0.6), gaze, degrees, samples))
    assert torch.allclose(back, torch.tensor(0.6), atol=1e-5)


def test_cells_of_v1_are_alike_on_the_cortex():
    """Equal cortical area by the law of eccentricity: on the sheet their areas differ far less than in the image."""
    allocation = homunculus.allocate(torch.ones(512, 512), 400, "v1", fixation=(4096, 4096))  # no leaf binds
    area = (allocation.boxes[0, :, 2:] - allocation.boxes[0, :, :2]).double().prod(1)
    degrees = (allocation.centers[0].double() - 4096) / 8192 * 40
    mm2 = area * (40 / 8192) ** 2 * (M_E0 / torch.hypot(degrees[:, 0].abs() + E0, degrees[:, 1])) ** 2
    inner = degrees.norm(dim=1) < 18  # squares at the border are cut
    spread = [(values[inner].quantile(0.9) / values[inner].quantile(0.1)).item() for values in (area, mm2)]
    assert spread[0] > 50 and spread[1] < 2


def test_cells_of_v1_are_alike_beyond_two_degrees_only():
    """What docs/biology.md says of 273 tokens: 3.3 to 4 mm beyond 2 degrees, 8.5 at the gaze; 14 pixels or more."""
    allocation = homunculus.allocate(torch.ones(64, 64), 273, "v1", fixation=(512, 512))
    side = (allocation.boxes[0, :, 2:] - allocation.boxes[0, :, :2]).double().prod(1).sqrt()
    e = (allocation.centers[0].double() - 512).norm(dim=1) / 25.6
    mm = side / 25.6 * magnification(e)
    beyond = mm[e > 2]
    assert beyond.min().item() == pytest.approx(3.3, abs=0.05) and beyond.max().item() == pytest.approx(4, abs=0.06)
    assert mm[e.argmin()].item() == pytest.approx(8.5, abs=0.05)
    assert side.min().item() == pytest.approx(14.18, abs=0.01)
    assert ((side[e > 2].max() / side[e > 2].min()) ** 2).item() > 50


@pytest.mark.parametrize(("gaze", "degrees"), [((512.0, 384.0), 40.0), ((100.0, 700.0), 10.0), ((0.0, 0.0), 60.0)])
def test_the_share_of_cortex_is_the_sum_over_the_image(gaze, degrees):
    size = 1024, 768
    x, y = eccentricity_map(torch.tensor(gaze), size, degrees)
    mm2 = (magnification(torch.hypot(x, y)) / pixels_per_degree(size, degrees)).square().sum()
    expected = (mm2 / cortical_area(torch.tensor(90.0).double())).item()
    assert image_share(torch.tensor(gaze), size, degrees) == pytest.approx(expected, rel=2e-3)
    assert image_share(torch.tensor([1.0, 1.0]), (2, 2), 300.0) == pytest.approx(1)  # all of the field and no more


def test_the_caption_names_the_marks_that_are_drawn(monkeypatch):
    image = torch.rand(3, 60, 80)
    tokens = homunculus.foveate(image, budget=16, allocator="uniform", relevance="uniform")
    notes, compose = [], drawing.compose

    def listen(title, panels, columns):
        notes.extend(panel.note for panel in panels)
        return compose(title, panels, columns)

    monkeypatch.setattr(drawing, "compose", listen)
    middle, corner = torch.tensor([40.0, 30.0]), torch.tensor([0.0, 0.0])
    for degrees, gaze, shown in ((40.0, middle, [1, 2, 5, 10, 20]), (8.0, corner, [1, 2, 5]), (1.0, middle, [])):
        sheets = to_sheets(image, gaze, degrees, samples=4000)
        assert marks_shown(sheets) == shown
        cortex_figure(image, tokens, gaze, None, get_allocator("uniform"), degrees)
        expected = ", ".join(map(str, shown)) + " degrees" if shown else "none within 1 degree"
        assert notes[-2] == f"marks: {expected} from the gaze"


def test_what_an_eye_tells_apart_in_the_pixels_worked_with():
    """`for_the_eye`: beyond 1.3 degrees no more than the pixels show."""
    e = torch.tensor([1.25, 1.35]).double()
    finer = cutoff(e) > pixels_per_degree((LARGEST, LARGEST)) / 2
    assert finer.tolist() == [True, False]


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
    assert 0 < wide["cortex"]["share"] < json.loads(done.stdout)["cortex"]["share"] < 1
    with Image.open(tmp_path / "look.png") as picture:
        assert picture.width > 900


def test_look_says_where_the_eye_looks_without_a_fixation(tmp_path):
    spot = np.full((200, 320, 3), 255, dtype=np.uint8)
    spot[150:160, 40:50] = 0
    Image.fromarray(spot).save(tmp_path / "photo.png")
    done = look("photo.png", "--cortex", "--relevance", "pixels", "--budget", "64", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("gaze"))
    x, y = (float(part) for part in line.removeprefix("gaze").partition(":")[0].split(","))
    assert "peak of relevance" in line and abs(x - 45) < 20 and abs(y - 155) < 20
    assert "of V1 sees the image, 40 degrees large" in done.stdout


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
