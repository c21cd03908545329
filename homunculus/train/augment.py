"""Letters in other shapes: images stretched, slanted, bolder, thinner and recoloured on the device while training.

A reader that met five faces knows these five. A sixth differs from them in what is varied here at random: how wide,
high and slanted letters are, how heavy their strokes, and strokes across against strokes down. What is asked stays
true: places go where their pixels go, nothing is mirrored, no part of an image that a question needs is pushed off it,
and where colours matter there is a little stretching and nothing else.

A warp takes a place p (x and y in pixels, a pixel's middle at 0.5) to `matrix` p + `shift`. What it would push out of
the image it keeps inside: a row of the matrix that makes the content too long is made smaller, and the shift is drawn
from those that leave all of it inside. Bare edges repeat the outermost pixels.

Chance is drawn on the host, so much for each image in a row, and all that follows is elementwise over the batch: an
image comes out the same whatever is beside it, and nothing waits for the device. A few images at a time are worked on,
so that what is between lies in the device's cache; on a GPU in half precision but for the warp, which would be off by
half a pixel.
"""

import random
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Int64, UInt8
from torch import Tensor

from homunculus.data.dice import Dice
from homunculus.geometry import Size
from homunculus.model.tokenizer import FIRST_BYTE, PAD
from homunculus.train.marks import ASCII
from homunculus.train.samples import Pages, Samples, sent

# How much of each, where there is any.
ACROSS, DOWN = 1.25, 1.15  # stretch by as much at most, or by one over it; log-uniform
SLANT = 0.2  # of x by y
RISE = 0.01  # of y by x: the box round a long line that rises more takes in its neighbours
MILD = 0.45  # the exponent of stretch where colours matter: 0.9 to 1.1
SAFE, SAFE_PAGES = 0.06, 0.1  # of a side: beyond this margin pixels may be lost if no question is about them
BOLD, THIN = 0.45, 0.3  # of what a pool over three pixels changes
BLUR = 0.35  # of the way to the mean of the neighbours on both sides
CONTRAST, BRIGHTNESS = (0.6, 1.1), 0.08
GAMMA = (0.65, 1.5)
TINT = 0.25  # of a channel that is taken away, at most

WARPED, WEIGHTED, BLURRED, TONED, TINTED, INVERTED = 0.67, 0.6, 0.2, 0.5, 0.3, 0.06  # shares of the images

CHANCES = 22  # numbers in [0, 1) that an image takes
TOGETHER = 4  # images
LEAST = 0.5  # of a box that must stay on the image


class Warp(NamedTuple):
    """Where places of each image go: `matrix` p + `shift`, in pixels."""

    matrix: Float32[Tensor, "b 2 2"]
    shift: Float32[Tensor, "b 2"]


class Style(NamedTuple):
    """What becomes of the pixels of each image, with values from 0 to 1."""

    weight: Float32[Tensor, "b 2"]  # of strokes, by pools across and down: above 0 the dark spreads, below the light
    blur: Float32[Tensor, " b"]
    gain: Float32[Tensor, "b 3"]  # value * gain + offset, and that to the power gamma
    offset: Float32[Tensor, "b 3"]
    gamma: Float32[Tensor, " b"]


# -------------------------------------------------------------------------------------------------------- what is drawn


def chances(count: int, seed: int, step: int, device: torch.device) -> Float32[Tensor, "b chances"]:
    """The chance of a step: a row for each image, the same however many there are.

    >>> cpu = torch.device("cpu")
    >>> torch.equal(chances(5, 0, 7, cpu)[:2], chances(2, 0, 7, cpu))
    True
    """
    drawn = Dice("augment", seed, step).array(count * CHANCES)
    return sent(torch.from_numpy(drawn).float().view(count, CHANCES), device)


