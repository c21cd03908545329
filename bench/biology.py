"""The numbers of human vision that this project uses, beside the published ones, and how our cells compare.

    python -m bench.biology [--out docs/biology.png]
    python -m bench.biology --time cuda                 how long the allocators take instead, on a device

prints the table of facts, draws sizes and frequencies against eccentricity, then prints how alike reconstructions are
to an eye that looks at the middle. Every fact is computed by homunculus/biology or measured on an allocation, and says
whether it lies within what its source states. The command fails if one does not.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import homunculus
from bench.biology_figure import draw
from bench.timing import median_ms, where
from homunculus import data
from homunculus.allocation import DEFAULT
from homunculus.biology import acuity, cones, cortex, receptive, schwartz
from homunculus.biology.field import DEGREES, pixels_per_degree, to_degrees, to_pixels
from homunculus.biology.perception import Alike, acuity_similarity
from homunculus.structures import Allocation
from homunculus.viz.example import example_page

SIDE, TOKENS = 1024, 273
GLOBE = 11.5  # mm, radius of the retina: an assumption, for counting cones over a table by eccentricity
HORTON = "Horton & Hoyt 1991"
CURCIO = "Curcio et al. 1990"
COMMON = "common knowledge"


@dataclass(frozen=True)
class Row:
    """A fact: our value, what is published, and between which values ours may lie for the two to agree."""

    fact: str
    ours: float
    published: str
    low: float
    high: float
    source: str
    unit: str = ""

    @property
    def agrees(self) -> bool:
        return self.low <= self.ours <= self.high

    def __str__(self) -> str:
        verdict = "yes" if self.agrees else "**no**"
        return f"| {self.fact} | {self.ours:.4g}{self.unit} | {self.published}{self.unit} | {verdict} | {self.source} |"


def printed(fact: str, ours: float, published: str, source: str, unit: str = "") -> Row:
    """A row whose published value was printed in so many digits: ours must round to it."""
    digits = len(published.partition(".")[2])
    half = 0.5 * 10**-digits + 1e-9
    return Row(fact, ours, published, float(published) - half, float(published) + half, source, unit)


# What the table of docs/biology.md also names and no code here has.
NOT_MODELLED = (
    f"| rods | not modelled | 92 M (77.9–107.3 M) | | {CURCIO} |",
    f"| saccades | looks without time | 3–4 /s, 2–15°, 20–80 ms; fixations 200–300 ms | | {COMMON} |",
)


def at(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------------------ the table


def rows() -> Iterator[Row]:
    """The facts in the order of docs/biology.md."""
    yield from cortex_rows()
    yield from retina_rows()
    yield from map_rows()
    yield from cell_rows()
    yield Row("tokens: 16 (16 + 1) + 1, a document model's count", 16 * (16 + 1) + 1, "273", 273, 273, "not biology")


def cortex_rows() -> Iterator[Row]:
    for e, published in ((0, "23.1"), (2, "6.29"), (5, "3.01"), (10, "1.61"), (20, "0.83"), (40, "0.42")):
        yield printed(f"M({e}°)", cortex.magnification(at(e)).item(), published, HORTON, " mm/deg")
    for fit, e2, m0 in zip(cortex.FITS[1:], ("0.83", "0.785"), ("18.5", "22.5"), strict=True):
        half = cortex.magnification(at(0, fit.e2), fit.e2, fit.scale)
        yield printed(f"M(0°), {fit.source}", half[0].item(), m0, fit.source, " mm/deg")
        yield printed(f"E2, {fit.source}", fit.e2, e2, fit.source, "°")
        yield Row(
            f"M(E2) / M(0°), {fit.source}", (half[1] / half[0]).item(), "0.5", 0.5 - 1e-9, 0.5 + 1e-9, "definition"
        )
    for radius, published in ((1.0, "7.25"), (2, "15.0"), (2.78, "20"), (10, "45.5"), (15, "55")):
        share = 100 * cortex.cortical_share(at(radius)).item()
        yield printed(f"share of V1 within {radius:g}°", share, published, f"integral of {HORTON}", " %")
    every = (torch.arange(90_000, dtype=torch.float64) + 0.5) / 1000
    squared = cortex.magnification(every) ** 2
    wrong = 100 * (squared[:1000].sum() / squared.sum()).item()
    yield printed("the same within 1° without the factor e (wrong)", wrong, "57.6", "often copied", " %")
    summed = ((2 * math.pi * every * squared).cumsum(0) / 1000)[9_999].item()
    exact = cortex.cortical_area(at(10)).item()
    yield Row("area within 10°, closed form / sum", exact / summed, "1", 1 - 1e-5, 1 + 1e-5, "mathematics")
    product = receptive.receptive_field(at(0.5, 5, 50)) * cortex.magnification(at(0.5, 5, 50))
    spread = (product.max() / product.min()).item()
    yield Row("RF · M, largest / smallest from 0.5° to 50°", spread, "≈ 1", 0.999, 1.001, COMMON)
    low, high = receptive.K_RANGE
    yield Row(
        "RF of V1 at 10° / (10° + 0.75°)",
        receptive.receptive_field(at(10)).item() / 10.75,
        "0.14–0.26",
        low,
        high,
        COMMON,
    )
    bands = receptive.channels(at(5))[0]
    field = receptive.receptive_field(at(5)).item()
    yield Row("lowest band at 5° times 2 RF", bands[0].item() * 2 * field, "1", 1 - 1e-9, 1 + 1e-9, "SF = 1/(2 RF)")
    yield Row(
        "bands there, octaves from first to last", math.log2((bands[-1] / bands[0]).item()), "2", 2, 2, "three bands"
    )


def retina_rows() -> Iterator[Row]:
    peak = cones.cone_density(at(0)).item() / 1000
    yield Row("cones at the centre", peak, "199 (100–324)", 100, 324, CURCIO, " k/mm²")
    yield Row("centre / 1 mm away", peak / (cones.cone_density(at(3.57)).item() / 1000), "≈ 10", 7, 13, CURCIO)
    yield Row("1 mm of retina", 1 / cones.MM_PER_DEGREE, "≈ 3.5", 3.4, 3.6, CURCIO, "°")
    nasal, temporal = (cones.cone_density(at(35.7), meridian).item() for meridian in ("nasal", "temporal"))
    yield Row("nasal over temporal at 10 mm", 100 * (nasal / temporal - 1), "40–45", 40, 45, CURCIO, " %")
    yield Row(
        "cones within 17.9 mm (of the whole retina)", cone_count() / 1e6, "4.6 (4.08–5.29)", 3.5, 4.6, CURCIO, " M"
    )
    limit = cones.cone_limit(at(0)).item()
    yield Row("Nyquist limit of the central cones", limit, "≈ 60", 48, 72, COMMON, " cycles/deg")
    yield printed("acuity of 20/20", acuity.cutoff(at(0)).item(), "30", COMMON, " cycles/deg")
    yield Row("E2 of acuity", acuity.E2, "2–2.5", 2, 2.5, COMMON, "°")


def cone_count() -> float:
    """Cones within the table's reach, on a sphere."""
    mm = torch.tensor([row[0] for row in cones.TABLE], dtype=torch.float64)
    degrees = torch.tensor([row[1] for row in cones.TABLE], dtype=torch.float64)
    r = (torch.arange(17_900, dtype=torch.float64) + 0.5) / 1000
    right = torch.searchsorted(mm, r).clamp(1, len(mm) - 1)
    e = torch.lerp(degrees[right - 1], degrees[right], (r - mm[right - 1]) / (mm[right] - mm[right - 1]))
    ring = 2 * math.pi * GLOBE * (r / GLOBE).sin() / 1000
    return (cones.cone_density(e) * ring).sum().item()


