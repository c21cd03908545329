"""One thing changed at a time: every way of asking that differs from the main one by an option or by its relevance.

Ways are grouped by what differs, so a new option gets a table of its own without a word here. The true region is asked
once and stands wherever it belongs: it is relevance that always hits, and relevance that is moved by nothing.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from homunculus.eval.plans import TRUTH
from homunculus.report.blocks import Block, Heading, Table, Text
from homunculus.report.numbers import Found, counted, number, percent, points
from homunculus.report.sheet import ARMS, WHOLE, Arm, Way, said
from homunculus.report.tables import KEPT, as_shares, asked_families, exact_or_share, full_resolution, ranked, retained

LOOKING = {"looks", "combine", "progressive", "budgets", "threshold"}
SPOILT = re.compile(r"(hit|moved)-(\d+)")
UNSPOILT = {"hit": 100, "moved": 0}  # where each begins: the truth
TITLES = {
    "hit": "How wrong relevance may be: the true region, wrong on purpose",
    "moved": "How far relevance may be off: the true region, displaced",
    "relevance": "What relevance is made of",
    "looks": "Looking again",
    "told": "What reducers begin with: leaves that are told what is relevant, or not",
    "rounds": "In how many rounds tokens are merged",
    "logarithm": "What relevance means to a determinant: a density, or its logarithm",
    "grid_first": "What has its place first: tokens that stand out, or a grid",
    "size": "Size of the image",
    "foveal_share": "How many of the cells are the finest",
    "fixation_share": "What the tree follows: 0 relevance alone, 1 distance from the gaze alone",
    "e0": "How fast cells grow with distance from the gaze: e0, in leaves",
    "context_level": "Context that is always there: 16 cells of level 4, 64 of level 3",
    "reduce": "How the relevance of leaves becomes that of a cell: their sum, or the highest",
    "mode and split": "Cells of each level, from the finest: one ranking of all, or so many of each",
    "strata": "Strata on a side",
    "weight": "What a stratum without a cell costs",
    "stretch": "Which way cells are stretched",
}


def differs_in(way: Way, arm: Arm) -> str | None:
    """The one thing in which a way differs from the main one; None where it is the main one, or differs in more."""
    found = []
    if way.size != arm.sheet.size:
        found.append("size")
    if way.relevance != "predicted":
        spoilt = SPOILT.fullmatch(way.relevance)
        found.append(spoilt[1] if spoilt else "turns" if way.relevance in KEPT else "relevance")
    if options := set(way.options):
        found.append("looks" if options <= LOOKING else " and ".join(sorted(options)))
    return found[0] if len(found) == 1 else None


def groups(arm: Arm) -> dict[str, list[Way]]:
    """Ways by what differs, each once (families aside): spoilt relevance first, then in the order of the file."""
    named: dict[str, dict[tuple, Way]] = defaultdict(dict)
    for way in arm.ways():
        what = differs_in(way, arm)
        usual = way.budget in (arm.sheet.budget, None) or way.method == WHOLE
        if what and what != "turns" and way.split == "test-iid" and usual:
            named[what].setdefault((way.method, way.relevance, way.how, way.size), way)
    spoilt = {way.method for kind in UNSPOILT for way in named.get(kind, {}).values()}
    mixed = {way.method for way in named.get("relevance", {}).values() if way.relevance != TRUTH}
    for known, way in list(named.get("relevance", {}).items()):  # the truth alone is no mixture: see the spoilt ones
        if way.relevance == TRUTH and way.method in spoilt - mixed:
            del named["relevance"][known]
    order = sorted(named, key=lambda what: what not in UNSPOILT)  # their picture stands above them
    return {what: list(named[what].values()) for what in order if named[what]}


def changed(arm: Arm, way: Way, families: Sequence[str]) -> Found:
    return arm.find(way.method, families, relevance=way.relevance, how=way.how, size=way.size)


def long_table(arm: Arm, ways: Sequence[Way]) -> Table:
    """A line for each change, after the method's line in the main table, with the paired difference to it."""
    families, ceiling = asked_families(arm), full_resolution(arm)
    order = ranked(arm)
    lines = []
    for name in sorted({way.method for way in ways}, key=lambda own: (order.index(own) if own in order else 99, own)):
        usual, whole = arm.find(name, families), ceiling.find(WHOLE, families)
        each = _line(arm.find(name, [family]) for family in families)
        lines.append([f"`{name}`", "as in the main table", *each, *_all(usual, whole)])
        for way in sorted((way for way in ways if way.method == name), key=_order):
            own = changed(arm, way, families)
            each = _line(changed(arm, way, [family]) for family in families)
            own_whole = ceiling.find(WHOLE, families, size=way.size)
            lines.append([f"`{name}`", value_of(way, arm), *each, *_all(own, own_whole, usual)])
    return Table(["method", "changed", *families, "all", "change, points", "retained, %", "tokens", "questions"], lines)


