"""Every kind of image a user may bring, and every way it can be broken."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

import homunculus
from homunculus.errors import ImageError
from homunculus.images import MAX_PIXELS, from_pil, load_images, open_image

RED_BLUE = np.zeros((4, 6, 3), dtype=np.uint8)
RED_BLUE[:, :3, 0] = 200
RED_BLUE[:, 3:, 2] = 100


@pytest.fixture
def saved(tmp_path):
    """Save a PIL image under a name and return the path."""

    def save(image: Image.Image, name: str, **options):
        path = tmp_path / name
        image.save(path, **options)
        return path

    return save


def test_paths_images_arrays_and_tensors_agree(saved):
    image = Image.fromarray(RED_BLUE)
    chw = torch.from_numpy(RED_BLUE).permute(2, 0, 1)
    path = saved(image, "a.png")
    for given in (path, str(path), image, RED_BLUE, chw, chw[None], [chw], (image,)):
        (found,) = load_images(given)
        assert torch.equal(found, chw) and found.dtype == torch.uint8
    for given in (RED_BLUE / np.float32(255), (RED_BLUE / 255).astype(">f8"), chw / 255, (chw / 255).double()):
        assert torch.allclose(load_images(given)[0], chw / 255)


def test_batches_and_lists_keep_their_order():
    batch = torch.rand(2, 3, 5, 6)
    found = load_images([batch, RED_BLUE, batch[0]])
    assert [tuple(f.shape) for f in found] == [(3, 5, 6), (3, 5, 6), (3, 4, 6), (3, 5, 6)]
    assert torch.equal(found[1], batch[1])


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr", "LAB", "HSV", "I;16", "I", "F"])
def test_every_mode(mode):
    if mode in ("LAB", "I;16", "I", "F"):
        image = {"LAB": Image.new("LAB", (6, 4), (128, 128, 128)), "I;16": Image.new("I;16", (6, 4), 30000)}.get(mode)
        image = image or Image.new(mode, (6, 4), 30000 if mode == "I" else 0.5)
    else:
        image = Image.fromarray(RED_BLUE).convert(mode)
    found = from_pil(image)
    assert found.shape == (3, 4, 6) and found.dtype == torch.uint8
    if mode in ("P", "CMYK", "RGBA"):
        assert (found.float() - torch.from_numpy(RED_BLUE).permute(2, 0, 1)).abs().max() < 5


def test_sixteen_bits_are_scaled_not_clipped(saved):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    found = open_image(saved(Image.fromarray(ramp), "deep.png"))
    assert (found[0].float().flatten() - torch.arange(256)).abs().max() <= 1


def test_transparency_lies_over_white(saved):
    half = np.zeros((2, 2, 4), dtype=np.uint8)
    half[..., 3] = [[0, 255], [128, 255]]
    for given in (saved(Image.fromarray(half), "alpha.png"), half, torch.from_numpy(half).permute(2, 0, 1)):
        assert load_images(given)[0][0].tolist() == [[255, 0], [127, 0]]
    floats = load_images(torch.from_numpy(half / np.float32(255)).permute(2, 0, 1))[0]
    assert torch.allclose(floats[0], torch.tensor([[1.0, 0.0], [127 / 255, 0.0]]), atol=1e-6)
    palette = Image.fromarray(RED_BLUE).convert("P")
    palette.info["transparency"] = palette.getpixel((0, 0))
    assert from_pil(palette)[:, 0, 0].tolist() == [255, 255, 255]


def test_exif_rotation_is_applied(saved):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it a quarter turn clockwise
    path = saved(Image.fromarray(np.repeat(RED_BLUE, 20, 1)), "turned.png", exif=exif)
    found = open_image(path)
    assert found.shape == (3, 120, 4)
    assert found[0, 0, 0] == 200 and found[2, -1, 0] == 100


def test_animations_show_their_first_frame(saved):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    path = saved(frames[0], "moving.gif", save_all=True, append_images=frames[1:])
    assert open_image(path)[:, 0, 0].tolist() == [255, 0, 0]
    with Image.open(path) as image:
        image.seek(2)
        assert from_pil(image)[:, 0, 0].tolist() == [255, 0, 0]
        assert image.tell() == 2


def test_grey_channels_are_repeated():
    assert load_images(np.full((3, 4, 1), 7, np.uint8))[0].unique().tolist() == [7]
    assert load_images(torch.rand(1, 3, 4))[0].shape == (3, 3, 4)


# ------------------------------------------------------------------------------------------------------------ bad input


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 100)
    chunks = b"".join(
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (body, data, b"IEND")
    )
    return b"\x89PNG\r\n\x1a\n" + chunks


def truncated() -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(buffer, "PNG")
    return buffer.getvalue()[:900]


def test_ranges_of_deep_images():
    for mode, value, expected in [
        ("I", 200, 200),
        ("I", 51400, 200),
        ("F", 0.5, 128),
        ("F", 200.0, 200),
        ("F", 1e6, 255),
    ]:
        assert from_pil(Image.new(mode, (2, 2), value))[0, 0, 0].item() == expected, (mode, value)


def test_premultiplied_alpha():
    assert from_pil(Image.new("RGBA", (2, 2), (100, 100, 100, 255)).convert("RGBa"))[:, 0, 0].tolist() == [
        100,
        100,
        100,
    ]


def test_a_lazy_image_that_breaks_late(tmp_path):
    path = tmp_path / "cut.png"
    path.write_bytes(truncated())
    with Image.open(path) as image, pytest.raises(ImageError, match="cannot be decoded"):
        homunculus.foveate(image)


BROKEN = {
    "empty.png": (b"", "is empty"),
    "text.png": (b"not an image at all", "is not an image"),
    "cut.png": (truncated(), "may be damaged or cut short"),
    "short.jpg": (b"\xff\xd8\xff\xe0" + b"\0" * 10, "not an image|damaged"),
    "bomb.png": (png_header(200_000, 200_000), "above the limit of 268,435,456: scale it down or crop it first"),
    "hollow.png": (png_header(300, 300), "may be damaged or cut short"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(name, tmp_path):
    content, message = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ImageError, match=message) as caught:
        homunculus.foveate(path)
    assert "\n" not in str(caught.value) and name in str(caught.value)


def test_missing_files_and_directories(tmp_path):
    with pytest.raises(ImageError, match="does not exist"):
        homunculus.foveate(tmp_path / "none.png")
    with pytest.raises(ImageError, match="is a directory"):
        homunculus.foveate(str(tmp_path))
    with pytest.raises(ImageError, match="cannot be decoded"):
        homunculus.foveate("x" * 300 + ".png")


def test_pillow_limit_is_left_as_it_was(tmp_path):
    before = Image.MAX_IMAGE_PIXELS
    path = tmp_path / "large.png"
    path.write_bytes(
        png_header(15_000, 15_000)
    )  # above Pillow's own limit, below ours: refused as damaged, not as large
    with pytest.raises(ImageError, match="damaged"):
        open_image(path)
    assert before == Image.MAX_IMAGE_PIXELS < 15_000**2 < MAX_PIXELS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((4, 6)), "numpy H x W x C .* or torch C x H x W"),
        (np.zeros((3, 4, 6), np.uint8), "not an image"),
        (np.zeros((4, 6, 3), np.uint16), "numpy array of uint16"),
        (np.zeros((4, 0, 3), np.uint8), "not an image"),
        (torch.zeros(6, 4, 3), "not an image"),
        (np.zeros((4, 6, 3), object), "numpy array of object"),
        (torch.zeros(3, 4, 6).to_sparse(), "sparse"),
        (torch.zeros(3, 4, 6, dtype=torch.int64), "torch tensor of torch.int64"),
        (torch.full((3, 4, 6), 200.0), r"values in \[200, 200\].*divide by 255"),
        (torch.full((3, 4, 6), float("nan")), "values in"),
        (torch.full((3, 4, 6), -0.1), "must lie in"),
        ([], "empty list"),
        (42, "cannot read an image from int"),
        (None, "cannot read an image from NoneType"),
    ],
)
def test_what_is_not_an_image(given, message):
    with pytest.raises(ImageError, match=message) as caught:
        homunculus.foveate(given)
    assert "\n" not in str(caught.value)
