"""The cortical view: an image laid out on the two sheets of primary visual cortex that would see it, and back.

The sheet is sampled in equal steps of cortex, as many samples as the tokens have pixels, so that what comes back can be
held against what the tokens show. Steps on the sheet are finer than pixels at the gaze and coarser far from it: there
detail is lost, and at the gaze samples are spent on nothing, since the image has no more to show.

Drawn as the eye sees it: the left half field on the left, the foveas side by side in the middle, the upper field up. In
the head each half lies in the hemisphere of the other side, and the upper field on the lower bank of the sulcus.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Shaped
from PIL import Image, ImageDraw
from torch import Tensor

from homunculus.allocation import Allocator
from homunculus.allocation.polar import border, directions
from homunculus.biology.cortex import E0, M_E0, WHOLE_FIELD, cortical_share
from homunculus.biology.field import DEGREES, eccentricity_map, pixels_per_degree, to_degrees
from homunculus.biology.schwartz import from_cortex, on_cortex, to_cortex
from homunculus.geometry import Size
from homunculus.kernels.resample import area_resample_in_strips, as_float, halve
from homunculus.reconstruct import reconstruct
from homunculus.structures import VisualTokens, rectangular
from homunculus.viz.figures import Panel, compose, side_legend
from homunculus.viz.overlay import mark_fixations, overlay, panel_size, to_pil
from homunculus.viz.palette import INK, Colour, font

MARKS = (1, 2, 5, 10, 20)  # degrees
BLANK = 0.95  # where no cortex is, or no image
LEAST = 4.0  # mm of sheet for a half field, however little of it the image shows
LARGEST = 1536  # longer side that is worked with, in pixels
PRESENT = 1e-3  # of a sample, the least that can be told from none after averaging
BETWEEN, FOOT = 14, 26  # pixels of the drawing: between the halves, and below for the marks


@dataclass(frozen=True, eq=False)
class Sheets:
    """The two half fields `[3, rows, columns]`, columns away from the fovea, and where they show the image.

    `step` is the side of a sample in mm of cortex; `top` how far up the sheets go, in mm.
    """

    left: Float[Tensor, "3 h wl"]
    right: Float[Tensor, "3 h wr"]
    seen_left: Bool[Tensor, "h wl"]
    seen_right: Bool[Tensor, "h wr"]
    gaze: Float64[Tensor, "2"]
    image_size: Size
    degrees: float
    step: float
    top: float

    @property
    def samples(self) -> int:
        """How many samples show the image."""
        return int(self.seen_left.sum() + self.seen_right.sum())


def to_sheets(
    image: Shaped[Tensor, "3 h w"],
    gaze: Float[Tensor, "2"],
    degrees: float = DEGREES,
    samples: int = 273 * 256,
    step: float | None = None,
) -> Sheets:
    """The image (uint8 or in [0, 1]) on the cortex of an eye that looks at `gaze`, in about as many samples as asked.

    Where a sample covers several pixels it is their mean. `step` sets the side of a sample in mm instead.

    >>> sheets = to_sheets(torch.full((3, 120, 160), 0.25), torch.tensor([80.0, 60.0]), samples=5000)
    >>> abs(sheets.samples - 5000) < 300, round(sheets.right[:, sheets.seen_right].mean().item(), 6)
    (True, 0.25)
    """
    size = image.shape[2], image.shape[1]
    x, y = eccentricity_map(gaze, size, degrees)
    per_degree = pixels_per_degree(size, degrees)
    if step is None:
        area = (local_magnification(x, y) / per_degree).square().sum().item()  # mm^2 of cortex that see the image
        step = math.sqrt(area / samples)
    u, v, right_field = to_cortex(x, y)
    top = max(LEAST, v.abs().max().item())
    rows = math.ceil(2 * top / step)
    pixels = as_float(image) if image.is_floating_point() else as_float(image) / 255
    mips = [pixels]
    while min(mips[-1].shape[1:]) > 1:
        mips.append(halve(mips[-1]))
    halves = []
    for right in (False, True):
        own = right_field == right
        reach = max(LEAST, u[own].max().item() if bool(own.any()) else 0.0)
        columns = math.ceil(reach / step)
        across, up = _grid(rows, columns, step, top, u.device)
        place = from_cortex(across, up, torch.full_like(across, right, dtype=torch.bool))
        px, py = gaze[0].double() + place[0] * per_degree, gaze[1].double() - place[1] * per_degree
        seen = on_cortex(across, up) & (px >= 0) & (px <= size[0]) & (py >= 0) & (py <= size[1])
        level = (step * per_degree / local_magnification(*place)).log2()
        halves.append((torch.where(seen, _look_up(mips, px, py, level), BLANK), seen))
    (left, seen_left), (own_right, seen_right) = halves
    return Sheets(left, own_right, seen_left, seen_right, gaze.double(), size, degrees, step, top)


def from_sheets(sheets: Sheets) -> Float[Tensor, "3 h w"]:
    """The image that the sheets still hold: every pixel looked up where the cortex sees it.

    >>> image = torch.full((3, 60, 80), 0.5)
    >>> from_sheets(to_sheets(image, torch.tensor([10.0, 50.0]))).round(decimals=5).unique().tolist()
    [0.5]
    """
    x, y = eccentricity_map(sheets.gaze, sheets.image_size, sheets.degrees)
    u, v, right = to_cortex(x, y)
    level = (local_magnification(x, y) / pixels_per_degree(sheets.image_size, sheets.degrees) / sheets.step).log2()
    # Half a pixel of samples is enough to average: interpolation does the other half.
    places = u / sheets.step, (sheets.top - v) / sheets.step, level - 1
    left, right_half = (sheets.left, sheets.seen_left), (sheets.right, sheets.seen_right)
    back = torch.zeros(3, *u.shape, dtype=sheets.left.dtype, device=u.device)
    for mine, own, other in ((~right, left, right_half), (right, right_half, left)):
        if not bool(mine.any()):
            continue
        # A sliver beside the gaze may be too thin for a sample: the other half has one at the same place of its sheet.
        sheet, seen = own if bool(own[1].any()) else other
        # Samples beyond the sheet must not bleed in: colour and presence are averaged alike, then divided.
        mips = [torch.cat((sheet * seen, seen[None].to(sheet.dtype)))]
        while max(mips[-1].shape[1:]) > 1:
            mips.append(halve(mips[-1]))
        back[:, mine] = _look_up_present(mips, *(place[mine][None] for place in places))[:, 0]
    return back


def image_share(gaze: Float[Tensor, "2"], size: Size, degrees: float = DEGREES) -> float:
    """The share of primary visual cortex that sees the image, by magnification: the disc's, direction by direction.

    >>> round(image_share(torch.tensor([512.0, 512.0]), (1024, 1024)), 3)
    0.646
    """
    reach = border(gaze.double()[None], size, *directions(1024, gaze.device))
    return cortical_share(to_degrees(reach, size, degrees).clamp(max=WHOLE_FIELD)).mean().item()


def local_magnification(x: Float64[Tensor, "*n"], y: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
    """Millimetres of sheet for a degree, in all directions: the derivative of the logarithmic map.

    >>> local_magnification(torch.tensor([-2.0]).double(), torch.zeros(1).double())
    tensor([6.2909], dtype=torch.float64)
    """
    return M_E0 / torch.hypot(x.abs() + E0, y)


def _grid(rows: int, columns: int, step: float, top: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """The middles of a sheet's samples, in mm: away from the fovea, and up."""
    across = (torch.arange(columns, dtype=torch.float64, device=device) + 0.5) * step
    up = top - (torch.arange(rows, dtype=torch.float64, device=device) + 0.5) * step
    return across.expand(rows, columns), up[:, None].expand(rows, columns)


