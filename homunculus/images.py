"""Reading images: anything a user may hold, as `[3, H, W]` tensors of the image as displayed.

Accepted: a path, a PIL image, a numpy array H x W x C (uint8, or float in [0, 1]), a torch tensor C x H x W or
B x C x H x W of the same types, and lists of these. C is 1, 3 or 4; transparency is laid over white; EXIF rotation is
applied; 16-bit images are scaled to 8; of an animation the first frame counts. uint8 stays uint8, float64 becomes
float32.
"""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from homunculus.errors import ImageError

MAX_PIXELS = 1 << 28
LAYOUTS = "give numpy H x W x C (uint8 or float in [0, 1]) or torch C x H x W or B x C x H x W, with 1, 3 or 4 channels"

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)

_pillow_limit = threading.Lock()


def load_images(image: Any, validate: bool = True) -> list[Shaped[Tensor, "3 _h _w"]]:
    """One tensor per image, uint8 or float, whatever form they came in.

    >>> [tuple(t.shape) for t in load_images([np.zeros((20, 30, 3), np.uint8), torch.zeros(2, 3, 8, 9)])]
    [(3, 20, 30), (3, 8, 9), (3, 8, 9)]
    """
    if isinstance(image, (list, tuple)):
        if not image:
            raise ImageError("an empty list of images: give at least one")
        return [one for item in image for one in load_images(item, validate)]
    if isinstance(image, (str, os.PathLike)):
        return [open_image(image)]
    if isinstance(image, Image.Image):
        try:
            return [from_pil(image)]
        except ImageError:
            raise
        except Exception as error:  # a lazily opened file may turn out broken only now
            raise ImageError(f"this PIL image cannot be decoded ({error}): load it from a sound file") from None
    if isinstance(image, np.ndarray):
        return [_from_array(image, validate)]
    if isinstance(image, Tensor):
        return _from_tensor(image, validate)
    raise ImageError(f"cannot read an image from {type(image).__name__}: give a path, a PIL image, or {LAYOUTS[5:]}")


def open_image(path: str | os.PathLike) -> Shaped[Tensor, "3 h w"]:
    """An image file as a uint8 tensor, or an `ImageError` that says what is wrong with the file."""
    path = Path(path)
    try:
        if path.is_dir():
            raise ImageError(f"{path} is a directory: give the path of an image file")
        with _open_unlimited(path) as image:
            check_pixels(image.size, str(path))
            return from_pil(image)
    except ImageError:
        raise
    except FileNotFoundError:
        raise ImageError(f"{path} does not exist: check the path") from None
    except PermissionError:
        raise ImageError(f"{path} cannot be read: check its permissions") from None
    except UnidentifiedImageError:
        what = "is empty" if path.stat().st_size == 0 else "is not an image that Pillow can read"
        raise ImageError(f"{path} {what}: give a PNG, JPEG, WebP, GIF, TIFF or BMP file") from None
    except Exception as error:  # decoders meet broken files with whatever their authors thought of
        raise ImageError(f"{path} cannot be decoded, it may be damaged or cut short ({error}): save it again") from None


def check_pixels(size: tuple[int, int], name: str) -> None:
    """Refuse images beyond our own limit before they are decoded."""
    width, height = size
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"{name} has {width}x{height} = {width * height:,} pixels, above the limit of {MAX_PIXELS:,}: "
            "scale it down or crop it first"
        )


def from_pil(image: Image.Image) -> Shaped[Tensor, "3 h w"]:
    """A PIL image of any mode as displayed: first frame, upright, RGB over white.

    >>> from_pil(Image.new("LA", (5, 4), (0, 0)))[:, 0, 0].tolist()  # transparent black is white paper
    [255, 255, 255]
    """
    check_pixels(image.size, "the image")
    if getattr(image, "is_animated", False) and (position := image.tell()) != 0:
        image.seek(0)
        first = image.copy()
        image.seek(position)  # the caller's image stays where it was
        image = first
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)  # always a copy, so only where there is something to turn
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _eight_bits(image)
    if image.mode in ("La", "RGBa"):  # colours already multiplied by alpha
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")
        paper.alpha_composite(image)
        image = paper
    image = image if image.mode == "RGB" else image.convert("RGB")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _eight_bits(image: Image.Image) -> Image.Image:
    """Deeper greyscale scaled to 8 bits (Pillow itself would clip at 255).

    16-bit files mean 0..65535. Integers and floats of 32 bits say nothing of their range: it is taken to be 0..1,
    0..255 or 0..65535, the smallest that holds the values, or else up to their maximum.
    """
    values = np.asarray(image).astype(np.float64)
    most = values.max(initial=0.0)
    ranges = {"F": [1.0, 255.0, 65535.0], "I": [255.0, 65535.0]}.get(image.mode, [65535.0])
    peak = next((peak for peak in ranges if most <= peak), most)
    return Image.fromarray(np.clip(np.rint(np.nan_to_num(values) * (255 / peak)), 0, 255).astype(np.uint8))


def _from_array(array: np.ndarray, validate: bool) -> Shaped[Tensor, "3 h w"]:
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise ImageError(f"a numpy array of shape {list(array.shape)} is not an image: {LAYOUTS}")
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise ImageError(f"a numpy array of {array.dtype} is not an image: {LAYOUTS}")
    native = array if array.dtype == np.uint8 else array.astype(np.float32)
    tensor = torch.from_numpy(np.ascontiguousarray(native)).permute(2, 0, 1)
    return _rgb(_checked(tensor, f"a numpy array of {array.dtype}", validate)).contiguous()


def _from_tensor(tensor: Tensor, validate: bool) -> list[Shaped[Tensor, "3 _h _w"]]:
    if tensor.ndim not in (3, 4) or tensor.shape[-3] not in (1, 3, 4) or 0 in tensor.shape:
        raise ImageError(f"a torch tensor of shape {list(tensor.shape)} is not an image: {LAYOUTS}")
    tensor = _checked(tensor, f"a torch tensor of {tensor.dtype}", validate)
    return [_rgb(one) for one in (tensor if tensor.ndim == 4 else tensor[None])]


def _checked(tensor: Tensor, name: str, validate: bool) -> Tensor:
    check_pixels((tensor.shape[-1], tensor.shape[-2]), name)
    if tensor.layout != torch.strided or tensor.dtype not in DTYPES:
        raise ImageError(f"{name} ({tensor.layout}) is not an image: {LAYOUTS}")
    if tensor.dtype == torch.uint8:
        return tensor
    if validate and not bool(((tensor >= 0) & (tensor <= 1)).all()):
        low, high = tensor.min().item(), tensor.max().item()
        raise ImageError(f"{name} has values in [{low:g}, {high:g}]: floats must lie in [0, 1] (divide by 255?)")
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _rgb(tensor: Tensor) -> Shaped[Tensor, "3 h w"]:
    channels = tensor.shape[0]
    if channels == 3:
        return tensor
    if channels == 1:
        return tensor.expand(3, -1, -1)
    colour, alpha = tensor[:3], tensor[3:]
    if tensor.dtype == torch.uint8:
        over_white = (colour.float() * alpha + 255 * (255 - alpha.float())) / 255
        return over_white.round().to(torch.uint8)
    return colour * alpha + (1 - alpha)


def _open_unlimited(path: Path) -> Image.Image:
    """Open a file without Pillow's global limit: ours is checked before anything is decoded."""
    with _pillow_limit:
        before = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = None
        try:
            return Image.open(path)
        finally:
            Image.MAX_IMAGE_PIXELS = before
