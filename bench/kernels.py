"""How fast cells are sampled, against the bytes that must move: reference, framework operators, Triton, textures.

    python -m bench.kernels [--quick] [--tune]     on a CUDA device; appends to bench/results/kernels.csv
    python -m bench.kernels --plot                 draws docs/kernels.png from that file, anywhere

The floor of a case is what its boxes and patches weigh, each read or written once, over the bandwidth of a plain copy
in the same run. Times are medians with cold caches, as CUDA graphs wherever an implementation can be captured.
"""

import argparse
import csv
import datetime
import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

import homunculus
from bench.timing import announce, cold_ms
from homunculus.kernels import plain
from homunculus.structures import Allocation, rectangular

RESULTS = Path(__file__).parent / "results" / "kernels.csv"
FIGURE = Path(__file__).parent.parent / "docs" / "kernels.png"
BUDGET, LEAF = 273, 16
OUT = torch.bfloat16
H200_COPY = 4.3e12  # bytes a second; where a run is not worth measuring it again


@dataclass(frozen=True)
class Case:
    """One batch to sample, and how its cells were chosen."""

    name: str
    images: Tensor
    allocation: Allocation

    @property
    def bytes(self) -> int:
        """Every cell's pixels once (cells that overlap read theirs again) and every patch once."""
        size = self.allocation.boxes[..., 2:] - self.allocation.boxes[..., :2]
        read = float(size.double().prod(-1).sum()) * 3 * self.images.element_size()
        return round(read) + self.allocation.levels.numel() * 3 * LEAF**2 * OUT.itemsize


