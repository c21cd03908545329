"""Looking more than once: where the gaze goes, when it stops, what comes of it, and how it is drawn."""

import itertools
import json
import math
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import homunculus
from homunculus.cache import TokenCache
from homunculus.cli import main
from homunculus.errors import FixationError, HomunculusError
from homunculus.fixation import fixate, join, saccades
from homunculus.foveate import make_view
from homunculus.geometry import leaf_centers
from homunculus.viz.overlay import _free_place, mark_scanpath
from tests.test_cli import run
from tests.test_foveate import FIELDS, picture


def places(glance) -> list[list[float]]:
    return glance.fixations[0, :, :2].tolist()


# ------------------------------------------------------------------------------------------------ where the gaze goes


def test_the_second_fixation_goes_to_the_second_peak():
    row, column = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    hills = [((8, 7), 3.0), ((22, 25), 2.0)]
    relevance = sum(h * torch.exp(-((row - y) ** 2 + (column - x) ** 2) / 18) for (y, x), h in hills)
    image = (torch.rand(3, 512, 512) * 255).to(torch.uint8)
    for combine in ("tree", "concat"):
        (first, second) = places(list(fixate(image, n=2, relevance=relevance, combine=combine, budget=40))[-1])
        assert first == [7.5 * 16, 8.5 * 16]
        assert math.dist(second, (25.5 * 16, 22.5 * 16)) < 3 * 16


