"""Density to cells: the tree's cut in plain torch and in one kernel, and the whole allocation around either.

    python -m bench.cut [--device cuda] [--profile] [--tune]

"Density to cells" goes from leaf densities [B, gh, gw] to boxes in leaf units, levels and which are context, in
canonical order. On a CUDA device times are those of a CUDA graph's replay; `--profile` lists what the time is made of.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.table import Table

from bench.timing import announce, graph_ms, median_ms
from homunculus.allocation.hierarchical import HierarchicalAllocator, foveated_density
from homunculus.allocation.tree import Tree, cut_density, tree_level, tree_over
from homunculus.geometry import Size
from homunculus.kernels.dispatch import ENVIRONMENT
from homunculus.structures import View

BATCH, GRID, BUDGET = 64, (64, 64), 273


@contextmanager
def implementation(name: str) -> Iterator[None]:
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENVIRONMENT]
        else:
            os.environ[ENVIRONMENT] = before


def density_to_cells(tree: Tree, density: torch.Tensor, budget: int) -> tuple[torch.Tensor, ...]:
    """Boxes [B, N, 4] in leaf units, levels and is_context [B, N]."""
    cut, _ = cut_density(tree, density, budget)
    return tree.boxes(cut.nodes), tree.levels(cut.nodes), cut.is_context


def stages(batch: int, grid: Size, budget: int, device: str) -> dict[str, Callable[[], object]]:
    density = torch.rand(batch, grid[1], grid[0], dtype=torch.float64, device=device)
    ties = torch.ones_like(density)
    tree = tree_over(*grid, tree_level(grid, budget), density.device)
    size = grid[0] * 16, grid[1] * 16
    fixations = torch.tensor([[[300.0, 70.0, 1.0]]], dtype=torch.float64, device=device).expand(batch, -1, -1)
    bare = HierarchicalAllocator(lambda view: view.density, budget, validate=False)
    foveated = HierarchicalAllocator(foveated_density, budget, validate=False)
    return {
        "density to cells": lambda: density_to_cells(tree, density, budget),
        "density to cells, all leaves equal": lambda: density_to_cells(tree, ties, budget),
        "whole Allocation": lambda: bare(View(density, size)),
        "whole Allocation, foveated density": lambda: foveated(View(density, size, fixations=fixations)),
    }


def measure(run: Callable[[], object], device: str) -> float:
    return graph_ms(run) if device == "cuda" else median_ms(run)


def compare(device: str, console: Console, cases: list[tuple[int, Size, int]]) -> None:
    names = ("reference", "triton") if device == "cuda" else ("reference",)
    for batch, grid, budget in cases:
        title = f"{batch} x {grid[0]}x{grid[1]} leaves, N = {budget}, ms" + (
            " (CUDA graph)" if device == "cuda" else ""
        )
        table = Table("", *(f"{name}" for name in names), title=title)
        for stage, run in stages(batch, grid, budget, device).items():
            row = []
            for name in names:
                with implementation(name):
                    row.append(f"{measure(run, device):.4f}")
            table.add_row(stage, *row)
        console.print(table)


def profile(device: str, console: Console) -> None:
    """Every kernel by name: how often, and the device's time in it, for one run of each stage."""
    activity = torch.profiler.ProfilerActivity.CUDA if device == "cuda" else torch.profiler.ProfilerActivity.CPU
    for stage, run in stages(BATCH, GRID, BUDGET, device).items():
        for name in ("reference", "triton") if device == "cuda" else ("reference",):
            with implementation(name):
                for _ in range(3):
                    run()
                if device == "cuda":
                    torch.cuda.synchronize()
                with torch.profiler.profile(activities=[activity]) as found:
                    run()
                    if device == "cuda":
                        torch.cuda.synchronize()
            rows = found.key_averages()
            total = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
            rows = sorted((r for r in rows if getattr(r, total) > 0), key=lambda r: -getattr(r, total))
            whole = sum(getattr(r, total) for r in rows)
            table = Table(
                "us", "calls", "kernel", title=f"{stage}, {name}: {whole:.0f} us in {sum(r.count for r in rows)}"
            )
            for r in rows[:40]:
                table.add_row(f"{getattr(r, total):.1f}", str(r.count), r.key[:140])
            console.print(table)


def tune(console: Console) -> None:
    """The kernel alone with other numbers of warps and nodes at a time."""
    from homunculus.kernels import triton_cut

    kept = triton_cut.CHUNK, triton_cut.warps
    table = Table("warps", *(f"chunk {chunk}" for chunk in (256, 512, 1024, 2048)), title="density to cells, ms")
    try:
        for warps in (2, 4, 8, 16, 32):
            row = []
            for chunk in (256, 512, 1024, 2048):
                triton_cut.CHUNK, triton_cut.warps = chunk, lambda padded, warps=warps: warps
                row.append(f"{graph_ms(stages(BATCH, GRID, BUDGET, 'cuda')['density to cells']):.4f}")
            table.add_row(str(warps), *row)
    finally:
        triton_cut.CHUNK, triton_cut.warps = kept
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--profile", action="store_true", help="what each stage's time is made of, kernel by kernel")
    parser.add_argument("--tune", action="store_true", help="other launch shapes of the fused kernel (cuda)")
    arguments = parser.parse_args()
    console = announce(arguments.device, width=180)
    torch.manual_seed(0)
    cases = [(BATCH, GRID, BUDGET), (1, GRID, BUDGET), (BATCH, (61, 45), BUDGET), (8, (128, 128), 1024)]
    compare(arguments.device, console, cases)
    if arguments.tune:
        tune(console)
    if arguments.profile:
        profile(arguments.device, console)


if __name__ == "__main__":
    main()