def map_rows() -> Iterator[Row]:
    a = cortex.E0

    def naive(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.log(torch.hypot(x, y) + a), torch.atan2(y, x)

    def ours(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return schwartz.to_cortex(x, y)[:2]

    source = "Schwartz 1977"
    yield Row(
        "log(r + a), θ: around / away at r = a/2 (wrong)", stretch(naive, a / 2), "3", 3 - 1e-6, 3 + 1e-6, "computed"
    )
    yield Row("log(z + a): around / away there", stretch(ours, a / 2), "1", 1 - 1e-9, 1 + 1e-9, source)
    x, y = at(*range(1, 11)), at(*range(-4, 6))
    back = schwartz.from_cortex(*schwartz.to_cortex(x, y))
    error = max((back[0] - x).abs().max().item(), (back[1] - y).abs().max().item())
    yield Row("there and back again, error", error, "0", 0, 1e-12, "mathematics", "°")
    for offset, published, high in ((1e-9, "0", 1e-6), (a, "not 0", math.inf)):
        once, twice = (schwartz.to_cortex(zoom * x, zoom * y, offset, 1.0)[0] for zoom in (1, 2))
        shift = twice - once
        spread = (shift.max() - shift.min()).item()
        name = "0" if offset < a else f"{a:g}°"
        low = 0 if offset < a else 1e-3
        yield Row(
            f"zoom by 2 as a shift, a = {name}: shifts differ by", spread, published, low, high, source, " log units"
        )


def stretch(function: Any, r: float) -> float:
    """How much more a map stretches around the gaze than away from it, on the horizontal meridian at r."""
    jacobian = torch.autograd.functional.jacobian(lambda p: torch.stack(function(p[0], p[1])), at(r, 0.0))
    return (jacobian[:, 1].norm() / jacobian[:, 0].norm()).item()


def cell_rows() -> Iterator[Row]:
    for name in ("v1", "log-polar-rings"):
        e, side = cells(name)
        offset = cortex.E0 if name == "v1" else to_degrees(3.0 * 16, (SIDE, SIDE))
        free = side > 1.15 * to_degrees(16.0, (SIDE, SIDE))
        x, y = (e[free] + offset).log(), (side[free] ** -2).log()
        slope = (((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()).item()
        yield Row(f"`{name}`: log density against log(e + e0)", slope, "−2", -2.2, -1.8, "density ∝ M²")
        if name == "v1":
            low, high = receptive.K_RANGE
            k = (side[free] / (e[free] + offset)).median().item()
            yield Row("`v1`: side / (e + 0.75°), as it happens", k, "0.14–0.26", low, high, "RF of V1")
            smallest = to_pixels(side.min().item(), (SIDE, SIDE))
            yield Row("`v1`: the smallest cell", smallest, "about a leaf, 16", 13, 19, "the law's floor", " px")
            mm = side * cortex.magnification(e)
            beyond = mm[e > 2]
            spread = (beyond.max() / beyond.min()).item()
            yield Row("`v1`: side · M beyond 2°, largest / smallest", spread, "≈ 1", 1, 1.25, "equal cortical area")
            centre = (mm[e.argmin()] / beyond.median()).item()
            yield Row("`v1`: side · M at the gaze / beyond 2°", centre, "not 1", 1.1, math.inf, "a leaf binds")
    literal = to_pixels(cortex.E0, (SIDE, SIDE))
    yield printed(f"0.75° of a {DEGREES:g}° image, pixels of {SIDE}", literal, "19", "computed", " px")


def cells(name: str, size: tuple[int, int] = (SIDE, SIDE)) -> tuple[Tensor, Tensor]:
    """Eccentricity and side of every cell at 273 tokens about the centre, in degrees."""
    allocation = homunculus.allocate(
        torch.ones(size[1] // 16, size[0] // 16), TOKENS, name, fixation=(size[0] / 2, size[1] / 2)
    )
    assert isinstance(allocation, Allocation)
    boxes = allocation.boxes[0].double()
    side = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sqrt()
    e = (allocation.centers[0].double() - at(size[0] / 2, size[1] / 2)).norm(dim=1)
    return to_degrees(e, size), to_degrees(side, size)


# ----------------------------------------------------------------------------------------------- alike, to a fixed eye

METHODS = ("foveated-pyramid", "uniform", "v1", "log-polar-rings")


def images() -> dict[str, Tensor]:
    """The example page, a scene and lettering, in [0, 1]."""
    found = {"example page": example_page().float() / 255}
    for family in ("scenes", "scene-text"):
        found[family] = torch.from_numpy(data.make(family, "test-iid", 2).image).permute(2, 0, 1).float() / 255
    return found


def alike(name: str, image: Tensor) -> Alike:
    """The reconstruction from 273 tokens about the centre against the image, to an eye that looks there."""
    gaze = at(image.shape[2] / 2, image.shape[1] / 2)
    options: dict[str, Any] = {"fixation_share": 1.0} if name == "foveated-pyramid" else {}
    tokens = homunculus.foveate(
        image, budget=TOKENS, allocator=name, fixation=gaze[None], relevance="uniform", **options
    )
    return acuity_similarity(image, homunculus.reconstruct(tokens).images[0], gaze)


def perception() -> Iterator[str]:
    """The table of similarities, line by line."""
    yield "| image | tokens | whole | 0–1° | 1–2° | 2–5° | 5–10° | 10–20° | beyond | plain SSIM, same rings |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for title, image in images().items():
        for name in METHODS:
            seen = alike(name, image)
            rings, plain = (" | ".join(f"{v:.2f}" for v in seen.rings), " ".join(f"{v:.2f}" for v in seen.plain))
            yield f"| {title} | `{name}` | {seen.whole:.3f} | {rings} | {plain} |"


def batch_times(device: str, batch: int = 64, repeats: int = 20) -> dict[str, float]:
    """Milliseconds in which 273 cells of each image of a batch are laid out; no CUDA graph."""
    density = torch.rand(batch, SIDE // 16, SIDE // 16, device=device)
    return {
        name: median_ms(lambda n=name: homunculus.allocate(density, TOKENS, n, validate=False), device, repeats)
        for name in ("v1", "log-polar-rings", DEFAULT)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/biology.png"), help="the PNG to write")
    parser.add_argument("--time", metavar="DEVICE", help="time the allocators there, and do nothing else")
    asked = parser.parse_args()
    if asked.time:
        print(where(asked.time))
        print("\n".join(f"{name}: {ms:.1f} ms for 64 images" for name, ms in batch_times(asked.time).items()))
        return
    found = list(rows())
    print("| fact | ours | published | agree | source |\n|---|---|---|---|---|")
    print("\n".join([*map(str, found), *NOT_MODELLED]))
    print(f"\n{sum(row.agrees for row in found)} of {len(found)} agree.\n")
    square = SIDE, SIDE
    draw(
        {name: cells(name) for name in ("v1", "log-polar-rings")},
        to_degrees(16.0, square),
        pixels_per_degree(square) / 2,
        asked.out,
    )
    for line in perception():
        print(line, flush=True)
    sys.exit(0 if all(row.agrees for row in found) else 1)


if __name__ == "__main__":
    main()
