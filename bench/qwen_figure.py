"""bench/results/qwen_vl.csv as a picture: time to first token and what it is made of, for every way and batch.

The latest row of every case counts, among those of the last row's model and GPU.
"""

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

INK, PAPER, REST = "#1b1b1f", "#ffffff", "#d9d9de"
PARTS = {"scoring": "#c8553d", "allocation": "#e3a04f", "sampling": "#8f6bb1", "tower": "#5b7db1", "prefill": "#0b6e4f"}


def draw(results: Path, figure: Path) -> None:
    """One panel for each size and batch, one bar for each way; what the parts leave over is grey."""
    with results.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["ttft_ms"]]
    last = rows[-1]
    rows = [row for row in rows if row["length"] and all(row[k] == last[k] for k in ("model", "gpu"))]
    if not rows:
        raise SystemExit(f"{results} has no batches of {last['model']} on {last['gpu']}")
    latest = {(row["image"], int(row["batch"]), name_of(row)): row for row in rows}
    images = sorted({image for image, _, _ in latest}, key=lambda image: (len(image), image))
    batches = sorted({batch for _, batch, _ in latest})
    width, height = 5.2 * len(batches) + 1, 2.9 * len(images) + 1.2
    fig, axes = plt.subplots(
        len(images), len(batches), figsize=(width, height), facecolor=PAPER, layout="constrained", squeeze=False
    )
    for i, image in enumerate(images):
        for j, batch in enumerate(batches):
            own = {name: row for (im, b, name), row in latest.items() if (im, b) == (image, batch)}
            panel(axes[i][j], own, f"{batch} x {image if image == 'mixed' else f'{image}²'}")
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
    axis.barh(names, rest, left=[left[name] for name in names], color=REST, label="the rest")
    for place, name in enumerate(names):
        faster = f"  ({total['stock'] / total[name]:.1f}x)" if "stock" in total and name != "stock" else ""
        axis.text(total[name], place, f" {total[name]:.0f}{faster}", va="center", fontsize=8, color=INK)
    axis.set_xlim(0, max(total.values()) * 1.22)
    axis.invert_yaxis()