def drawn_warp(
    chance: Float[Tensor, "b chances"],
    size: Size,
    colours: Bool[Tensor, " b"],
    boxes: Float[Tensor, "b k 4"] | None = None,
    safe: float = SAFE,
) -> Warp:
    """A warp for each image that leaves its boxes on it, and all but a margin of the image; where colours matter, all.

    >>> warp = drawn_warp(torch.full((1, CHANCES), 0.5), (64, 64), torch.tensor([False]))  # no stretch, no slant
    >>> warp.matrix[0].tolist(), warp.shift[0].tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    """
    present, across, down, slant, rise, x, y = chance[:, :7].unbind(1)
    warped = (present < WARPED).float()
    mild = torch.where(colours, MILD, 1.0) * warped
    free = (~colours).float() * warped
    matrix = torch.stack(
        (
            ACROSS ** ((2 * across - 1) * mild),
            (2 * slant - 1) * SLANT * free,
            (2 * rise - 1) * RISE * free,
            DOWN ** ((2 * down - 1) * mild),
        ),
        1,
    ).unflatten(1, (2, 2))
    margin = torch.where(colours, 0.0, safe)
    low, high = _extent(_content(margin, size, boxes), matrix)  # [b, 2]: x, y
    sides = torch.stack([torch.full_like(x, float(side)) for side in size], 1)
    fitting = (sides / (high - low)).clamp(max=1)
    low, high = low * fitting, high * fitting
    there = torch.stack((x, y), 1)
    middle = (sides - (low + high)) / 2
    room = ((sides - (high - low)) / 2).clamp(min=0)  # to either side of it
    shift = middle + (2 * there - 1) * room
    return Warp(
        torch.where(warped[:, None, None] > 0, matrix * fitting[..., None], matrix),
        torch.where(warped[:, None] > 0, shift, 0.0),
    )


def _content(margin: Float[Tensor, " b"], size: Size, boxes: Float[Tensor, "b k 4"] | None) -> Float[Tensor, "b n 4"]:
    """What is to stay: the middle of the image, and what boxes there are."""
    width, height = size
    edges = (margin * width, margin * height, (1 - margin) * width, (1 - margin) * height)
    middle = torch.stack(edges, 1)[:, None]
    if boxes is None:
        return middle
    limits = torch.stack([torch.full_like(margin, float(side)) for side in (*size, *size)], 1)[:, None]
    inside = torch.minimum(boxes.clamp(min=0), limits)
    return torch.cat((middle, torch.where(_empty(boxes)[..., None], middle, inside)), 1)


def _extent(boxes: Float[Tensor, "b k 4"], matrix: Float[Tensor, "b 2 2"]) -> tuple[Tensor, Tensor]:
    """The least and the greatest x and y of all corners, taken through a matrix: [b, 2] each."""
    corners = _through(_corners(boxes), matrix).flatten(1, 2)
    return corners.amin(1), corners.amax(1)


def drawn_style(chance: Float[Tensor, "b chances"], colours: Bool[Tensor, " b"]) -> Style:
    """A style for each image; none where colours matter.

    >>> plain = drawn_style(torch.rand(2, CHANCES), torch.tensor([True, True]))
    >>> plain.weight.any().item(), plain.gain.unique().item(), plain.gamma.unique().item()
    (False, 1.0, 1.0)
    """
    weighted, side, across, down, blurred, blur, toned, contrast, light, gamma, tinted = chance[:, 7:18].unbind(1)
    tint, inverted = chance[:, 18:21], chance[:, 21]
    free = ~colours
    weight = torch.where(side < 0.5, BOLD, -THIN)[:, None] * torch.stack((across, down), 1)
    toned, tinted, inverted = (toned < TONED) & free, (tinted < TINTED) & free, (inverted < INVERTED) & free
    gain = torch.where(toned, _between(contrast, *CONTRAST), 1.0)
    offset = torch.where(toned, (1 - gain) / 2 + (2 * light - 1) * BRIGHTNESS, 0.0)
    offset = torch.where(inverted, 1 - offset, offset)
    gain = torch.where(inverted, -gain, gain)
    left = 1 - TINT * tint * tinted[:, None]  # [b, 3]
    return Style(
        weight * ((weighted < WEIGHTED) & free)[:, None],
        BLUR * blur * ((blurred < BLURRED) & free),
        gain[:, None] * left,
        offset[:, None] * left,
        torch.where(toned, _between(gamma, *GAMMA), 1.0),
    )


