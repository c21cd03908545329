"""Curves as small SVG pictures: text stays text, ink takes the page's colour, and the same rows give the same bytes."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from homunculus.errors import DataError
from homunculus.report.decision import BASE, DECIDE, OURS
from homunculus.report.numbers import Found
from homunculus.report.sheet import WHOLE, Arm
from homunculus.report.tables import asked_families, ranked, swept

# Apart for colour-blind readers (after Okabe and Ito), and seen on white and on near-black alike.
COLOURS = {
    OURS: "#d55e00",
    BASE: "#1b7fbd",
    "pyramid": "#009e73",
    "log-polar-rings": "#cc79a7",
    "uniform": "#8a8a94",
    "stratified": "#56b4e9",
    WHOLE: "#8a8a94",
}
MORE = ("#e69f00", "#7b68c8", "#8c6d31", "#3f8f8f")
MARKS = {OURS: "o", BASE: "s", "pyramid": "^", "log-polar-rings": "D", "uniform": "v", "stratified": "P"}
INK, SOFT, RULE = "#1c1c24", "#686874", "#d6d6de"  # as in viz.palette; replaced by the page's own
MOST = 8  # lines in a picture
SMALL = 9.0
NEAR = 2.0  # points
TICKS = (-50, -20, -5, -2, -1, 0, 1, 2, 5, 20, 50)


class Point(NamedTuple):
    """A way of asking in a plane: what it costs, how many answers are exact, and what to call it."""

    x: float
    y: float
    name: str
    method: str
    main: bool = True  # of the main budget


def pareto(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats at once in cost and accuracy, from cheap to dear.

    >>> [point.name for point in pareto([Point(1, 5, "a", ""), Point(2, 4, "b", ""), Point(3, 6, "c", "")])]
    ['a', 'c']
    """
    front: list[Point] = []
    for point in sorted(points, key=lambda one: (one.x, -one.y)):
        if not front or point.y > front[-1].y:
            front.append(point)
    return front