def _look_up(
    mips: list[Float[Tensor, "c _h _w"]],
    x: Float64[Tensor, "rows columns"],
    y: Float64[Tensor, "rows columns"],
    level: Float64[Tensor, "rows columns"],
) -> Float[Tensor, "c rows columns"]:
    """Pixels at (x, y) of the finest mip, averaged over 2^level of them: between two mips, bilinear within each."""
    level = level.clamp(0, len(mips) - 1)
    result = torch.zeros(mips[0].shape[0], *x.shape, dtype=mips[0].dtype, device=x.device)
    for step, mip in enumerate(mips[: math.ceil(level.max().item()) + 1]):
        share = (1 - (level - step).abs()).clamp(min=0).to(mip.dtype)
        # Pixel i of a mip covers [i, i + 1) * 2^step, also where the last one is cut by the border.
        corners = torch.stack((x / (mip.shape[2] << step), y / (mip.shape[1] << step)), dim=-1) * 2 - 1
        found = F.grid_sample(mip[None], corners[None].to(mip.dtype), padding_mode="border", align_corners=False)
        result = result + share * found[0]
    return result


def _look_up_present(
    mips: list[Float[Tensor, "4 _h _w"]],
    x: Float64[Tensor, "rows columns"],
    y: Float64[Tensor, "rows columns"],
    level: Float64[Tensor, "rows columns"],
) -> Float[Tensor, "3 rows columns"]:
    """Colours at (x, y) of samples of which some are absent (channel 3 is their presence, colours are 0 where it is):
    averaged over 2^level samples, and over twice as many again until one of them is present."""
    level = level.clamp(min=0)
    mixed = _look_up(mips, x, y, level)
    for coarser in range(1, len(mips)):
        absent = mixed[3] < PRESENT
        if not bool(absent.any()):
            break
        mixed[:, absent] = _look_up(mips, *(part[absent][None] for part in (x, y, level + coarser)))[:, 0]
    return mixed[:3] / mixed[3:].clamp(min=PRESENT)