def _between(chance: Tensor, low: float, high: float) -> Tensor:
    """Log-uniform between low and high."""
    return low * (high / low) ** chance


# --------------------------------------------------------------------------------------------------------------- pixels


@torch.no_grad()
@torch.autocast("cuda", enabled=False)  # the precision of each operation is chosen here
def redrawn(images: UInt8[Tensor, "b 3 h w"], warp: Warp, style: Style) -> UInt8[Tensor, "b 3 h w"]:
    """Images warped, their strokes made heavier or lighter and their values changed, in [b, h, w, 3] memory as before.

    >>> images = torch.zeros(2, 8, 8, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    >>> chance, colours = torch.rand(2, CHANCES), torch.zeros(2, dtype=torch.bool)
    >>> redrawn(images, drawn_warp(chance, (8, 8), colours), drawn_style(chance, colours)).shape
    torch.Size([2, 3, 8, 8])
    """
    found = torch.empty_like(images, memory_format=torch.channels_last)
    kind = torch.float16 if images.device.type == "cuda" else torch.float32
    for at in range(0, len(images), TOGETHER):
        few = slice(at, at + TOGETHER)
        _, blur, gain, offset, gamma = own = Style(*(values[few] for values in style))
        # Pools take the greatest: where the dark is to spread, values are below 0 until `gain` turns them back.
        sign = torch.where(own.weight.amax(1) > 0, -1.0, 1.0)[:, None, None, None]
        values = _sampled(images[few] * sign, warp.matrix[few], warp.shift[few]).to(kind)
        for axis in (3, 2):
            _spread(values, own.weight[:, 3 - axis].abs().to(kind), axis)
        for axis in (3, 2):
            _blurred(values, blur.to(kind), axis)
        gain = gain[..., None, None] * sign / 255
        values = torch.addcmul(offset[..., None, None].to(kind), values, gain.to(kind)).clamp_(0, 1)
        values = values.pow_(gamma[:, None, None, None].to(kind)).mul_(255).add_(0.5)  # rounded when it is cut
        found[few].copy_(values)
    return found


def _sampled(
    values: Float32[Tensor, "b 3 h w"], matrix: Float32[Tensor, "b 2 2"], shift: Float32[Tensor, "b 2"]
) -> Float32[Tensor, "b 3 h w"]:
    """Each pixel's value where it came from, between the four about that place. Shrinks too little to need a filter."""
    height, width = values.shape[2:]
    a, b, c, d = matrix.flatten(1).unbind(1)  # each [b]
    whole = a * d - b * c
    x = torch.arange(width, device=values.device) + 0.5 - shift[:, :1]  # [b, w]
    y = torch.arange(height, device=values.device) + 0.5 - shift[:, 1:]  # [b, h]
    places = torch.empty(len(values), height, width, 2, device=values.device)
    for axis, (by_x, by_y, side) in enumerate(((d, -b, width), (-c, a, height))):
        across, down = (by_x / whole)[:, None] * x * (2 / side) - 1, (by_y / whole)[:, None] * y * (2 / side)
        places[..., axis] = across[:, None, :] + down[:, :, None]
    return F.grid_sample(values, places, "bilinear", "border", align_corners=False)


def _spread(values: Float[Tensor, "b 3 h w"], amount: Float[Tensor, " b"], axis: int) -> None:
    """In place: some of the way to the greatest of three neighbours along an axis; the two at its ends stay."""
    length = values.shape[axis]
    if length < 3:
        return
    pairs = torch.maximum(values.narrow(axis, 0, length - 1), values.narrow(axis, 1, length - 1))
    most = torch.maximum(pairs.narrow(axis, 0, length - 2), pairs.narrow(axis, 1, length - 2))
    values.narrow(axis, 1, length - 2).lerp_(most, amount[:, None, None, None])


