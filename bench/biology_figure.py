"""docs/biology.png: eye, cortex and our cells against eccentricity, as sizes and as spatial frequencies."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from PIL import Image
from torch import Tensor

from homunculus.biology import acuity, cones, cortex, receptive
from homunculus.biology.field import DEGREES

INK, FAINT = "#26262c", "#8a8a94"
# Apart for colour-blind readers and in greyscale.
RETINA, CORTEX, FIELDS, V1 = "#7a4ea3", "#0b5d7a", "#8fb8c9", "#d9480f"
LABELLED = (0.2, 1.0, 5.0, 20.0)  # degrees: where densities and magnifications are written
XLIM = (0.1, 40.0)
COLOURS = 256

Cells = dict[str, tuple[Tensor, Tensor]]  # eccentricity and side in degrees, by allocator


def draw(cells: Cells, leaf: float, nyquist: float, out: Path) -> None:
    """Two panels; `leaf`, in degrees, is about the smallest side; `nyquist` that of the pixels, in cycles/degree."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.4, 6.4), layout="constrained")
    e = torch.logspace(-1, 1.602, 300, dtype=torch.float64)
    sizes(left, e, cells, leaf)
    frequencies(right, e, cells, nyquist)
    for axis in (left, right):
        axis.set(xscale="log", yscale="log", xlim=XLIM, xlabel="eccentricity (degrees of visual angle)")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xticks((0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40))
        axis.minorticks_off()
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(color="#e6e7ec", lw=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"The eye, the cortex and 273 cells: an image of 1024 px that spans {DEGREES:g}°, looked at in the middle",
        x=0.01,
        ha="left",
        fontsize=13,
        color=INK,
    )
    figure.savefig(out, dpi=120, metadata={"Software": None})
    plt.close(figure)
    shrink(out)


def sizes(axis: Any, e: Tensor, cells: Cells, leaf: float) -> None:
    """Everything as a length in the visual field, so that one axis serves all; densities are written along it."""
    low, high = receptive.K_RANGE
    field = receptive.receptive_field
    axis.fill_between(e, field(e, k=low), field(e, k=high), color=FIELDS, alpha=0.6, lw=0)
    axis.plot(e, 1 / cortex.magnification(e), color=CORTEX, lw=2)
    axis.plot(e, acuity.minimum_angle(e), color=INK, lw=1.4, ls=":")
    axis.plot(e, cones.cone_spacing(e), color=RETINA, lw=2)
    at = torch.tensor(LABELLED, dtype=torch.float64)
    apart, density, m = cones.cone_spacing(at), cones.cone_density(at) / 1000, cortex.magnification(at)
    for i, place in enumerate(LABELLED):
        axis.plot(place, 1 / m[i], "o", color=CORTEX, ms=5)
        _note(axis, place, 1 / m[i], f"{m[i]:.3g} mm/°", CORTEX, (6, -12), "left")
        axis.plot(place, apart[i], "o", color=RETINA, ms=5)
        _note(axis, place, apart[i], f"{density[i]:.{0 if density[i] > 9 else 1}f} k/mm²", RETINA, (0, -15), "center")
    axis.axhline(leaf, color=FAINT, lw=0.9, ls=(0, (1, 3)))
    _dots(axis, cells, "side of a cell")
    end = XLIM[1]
    _side(axis, field(e[-1:]).item(), "receptive field,\nV1 (k = 0.14–0.26)", "#4f8497")
    _side(axis, (end + cortex.E0) / cortex.M_E0, "1 / M(e): what\n1 mm of V1 sees", CORTEX)
    _side(axis, leaf, "a leaf, 16 px", FAINT)
    _side(axis, acuity.minimum_angle(e[-1:]).item(), "smallest angle\ntold apart, 20/20", INK)
    _side(axis, cones.cone_spacing(e[-1:]).item(), "cone to cone\n(cones per mm²)", RETINA)
    axis.set_ylabel("size (degrees of visual angle)")
    axis.set_ylim(0.006, 30)
    axis.set_title("Sizes", loc="left", fontsize=11, color=INK)


def frequencies(axis: Any, e: Tensor, cells: Cells, nyquist: float) -> None:
    """What can be told apart: limits of cones, eye, image and tokens, and the bands of V1."""
    axis.plot(e, cones.cone_limit(e), color=RETINA, lw=2)
    axis.plot(e, acuity.cutoff(e), color=INK, lw=1.4, ls=":")
    axis.axhline(nyquist, color=FAINT, lw=0.9, ls=(0, (1, 3)))
    for band, name in zip(receptive.channels(e).unbind(-1), ("½ cycle", "1 cycle", "2 cycles"), strict=True):
        axis.plot(e, band, color=FIELDS, lw=2)
        _side(axis, band[-1].item(), f"V1: {name} in a field", "#4f8497")
    finest = {name: (e, finest_grating(side, nyquist)) for name, (e, side) in cells.items()}
    _dots(axis, finest, "finest grating of a cell")
    _side(axis, nyquist, f"pixels: {nyquist:.3g} cycles/°", FAINT, 7)
    _side(axis, cones.cone_limit(e[-1:]).item(), "cones", RETINA, -3)
    _side(axis, acuity.cutoff(e[-1:]).item(), "acuity, 20/20", INK)
    axis.set_ylabel("spatial frequency (cycles per degree)")
    axis.set_ylim(0.05, 100)
    axis.set_title("Frequencies", loc="left", fontsize=11, color=INK)


def finest_grating(side: Tensor, nyquist: float) -> Tensor:
    """A cell holds 16 x 16 pixels, half a cycle for each; one smaller than a leaf shows no more than the image has.

    >>> finest_grating(torch.tensor([0.5, 1.0]), 12.8).tolist()
    [12.800000190734863, 8.0]
    """
    return (16 / (2 * side)).clamp(max=nyquist)


def _dots(axis: Any, cells: Cells, title: str) -> None:
    looks = ({"color": V1, "mew": 0, "ms": 5.5}, {"mfc": "none", "mec": INK, "mew": 0.8, "ms": 5})
    for (name, (e, size)), look, mark in zip(cells.items(), looks, ("o", "D"), strict=True):
        axis.plot(e, size, mark, ls="none", label=f"{name}, {len(e)} tokens", **look)
    where = "upper left" if "side" in title else "lower left"
    axis.legend(loc=where, frameon=False, fontsize=9, title=title, title_fontsize=9, alignment="left")


def _note(axis: Any, x: float, y: Tensor, text: str, colour: str, offset: tuple[int, int], align: str) -> None:
    axis.annotate(text, (x, float(y)), offset, textcoords="offset points", color=colour, fontsize=8.5, ha=align)


def _side(axis: Any, y: float, text: str, colour: str, lift: int = 0) -> None:
    """A line's name, to the right of the panel at its end."""
    axis.annotate(
        text,
        (XLIM[1], y),
        (6, lift),
        textcoords="offset points",
        color=colour,
        fontsize=9,
        va="center",
        annotation_clip=False,
    )


def shrink(out: Path) -> None:
    """Few colours are enough: a third of the file."""
    with Image.open(out) as picture:
        small = picture.convert("RGB").quantize(COLOURS)
    small.save(out, optimize=True)
