"""The legibility table as a picture: a panel for each family, a dot and its interval for each method and source."""

import io
from collections.abc import Sequence
from typing import Any

from homunculus.errors import DataError
from homunculus.eval.legibility import FULL
from homunculus.eval.legibility_table import Line

# Dark enough on white and apart for colour-blind readers: the true region, model-free relevance, none.
COLOURS = {"true": "#0b5d7a", "model-free": "#d1742b", "none": "#6d6f78"}
NAMES = {"true": "true region", "model-free": "model-free relevance", "none": "looks at nothing"}
MARKS = {"true": "o", "model-free": "D", "none": "s"}
TITLES = {"legibility": "share of the answer Tesseract reads", "ssim": "similarity (SSIM) of the target's region"}


def draw(lines: Sequence[Line], budget: int) -> bytes:
    """A PNG."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("the plot is drawn with matplotlib: pip install matplotlib") from None

    families = list(dict.fromkeys(line.family for line in lines))
    names = _order(lines)
    figure = Figure(figsize=(2.4 + 3.6 * len(families), 1.9 + 0.3 * len(names)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(families), sharey=True, squeeze=False)[0]
    for panel, family in zip(panels, families, strict=True):
        own = [line for line in lines if line.family == family]
        _panel(panel, own, names)
    figure.suptitle(f"What can be read in the reconstruction from {budget} tokens", x=0.01, ha="left", fontsize=12)
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower left", ncols=5, frameon=False, fontsize=9)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _order(lines: Sequence[Line]) -> list[str]:
    """Methods by their best score on the first family, the worst at the bottom."""
    best: dict[str, float] = {}
    for line in lines:
        if line.allocator != FULL and line.family == lines[0].family:
            best[line.allocator] = max(best.get(line.allocator, 0.0), line.score.mean)
    others = dict.fromkeys(line.allocator for line in lines if line.allocator != FULL and line.allocator not in best)
    return [*others, *sorted(best, key=lambda name: best[name])]


def _panel(panel: Any, lines: Sequence[Line], names: Sequence[str]) -> None:
    for line in lines:
        if line.allocator == FULL:
            panel.axvspan(line.score.low, line.score.high, color="#c9cbd2", alpha=0.6, lw=0, label="full image")
            panel.axvline(line.score.mean, color="#3a3c44", lw=1)
            if line.chance is not None:
                panel.axvline(line.chance, color="#3a3c44", lw=1, ls=":", label="chance: another page's answer")
            continue
        apart = {"true": 0.16, "model-free": -0.16, "none": 0.0}[line.source]
        mean, low, high = line.score
        # A BCa interval may leave out the mean of very skewed scores.
        spread = [[max(0.0, mean - low)], [max(0.0, high - mean)]]
        panel.errorbar(
            [mean],
            [names.index(line.allocator) + apart],
            xerr=spread,
            fmt=MARKS[line.source],
            color=COLOURS[line.source],
            ms=5,
            lw=1.4,
            capsize=0,
            label=NAMES[line.source],
        )
    pages = " or ".join(str(count) for count in sorted({line.pages for line in lines}))
    panel.set_title(f"{lines[0].family}, {pages} images", loc="left", fontsize=10)
    panel.set_xlabel(f"{TITLES[lines[0].measure]}, 95 % intervals", fontsize=8.5)
    panel.set_yticks(range(len(names)), names, fontsize=9)
    panel.set_xlim(0, 1.02)
    panel.set_ylim(-0.6, len(names) - 0.4)
    panel.grid(axis="x", color="#e4e5ea", lw=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