def test_the_first_fixation_is_the_peak_of_relevance():
    image = picture(320, 240)
    view = make_view(image, budget=64)
    first = next(fixate(image, budget=64))
    around = torch.nn.functional.avg_pool2d(view.relevance[:, None], 3, 1, 1, divisor_override=1)[0, 0]
    xs, ys = leaf_centers(view.grid, view.image_size)
    place = (around + view.relevance[0]).flatten().argmax().item()
    assert places(first) == [[xs[place % view.grid[0]].item(), ys[place // view.grid[0]].item()]]


def test_named_places_come_first():
    image = picture(600, 300)
    footer = [[100.0, 285.0], [300.0, 285.0], [500.0, 285.0]]
    glances = list(fixate(image, "What is in the footer?", 4, enough=None, budget=64, relevance="pixels"))
    assert torch.tensor(places(glances[3])[:3]).allclose(torch.tensor(footer)) and len(places(glances[3])) == 4
    assert [glance.fixations.shape[1] for glance in glances] == [1, 2, 3, 4]
    assert places(glances[3])[3][1] < 250  # it has been in the footer
    explicit = list(fixate(image, "What is in the footer?", 2, (10, 20), enough=None, budget=64))
    assert places(explicit[0]) == [[10, 20]] and len(places(explicit[1])) == 2


def test_the_last_look_takes_all_places_that_are_named():
    image = picture(600, 300)
    two = list(fixate(image, "What is in the footer?", 2, budget=64))
    assert [glance.fixations.shape[1] for glance in two] == [1, 3]
    (one,) = fixate(image, "What is in the footer?", 1, budget=64)
    for glance in (two[1], one):
        assert torch.equal(glance.tokens.patches, homunculus.foveate(image, "What is in the footer?", 64).patches)


def test_detail_that_was_shown_does_not_call_again():
    """Two equal textures: after looking at one of them, the other is where something is left."""
    image = torch.full((3, 512, 512), 0.5)
    for x, y in ((64, 64), (352, 320)):
        image[:, y : y + 64, x : x + 64] = (torch.arange(64) % 2).float()
    first, second = places(list(fixate(image, n=2, fixation=(96, 96), relevance="uniform", budget=64))[-1])
    assert first == [96, 96] and 352 <= second[0] <= 416 and 320 <= second[1] <= 384


# --------------------------------------------------------------------------------------------------- when it stops


def test_a_blank_page_takes_one_look():
    blank = torch.full((3, 256, 256), 0.7)
    for enough in (0.1, 0.0):
        (glance,) = fixate(blank, n=5, budget=64, enough=enough)
        assert glance.left.tolist() == [0.0]
    spread = places(list(fixate(blank, n=3, enough=None, budget=64))[-1])
    assert all(math.dist(a, b) > 0.15 * 256 for i, a in enumerate(spread) for b in spread[:i])


def test_left_falls_and_decides():
    image = picture(512, 512)
    shares = [glance.left.item() for glance in fixate(image, n=5, enough=None, combine="concat")]
    assert len(shares) == 5 and 0 < shares[0] < 1
    assert all(b < a for a, b in itertools.pairwise(shares))
    middle = (shares[1] + shares[2]) / 2
    assert len(list(fixate(image, n=5, enough=middle, combine="concat"))) == 3
    assert len(list(fixate(image, n=5, enough=1.0))) == 1


def test_stop_when_confident():
    seen = []

    def confident(tokens):
        seen.append(tokens.patches.shape)
        return torch.tensor([len(seen) == 2])

    assert len(list(fixate(picture(256, 256), n=5, enough=None, confident=confident, budget=64))) == 2
    assert seen == [(1, 64, 3, 16, 16)] * 2
    with pytest.raises(FixationError, match="one each"):
        list(fixate(picture(64, 64), n=2, confident=lambda tokens: torch.zeros(3, dtype=torch.bool), budget=16))


def test_images_stop_one_by_one():
    """The blank one has had enough after one look; its later fixations weigh nothing and its tokens stay."""
    images = torch.stack((picture(256, 256), torch.full((3, 256, 256), 200, dtype=torch.uint8)))
    glances = list(fixate(images, n=3, budget=64))
    assert glances[-1].fixations[..., 2].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert torch.equal(glances[0].tokens.patches[1], glances[2].tokens.patches[1])
    assert not torch.equal(glances[0].tokens.patches[0], glances[2].tokens.patches[0])


def test_places_that_are_named_are_visited_even_when_enough_was_seen():
    glances = list(fixate(torch.full((3, 256, 256), 0.7), n=3, fixation=[(10, 10), (200, 30)], budget=64))
    assert len(glances) == 2 and places(glances[1]) == [[10, 10], [200, 30]]


# ------------------------------------------------------------------------------------------- uncertainty from outside


def test_a_model_may_say_what_it_is_unsure_of():
    spots = iter([(3, 30), (28, 4), (16, 16)])
    seen = []

    def uncertainty(tokens):
        seen.append(tokens)
        unsure = torch.full((32, 32), 1e-6)
        row, column = next(spots)
        unsure[row, column] = 1.0
        return unsure

    image = picture(512, 512)
    glances = list(fixate(image, n=3, fixation=(256, 256), uncertainty=uncertainty, budget=64))
    assert places(glances[2])[1:] == [[30.5 * 16, 3.5 * 16], [4.5 * 16, 28.5 * 16]]
    assert all(tokens is glance.tokens for tokens, glance in zip(seen, glances, strict=True))  # read once
    fading = iter([1.0, 0.5, 0.05])
    maps = lambda tokens: torch.full((8, 8), next(fading))  # noqa: E731
    shares = [glance.left.item() for glance in fixate(image, n=5, uncertainty=maps, budget=64)]
    assert shares == pytest.approx([1.0, 0.5, 0.05])  # of the first; 0.05 is enough


def test_a_map_of_uncertainty_is_walked_peak_by_peak():
    unsure = torch.zeros(2, 16, 16)
    for image, spots in enumerate([((2, 2), (12, 3), (8, 13)), ((13, 13), (2, 12), (7, 2))]):
        for height, (row, column) in zip((3.0, 2.0, 1.0), spots, strict=True):
            unsure[image, row, column] = height
    images = torch.stack((picture(256, 256, 0), picture(256, 256, 1)))
    last = list(fixate(images, n=3, fixation=[[(40, 40)], [(216, 216)]], uncertainty=unsure, budget=64))[-1]
    assert last.fixations[0, 1:, :2].tolist() == [[56, 200], [216, 136]]
    assert last.fixations[1, 1:, :2].tolist() == [[200, 40], [40, 120]]


# ------------------------------------------------------------------------------------------------- tokens of several


def test_one_tree_over_all_fixations():
    image = picture(512, 384)
    glances = list(fixate(image, n=3, enough=None))
    tokens = saccades(image, n=3)
    together = homunculus.foveate(image, fixation=places(glances[-1]))
    for found in (tokens, join(glances), glances[-1].tokens):
        assert torch.equal(found.patches, together.patches)
        for field in FIELDS:
            assert torch.equal(getattr(found.allocation, field), getattr(together.allocation, field)), field


def test_looks_side_by_side():
    image = picture(512, 384)
    glances = list(fixate(image, n=3, combine="concat", enough=None, budget=100))
    tokens = saccades(image, n=3, combine="concat", budget=100, cache=TokenCache())
    assert tokens.patches.shape == (1, 300, 3, 16, 16) and tokens.allocation.budget == 300
    for k, place in enumerate(places(glances[-1])):
        alone = homunculus.foveate(image, fixation=place, budget=100)
        own = slice(100 * k, 100 * (k + 1))
        assert torch.equal(tokens.patches[:, own], alone.patches)
        for field in FIELDS:
            assert torch.equal(getattr(tokens.allocation, field)[:, own], getattr(alone.allocation, field)), field
    assert torch.equal(join(glances, "concat").patches, tokens.patches)
    assert saccades(torch.full((3, 64, 64), 0.5), n=3, combine="concat", budget=16).patches.shape[1] == 48  # a promise
    assert homunculus.reconstruct(tokens).images.shape == (1, 3, 384, 512)


@pytest.mark.parametrize("combine", ["tree", "concat"])
def test_an_image_is_the_same_alone_and_in_any_batch(combine):
    images = torch.stack([picture(320, 256, seed) for seed in range(3)])
    queries = ["in the footer", None, "What is at the top left?"]
    maps = torch.rand(3, 9, 11) ** 6
    together = list(fixate(images, queries, 3, combine=combine, enough=None, budget=64, relevance=[(maps, 1.0)]))
    for i in range(3):
        for part, glance in zip(
            fixate(images[i], queries[i], 3, combine=combine, enough=None, budget=64, relevance=maps[i]),
            together,
            strict=True,
        ):
            assert torch.equal(part.fixations[0], glance.fixations[i]) and torch.equal(part.left[0], glance.left[i])
            assert torch.equal(part.tokens.patches[0], glance.tokens.patches[i])


def test_the_same_each_time():
    image = picture(320, 256)
    first, second = (list(fixate(image, "top", 3, enough=None, budget=64)) for _ in range(2))
    assert torch.equal(first[-1].fixations, second[-1].fixations)
    assert torch.equal(first[-1].tokens.patches, second[-1].tokens.patches)


@pytest.mark.parametrize("allocator", homunculus.allocators())
def test_every_allocator_can_be_looked_through(allocator):
    glances = list(fixate(picture(300, 200), n=2, allocator=allocator, budget=100, enough=None, cache=TokenCache()))
    assert [glance.tokens.patches.shape[1] for glance in glances] == [100, 100]
    assert all(0 <= glance.left.item() <= 1 for glance in glances)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "positive whole number"),
        ({"n": True}, "positive whole number"),
        ({"radius": 0.0}, "radius"),
        ({"radius": math.nan}, "radius"),
        ({"enough": 1.5}, "share from 0 to 1"),
        ({"fixation": (70, 10)}, "outside the image"),
        ({"query": ["a", "b"]}, "2 queries for 1 images"),
        ({"budget": 0}, "positive whole number"),
        ({"allocator": "tree"}, "unknown allocator"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(HomunculusError, match=message) as caught:
        fixate(picture(64, 64), **({"budget": 16} | arguments))
    assert "\n" not in str(caught.value)


def test_more_bad_arguments():
    with pytest.raises(FixationError, match="no glances"):
        join([])
    with pytest.raises(HomunculusError, match="finite and at least 0"):
        list(fixate(picture(64, 64), n=2, uncertainty=torch.full((4, 4), -1.0), budget=16))


# ------------------------------------------------------------------------------------------------------------ drawing


def test_discs_step_aside():
    discs: list[tuple[float, float]] = []
    for place in ((100, 100), (100, 100), (101, 99), (0, 0), (199, 199), (0, 3)):
        discs.append(_free_place(place, discs, 10, (200, 200)))
    assert discs[0] == (100, 100)
    assert all(math.dist(a, b) >= 2 * 10 for i, a in enumerate(discs) for b in discs[:i])
    assert all(10 < x < 190 and 10 < y < 190 for x, y in discs)


@pytest.mark.parametrize("ground", ["black", "white", "grey"])
def test_a_scanpath_shows_on_anything(ground):
    picture = Image.new("RGB", (400, 400), ground)
    mark_scanpath(picture, torch.tensor([[100.0, 100.0, 1.0], [300.0, 300.0, 1.0], [40.0, 380.0, 0.0]]), (1.0, 1.0))
    drawn = np.array(picture.convert("L"))
    for region in (drawn[85:115, 85:115], drawn[285:315, 285:315], drawn[180:220, 180:220]):  # two discs and the line
        assert region.min() < 60 and region.max() > 200
    assert (drawn[360:, :80] == drawn[0, 0]).all()  # weight 0 is padding
    assert not np.array_equal(drawn[90:110, 90:110], drawn[290:310, 290:310])  # 1 is not 2


@pytest.mark.parametrize("size", [(6, 700), (700, 6), (1, 1)])
def test_a_scanpath_on_slivers(size):
    picture = Image.new("RGB", (max(32, size[0]), max(32, size[1])), "grey")
    mark_scanpath(picture, torch.tensor([[0.0, 0.0, 1.0], [size[0], size[1], 1.0]]), (1.0, 1.0))
    assert (np.array(picture) != 128).any()


def test_look_draws_the_scanpath(tmp_path):
    done = run("look", "--fixations", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("look 1", "look 2", "look 3", "left to see", "of 819 cells sampled"):
        assert word in done.stdout
    with Image.open(tmp_path / "look.png") as drawn:
        assert drawn.format == "PNG" and drawn.width > 1800


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """The command line without a process of its own: exit code, output, errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["homunculus", *arguments])
        with pytest.raises(SystemExit) as done:
            main()
        return int(done.value.code or 0), *capsys.readouterr()

    return call


def test_look_reports_the_scanpath(cli, tmp_path):
    Image.fromarray(picture(320, 240).permute(1, 2, 0).numpy()).save(tmp_path / "photo.png")
    options = ("--fixations", "3", "--fixation", "50%,30%", "--json", "--budget", "100")
    code, out, _ = cli("look", "photo.png", "top left", *options)
    report = json.loads(out)
    expected = list(fixate(picture(320, 240), "top left", 3, (160, 72), budget=100))
    assert code == 0 and [look["at"] for look in report["looks"]] == [[place] for place in places(expected[-1])]
    assert report["fixations"] == places(expected[-1]) and report["fixations"][0] == [160.0, 72.0]
    assert [look["left"] for look in report["looks"]] == pytest.approx([glance.left.item() for glance in expected])
    assert all(look["sampled"] + look["reused"] == 100 for look in report["looks"])
    assert report["cache"]["misses"] == sum(look["sampled"] for look in report["looks"]) < 300
    assert report["cache"]["hits"] + report["cache"]["misses"] == 300
    boxes = torch.tensor([cell["box"] for cell in report["cells"]])
    assert torch.allclose(boxes, expected[-1].allocation.boxes[0])


def test_look_says_why_it_stopped_and_what_had_no_effect(cli, tmp_path):
    Image.new("RGB", (200, 100), "white").save(tmp_path / "blank.png")
    code, out, _ = cli("look", "blank.png", "--fixations", "4", "--allocator", "stratified")
    assert code == 0 and "little is left to see" in out and "look 2" not in out
    assert "(not used by stratified)" in out
    for number in ("0", "-2"):
        code, out, error = cli("look", "blank.png", "--fixations", number, "--out", "no.png")
        assert (code, out, error.count("\n")) == (2, "", 1) and not (tmp_path / "no.png").exists()
        assert "number of fixations must be a positive whole number" in error


# ------------------------------------------------------------------------------------------------------------ the GPU


@pytest.mark.gpu
@pytest.mark.parametrize("combine", ["tree", "concat"])
def test_choosing_places_never_waits_for_the_device(combine):
    from tests.test_gpu import no_sync

    images = torch.stack([picture(512, 384, seed) for seed in range(3)])
    on_gpu = images.cuda()
    looks = {"n": 3, "combine": combine, "enough": None}
    for _ in fixate(on_gpu, validate=False, **looks):  # builds and caches the tables of this grid
        pass
    with no_sync():
        seen = [(glance.fixations, glance.tokens) for glance in fixate(on_gpu, validate=False, **looks)]
    for (fixations, tokens), glance in zip(seen, fixate(images, **looks), strict=True):
        assert torch.equal(fixations.cpu(), glance.fixations)
        same_cells = homunculus.sample(images, tokens.allocation.to("cpu"))
        assert torch.allclose(tokens.patches.cpu(), same_cells, atol=1e-5)