# --------------------------------------------------------------------------------------------------------- the drawing


def draw_sheets(sheets: Sheets, width: int) -> Image.Image:
    """Both half fields, fovea to fovea, with lines of equal eccentricity and a bar of 10 mm.

    >>> draw_sheets(to_sheets(torch.rand(3, 60, 80), torch.tensor([40.0, 30.0]), samples=2000), 400).width
    400
    """
    columns = sheets.left.shape[2] + sheets.right.shape[2]
    scale = (width - BETWEEN) / columns  # pixels of the drawing for a sample
    height = round(sheets.left.shape[1] * scale)
    picture = Image.new("RGB", (width, height + FOOT), (255, 255, 255))
    left_width = round(sheets.left.shape[2] * scale)
    right_at = left_width + BETWEEN
    parts = ((sheets.left.flip(2), 0, left_width), (sheets.right, right_at, width - right_at))
    for sheet, at, wide in parts:
        picture.paste(to_pil(sheet).resize((wide, height), Image.Resampling.BILINEAR), (at, 0))
    draw = ImageDraw.Draw(picture)
    per_mm = scale / sheets.step
    for right, start, direction in ((False, left_width, -1), (True, right_at, 1)):
        for e in MARKS:
            _mark(draw, sheets, e, right, (start, direction, per_mm, height))
    bar = 10 * per_mm
    middle = left_width + BETWEEN / 2
    draw.line((middle - bar / 2, height + 4, middle + bar / 2, height + 4), fill=INK, width=2)
    draw.text((middle, height + 9), "10 mm", INK, font(13), anchor="ma")
    return picture


def marks_shown(sheets: Sheets) -> list[int]:
    """The eccentricities, in degrees, of which a line is drawn over either half: those that the image reaches.

    >>> marks_shown(to_sheets(torch.rand(3, 60, 80), torch.tensor([40.0, 30.0]), 15.0, samples=2000))
    [1, 2, 5]
    """
    return [e for e in MARKS if any(bool(_arc(sheets, e, right)[2].any()) for right in (False, True))]


def _arc(
    sheets: Sheets, e: float, right: bool
) -> tuple[Float64[Tensor, "n"], Float64[Tensor, "n"], Bool[Tensor, "n-1"]]:
    """The line of eccentricity e on one sheet in mm, away from the fovea and up, and which of its pieces lie in the
    image."""
    turn = torch.linspace(-math.pi / 2, math.pi / 2, 181, dtype=torch.float64)
    x, y = e * turn.cos(), e * turn.sin()
    per_degree = pixels_per_degree(sheets.image_size, sheets.degrees)
    px, py = sheets.gaze[0].cpu() + (x if right else -x) * per_degree, sheets.gaze[1].cpu() - y * per_degree
    inside = (px >= 0) & (px <= sheets.image_size[0]) & (py >= 0) & (py <= sheets.image_size[1])
    u, v, _ = to_cortex(x, y)
    return u, v, inside[:-1] & inside[1:]


def _mark(draw: ImageDraw.ImageDraw, sheets: Sheets, e: float, right: bool, frame: tuple[int, int, float, int]) -> None:
    """The line of eccentricity e over one half, where the image reaches it, and its number below."""
    start, direction, per_mm, height = frame
    u, v, inside = _arc(sheets, e, right)
    if not bool(inside.any()):
        return
    points = list(zip((start + direction * u * per_mm).tolist(), ((sheets.top - v) * per_mm).tolist(), strict=True))
    strokes: tuple[tuple[Colour, int], ...] = (((255, 255, 255), 3), ((0, 92, 138), 1))
    for colour, thick in strokes:
        for first, second, shown in zip(points[:-1], points[1:], inside.tolist(), strict=True):
            if shown:
                draw.line((first, second), fill=colour, width=thick)
    # Curves of large e run on to the lower edge, where their numbers stand apart.
    draw.text((points[0][0], height + 2), f"{e}°", (0, 92, 138), font(13), anchor="ma")


