"""The last run in bench/results/kernels.csv as a picture: time over floor for every case and implementation."""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

INK, PAPER = "#1b1b1f", "#ffffff"
COLOURS = {"triton": "#0b6e4f", "texture": "#c8553d", "reference": "#5b7db1", "grid_sample": "#9a9aa3"}
CELLS = {"tiling": "271 tiling cells and 2 of context", "overlapping": "overlapping cells of four levels"}


def draw(results: Path, figure: Path) -> None:
    """One panel for each kind of cells, one group of bars for each batch and size; the dashed line is the floor."""
    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    run = rows[-1]["run"]
    rows = [row for row in rows if row["run"] == run and row["implementation"] in COLOURS]
    shapes = sorted({(int(row["side"]), int(row["batch"])) for row in rows})
    fig, axes = plt.subplots(len(CELLS), 1, figsize=(11, 7.2), sharex=True, facecolor=PAPER, layout="constrained")
    for axis, (cells, title) in zip(axes, CELLS.items(), strict=True):
        for i, (name, colour) in enumerate(COLOURS.items()):
            times = {
                (int(r["side"]), int(r["batch"])): (float(r["ms"]), float(r["floor_ms"]))
                for r in rows
                if r["cells"] == cells and r["implementation"] == name
            }
            at = [k + (i - 1.5) * 0.2 for k, shape in enumerate(shapes) if shape in times]
            ratio = [times[shape][0] / times[shape][1] for shape in shapes if shape in times]
            axis.bar(at, ratio, width=0.19, color=colour, label=name)
            for x, shape, height in zip(at, (s for s in shapes if s in times), ratio, strict=True):
                axis.text(x, height * 1.06, _short(times[shape][0]), ha="center", fontsize=7.5, color=INK)
        axis.axhline(1, color=INK, linewidth=1, linestyle="--")
        axis.set_yscale("log")
        axis.set_ylabel("times the floor")
        axis.set_title(title, loc="left", fontsize=11, color=INK)
        axis.spines[["top", "right"]].set_visible(False)
    fig.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=4, loc="outside lower center")
    axes[-1].set_xticks(range(len(shapes)), [f"{batch} x {side}²" for side, batch in shapes])
    first = rows[0]
    fig.suptitle(
        "Sampling 273 cells an image, uint8 to bfloat16: time over the time to move the bytes (ms above the bars)\n"
        f"{first['gpu']}, torch {first['torch']}, triton {first['triton']}, {first['date']}",
        fontsize=11,
        color=INK,
    )
    fig.savefig(figure, dpi=110)
    plt.close(fig)


def _short(ms: float) -> str:
    return f"{ms:.2g}"