def spread(places: Sequence[float], apart: float) -> list[float]:
    """Places moved as little as need be so that neighbours are so far apart: labels at the ends of lines.

    >>> spread([1.0, 1.0, 5.0], 2.0)
    [0.0, 2.0, 5.0]
    """
    order = sorted(range(len(places)), key=lambda i: (places[i], i))
    blocks: list[list[float]] = []  # [sum of wanted starts, count]
    for rank, i in enumerate(order):
        blocks.append([places[i] - rank * apart, 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + count]
    starts = [total / count for total, count in blocks for _ in range(int(count))]
    moved = [0.0] * len(places)
    for rank, i in enumerate(order):
        moved[i] = starts[rank] + rank * apart
    return moved


def front_names(front: Sequence[Point], apart: float) -> list[tuple[str, float]]:
    """What to call the points of a front and at which height, so far apart.

    >>> front_names([Point(1, 90.0, "a 64", "a"), Point(2, 91.0, "a 100", "a"), Point(3, 99.0, "b", "b")], 5.0)
    [('a 64', 88.0), ('a 100', 93.0), ('b', 99.0)]
    """
    return list(zip((point.name for point in front), spread([point.y for point in front], apart), strict=True))


def free_names(points: Sequence[Point], named: Sequence[Point], span: tuple[float, float]) -> list[Point]:
    """Those of the points beside which a name covers no point and no other name, first come first served. `span` is
    that of the plane, of which a letter takes 1.2 % across (on a log axis, of the decades there are) and a line 5 %.

    >>> some = [Point(1, 1, "a", ""), Point(1.1, 1, "b", ""), Point(1, 9, "c", "")]
    >>> [point.name for point in free_names(some, [], (3, 10))]
    ['b', 'c']
    """

    def box(point: Point) -> tuple[float, float, float, float]:
        left, middle = math.log(point.x) / span[0], point.y / span[1]
        return left, left + 0.012 * (len(point.name) + 2), middle - 0.025, middle + 0.025

    taken, chosen = [box(point) for point in named], []
    dots = [(math.log(point.x) / span[0], point.y / span[1]) for point in (*points, *named)]
    for point in points:
        left, right, low, high = box(point)
        covers = any(left < x < right and low < y < high for x, y in dots)
        if not covers and all(right < x0 or left > x1 or high < y0 or low > y1 for x0, x1, y0, y1 in taken):
            taken.append((left, right, low, high))
            chosen.append(point)
    return chosen


def colour(method: str, others: Sequence[str] = ()) -> str:
    known = [name for name in others if name not in COLOURS]
    return COLOURS.get(method) or (MORE[known.index(method) % len(MORE)] if method in known else COLOURS["uniform"])


# ------------------------------------------------------------------------------------------------------ pictures


def differences(arm: Arm) -> str | None:
    """Every method against topk, all families together: a dot and its interval."""
    families = asked_families(arm)
    base = arm.find(BASE, families)
    pairs = {name: arm.find(name, families).against(base) for name in ranked(arm) if name != BASE}
    found = [(name, pair) for name, pair in pairs.items() if pair is not None]
    if not found or not base:
        return None
    figure, panel = _panel(6.6, 0.75 + 0.22 * len(found))
    for place, (name, pair) in enumerate(reversed(found)):
        tone = colour(name) if name in DECIDE else COLOURS["uniform"]
        panel.plot([pair.low, pair.high], [place, place], color=tone, lw=2.2, solid_capstyle="round")
        panel.plot([pair.difference], [place], "o", color=tone, ms=5.5)
    panel.axvline(0, color=INK, lw=0.8)
    panel.set_yticks(range(len(found)), [name for name, _ in reversed(found)])
    panel.set_ylim(-0.7, len(found) - 0.3)
    panel.grid(axis="x", color=RULE, lw=0.6)
    panel.set_xscale("symlog", linthresh=NEAR, linscale=1.5)  # most are within a point, and some lose everything
    ends = [pair.low for _, pair in found], [pair.high for _, pair in found]
    ticks = [tick for tick in TICKS if min(*ends[0], -NEAR) <= tick <= max(*ends[1], NEAR)]
    panel.set_xticks(ticks, [f"{tick:+g}".replace("-", "\N{MINUS SIGN}") if tick else "0" for tick in ticks])
    panel.set_xticks([], minor=True)
    panel.set_xlabel(f"exact answers over {BASE}, points (95 % interval), further apart within {NEAR:g}")
    return _svg(figure, f"differences {arm.name}", f"Difference to {BASE} in points for each method")


def against_budget(arm: Arm, family: str | None = None) -> str | None:
    """Exact answers against tokens."""
    families, budgets = asked_families(arm) if family is None else [family], swept(arm)
    curves = {}
    for name in _chosen(arm, [name for name in ranked(arm) if len(arm.budgets(name)) > 1]):
        points = {tokens: arm.find(name, families, budget=tokens) for tokens in arm.budgets(name) if tokens in budgets}
        curves[name] = {float(tokens): one for tokens, one in points.items() if one.exact}
    title = family or "all families"
    return _curves(curves, title, "tokens", f"budget {arm.name} {title}", log=True)


def against_hits(arm: Arm, rates: Sequence[int]) -> str | None:
    """Exact answers against the share of questions for which relevance is right."""
    families = asked_families(arm)
    curves = {}
    for name in _chosen(arm, ranked(arm)):
        points = {rate: arm.find(name, families, relevance=f"hit-{rate}") for rate in rates}
        own = {float(rate): one for rate, one in points.items() if one.exact}
        if len(own) > 1:
            curves[name] = own
    return _curves(curves, "all families", "questions for which relevance is right, %", f"hits {arm.name}")


def against_cost(arm: Arm) -> str | None:
    """Exact answers against seconds a question, every budget there is; the Pareto front is drawn."""
    families = asked_families(arm)
    points = []
    for name in ranked(arm):
        for tokens in arm.budgets(name) or [arm.sheet.budget]:
            cost, own = arm.cost(name, tokens), arm.find(name, families, budget=tokens).average("exact")
            if cost is not None and own is not None:
                label = name if name == WHOLE else f"{name} {tokens}"
                points.append(Point(1000 / cost["per_second"], 100 * own, label, name, tokens == arm.sheet.budget))
    xs = [point.x for point in points]
    if len(set(xs)) < 3:
        return None
    figure, panel = _panel(6.6, 3.6)
    panel.set_xscale("log")
    front = pareto(points)
    panel.step(
        [point.x for point in front], [point.y for point in front], where="post", color=INK, lw=1, ls=(0, (3, 2))
    )
    for point in points:
        strong = point in front or point.method in (OURS, BASE)
        look = {"ms": 5.5, "alpha": 1.0} if strong else {"ms": 3.5, "alpha": 0.6}
        panel.plot([point.x], [point.y], MARKS.get(point.method, "o"), color=colour(point.method), mec="none", **look)
    low, high = min(point.y for point in points), max(point.y for point in points)
    room = high - low or 1.0  # all may answer alike
    names = front_names(front, 0.065 * room)
    left, right = 0.04 + 0.0135 * max(len(name) for name, _ in names), 0.12  # of the width, for names
    width = math.log(max(xs) / min(xs)) / (1 - left - right)
    panel.set_xlim(min(xs) * math.exp(-left * width), max(xs) * math.exp(right * width))
    panel.set_ylim(low - 0.05 * room, max(high, *(place for _, place in names)) + 0.12 * room)
    for point, (name, place) in zip(front, names, strict=True):
        _name(panel, name, (point.x, place), (-7, 0), ha="right", va="center", fontsize=SMALL, color=INK)
    rest = [point._replace(name=point.method) for point in points if point not in front and point.main]
    for point in free_names(sorted(rest, key=lambda one: one.method != BASE), front, _span(points)):
        _name(panel, point.name, (point.x, point.y), (6, 0), va="center", fontsize=SMALL - 1, color=SOFT)
    panel.grid(color=RULE, lw=0.6)
    _plain_ticks(panel)
    panel.set_xlabel(f"milliseconds a question ({arm.sheet.device})")
    panel.set_ylabel("exact answers, %")
    return _svg(figure, f"cost {arm.name}", "Exact answers against time for a question, with the Pareto front")


def _span(points: Sequence[Point]) -> tuple[float, float]:
    xs, ys = [math.log(point.x) for point in points], [point.y for point in points]
    return 1.5 * (max(xs) - min(xs)), 1.2 * (max(ys) - min(ys)) or 1.0


def _chosen(arm: Arm, names: Sequence[str]) -> list[str]:
    """The lines of a picture: those that decide and what they are held against first, then the best."""
    first = [name for name in names if name in COLOURS and name != WHOLE]
    return (first + [name for name in names if name not in COLOURS])[:MOST]


def _curves(
    curves: Mapping[str, Mapping[float, Found]], title: str, label: str, name: str, log: bool = False
) -> str | None:
    """A line per method with its interval as a band, named at its right end."""
    curves = {own: line for own, line in curves.items() if len(line) > 1}
    if not curves:
        return None
    figure, panel = _panel(4.9, 3.3)
    if log:
        panel.set_xscale("log")
    for own, line in curves.items():
        xs, found = sorted(line), [line[x].exact for x in sorted(line)]
        tone = colour(own, list(curves))
        panel.fill_between(xs, [one.low for one in found], [one.high for one in found], color=tone, alpha=0.13, lw=0)  # type: ignore[union-attr]
        panel.plot(xs, [one.mean for one in found], color=tone, lw=1.8, marker=MARKS.get(own, "o"), ms=4, mec="none")  # type: ignore[union-attr]
    panel.grid(color=RULE, lw=0.6)
    if log:
        ticks = sorted({x for line in curves.values() for x in line})
        panel.set_xticks(ticks, [f"{x:g}" for x in ticks])
        panel.set_xticks([], minor=True)
    panel.set_title(title, loc="left", fontsize=10, color=INK)
    panel.set_xlabel(label)
    panel.set_ylabel("exact answers, %")
    low, high = panel.get_ylim()
    ends = {own: line[max(line)].exact.mean for own, line in curves.items()}  # type: ignore[union-attr]
    for (own, _), place in zip(ends.items(), spread(list(ends.values()), (high - low) / 17), strict=True):
        far = panel.get_xlim()[1]
        tone = colour(own, list(curves))
        _name(panel, own, (far, place), (4, 0), va="center", fontsize=SMALL, color=tone, annotation_clip=False)
    return _svg(figure, name, f"{title}: exact answers against {label}")


def _name(panel: Any, text: str, at: tuple[float, float], by: tuple[float, float], **look: Any) -> None:
    panel.annotate(text, at, by, textcoords="offset points", **look)


def _panel(width: float, height: float) -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("the curves are drawn with matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    panel = figure.subplots()
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        panel.spines[side].set_color(RULE)
    panel.tick_params(which="both", color=RULE, labelcolor=INK, labelsize=SMALL)
    for axis in (panel.xaxis, panel.yaxis):
        axis.label.set(color=INK, fontsize=SMALL)
    panel.set_axisbelow(True)
    return figure, panel


def _plain_ticks(panel: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())


def _svg(figure: Any, name: str, told: str) -> str:
    """The picture as markup to stand in a page: no prologue, no date, no names that two pictures would share."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(r' id="[a-zA-Z][\w.]*_\d+"', "", text)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.S)
    text = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", text)
    text = text.replace(INK, "currentColor").replace(RULE, "var(--rule)").replace(SOFT, "var(--soft)")
    text = re.sub(
        r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{told}">', text, count=1
    )
    return re.sub(r"\n\s*", "\n", text).strip()