def cortex_figure(
    image: Shaped[Tensor, "3 h w"],
    tokens: VisualTokens,
    gaze: Float[Tensor, "2"],
    question: str | None,
    method: Allocator,
    degrees: float = DEGREES,
    box: Size = (620, 760),
) -> Image.Image:
    """Above, the image: its cells, what the tokens show, and what comes back from the cortex. Below, on the cortex: the
    image, the cells, and what the tokens show."""
    full = image.shape[2], image.shape[1]
    size = panel_size(full, box)
    allocation = rectangular(tokens.allocation)
    picture = overlay(image, allocation, size)
    looks_at = torch.cat((gaze.cpu().double(), torch.ones(1).double()))[None]
    mark_fixations(picture, looks_at, (size[0] / full[0], size[1] / full[1]))

    small, gaze, seen = for_the_eye(image, tokens, gaze)
    scale = full[0] / small.shape[2]  # pixels of the image for one that is worked with
    sheets = to_sheets(small, gaze, degrees, allocation.budget * allocation.leaf**2)
    cells = overlay(image, allocation, (small.shape[2], small.shape[1]))
    drawn = torch.frombuffer(bytearray(cells.tobytes()), dtype=torch.uint8).view(cells.height, cells.width, 3)
    on_sheet = to_sheets(drawn.permute(2, 0, 1), gaze.cpu(), degrees, step=sheets.step / 2)  # its lines are thin
    finest, coarsest = (side * scale for side in sample_sides(sheets))
    marks = ", ".join(map(str, marks_shown(sheets))) + " degrees" if marks_shown(sheets) else "none within 1 degree"
    panels = [
        Panel(picture, f"{allocation.budget} tokens, {method.name}", "cells by side", side_legend(allocation)),
        Panel(to_pil(seen, size), "what the model sees", f"{allocation.budget} patches of {allocation.leaf} px"),
        Panel(
            to_pil(from_sheets(sheets), size),
            "back from the cortex",
            f"{sheets.samples} samples: one every {finest:.2g} px at the gaze, {coarsest:.2g} px farthest from it",
        ),
        Panel(
            draw_sheets(sheets, size[0]),
            f"the image on visual cortex: {image_share(gaze, sheets.image_size, degrees):.0%} of V1",
            "as seen; in the head the halves are crossed, the upper field on the lower bank",
        ),
        Panel(draw_sheets(on_sheet, size[0]), "the cells on it", f"marks: {marks} from the gaze"),
        Panel(
            draw_sheets(to_sheets(seen, gaze, degrees, step=sheets.step), size[0]),
            "what the model sees, on it",
            f"w = log(z + {E0:g} deg) times {M_E0:g} mm",
        ),
    ]
    across, down = (side / pixels_per_degree(full, degrees) for side in full)
    title = question or "no question: relevance of the image alone"
    return compose(f"{title} | seen {across:.3g} x {down:.3g} degrees large", panels, columns=3)


def for_the_eye(
    image: Shaped[Tensor, "3 h w"], tokens: VisualTokens, gaze: Float[Tensor, "2"]
) -> tuple[Float[Tensor, "3 h2 w2"], Float64[Tensor, "2"], Float[Tensor, "3 h2 w2"]]:
    """The image in [0, 1], the gaze on it, and what the tokens show of it: all at 1536 pixels if it is larger.

    At 40 degrees across these are 38 pixels for a degree: an eye of 20/20 tells more apart within 1.3 degrees only.
    """
    full = image.shape[2], image.shape[1]
    shrink = max(1.0, max(full) / LARGEST)
    size = max(1, round(full[0] / shrink)), max(1, round(full[1] / shrink))  # as `reconstruct` rounds
    unit = 1.0 if image.is_floating_point() else 1 / 255
    small = area_resample_in_strips(image, size) * unit if size != full else as_float(image) * unit
    moved = gaze.double() * gaze.new_tensor([size[0] / full[0], size[1] / full[1]], dtype=torch.float64)
    return small, moved, reconstruct(tokens, max(size)).images[0]


def sample_sides(sheets: Sheets) -> tuple[float, float]:
    """How many pixels of the image one sample covers, at the gaze and farthest from it.

    >>> sides = sample_sides(to_sheets(torch.rand(3, 400, 400), torch.tensor([200.0, 200.0])))
    >>> [round(side, 2) for side in sides]
    [0.12, 4.51]
    """
    x, y = eccentricity_map(sheets.gaze, sheets.image_size, sheets.degrees)
    per_degree = pixels_per_degree(sheets.image_size, sheets.degrees)
    slowest = local_magnification(x, y).min().item()
    return sheets.step * per_degree * E0 / M_E0, sheets.step * per_degree / slowest
