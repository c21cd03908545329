"""The tree expanded where it can be chosen (`hi-z`) against the tree sorted as a whole, on a large image.

    python -m bench.hiz [--device cuda] [--side 8192]

Relevance covers 1 % of the image; the results are compared to the bit before anything is timed. "Cut" is the choice of
nodes from their masses, "allocate" the whole call with relevance given. A cold tree builds its tables first, as the
first image of a size does; hi-z has none. Times are medians; on a busy machine they wander, the ratios less so.
"""

import argparse

import torch
from rich.table import Table

from bench.timing import announce, graph_ms, median_ms
from homunculus.allocation import get_allocator
from homunculus.allocation import tree as plain
from homunculus.allocation.hierarchical import foveated_density
from homunculus.allocation.hiz import hi_z_cut
from homunculus.allocation.tree import cut_tree, tree_level, tree_over
from homunculus.geometry import fit_grid
from homunculus.pyramid import mass_pyramid
from homunculus.structures import CELL_FIELDS, View

BUDGET = 273
SHARE = 0.01  # of the area that is relevant


def sparse_view(side: int, batch: int, device: str) -> View:
    """A square patch of relevance at another place of each image, nothing elsewhere."""
    grid = fit_grid(side, side, BUDGET)
    patch = round((SHARE * grid.gw * grid.gh) ** 0.5)
    density = torch.zeros(batch, grid.gh, grid.gw, dtype=torch.float64)
    for image in density:
        x, y = (int(torch.randint(0, n - patch + 1, ())) for n in (grid.gw, grid.gh))
        image[y : y + patch, x : x + patch] = torch.rand(patch, patch, dtype=torch.float64)
    return View(density.to(device), (side, side))


def fresh(view: View) -> View:
    """The same view with nothing remembered."""
    return View(view.density, view.image_size)


def compare(side: int, batch: int, device: str, table: Table) -> None:
    view = sparse_view(side, batch, device)
    level = tree_level(view.grid, BUDGET)
    tree, masses = tree_over(*view.grid, level, view.device), mass_pyramid(foveated_density(view), level)
    sorted_tree, hi_z = (get_allocator(name)(view, BUDGET) for name in ("foveated-pyramid", "hi-z"))
    assert all(
        torch.equal(getattr(sorted_tree, field).nan_to_num(), getattr(hi_z, field).nan_to_num())
        for field in CELL_FIELDS
    )
    visited = hi_z_cut(masses, BUDGET).visited.double().mean().item()

    def cut_all() -> object:
        return cut_tree(tree, tree.concatenate(masses, lowest=1)[:, tree.flat[: tree.internal]], BUDGET)

    def cut_few() -> object:
        return hi_z_cut(masses, BUDGET)

    def cold() -> object:
        plain._trees.clear()
        return get_allocator("foveated-pyramid")(fresh(view), BUDGET)

    rows = [
        ("cut", median_ms(cut_all, device), median_ms(cut_few, device)),
        (
            "allocate, warm tables",
            median_ms(lambda: get_allocator("foveated-pyramid")(fresh(view), BUDGET), device),
            median_ms(lambda: get_allocator("hi-z")(fresh(view), BUDGET), device),
        ),
    ]
    rows.append(("allocate, cold tables", median_ms(cold, device, repeats=5, warmup=1), rows[1][2]))
    if device == "cuda":
        rows.append(("cut, CUDA graph", graph_ms(cut_all), graph_ms(cut_few)))
    for i, (what, sorted_ms, expanded_ms) in enumerate(rows):
        seen = f"{visited:.0f} of {tree.internal}" if i == 0 else ""
        numbers = f"{sorted_ms:.2f}", f"{expanded_ms:.2f}", f"{sorted_ms / expanded_ms:.1f}"
        table.add_row(str(batch) if i == 0 else "", seen, what, *numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--side", type=int, default=8192, help="of the image, in pixels")
    arguments = parser.parse_args()
    console = announce(arguments.device, width=110)
    torch.manual_seed(0)
    side = arguments.side
    table = Table(
        "batch",
        "nodes visited",
        "",
        "sorted tree ms",
        "hi-z ms",
        "times faster",
        title=f"{side} x {side} pixels, relevance in {SHARE:.0%} of the area, N = {BUDGET}; equal results",
    )
    for batch in (1, 8):
        compare(side, batch, arguments.device, table)
    console.print(table)


if __name__ == "__main__":
    main()
