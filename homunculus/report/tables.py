"""The tables of a page: every method at the main budget, budgets, other splits, and follow-up questions."""

from collections.abc import Sequence
from itertools import repeat

from homunculus.data import REGIONS
from homunculus.eval.relevances import KEPT_CELLS
from homunculus.eval.statistics import Interval
from homunculus.report.blocks import Block, Folded, Heading, Table, Text
from homunculus.report.decision import BASE, DECIDE, corrected
from homunculus.report.numbers import NONE, Found, Row, chance, number, percent, points
from homunculus.report.predictions import region
from homunculus.report.sheet import ARMS, SHORT, WHOLE, Arm, Sheet

KEPT = {"first-turn": "all kept", KEPT_CELLS: "cells kept"}  # of what was made of an image for its first question
MARK = "★"  # decides


def ranked(arm: Arm) -> list[str]:
    """Methods, those furthest ahead of `topk` first, on the questions both were asked, since not all were asked as many
    and some questions are harder; those not asked everywhere at the end."""
    families = asked_families(arm)
    base = arm.find(BASE, families)
    leads = {name: _lead(arm.find(name, families), base) for name in arm.methods()}
    return sorted(leads, key=lambda name: (leads[name] is None, -(leads[name] or 0.0), name))


def _lead(own: Found, base: Found) -> float | None:
    """In points; where there are no pairs, the difference of the means."""
    pair = own.against(base) if own and base and own is not base else None
    if pair is not None:
        return pair.difference
    exact = own.average("exact")
    return None if exact is None else 100 * (exact - (base.average("exact") or 0.0))


def asked_families(arm: Arm) -> list[str]:
    """Families that this arm was asked in the main way."""
    there = {way.family for way in arm.ways() if way.split == "test-iid" and way.relevance == "predicted"}
    return [family for family in arm.sheet.families if family in there]


def full_resolution(arm: Arm) -> Arm:
    """Where the full resolution of this arm is found: here, or else in the weights that all methods share."""
    if WHOLE in arm.methods():
        return arm
    return next((other for other in arm.sheet.arms if other.name == "zero-shot"), arm)


def retained(own: Found, whole: Found) -> Interval | None:
    """The share of full-resolution accuracy that is left, in percent, on the questions both were asked."""
    return own.share_of(whole) if own and whole else None


def exact_or_share(own: Found, whole: Found, shares: bool) -> str:
    return percent(retained(own, whole) if shares else own.exact)


def main_table(arm: Arm) -> Table:
    """A line per method at the main budget."""
    families, ceiling = asked_families(arm), full_resolution(arm)
    seconds = (
        next((other for other in arm.sheet.arms if other.name == "seconds"), None) if arm.name == "tuned" else None
    )
    p_values = corrected(arm, families)
    whole, base = ceiling.find(WHOLE, families), arm.find(BASE, families)
    lines = []
    for name in ranked(arm):
        own = arm.find(name, families)
        pair = own.against(base) if own and name != BASE else None
        own_seconds = [percent(seconds.find(name, families).exact)] if seconds else []
        lines.append(
            [
                f"`{name}`" + (f" {MARK}" if name in DECIDE else ""),
                *(percent(own.exact), *own_seconds),
                *(percent(arm.find(name, [family]).exact) for family in families),
                *(percent(region(own, place).exact) for place in REGIONS),
                *(percent(retained(own, whole)), points(pair)),
                *(chance(None if pair is None else pair.p), chance(p_values.get(name))),
                *spent(arm, name, families),
            ]
        )
    against = "retained, %" if ceiling == arm else "retained of zero-shot full resolution, %"
    head = ["method", "all", *(["all, equal seconds"] if seconds else []), *families, *REGIONS]
    head += [against, f"over `{BASE}`, points", *P_VALUES, *SPENT]
    groups = [("", 1), ("exact answers, %", 1 + bool(seconds) + len(families)), ("by region, %", 3)]
    return Table(head, lines, [*groups, ("compared", 4), ("where tokens go", 7), ("what it costs", 6)])


P_VALUES = ("p, as it is", "p, after Holm")
SPENT = (
    *("questions", "tokens", "covered, %", "fine, %", "overlap, %", "hit, %", "cell, %"),
    *("exact % per token", "questions/s", "p50, ms", "p99, ms", "peak, MiB", "padding, %"),
)


