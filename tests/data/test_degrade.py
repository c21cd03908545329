"""Wear of pages and of batches: boxes follow the ink, and each step equals an independent implementation."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageChops
from scipy.ndimage import gaussian_filter

from homunculus.data import degrade, degrade_batch
from homunculus.data.degrade import MAX_SINE, Wear, degrade_page, draw_wear, wear_page
from homunculus.data.degrade_batch import Parameters, draw_parameters
from homunculus.data.dice import Dice
from homunculus.errors import DataError
from homunculus.viz.example import example_page
from tests.devices import no_sync

sines = st.floats(-MAX_SINE, MAX_SINE)


@pytest.fixture(scope="module")
def page():
    """An invoice of 512 x 512."""
    return Image.fromarray(example_page().permute(1, 2, 0).numpy()[:1024]).resize((512, 512), Image.Resampling.BOX)


def as_batch(*images):
    return torch.stack([torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) for image in images])


def plain(batch=1, **changes):
    """Parameters that change nothing but what is named."""
    zero = torch.zeros(batch)
    values = {
        "sine": zero,
        "sigma": zero,
        "tone": torch.ones(batch, 3),
        "shade": torch.zeros(batch, 3, 3),
        "noise": zero,
        "seed": torch.zeros(batch, dtype=torch.int32),
        "quality": zero,
    }
    return Parameters(**(values | {name: torch.as_tensor(value) for name, value in changes.items()}))


def psnr(a, b):
    return 10 * math.log10(255**2 / np.mean((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2))


def ink(image):
    """The box of what is dark, half-open."""
    ys, xs = np.nonzero(np.asarray(image).min(2) < 128)
    return xs.min(), ys.min(), xs.max() + 1, ys.max() + 1


def dot(x, y, size=(301, 200)):
    image = Image.new("RGB", size, "white")
    image.paste("black", (x, y, x + 8, y + 6))
    return image, (x, y, x + 8, y + 6)


@given(sine=sines, x=st.integers(0, 293), y=st.integers(0, 194))
def test_box_follows_the_ink_of_a_page(sine, x, y):
    image, box = dot(x, y)
    turned, (moved,) = wear_page(image, [box], Wear(sine=sine), Dice("any"))
    seen = ink(turned)
    assert all(a <= b for a, b in zip(moved[:2], seen[:2], strict=True))  # the ink is in the box
    assert all(a >= b for a, b in zip(moved[2:], seen[2:], strict=True))
    assert max(abs(a - b) for a, b in zip(moved, seen, strict=True)) <= 2  # and fills it


@given(sine=sines, x=st.integers(0, 293), y=st.integers(0, 194))
def test_box_follows_the_ink_of_a_batch(sine, x, y):
    image, box = dot(x, y)
    boxes = torch.tensor([[box, (0, 0, 0, 0)]], dtype=torch.float32)
    worn, moved = degrade_batch.degrade_batch(as_batch(image), boxes, plain(sine=[sine]))
    seen = torch.tensor([ink(worn[0].permute(1, 2, 0))])
    assert (moved[0, 0] - seen).abs().max() <= 2
    assert moved[0, 1].tolist() == [0, 0, 0, 0]


@given(sine=sines, x=st.integers(0, 293), y=st.integers(0, 194))
def test_page_and_batch_turn_alike(sine, x, y):
    _, box = dot(x, y)
    size, s = (301, 200), torch.tensor([sine], dtype=torch.float64)
    boxes = torch.tensor([[box]], dtype=torch.float64)
    safe = degrade_batch.safe_sines(boxes, size, s)
    assert safe.item() == pytest.approx(degrade.safe_sine([box], size, sine), abs=1e-12)
    moved = degrade_batch.turn_boxes(boxes, size, safe)[0, 0].tolist()
    whole = degrade.turn_boxes([box], size, safe.item())[0]
    assert all(abs(a - b) <= 1 for a, b in zip(moved, whole, strict=True))


def test_a_turn_never_pushes_a_box_off_the_page():
    image, corner = dot(0, 0)
    middle = (150, 100, 160, 110)
    for seed in range(20):
        _, boxes = degrade_page(image, [corner, middle], Dice("corner", seed))
        assert boxes == [corner, middle]  # ink in the very corner allows no turn
    edge = (2.0, 160.0, 100.0, 180.0)  # may be turned a little
    safe = degrade.safe_sine([edge], (301, 200), MAX_SINE)
    assert 0 < safe < MAX_SINE
    assert degrade.turn_boxes([edge], (301, 200), safe)[0][0] >= 0


def test_turned_pixels_agree_between_page_and_batch(page):
    by_pillow = np.asarray(degrade.turn(page, 0.03), np.float32)
    by_torch = degrade_batch.turn(as_batch(page).float(), torch.tensor([0.03]))[0].permute(1, 2, 0).numpy()
    inner = slice(16, -16)  # the corners laid bare are filled differently
    assert np.abs(by_pillow - by_torch)[inner, inner].max() < 1.01


def test_no_wear_is_the_identity(page):
    same, boxes = wear_page(page, [(1, 2, 3, 4)], Wear(), Dice("any"))
    assert same.tobytes() == page.tobytes()
    assert boxes == [(1, 2, 3, 4)]
    for images in (as_batch(page), as_batch(page) / 255, torch.rand(1, 3, 37, 51)):
        worn, moved = degrade_batch.degrade_batch(images, torch.tensor([[[1.0, 2, 3, 4]]]), plain())
        assert torch.equal(worn, images)
        assert moved.tolist() == [[[1, 2, 3, 4]]]


@pytest.mark.parametrize("tone", degrade.TONES)
def test_tone_is_multiplied(tone):
    """By a table, and in even light, as a sheet of the colour would do it; for every level."""
    levels = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16).repeat(3, 1).reshape(16, 16, 3))
    sheet = Image.new("RGB", levels.size, tone)
    multiplied = ImageChops.multiply(levels, sheet).tobytes()
    assert degrade.toned(levels, tone).tobytes() == multiplied
    lit, _ = wear_page(levels, [], Wear(tone=tone, shade=(0.0,) * 9), Dice("any"))
    assert lit.tobytes() == multiplied


def test_noise_goes_on_where_the_tile_ends():
    size = degrade.TILE + 300, 500
    noise = np.asarray(degrade._noise(size, 9.0, Dice("noise")))
    assert np.array_equal(noise[:, : -degrade.TILE], noise[:, degrade.TILE :])
    assert 8.5 < noise.std() < 9.5 and abs(noise.mean() - 128) < 0.2
    assert not np.array_equal(noise[..., 0], noise[..., 1])


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0])
def test_batch_blur_is_scipys_gaussian_and_keeps_the_mean(sigma):
    images = torch.rand(2, 3, 61, 47, dtype=torch.float64)
    images[0, :, 20:40] = 1
    blurred = degrade_batch.blur(images, torch.tensor([sigma, sigma], dtype=torch.float64))
    expected = gaussian_filter(images.numpy(), (0, 0, sigma, sigma), mode="nearest", truncate=4 / sigma)
    assert np.abs(blurred.numpy() - expected).max() < 1e-6
    framed = torch.zeros(1, 3, 61, 47)  # nothing near the edge, so nothing is lost or repeated there
    framed[..., 10:-10, 10:-10] = torch.rand(41, 27)
    assert degrade_batch.blur(framed, torch.tensor([sigma])).mean() == pytest.approx(framed.mean().item(), rel=1e-5)


def test_page_blur_keeps_the_mean_and_is_a_gaussian(page):
    grey = page.convert("L").convert("RGB")
    blurred = degrade.blur(grey, 0.32)
    assert np.mean(blurred) == pytest.approx(np.mean(grey), abs=0.1)
    expected = gaussian_filter(np.asarray(grey, np.float64), (0.8, 0.8, 0), mode="nearest")
    assert psnr(blurred, expected) > 35  # three taps of the same variance
    assert psnr(grey, expected) < 30


@pytest.mark.parametrize("quality", [30, 50, 75, 92])
@pytest.mark.parametrize("size", [(512, 512), (333, 250)])
def test_batch_jpeg_is_pillows_jpeg(page, quality, size):
    """Within 45 dB of Pillow's own, and less than half the error that compression makes."""
    image = page.crop((0, 0, *size))
    by_pillow = np.asarray(degrade.jpeg(image, quality), np.float64)
    by_torch = degrade_batch.jpeg(as_batch(image) / 255, torch.tensor([float(quality)]))[0] * 255
    by_torch = by_torch.round().permute(1, 2, 0).numpy()
    assert psnr(by_torch, by_pillow) > 45
    assert psnr(by_torch, by_pillow) > psnr(image, by_pillow) + 7