def _blurred(values: Float[Tensor, "b 3 h w"], amount: Float[Tensor, " b"], axis: int) -> None:
    """In place: some of the way to the mean of the neighbours on both sides along an axis; the two at its ends stay."""
    length = values.shape[axis]
    if length < 3:
        return
    beside = torch.lerp(values.narrow(axis, 0, length - 2), values.narrow(axis, 2, length - 2), 0.5)
    values.narrow(axis, 1, length - 2).lerp_(beside, amount[:, None, None, None])


# --------------------------------------------------------------------------------------------------------------- places


def moved_boxes(
    boxes: Float32[Tensor, "b k 4"], warp: Warp, size: Size
) -> tuple[Float32[Tensor, "b k 4"], Bool[Tensor, "b k"]]:
    """The boxes round the moved corners of boxes, clipped to the image, and of which at least half is left. Boxes
    without area are padding, and stay.

    >>> twice = Warp(2 * torch.eye(2)[None], torch.zeros(1, 2))
    >>> moved_boxes(torch.tensor([[[1.0, 2, 3, 4], [0, 0, 0, 0], [7, 1, 9, 2]]]), twice, (10, 10))
    (tensor([[[2., 4., 6., 8.],
             [0., 0., 0., 0.],
             [0., 0., 0., 0.]]]), tensor([[ True,  True, False]]))
    """
    corners = _through(_corners(boxes), warp.matrix) + warp.shift[:, None, None]  # [b, k, 4, 2]
    x, y = corners.unbind(-1)
    x0, y0, x1, y1 = x.amin(-1), y.amin(-1), x.amax(-1), y.amax(-1)
    whole = (x1 - x0) * (y1 - y0)
    clipped = torch.stack((x0.clamp(0, size[0]), y0.clamp(0, size[1]), x1.clamp(0, size[0]), y1.clamp(0, size[1])), -1)
    left = (clipped[..., 2] - clipped[..., 0]) * (clipped[..., 3] - clipped[..., 1])
    none = _empty(boxes)
    kept = (left >= LEAST * whole) | none
    return torch.where(none[..., None], boxes, clipped * kept[..., None]), kept


def moved_letters(
    letters: Int64[Tensor, "b texts length 3"], warp: Warp, size: Size
) -> Int64[Tensor, "b texts length 3"]:
    """Letters where their images took them; those that left become padding.

    >>> twice = Warp(2 * torch.eye(2)[None], torch.zeros(1, 2))
    >>> moved_letters(torch.tensor([[[[3, 4, 70], [6, 4, 71], [0, 0, 0]]]]), twice, (10, 10)).tolist()
    [[[[6, 8, 70], [0, 0, 0], [0, 0, 0]]]]
    """
    places = _through(letters[..., :2].float(), warp.matrix) + warp.shift[:, None, None]
    x, y = (places + 0.5).floor().long().unbind(-1)
    inside = (x >= 0) & (x <= size[0]) & (y >= 0) & (y <= size[1])
    real = inside & (letters != 0).any(-1)  # padding lies nowhere
    return torch.stack((x * real, y * real, letters[..., 2].masked_fill(~real, PAD)), -1)


def _through(places: Float[Tensor, "b m n 2"], matrix: Float[Tensor, "b 2 2"]) -> Float[Tensor, "b m n 2"]:
    """Places through a matrix, one by one: a product of matrices may be rounded otherwise in another batch."""
    a, b, c, d = matrix.flatten(1)[..., None, None].unbind(1)  # each [b, 1, 1]
    x, y = places.unbind(-1)
    return torch.stack((a * x + b * y, c * x + d * y), -1)


def _corners(boxes: Float[Tensor, "b k 4"]) -> Float[Tensor, "b k 4 2"]:
    x0, y0, x1, y1 = boxes.unbind(-1)
    return torch.stack((torch.stack((x0, x0, x1, x1), -1), torch.stack((y0, y1, y0, y1), -1)), -1)