def spent(arm: Arm, name: str, families: Sequence[str]) -> list[str]:
    """The cells under `SPENT`: of whichever families it was asked."""
    there = [family for family in families if arm.find(name, [family])]
    own = arm.find(name, there)
    tokens, exact = own.average("tokens"), own.average("exact")
    shares = [own.average(measure) for measure in ("covered", "fine", "overlap", "hit", "cell")]
    cost = arm.cost(name) or {}
    each = None if not tokens or exact is None else 100 * exact / tokens
    scaled = [(cost.get(key), scale) for key, scale in (("p50", 1000), ("p99", 1000), ("peak_mib", 1), ("waste", 100))]
    return [
        str(len(own.rows)),
        number(tokens, 0),
        *(number(None if share is None else 100 * share) for share in shares),
        number(each, 3),
        number(cost.get("per_second"), 0 if (cost.get("per_second") or 0) >= 10 else 1),
        *(number(None if value is None else scale * value, 1 if scale != 1 else 0) for value, scale in scaled),
    ]


def cost_table(sheet: Sheet) -> Table | None:
    """What was timed in the usual way, at every budget, the fastest first."""
    arm, found = sheet.arms[0], list[tuple[str, int | None, Row]]()
    for name in arm.expected(Arm.methods):
        budgets: Sequence[int | None] = arm.timed_budgets(name) if name != WHOLE else ()
        costs = ((tokens, arm.cost(name, tokens)) for tokens in budgets or (None,))
        found += [(name, tokens, cost) for tokens, cost in costs if cost is not None]
    lines = []
    for name, tokens, cost in sorted(found, key=lambda one: -one[2]["per_second"]):
        times = [None if cost[key] is None else 1000 * cost[key] for key in ("p50", "p99")]
        peaks = (number(cost.get(key), 0) for key in ("peak_mib", "least_peak_mib"))
        waste, count = number(100 * cost["waste"]), NONE if tokens is None else str(tokens)
        lines.append(
            [f"`{name}`", count, number(cost["per_second"]), *map(number, times), str(cost["batches"]), *peaks, waste]
        )
    return Table(list(TIMED), lines) if lines else None


def timed_again_table(sheet: Sheet) -> Table | None:
    """What was timed more than once at the main budget: first what stands in the other tables."""
    arm = sheet.arms[0]
    lines = []
    for name in arm.expected(Arm.methods):
        costs = arm.costs(name)
        for cost in costs if len(costs) > 1 else ():
            times = (number(None if cost[key] is None else 1000 * cost[key]) for key in ("p50", "p99"))
            date = cost.get("date") or NONE
            lines.append([f"`{name}`", date, number(cost["per_second"]), *times, str(cost["batches"])])
    return Table(["method", "day", "questions/s", *TIMED[3:6]], lines) if lines else None


TIMED = (
    *("method", "budget", "questions/s", "p50 of a batch, ms", "p99, ms", "batches"),
    *("most memory of a batch, MiB", "least, MiB", "padding, %"),
)


def swept(arm: Arm) -> list[int]:
    """Budgets that more than one method was asked at, or all where there is one method."""
    asked = [tokens for name in arm.methods() for tokens in arm.budgets(name)]
    least = 2 if len(arm.methods()) > 1 else 1
    return sorted({tokens for tokens in asked if asked.count(tokens) >= least})


def budgets_table(arm: Arm, shares: bool = False) -> Table | None:
    """Exact answers on all families together, or their shares of full resolution, a column for each budget."""
    families = asked_families(arm)
    whole = full_resolution(arm).find(WHOLE, families)
    names = [name for name in ranked(arm) if len(arm.budgets(name)) > 1]
    budgets = swept(arm)
    if not names or len(budgets) < 2:
        return None
    found = [[arm.find(name, families, budget=tokens) for tokens in budgets] for name in names]
    cells = [[exact_or_share(own, whole, shares) for own in line] for line in found]
    lines = [[f"`{name}`", *own] for name, own in zip(names, cells, strict=True)]
    return Table(["method", *(f"{tokens} tokens" for tokens in budgets)], lines)


def splits_table(arm: Arm, shares: bool = False) -> Table | None:
    """Exact answers where the questions are unlike those of training, or their shares of full resolution."""
    ways = [way for way in arm.ways() if way.split not in ("test-iid", "val", "train")]
    asked = list(dict.fromkeys((way.split, way.family) for way in ways))
    asked.sort(key=lambda one: (one[0], arm.sheet.families.index(one[1])))
    methods = {way.method for way in ways}
    if not asked:
        return None
    wholes = [arm.find(WHOLE, [family], split=split) for split, family in asked]
    lines = []
    for name in [own for own in ranked(arm) if own in methods]:
        found = (arm.find(name, [family], split=split) for split, family in asked)
        lines.append([f"`{name}`", *map(exact_or_share, found, wholes, repeat(shares))])
    return Table(["method", *(f"{family}, {split}" for split, family in asked)], lines)