def test_noise_has_its_deviation_and_differs():
    grey = torch.full((3, 3, 200, 200), 0.5)
    noisy = degrade_batch.add_noise(grey, torch.tensor([0.04, 0.04, 0.0]), torch.tensor([1, 2, 3])) - 0.5
    assert noisy[:2].std().item() == pytest.approx(0.04, rel=0.01)
    assert abs(noisy[:2].mean().item()) < 2e-4
    assert abs(torch.corrcoef(noisy[:2].flatten(1))[0, 1].item()) < 0.01
    neighbours = torch.corrcoef(torch.stack((noisy[0, 0, :, :-1].flatten(), noisy[0, 0, :, 1:].flatten())))
    assert abs(neighbours[0, 1].item()) < 0.02
    assert torch.corrcoef(noisy[0].flatten(1)).sub(torch.eye(3)).abs().max() < 0.02  # channels apart
    assert noisy[2].abs().max() == 0
    page, _ = wear_page(
        Image.new("RGB", (1500, 300), (128, 128, 128)), [], Wear(noise=8), Dice("n")
    )  # wider than a tile
    values = np.asarray(page, np.float64)
    assert values.std() == pytest.approx(8, rel=0.05)
    assert abs(values.mean() - 128) < 0.1


def test_an_image_is_worn_the_same_alone_and_in_a_batch(page):
    images = torch.cat([as_batch(page.transpose(Image.Transpose(turn))) for turn in (0, 1, 3)] * 2)[..., :201]
    boxes = torch.tensor([[[30.0, 40, 90, 60]]]).repeat(6, 1, 1)
    for kind in (images, images / 255):
        drawn = draw_parameters(6, torch.Generator().manual_seed(3))
        together, moved = degrade_batch.degrade_batch(kind, boxes, drawn)
        for i in range(6):
            only = slice(i, i + 1)
            alone, own = degrade_batch.degrade_batch(kind[only], boxes[only], drawn[only])
            assert torch.equal(alone[0], together[i])
            assert torch.equal(own[0], moved[i])


