"""Drawings over one image: its cells coloured by level, its relevance, its fixations."""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from PIL import Image, ImageChops, ImageDraw
from torch import Tensor

from homunculus.errors import ImageError
from homunculus.geometry import Size
from homunculus.images import load_images
from homunculus.kernels.resample import area_resample_in_strips
from homunculus.structures import Allocation
from homunculus.viz.palette import Colour, heat, level_colour

MAX_SIDE, MIN_SIDE = 2048, 32
SHADE = 110  # how dark black is drawn under the cells, so that their colours show on it
LINE: Colour = (36, 28, 62)


def to_pil(image: Shaped[Tensor, "3 h w"], size: Size | None = None) -> Image.Image:
    """A uint8 or float [0, 1] tensor as a PIL image, scaled to `size` by exact area averages."""
    if size is not None and size != (image.shape[2], image.shape[1]):
        scale = 1.0 if image.is_floating_point() else 1 / 255
        image = area_resample_in_strips(image, size) * scale
    if image.is_floating_point():
        image = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    return Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())


def panel_size(size: Size, box: Size) -> Size:
    """The largest size of the same aspect that fits into `box` and MAX_SIDE; slivers are widened to be seen.

    >>> panel_size((2000, 1000), (500, 500))
    (500, 250)
    """
    scale = min(box[0] / size[0], box[1] / size[1], MAX_SIDE / max(size))
    return max(MIN_SIDE, round(size[0] * scale)), max(MIN_SIDE, round(size[1] * scale))


def overlay(image: Any, allocation: Allocation, size: Size | None = None, index: int = 0) -> Image.Image:
    """The cells of one image of a batch, drawn over it: light and small where it looks closely, dark where it does not.

    `image` is anything `foveate` takes, a batch or a single image; `index` picks one of a batch. `size` is that of the
    drawing, by default the image's, up to 2048.

    >>> import homunculus
    >>> image = torch.rand(3, 240, 320)
    >>> overlay(image, homunculus.foveate(image, budget=64).allocation).size
    (320, 240)
    """
    images = load_images(image)
    pixels = images[index if len(images) > 1 else 0]
    full = pixels.shape[2], pixels.shape[1]
    if allocation.image_sizes[index] != full:
        width, height = allocation.image_sizes[index]
        raise ImageError(
            f"these cells are of an image of {width}x{height} pixels, not of {full[0]}x{full[1]}: give that one"
        )
    size = size or panel_size(full, full)
    tint, lines = Image.new("RGB", size, "white"), Image.new("L", size)
    tints, pens = ImageDraw.Draw(tint), ImageDraw.Draw(lines)
    scale = size[0] / full[0], size[1] / full[1]
    levels = allocation.levels[index].tolist()
    for cell in sorted(range(len(levels)), key=lambda i: -levels[i]):  # finer over coarser
        outline = _outline(allocation, index, cell, scale)
        tints.polygon(outline, fill=level_colour(levels[cell]))
        pens.polygon(outline, fill=0, outline=170)
    # Multiplied like ink on paper: text keeps its contrast under every colour.
    grey = to_pil(pixels, size).convert("L").point([SHADE + (255 - SHADE) * value // 255 for value in range(256)])
    picture = ImageChops.multiply(grey.convert("RGB"), tint)
    return Image.composite(Image.new("RGB", size, LINE), picture, lines)


def _outline(allocation: Allocation, index: int, cell: int, scale: tuple[float, float]) -> list[tuple[float, float]]:
    x0, y0, x1, y1 = allocation.boxes[index, cell].tolist()
    turn = float(allocation.angle[index, cell])
    corners = torch.tensor([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    if turn:
        centre = corners.mean(0)
        cos, sin = torch.tensor(turn).cos(), torch.tensor(turn).sin()
        corners = centre + (corners - centre) @ torch.tensor([[cos, sin], [-sin, cos]])
    return [(x * scale[0], y * scale[1]) for x, y in corners.tolist()]


def relevance_panel(image: Shaped[Tensor, "3 h w"], density: Float[Tensor, "gh gw"], size: Size) -> Image.Image:
    """A density as warm light over the darkened image, raised to the power 0.4 so that faint parts stay visible."""
    share = (density / density.max().clamp(min=torch.finfo(density.dtype).tiny)).pow(0.4).cpu()
    glow = to_pil(heat(share)).resize(size, Image.Resampling.NEAREST)
    under = to_pil(image, size).convert("L").convert("RGB")
    return Image.blend(glow, under, 0.22)


def mark_fixations(picture: Image.Image, fixations: Float[Tensor, "f 3"] | None, scale: tuple[float, float]) -> None:
    """A ring and cross at every fixation, dark and light together so that it shows on anything."""
    if fixations is None:
        return
    draw = ImageDraw.Draw(picture)
    radius = max(5, round(min(max(picture.size) / 70, min(picture.size) / 5)))
    for x, y, weight in fixations.tolist():
        if weight <= 0:
            continue
        x, y = x * scale[0], y * scale[1]
        # Kept on the picture, so that a fixation in a corner is still seen as a ring.
        x = min(max(x, radius), max(radius, picture.width - 1 - radius))
        y = min(max(y, radius), max(radius, picture.height - 1 - radius))
        strokes: list[tuple[Colour, int]] = [((255, 255, 255), 5), ((0, 0, 0), 2)]
        for colour, width in strokes:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=width)
            draw.line((x - radius / 2, y, x + radius / 2, y), fill=colour, width=width)
            draw.line((x, y - radius / 2, x, y + radius / 2), fill=colour, width=width)
