"""Drawings over one image: its cells coloured by level, its relevance, its fixations."""

import math
from typing import Any

import torch
from jaxtyping import Float, Shaped
from PIL import Image, ImageChops, ImageDraw
from torch import Tensor

from homunculus.allocation.polar import border
from homunculus.errors import ImageError
from homunculus.geometry import Size
from homunculus.images import load_images
from homunculus.kernels.resample import area_resample_in_strips
from homunculus.structures import Allocation
from homunculus.viz.palette import Colour, font, heat, level_colour

MAX_SIDE, MIN_SIDE = 2048, 32
SHADE = 110  # how dark black is drawn under the cells, so that their colours show on it
LINE: Colour = (36, 28, 62)
STROKES: list[tuple[Colour, int]] = [((255, 255, 255), 5), ((0, 0, 0), 2)]  # light, then dark: seen on anything


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
    if bool(allocation.sector[index, cell].isfinite().all()):
        return [(x * scale[0], y * scale[1]) for x, y in _sector_outline(allocation, index, cell)]
    x0, y0, x1, y1 = allocation.boxes[index, cell].tolist()
    turn = float(allocation.angle[index, cell])
    corners = torch.tensor([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    if turn:
        centre = corners.mean(0)
        cos, sin = torch.tensor(turn).cos(), torch.tensor(turn).sin()
        corners = centre + (corners - centre) @ torch.tensor([[cos, sin], [-sin, cos]])
    return [(x * scale[0], y * scale[1]) for x, y in corners.tolist()]


def _sector_outline(allocation: Allocation, index: int, cell: int) -> list[tuple[float, float]]:
    """The sector, cut to the image: along its outer arc or the image's border, and back along the inner arc."""
    rho0, rho1, theta0, theta1 = allocation.sector[index, cell].double().tolist()
    gaze, size = allocation.gaze[index : index + 1].double().cpu(), allocation.image_sizes[index]
    theta = torch.linspace(theta0, theta1, max(5, round((theta1 - theta0) * 80)), dtype=torch.float64)
    cos, sin = theta.cos(), theta.sin()
    outer = border(gaze, size, cos, sin)[0].clamp(max=rho1)
    inner = outer.clamp(max=rho0)
    radius = torch.cat((outer, inner.flip(0)))
    x, y = gaze[0, 0] + radius * torch.cat((cos, cos.flip(0))), gaze[0, 1] + radius * torch.cat((sin, sin.flip(0)))
    return list(zip(x.tolist(), y.tolist(), strict=True))


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
        for colour, width in STROKES:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=width)
            draw.line((x - radius / 2, y, x + radius / 2, y), fill=colour, width=width)
            draw.line((x, y - radius / 2, x, y + radius / 2), fill=colour, width=width)


def mark_scanpath(picture: Image.Image, fixations: Float[Tensor, "f 3"], scale: tuple[float, float]) -> None:
    """Numbered discs at the fixations, joined by lines in the order they were looked at.

    Dark and light together, so that both show on anything. A disc that would cover an earlier one steps aside, and a
    line leads back to its place.
    """
    draw = ImageDraw.Draw(picture)
    width, height = picture.size
    radius = max(6, round(min(max(width, height) / 55, min(width, height) / 5)))
    places = [(x * scale[0], y * scale[1]) for x, y, weight in fixations.tolist() if weight > 0]
    discs: list[tuple[float, float]] = []
    for place in places:
        discs.append(_free_place(place, discs, radius, picture.size))
    for ink, thick in STROKES:
        draw.line(discs, fill=ink, width=thick, joint="curve")
        for pair in zip(places, discs, strict=True):
            draw.line(pair, fill=ink, width=thick)
    for number, (x, y) in enumerate(discs, 1):
        for fill, reach in (((255, 255, 255), radius + 3), ((0, 0, 0), radius + 1), ((255, 255, 255), radius - 1)):
            draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=fill)
        size = round(radius * (1.5 if number < 10 else 1.1))
        draw.text((x, y), str(number), (0, 0, 0), font(size), anchor="mm", stroke_width=0.4)


def _free_place(
    place: tuple[float, float], taken: list[tuple[float, float]], radius: int, size: Size
) -> tuple[float, float]:
    """The nearest place to this one where a disc lies on the picture and touches no other, if there is one."""
    reach = radius + 4
    x, y = (min(max(c, reach), max(reach, side - 1 - reach)) for c, side in zip(place, size, strict=True))
    steps = [(0.0, 0.0)] + [
        (ring * reach * math.cos(turn * math.pi / 8), ring * reach * math.sin(turn * math.pi / 8))
        for ring in (1, 2, 3, 4)
        for turn in range(16)
    ]
    for dx, dy in steps:
        spot = x + dx, y + dy
        on = all(reach <= c <= max(reach, side - 1 - reach) for c, side in zip(spot, size, strict=True))
        if on and all(math.dist(spot, other) >= 2 * reach for other in taken):
            return spot
    return x, y