@given(width=st.integers(1, 40), height=st.integers(1, 40), seed=st.integers(0, 10**6), fully=st.booleans())
def test_any_size_and_type_keeps_shape_and_range(width, height, seed, fully):
    drawn = draw_parameters(2, torch.Generator().manual_seed(seed), fully=fully)
    for images in (
        torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8),
        torch.rand(2, 3, height, width).half(),
    ):
        worn, boxes = degrade_batch.degrade_batch(images, torch.zeros(2, 0, 4), drawn)
        assert worn.shape == images.shape and worn.dtype == images.dtype and boxes.shape == (2, 0, 4)
        assert worn.min() >= 0 and worn.max() <= (255 if images.dtype == torch.uint8 else 1)
    page = Image.new("RGB", (width, height), (200, 180, 160))
    worn, _ = degrade_page(page, [], Dice("size", seed), fully=fully)
    assert worn.size == (width, height) and worn.mode == "RGB"


def test_equal_names_give_equal_pages(page):
    boxes = [(300.0, 200.0, 340.0, 220.0)]
    first, moved = degrade_page(page, boxes, Dice("page", 4), fully=True)
    again, moved_again = degrade_page(page, boxes, Dice("page", 4), fully=True)
    other, _ = degrade_page(page, boxes, Dice("page", 5), fully=True)
    assert first.tobytes() == again.tobytes() and moved == moved_again
    assert first.tobytes() != other.tobytes()
    drawn = [draw_parameters(3, torch.Generator().manual_seed(seed)) for seed in (8, 8, 9)]
    assert torch.equal(drawn[0].sine, drawn[1].sine) and torch.equal(drawn[0].seed, drawn[1].seed)
    assert not torch.equal(drawn[0].seed, drawn[2].seed)


def test_every_wear_is_sometimes_there_and_sometimes_not():
    wears = [draw_wear(Dice("wear", i)) for i in range(200)]
    shares = {
        "sine": np.mean([w.sine != 0 for w in wears]),
        "tap": np.mean([w.tap > 0 for w in wears]),
        "tone": np.mean([w.tone != (255, 255, 255) for w in wears]),
        "shade": np.mean([bool(w.shade) for w in wears]),
        "noise": np.mean([w.noise > 0 for w in wears]),
        "quality": np.mean([w.quality > 0 for w in wears]),
    }
    assert all(0.35 < share < 0.75 for share in shares.values()), shares
    drawn = draw_parameters(400, torch.Generator().manual_seed(0))
    for name in ("sine", "sigma", "noise", "quality"):
        assert 0.5 < (getattr(drawn, name) != 0).float().mean() < 0.7
    assert 0.4 < (drawn.tone < 1).any(1).float().mean() < 0.6
    assert drawn.sine.abs().max() <= MAX_SINE and pytest.approx(math.sin(math.radians(2)), abs=1e-5) == MAX_SINE


def test_what_cannot_be_worn_is_refused():
    with pytest.raises(DataError, match="RGB"):
        degrade_page(Image.new("L", (8, 8)), [], Dice("x"))
    with pytest.raises(DataError, match="uint8 or floats"):
        degrade_batch.degrade_batch(torch.zeros(1, 3, 8, 8, dtype=torch.int32), torch.zeros(1, 0, 4), plain())


def test_a_page_is_worn_fast(page):
    """70 ms for a page of 1024 x 1024 on a quiet core; three times that is an error."""
    large = page.resize((1024, 1024))
    degrade_page(large, [], Dice("warm"), fully=True)
    times = []
    for i in range(5):
        start = time.process_time()
        degrade_page(large, [(500, 500, 600, 520)], Dice("speed", i), fully=True)
        times.append(time.process_time() - start)
    assert min(times) < 0.21


@pytest.mark.gpu
def test_nothing_waits_for_the_device(page):
    images, boxes = as_batch(page).cuda(), torch.tensor([[[30.0, 40, 90, 60]]]).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    degrade_batch.degrade_batch(images, boxes, draw_parameters(1, generator))
    with no_sync():
        degrade_batch.degrade_batch(images, boxes, draw_parameters(1, generator, fully=True))