def _empty(boxes: Float[Tensor, "b k 4"]) -> Bool[Tensor, "b k"]:
    return (boxes[..., 2] <= boxes[..., 0]) | (boxes[..., 3] <= boxes[..., 1])


# -------------------------------------------------------------------------------------------------------------- batches


def chosen(share: float, step: int) -> bool:
    """Whether a step is one of the share of all steps whose images are augmented: the same whenever it is asked.

    >>> sum(chosen(0.25, step) for step in range(1000))
    258
    """
    return random.Random(f"augment {step}").random() < share


def augmented(samples: Samples, seed: int, step: int, colours: Bool[Tensor, " images"] | None = None) -> Samples:
    """Questions of images whose letters have other shapes; `colours` says where colours matter.

    A question whose region left the image, which a warp avoids, has no answer and no boxes: no loss counts it.

    >>> from homunculus.train.pool import Pool
    >>> pool = Pool({"scenes": 1.0}, size=(64, 48), capacity=2, renewed=0)
    >>> pool.fill()
    >>> samples = pool.draw(4, step=0, each=2)
    >>> augmented(samples, pool.own_seed, 0, pool.colours(samples)).images.shape
    torch.Size([2, 3, 48, 64])
    """
    return _warped(samples, seed, step, colours)[0]


def augmented_with_letters(
    samples: Samples,
    letters: Int64[Tensor, "images texts length 3"],
    seed: int,
    step: int,
    colours: Bool[Tensor, " images"] | None = None,
) -> tuple[Samples, Int64[Tensor, "images texts length 3"]]:
    """The same, and the letters on the images where they are then."""
    moved, warp = _warped(samples, seed, step, colours)
    return moved, moved_letters(letters, warp, _size(samples.images))


def _warped(samples: Samples, seed: int, step: int, colours: Tensor | None) -> tuple[Samples, Warp]:
    """Samples augmented, and how places moved."""
    count, size = len(samples.images), _size(samples.images)
    chance = chances(count, seed, step, samples.images.device)
    if colours is None:
        colours = torch.zeros_like(chance[:, 0], dtype=torch.bool)
    boxes = samples.boxes.unflatten(0, (count, samples.each)).flatten(1, 2)  # of all questions of an image
    warp = drawn_warp(chance, size, colours, boxes)
    images = redrawn(samples.images, warp, drawn_style(chance, colours))
    boxes, kept = moved_boxes(boxes, warp, size)
    asked = kept.view(len(samples.question), -1).all(1)[:, None]
    boxes = boxes.view_as(samples.boxes) * asked[..., None]
    anchors, _ = moved_boxes(samples.anchors.unflatten(0, (count, samples.each)).flatten(1, 2), warp, size)
    anchors, answer = anchors.view_as(samples.anchors), samples.answer.masked_fill(~asked, PAD)
    return replace(samples, images=images, boxes=boxes, anchors=anchors, answer=answer), warp


def augmented_pages(pages: Pages, seed: int, step: int) -> Pages:
    """Pages whose letters have other shapes. Colours matter where marks tell of things (train/marks.py).

    >>> pages = Pages(torch.zeros(1, 8, 8, 3, dtype=torch.uint8).permute(0, 3, 1, 2), torch.tensor([[[[4, 4, 70]]]]))
    >>> augmented_pages(pages, seed=0, step=0).letters.shape
    torch.Size([1, 1, 1, 3])
    """
    size = _size(pages.images)
    chance = chances(len(pages.images), seed, step, pages.images.device)
    colours = (pages.letters[..., 2] >= FIRST_BYTE + ASCII).flatten(1).any(1)
    warp = drawn_warp(chance, size, colours, safe=SAFE_PAGES)
    images = redrawn(pages.images, warp, drawn_style(chance, colours))
    return Pages(images, moved_letters(pages.letters, warp, size))


def _size(images: UInt8[Tensor, "b 3 h w"]) -> Size:
    return images.shape[3], images.shape[2]