def is_followup(row: dict) -> bool:
    """Whether a question is not the first of its image.

    >>> is_followup({"key": "documents/test-iid/0#0"}), is_followup({"key": "documents/test-iid/0#2"})
    (False, True)
    """
    return int(row["key"].rpartition("#")[2] or 0) > 0


def turns_table(arm: Arm) -> Table | None:
    """Follow-up questions: what was made for the image's first question kept, or its cells alone, against a fresh
    allocation for each."""
    lines = []
    for name in ranked(arm):
        fresh = arm.find(name).where("follow-ups", is_followup)
        kept = (arm.find(name, relevance=words).where("follow-ups", is_followup) for words in KEPT)
        pairs = [own.against(fresh) for own in kept]
        if first := next((pair for pair in pairs if pair is not None), None):
            each = [cell for pair in pairs for cell in (number(pair.first if pair else None), points(pair))]
            lines.append([f"`{name}`", str(first.questions), number(first.second), *each])
    head = ["method", "questions", "allocated anew, exact %"]
    head += [title for words in KEPT.values() for title in (f"{words}, exact %", f"{words} − anew, points")]
    return Table(head, lines) if lines else None


def readers_table(arm: Arm, other: Arm) -> Table | None:
    """Readers of one arm beside those of another, on the questions both were asked, and what was done to the first."""
    families, lines = asked_families(arm), []
    for name in ranked(arm):
        own, about = arm.find(name, families), arm.tuning(name)
        pair = own.against(other.find(name, families)) if own else None
        if pair is not None:
            shares = [number(pair.first), number(pair.second), points(pair), str(pair.questions)]
            lines.append([f"`{name}`", number(about.get("seconds")), str(about.get("samples", NONE)), *shares])
    names = (f"{SHORT[one.name]}, exact %" for one in (arm, other))
    return (
        Table(["method", "seconds of tuning", "samples", *names, "change, points", "questions"], lines)
        if lines
        else None
    )


SHARES = "The same as shares of full-resolution accuracy, in percent, on the questions both were asked"
READERS = {  # arms that are compared, and what has to be said of it
    ("tuned", "zero-shot"): "What tuning changed, on the same questions.",
    ("seconds", "tuned"): "How many steps fit into the seconds is told beforehand; what they took is beside them. "
    "Exact answers are of the same questions on both sides.",
}


def as_shares(table: Table | None) -> list[Block]:
    """The same table, of shares of full resolution, if it has any."""
    if table is None or all(cell == NONE for line in table.lines for cell in line[1:]):
        return []
    return [Folded(SHARES, (table,))]


def method_sections(sheet: Sheet) -> list[Block]:
    """The main table of every arm but that of equal seconds, which is a column of the tuned one."""
    blocks: list[Block] = []
    names = [arm.name for arm in sheet.arms]
    for arm in sheet.arms:
        if arm.name == "seconds" and "tuned" in names:
            continue
        blocks += [Heading(ARMS[arm.name].capitalize(), 3), main_table(arm)]
        if full_resolution(arm) != arm:
            blocks.append(
                Text("Full resolution was not tuned; its share is of the weights that all methods share.", "note")
            )
    arms = {arm.name: arm for arm in sheet.arms}
    for (name, other), lead in READERS.items():
        if name in arms and other in arms and (table := readers_table(arms[name], arms[other])):
            title = f"{SHORT[name].capitalize()} against {SHORT[other]}"
            blocks += [Heading(title, 3), Text(lead), table]
    return blocks


def other_sections(arm: Arm) -> list[Block]:
    """Splits and follow-up questions of one arm."""
    blocks: list[Block] = []
    if table := splits_table(arm):
        blocks += [Heading("Unlike training", 2), Text(f"Exact answers in percent, {ARMS[arm.name]}."), table]
        blocks += as_shares(splits_table(arm, shares=True))
    if table := turns_table(arm):
        lead = (
            f"Second and later questions about an image, {ARMS[arm.name]}: what was made of it for the first one is "
            "kept, all of it or only its cells, each of which is told anew how relevant it is; or every question has "
            "an allocation of its own."
        )
        blocks += [Heading("Several questions about one image", 2), Text(lead), table]
    return blocks