def make_case(name: str, batch: int, side: int) -> Case:
    generator = torch.Generator("cuda").manual_seed(0)
    images = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, device="cuda", generator=generator)
    density = (
        torch.rand(batch, side // LEAF, side // LEAF, device="cuda", generator=generator, dtype=torch.float64) ** 4
    )
    gazes = torch.rand(batch, 1, 2, device="cuda", generator=generator, dtype=torch.float64) * side
    allocator = {"tiling": "foveated-pyramid", "overlapping": "pyramid", "rows": "uniform", "rings": "log-polar-rings"}
    allocation = homunculus.allocate(
        density, BUDGET, allocator[name], image_size=(side, side), fixation=gazes if name != "rows" else None
    )
    return Case(name, images, rectangular(allocation))


def copy_bandwidth() -> float:
    """Bytes a second of a large copy on the device, read and written."""
    source = torch.rand(1 << 30, device="cuda")
    target = torch.empty_like(source)
    ms = cold_ms(lambda: target.copy_(source), repeats=10, graph=False)
    return 2 * source.nbytes / (ms / 1000)


# ------------------------------------------------------------------------------------------------------ implementations


def by_reference(case: Case) -> Tensor:
    return plain.sample_cells(
        case.images, case.allocation.boxes, case.allocation.angle, leaf=LEAF, kind=kernel_kind(case), dtype=OUT
    )


def kernel_kind(case: Case) -> str:
    return case.allocation.kind  # all cases are pixel-exact


def by_grid_sample(case: Case) -> Tensor:
    """What one writes with a framework: a mip pyramid, `grid_sample` on each mip, each cell from its nearest."""
    mips = [case.images.float() / 255]
    while mips[-1].shape[-1] > LEAF:
        mips.append(F.avg_pool2d(mips[-1], 2))
    return _read_mips(mips, case.allocation)


def by_kornia(case: Case) -> Tensor:
    """The same with kornia's pyramid, which blurs before it halves."""
    from kornia.geometry.transform import build_pyramid

    images = case.images.float() / 255
    return _read_mips(build_pyramid(images, (images.shape[-1] // LEAF).bit_length()), case.allocation)


def _read_mips(mips: list[Tensor], allocation: Allocation) -> Tensor:
    side = mips[0].shape[-1]
    x0, y0, x1, y1 = allocation.boxes[..., None, None].unbind(2)
    step = (torch.arange(LEAF, device=mips[0].device) + 0.5) / LEAF
    x, y = x0 + (x1 - x0) * step, y0 + (y1 - y0) * step[:, None]  # [B, N, 1, leaf], [B, N, leaf, 1]
    grid = torch.stack(torch.broadcast_tensors(x, y), dim=-1) * (2 / side) - 1  # [B, N, leaf, leaf, 2]
    grid = grid.flatten(1, 2)
    level = allocation.levels.round().clamp(min=0)[:, None, :, None, None]
    patches = torch.zeros((), device=grid.device)
    for number, mip in enumerate(mips):
        read = F.grid_sample(mip, grid, align_corners=False, padding_mode="border")
        patches = torch.where(level == number, read.unflatten(2, (-1, LEAF)), patches)
    return patches.transpose(1, 2).to(OUT)


def by_triton(case: Case) -> Tensor:
    from homunculus.kernels import triton_ops

    return triton_ops.sample_cells(
        case.images, case.allocation.boxes, case.allocation.angle, leaf=LEAF, kind=kernel_kind(case), dtype=OUT
    )


def by_texture(case: Case) -> Tensor:
    from homunculus.kernels import texture

    return texture.sample_cells(
        case.images, case.allocation.boxes, case.allocation.angle, leaf=LEAF, kind=kernel_kind(case), dtype=OUT
    )


IMPLEMENTATIONS: dict[str, Callable[[Case], Tensor]] = {
    "reference": by_reference,
    "grid_sample": by_grid_sample,
    "kornia": by_kornia,
    "triton": by_triton,
    "texture": by_texture,
}
UNCAPTURED = ("texture", "kornia")


def available() -> dict[str, Callable[[Case], Tensor]]:
    """The implementations that run here; says which do not, and why."""
    from homunculus.kernels import dispatch

    missing = {
        "kornia": None if importlib.util.find_spec("kornia") else "kornia is not installed",
        "triton": dispatch.triton_is_missing(),
        "texture": dispatch.texture_is_missing(torch.device("cuda")),
    }
    for name, why in missing.items():
        if why:
            print(f"without {name}: {why}")
    return {name: run for name, run in IMPLEMENTATIONS.items() if not missing.get(name)}


# ------------------------------------------------------------------------------------------------------------- the run


def measure(console: Console, quick: bool) -> list[dict[str, object]]:
    bandwidth = copy_bandwidth()
    console.print(f"a plain copy moves {bandwidth / 1e12:.2f} TB/s, read and written", highlight=False)
    implementations = available()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    rows: list[dict[str, object]] = []
    sizes = [(64, 1024), (1, 1024)] if quick else list(product((1, 8, 64), (1024, 2048, 4096)))
    names = ("tiling", "overlapping", "rows", "rings")
    for (batch, side), name in product(sizes, names):
        if name in ("rows", "rings") and side > 1024:
            continue
        case = make_case(name, batch, side)
        floor = case.bytes / bandwidth * 1000
        table = Table(
            "", "ms", "TB/s", "times the floor", title=f"{batch} x {side}x{side}, {name}: floor {floor:.4f} ms"
        )
        for implementation, run in implementations.items():
            ms = cold_ms(lambda run=run, case=case: run(case), graph=implementation not in UNCAPTURED)
            table.add_row(implementation, f"{ms:.4f}", f"{case.bytes / ms / 1e9:.2f}", f"{ms / floor:.1f}")
            rows.append(
                {
                    "run": started,
                    "date": started[:10],
                    "gpu": torch.cuda.get_device_name(),
                    "torch": torch.__version__,
                    "triton": triton_version(),
                    "python": platform.python_version(),
                    "cells": name,
                    "batch": batch,
                    "side": side,
                    "implementation": implementation,
                    "ms": f"{ms:.5f}",
                    "floor_ms": f"{floor:.5f}",
                    "bytes": case.bytes,
                    "copy_bytes_s": f"{bandwidth:.4g}",
                }
            )
        console.print(table)
    return rows


def triton_version() -> str:
    if importlib.util.find_spec("triton") is None:
        return "-"
    import triton

    return triton.__version__


def append(rows: list[dict[str, object]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    fresh = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def tune(console: Console) -> None:
    """Triton's dials, each beside the choice made without asking."""
    from homunculus.kernels import triton_ops

    chosen = triton_ops.dyadic_parts
    table = Table("batch", "side", "floor ms", "chosen", "the best: programs to a cell", title="whole blocks of pixels")
    for batch, side in ((1, 1024), (8, 1024), (64, 1024), (8, 2048), (1, 4096), (8, 4096), (64, 4096)):
        case = make_case("tiling", batch, side)
        own = cold_ms(lambda case=case: by_triton(case), repeats=9)
        times = {}
        for parts in (1, 2, 4, 8, 16):
            triton_ops.dyadic_parts = lambda *_, parts=parts: parts
            times[parts] = cold_ms(lambda case=case: by_triton(case), repeats=9)
        triton_ops.dyadic_parts = chosen
        best = min(times, key=times.__getitem__)
        floor = case.bytes / H200_COPY * 1000
        table.add_row(str(batch), str(side), f"{floor:.4f}", f"{own:.4f}", f"{times[best]:.4f}: {best}")
    console.print(table)
    table = Table("cells", "parts", "warps", "ms", title="any boxes, 64 x 1024x1024")
    kept = dict(triton_ops.BOXES)
    for name in ("rows", "rings"):
        case = make_case(name, 64, 1024)
        for parts, warps in product((2, 4, 8), (1, 2)):
            triton_ops.BOXES.update(parts=parts, warps=warps)
            ms = cold_ms(lambda case=case: by_triton(case), repeats=9)
            table.add_row(name, str(parts), str(warps), f"{ms:.4f}")
    triton_ops.BOXES.update(kept)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1024x1024 only")
    parser.add_argument("--tune", action="store_true", help="other numbers of programs, warps and registers")
    parser.add_argument("--plot", action="store_true", help="draw the results file, measure nothing")
    arguments = parser.parse_args()
    if arguments.plot:
        from bench.kernel_figure import draw

        draw(RESULTS, FIGURE)
        return
    if not torch.cuda.is_available():
        parser.error("kernels are measured on a CUDA device, and there is none here (--plot needs none)")
    console = announce("cuda", width=100)
    if arguments.tune:
        tune(console)
    append(measure(console, arguments.quick))


if __name__ == "__main__":
    main()
