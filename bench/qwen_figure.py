"""bench/results/qwen_vl.csv as a picture: time to first token and what it is made of, for every way and batch.

The latest row of every case counts, among those of one model on the GPU it was last measured on.
"""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

INK, PAPER, REST = "#1b1b1f", "#ffffff", "#d9d9de"
PARTS = {"scoring": "#c8553d", "allocation": "#e3a04f", "sampling": "#8f6bb1", "tower": "#5b7db1", "prefill": "#0b6e4f"}


def draw(results: Path, figure: Path, model: str) -> None:
    """One panel for each size and batch, one bar for each way; the rest, and whole graphs, are grey."""
    with results.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["ttft_ms"]]
    rows = [row for row in rows if row["length"] and row["model"] == model]
    if not rows:
        raise SystemExit(f"{results} has no batches of {model}: measure them with --models {model}")
    last = rows[-1]
    rows = [row for row in rows if row["gpu"] == last["gpu"]]
    latest = {(row["image"], int(row["batch"]), name_of(row)): row for row in rows}
    shows = sorted({(image, batch) for image, batch, _ in latest}, key=lambda show: (show[0] == "mixed", show))
    columns = min(2, len(shows))
    lines = -(-len(shows) // columns)
    fig, axes = plt.subplots(
        lines,
        columns,
        figsize=(7.2 * columns, 3.3 * lines + 1.2),
        facecolor=PAPER,
        layout="constrained",
        squeeze=False,
    )
    for axis in axes.flat[len(shows) :]:
        axis.set_axis_off()
    for axis, show in zip(axes.flat, shows, strict=False):
        own = {name: row for (*where, name), row in latest.items() if tuple(where) == show}
        panel(axis, own, f"{show[1]} x {show[0] if show[0] == 'mixed' else f'{show[0]}²'}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    fig.legend(handles, labels, frameon=False, ncols=6, loc="outside lower center")
    fig.suptitle(
        f"Qwen3-VL-{last['model']}, random weights: time to first token, ms (and times faster than stock)\n"
        f"{last['gpu']}, torch {last['torch']}, transformers {last['transformers']}, {rows[-1]['date']}",
        fontsize=11,
        color=INK,
    )
    fig.savefig(figure, dpi=110)
    plt.close(fig)


def name_of(row: dict[str, str]) -> str:
    words = [row["variant"], *([row["relevance"]] if row["relevance"] != "-" else [])]
    return ", ".join(words + ([row["mode"]] if row["mode"] != "eager" else []))


def panel(axis: plt.Axes, rows: dict[str, dict[str, str]], title: str) -> None:
    if not rows:
        axis.set_axis_off()
        return
    axis.set_title(title, loc="left", fontsize=11, color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    names, total = list(rows), {name: float(row["ttft_ms"]) for name, row in rows.items()}
    left = dict.fromkeys(names, 0.0)
    for part, colour in PARTS.items():
        wide = [float(rows[name][f"{part}_ms"] or 0) for name in names]
        axis.barh(names, wide, left=[left[name] for name in names], color=colour, label=part)
        left = {name: left[name] + w for name, w in zip(names, wide, strict=True)}
    rest = [max(0.0, total[name] - left[name]) for name in names]
    axis.barh(names, rest, left=[left[name] for name in names], color=REST, label="the rest, or a whole graph")
    for place, name in enumerate(names):
        faster = f"  ({total['stock'] / total[name]:.1f}x)" if "stock" in total and name != "stock" else ""
        axis.text(total[name], place, f" {total[name]:.0f}{faster}", va="center", fontsize=8, color=INK)
    axis.set_xlim(0, max(total.values()) * 1.22)
    axis.invert_yaxis()