def _line(found: Iterable[Found]) -> list[str]:
    return [percent(one.exact) for one in found]


def _all(own: Found, whole: Found, usual: Found | None = None) -> list[str]:
    """The change is of the questions that both have; where these are not all, it says how many."""
    pair = own.against(usual) if usual else None
    of = f" ({counted(pair)})" if pair and pair.questions < len(own.rows) else ""
    return [
        percent(own.exact),
        points(pair) + of,
        percent(retained(own, whole)),
        number(own.average("tokens"), 0),
        str(len(own.rows)),
    ]


def _order(way: Way) -> tuple:
    values = tuple(
        (name, value if isinstance(value, (int, float)) else 0, str(value)) for name, value in way.options.items()
    )
    return way.size, way.relevance, values


def value_of(way: Way, arm: Arm) -> str:
    """What differs, in words."""
    if way.size != arm.sheet.size:
        return f"{way.size[0]} × {way.size[1]} px"
    return way.relevance if way.relevance != "predicted" else said(way.options)


def spoilt_rates(arm: Arm, kind: str) -> list[int]:
    """The rates or distances there are, from the truth to the worst."""
    matches = [(way.method, own) for way in arm.ways() if (own := SPOILT.fullmatch(way.relevance)) and own[1] == kind]
    methods = {method for method, _ in matches}
    there = {int(own[2]) for _, own in matches}
    if any(way.method in methods and way.relevance == TRUTH for way in arm.ways()):
        there.add(UNSPOILT[kind])
    return sorted(there, reverse=kind == "hit")


def spoilt_table(arm: Arm, kind: str, ways: Sequence[Way], shares: bool = False) -> Table:
    """A line per method, a column per rate, and what is lost from the first to the last, paired; or the shares of full
    resolution."""
    families, rates = asked_families(arm), spoilt_rates(arm, kind)
    whole = full_resolution(arm).find(WHOLE, families)
    methods = {way.method for way in ways}
    lines = []
    for name in [own for own in ranked(arm) if own in methods] + sorted(methods - set(ranked(arm))):
        found = [arm.find(name, families, relevance=f"{kind}-{rate}") for rate in rates]
        pair = found[-1].against(found[0]) if len(found) > 1 else None
        cells = [exact_or_share(one, whole, shares) for one in found]
        lines.append([f"`{name}`", *cells, *([] if shares else [points(pair)])])
    unit = "hits" if kind == "hit" else "leaves off"
    columns = [f"{rate} % {unit}" if kind == "hit" else f"{rate} {unit}" for rate in rates]
    return Table(["method", *columns, *([] if shares else ["last − first, points"])], lines)


def forgiving(arm: Arm) -> tuple[Found, Found, float] | None:
    """The allocator that loses least from a perfect scorer to the worst one: both rows and the difference."""
    rates = spoilt_rates(arm, "hit")
    if len(rates) < 2:
        return None
    families = asked_families(arm)
    best = None
    for name in arm.methods():
        first, last = (arm.find(name, families, relevance=f"hit-{rate}") for rate in (rates[0], rates[-1]))
        pair = last.against(first)
        if pair is not None and (best is None or pair.first > best[2]):
            best = first, last, pair.first
    return best


def ablation_sections(arm: Arm) -> list[Block]:
    """A table for everything that was changed alone."""
    blocks: list[Block] = []
    for what, ways in groups(arm).items():
        blocks.append(Heading(TITLES.get(what, what.replace("_", " ").capitalize()), 3))
        if what in UNSPOILT:
            blocks += [spoilt_table(arm, what, ways), *as_shares(spoilt_table(arm, what, ways, shares=True))]
        else:
            blocks.append(long_table(arm, ways))
    if blocks:
        blocks[:0] = [Heading("One thing changed at a time"), Text(f"Exact answers in percent, {ARMS[arm.name]}.")]
    return blocks
