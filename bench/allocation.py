"""How fast the spine is: allocation against a heap and against per-cell loops, foveation, and how both grow.

    python -m bench.allocation [--device cuda] [--quick]

All ratios are taken in one run. Times are medians; on a busy machine they wander, the ratios less so.
"""

import argparse

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import homunculus
from bench.timing import announce, graph_ms, median_ms
from homunculus.allocation.heap import heap_allocation
from homunculus.allocation.hierarchical import HierarchicalAllocator
from homunculus.foveate import make_view
from homunculus.geometry import fit_grid, root_level
from homunculus.sampling import sample
from homunculus.structures import View

BATCH, LEAVES, BUDGET = 64, 64, 273


def loop_allocation(density: np.ndarray, budget: int, level: int) -> list[tuple[int, int, int, int]]:
    """What one writes first: look at every cell, sum its pixels, split the heaviest, begin again."""
    h, w = density.shape
    side = 1 << level
    cells = [(x, y, x + side, y + side) for y in range(0, h, side) for x in range(0, w, side)]
    while len(cells) + 3 <= budget:
        heaviest, mass = -1, -1.0
        for i, (x0, y0, x1, y1) in enumerate(cells):
            inside = density[y0:y1, x0:x1].sum() if x1 - x0 > 1 else -1.0
            if inside > mass:
                heaviest, mass = i, inside
        x0, y0, x1, y1 = cells.pop(heaviest)
        xm, ym = (x0 + x1) // 2, (y0 + y1) // 2
        cells += [(x0, y0, xm, ym), (xm, y0, x1, ym), (x0, ym, xm, y1), (xm, ym, x1, y1)]
    return cells


def against_the_heap(device: str, console: Console) -> None:
    density = torch.rand(BATCH, LEAVES, LEAVES, dtype=torch.float64)
    level = root_level(LEAVES, LEAVES, BUDGET)
    arrays, on_device = density.numpy(), density.to(device)
    allocator = HierarchicalAllocator(lambda view: view.density, BUDGET, validate=False)

    def tree() -> object:
        return allocator(View(on_device, (1024, 1024)))

    rows = {
        "sorted tree (ours)": median_ms(tree, device),
        "heap, image by image": median_ms(
            lambda: [heap_allocation(a, BUDGET, level) for a in arrays], repeats=5, warmup=1
        ),
        "per-cell Python loops": median_ms(
            lambda: [loop_allocation(a, BUDGET, level) for a in arrays[:4]], repeats=3, warmup=1
        )
        * (BATCH / 4),
    }
    if device == "cuda":
        rows["sorted tree (ours), CUDA graph"] = graph_ms(tree)
    table = Table("", "ms a batch", "times ours", title=f"allocation, {BATCH} x {LEAVES}x{LEAVES} leaves, N = {BUDGET}")
    for name, ms in rows.items():
        table.add_row(name, f"{ms:.3f}", f"{ms / rows['sorted tree (ours)']:.1f}")
    console.print(table)


def foveation(device: str, console: Console) -> None:
    table = Table(
        "batch", "images/s", "relevance ms", "allocation ms", "sampling ms", title="foveate, 1024 x 1024 uint8, N = 273"
    )
    for batch in (1, 8):
        images = torch.randint(0, 256, (batch, 3, 1024, 1024), dtype=torch.uint8, device=device)
        view = make_view(images, fixation=(300, 700))
        allocation = homunculus.allocation.allocate_view(view, BUDGET)
        whole = median_ms(lambda images=images: homunculus.foveate(images, fixation=(300, 700)), device)
        parts = [
            median_ms(lambda images=images: make_view(images, fixation=(300, 700)), device),
            median_ms(lambda view=view: homunculus.allocation.allocate_view(view, BUDGET), device),
            median_ms(lambda images=images, allocation=allocation: sample(images, allocation), device),
        ]
        table.add_row(str(batch), f"{batch * 1000 / whole:.1f}", *(f"{ms:.1f}" for ms in parts))
    console.print(table)


def growth(device: str, console: Console, quick: bool) -> None:
    table = Table("image side", "leaves", "allocation ms", "foveate ms", title="growth with the image's side, N = 273")
    for side in (512, 1024, 2048) if quick else (512, 1024, 2048, 4096, 8192):
        grid = fit_grid(side, side, BUDGET)
        density = torch.rand(1, grid.gh, grid.gw, dtype=torch.float64, device=device)
        image = torch.randint(0, 256, (3, side, side), dtype=torch.uint8, device=device)
        allocation = median_ms(lambda d=density: homunculus.allocate(d, BUDGET, validate=False), device)
        whole = median_ms(
            lambda i=image: homunculus.foveate(i, fixation=(10, 10)), device, repeats=5 if side < 4096 else 2, warmup=1
        )
        table.add_row(str(side), f"{grid.gw}x{grid.gh}", f"{allocation:.2f}", f"{whole:.1f}")
    console.print(table)
    table = Table("budget", "allocation ms", "sampling ms", title="growth with the budget, 1024 x 1024, batch 8")
    images = torch.randint(0, 256, (8, 3, 1024, 1024), dtype=torch.uint8, device=device)
    density = torch.rand(8, 64, 64, dtype=torch.float64, device=device)
    for budget in (64, 150, 273, 512, 1024, 4096):
        allocation = homunculus.allocate(density, budget)
        ms = median_ms(lambda n=budget: homunculus.allocate(density, n, validate=False), device)
        sampling = median_ms(lambda a=allocation: sample(images, a), device, repeats=5)
        table.add_row(str(budget), f"{ms:.2f}", f"{sampling:.1f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="leave out the largest images")
    arguments = parser.parse_args()
    console = announce(arguments.device, width=110)
    torch.manual_seed(0)
    against_the_heap(arguments.device, console)
    foveation(arguments.device, console)
    growth(arguments.device, console, arguments.quick)


if __name__ == "__main__":
    main()
