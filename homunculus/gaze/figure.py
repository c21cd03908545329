"""Pictures of the table, and of a few images: where people looked, and where each method would."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from homunculus.errors import DataError
from homunculus.gaze.compare import BASELINES, CENTRE, PEOPLE, SACCADES
from homunculus.gaze.formats import Stimulus
from homunculus.gaze.table import Line

COLOURS = {"people": "#3a3c44", "model": "#0b5d7a", "baseline": "#d1742b"}
PANELS = (
    ("gain", "information gain over the centre bias,\nbits per fixation"),
    ("shuffled AUC", "shuffled AUC"),
    ("sequence", "sequence score of scanpaths"),
)
CHANCE = {"gain": 0.0, "shuffled AUC": 0.5}


def draw_table(lines: Sequence[Line], title: str) -> bytes:
    """A PNG: a panel for each of three measures, a dot and its interval for each method."""
    figure = _figure(12.0, 1.9 + 0.36 * len(lines))
    panels = figure.subplots(1, len(PANELS), sharey=True, squeeze=False)[0]
    names = [line.method for line in lines][::-1]
    for panel, (measure, says) in zip(panels, PANELS, strict=True):
        for line in lines:
            mean = line.means[measure]
            if mean is None:
                continue
            kind = "people" if line.method == PEOPLE else "baseline" if line.method in BASELINES else "model"
            # A BCa interval may leave out the mean of very skewed scores.
            spread = [[max(0.0, mean.mean - mean.low)], [max(0.0, mean.high - mean.mean)]]
            place = [names.index(line.method)]
            panel.errorbar([mean.mean], place, xerr=spread, fmt="o", color=COLOURS[kind], ms=5, lw=1.6, label=kind)
            mixed = line.means["gain with centre"]
            if measure == "gain" and mixed is not None and kind == "model":
                panel.plot(
                    [mixed.mean], place, "o", mfc="white", mec=COLOURS[kind], ms=6, label="mixed with the centre"
                )
        if measure in CHANCE:
            panel.axvline(CHANCE[measure], color="#9a9ca6", lw=1, ls=":")
        panel.set_xlabel(says, fontsize=9)
        panel.set_yticks(range(len(names)), names, fontsize=9)
        panel.set_ylim(-0.6, len(names) - 0.4)
        panel.grid(axis="x", color="#e4e5ea", lw=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    says = f"{title}: means over images and targets, 95 % intervals over images"
    figure.suptitle(says, x=0.01, ha="left", fontsize=12)
    found = {label: handle for handle, label in zip(*panels[0].get_legend_handles_labels(), strict=True)}
    figure.legend(found.values(), found.keys(), loc="outside lower left", ncols=4, frameon=False, fontsize=9)
    return _png(figure)


def draw_examples(examples: Sequence[tuple[Stimulus, Mapping[str, Any], Any]], title: str) -> bytes:
    """A PNG: a row for each image, with people's fixations, each method's map and the path of the saccade loop."""
    methods = [name for name in examples[0][1] if name not in BASELINES] + [CENTRE]
    figure = _figure(2.3 * (len(methods) + 1), 0.5 + 2.0 * len(examples))
    grid = figure.subplots(len(examples), len(methods) + 1, squeeze=False)
    for number, (row, (stimulus, maps, path)) in enumerate(zip(grid, examples, strict=True)):
        width, height = stimulus.picture.size
        pixels = stimulus.picture.pixels().permute(1, 2, 0).numpy()
        found = stimulus.fixations
        for panel, name in zip(row, [PEOPLE, *methods], strict=True):
            panel.set_xticks([])
            panel.set_yticks([])
            panel.set_xlim(0, width)
            panel.set_ylim(height, 0)
            if name == PEOPLE:
                panel.imshow(pixels, extent=(0, width, height, 0), aspect="equal")
                panel.scatter(found[:, 0], found[:, 1], s=9, c="white", edgecolors="black", linewidths=0.5)
                panel.set_ylabel(stimulus.target or stimulus.picture.path.stem[:18], fontsize=8)
            else:
                # The root, so that faint parts stay visible.
                glow = np.sqrt(maps[name] / maps[name].max())
                panel.imshow(glow, extent=(0, width, height, 0), cmap="magma", vmin=0, vmax=1, aspect="equal")
            if name == SACCADES:
                _draw_path(panel, path)
            if number == 0:
                panel.set_title(name, fontsize=9)
    says = f"{title}: all fixations; maps of methods, each scaled to its own peak; the path of saccades in order"
    figure.suptitle(says, x=0.01, ha="left", fontsize=12)
    return _png(figure)


def _draw_path(panel: Any, path: Any) -> None:
    """Numbered dots; the first is white, and above the others where they overlap."""
    panel.plot(path[:, 0], path[:, 1], "-", color="#7fd4f0", lw=1.1, zorder=3)
    for number in range(len(path), 0, -1):
        x, y, _ = path[number - 1]
        fill = "white" if number == 1 else "#7fd4f0"
        above = 4 + len(path) - number
        panel.plot([x], [y], "o", mfc=fill, mec="black", mew=0.6, ms=8, zorder=above, clip_on=False)
        where = {"ha": "center", "va": "center_baseline", "zorder": above, "clip_on": False}
        panel.text(x, y, str(number), fontsize=5.5, color="black", **where)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("plots are drawn with matplotlib: pip install 'homunculus[data]', or use --no-plots") from None
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
