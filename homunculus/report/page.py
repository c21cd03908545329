"""The page: what was decided first, then why, then everything it rests on."""

import html
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from homunculus import __version__
from homunculus.allocation import DEFAULT
from homunculus.eval.clusters import RESAMPLES
from homunculus.report.ablations import ablation_sections, forgiving, spoilt_rates
from homunculus.report.blocks import Block, Box, Drawing, Folded, Heading, Table, Text, marked, to_html
from homunculus.report.charts import against_budget, against_cost, against_hits, differences
from homunculus.report.decision import BASE, ENOUGH, Claim, Decision, decide
from homunculus.report.heat import FEWEST, PARTS, heat_maps
from homunculus.report.legible import legibility_sections
from homunculus.report.numbers import NONE, Row, listed, number
from homunculus.report.open_questions import NOT_MEASURED, open_questions
from homunculus.report.predictions import LARGE, LEAST_KEPT, OUTCOMES, SURE, Prediction, outcomes
from homunculus.report.sheet import ARMS, BUDGET, PEERS, SHORT, WHOLE, Arm, Sheet
from homunculus.report.style import CSS, FRAME, SCRIPT
from homunculus.report.tables import (
    MARK,
    as_shares,
    asked_families,
    budgets_table,
    cost_table,
    method_sections,
    other_sections,
    timed_again_table,
)
from homunculus.report.trained import training_sections

MOST_NUMBERS = 9  # of a rule; the others are counted
EQUALLY = (
    "What is said of several families together is the mean of the families, which count equally however many questions "
    "each was asked; images are drawn within each."
)

HOW_TIMED = (
    "All methods in turns on the same questions, a batch of 8 at a time and each about an image of its own, from "
    "pixels and text to text, relevance included. A 99th percentile takes 100 batches. Memory is beyond the model's "
    "own, of the batch that took most and of the one that took least."
)
TIMED_AGAIN = (
    "**Timed more than once.** The first of each stands in the other tables: that of the day most ways were timed on, "
    "so that those are compared which took turns. How far the others are from it is what another day or machine does."
)


def document(
    sheet: Sheet,
    examples: Sequence[Block] = (),
    command: str = "homunculus report",
    legibility: Sequence[Row] | None = None,
    training: Sequence[Row] | None = None,
) -> list[Block]:
    """Every block of the page, in order. `legibility` and `training` are rows as `read_legibility` and `read_training`
    give them."""
    decision = decide(sheet)
    arms = [decision.arm, *(arm for arm in sheet.arms if arm.name != decision.arm.name)]  # who is asked first
    blocks: list[Block] = [
        Heading(f"Which way of spending {sheet.budget} tokens is best?", 1),
        Text(_lead(sheet), "lead"),
        Box(decision.word, _headline(decision)),
        *_rules(sheet, decision),
        *_predictions(arms),
        *_questions(arms),
        *_methods(sheet, decision.arm),
        *_budgets(sheet),
        *_costs(sheet),
        *legibility_sections(legibility, sheet.budget),
    ]
    for arm in arms:
        blocks += _ablations(arm)
    blocks += training_sections(training)
    for arm in arms:
        blocks += other_sections(arm)
    blocks += _maps(decision.arm)
    return [*blocks, *examples, *_measured(sheet, command)]


def to_page(blocks: Sequence[Block]) -> str:
    """One file that needs nothing else: style, script and pictures are in it."""
    title = next(block.text for block in blocks if isinstance(block, Heading))
    heads = [block for block in blocks if isinstance(block, Heading) and block.level == 2]
    links = "".join(f'<a href="#{head.anchor}">{marked(head.text)}</a>' for head in heads)
    at = next((i + 1 for i, block in enumerate(blocks) if isinstance(block, Box)), 1)
    body = f"{to_html(blocks[:at])}\n<nav>{links}</nav>\n{to_html(blocks[at:])}"
    return FRAME.format(title=html.escape(title), css=CSS, script=SCRIPT, body=body)


# ------------------------------------------------------------------------------------------------------ sections


def _lead(sheet: Sheet) -> str:
    methods = {way.method for way in sheet.ways} - {PEERS + WHOLE}  # which is `whole`
    questions = {key for rows in sheet.ways.values() for key in rows}
    return (
        f"{len(methods)} methods, {_grouped(len(questions))} questions on {listed(sheet.families)}, "
        f"{_grouped(sheet.answers())} answers. The rules were written down before the first of them."
    )


def _headline(decision: Decision) -> list[str]:
    lines = []
    if why := decision.provisional:
        lines.append(f"**Provisional.** {why[0].upper()}{why[1:]}: what follows is {ARMS[decision.arm.name]}.")
    tiers = [f"{verdict.name} {verdict.outcome}" for verdict in decision.verdicts[:3]]
    lines.append(f"By the rules fixed beforehand: {'; '.join(tiers)}.")
    if decision.go is None:
        lines.append(f"Still needed: {_some(decision.verdicts[-1].claim.missing)}.")
    name = f"`{decision.default}`" if decision.default else "not decided"
    today = f" The package's is still `{DEFAULT}`." if decision.default not in (None, DEFAULT) else ""
    return [*lines, f"Default allocator by the rules: **{name}**; {decision.why}.{today}"]


def _rules(sheet: Sheet, decision: Decision) -> list[Block]:
    lead = (
        "Differences are paired by question, on `test-iid`, in points of exact answers, and count only if their 95 % "
        f"interval excludes 0. {EQUALLY} Rows used: {ARMS[decision.arm.name]}, {sheet.budget} tokens unless a number "
        "says otherwise."
    )
    blocks: list[Block] = [Heading("The decision"), Text(lead)]
    if sheet.budget != BUDGET:
        text = f"The rules are about {BUDGET} tokens and these rows have {sheet.budget}: read this as a rehearsal."
        blocks.append(Text(text, "warning"))
    blocks.append(_rule_table(decision))
    others = [arm for arm in sheet.arms if arm.name != decision.arm.name]
    return blocks + [
        Folded(
            f"The same rules on other rows, which do not decide: {ARMS[arm.name]}", [_rule_table(decide(sheet, arm))]
        )
        for arm in others
    ]


def _rule_table(decision: Decision) -> Table:
    lines = [[v.name, v.outcome, v.rule, _evidence(v.claim)] for v in decision.verdicts]
    return Table(["", "outcome", "rule", "numbers"], lines, prose=True)


def _evidence(claim: Claim) -> str:
    """The numbers a claim rests on, one under another, and what it lacks."""
    lines = list(claim.numbers[:MOST_NUMBERS])
    if len(claim.numbers) > MOST_NUMBERS:
        lines.append(f"and {len(claim.numbers) - MOST_NUMBERS} more")
    if claim.holds is None and claim.missing:
        lines.append(f"missing: {_some(claim.missing)}")
    return "\n".join(lines) or NONE


def _some(missing: Sequence[str], most: int = 4) -> str:
    rest = [f"{len(missing) - most} more"] if len(missing) > most else []
    return listed([*missing[:most], *rest])


def _first_told(arms: Sequence[Arm], ask: Callable[[Arm], Sequence[Any]], told: Callable[[Any], bool]) -> list[Any]:
    """For each of several things, what the first arm says of it that can tell: (arm, answer)."""
    said = [[(arm, one) for one in ask(arm)] for arm in arms]
    return [next((pair for pair in column if told(pair[1])), column[0]) for column in zip(*said, strict=True)]


def _predictions(arms: Sequence[Arm]) -> list[Block]:
    found = _first_told(arms, outcomes, _is_told)
    lines = [
        [one.name, one.outcome, one.text, _evidence(one.claim), SHORT[arm.name] if _is_told(one) else NONE]
        for arm, one in found
    ]
    lead = (
        "As written in docs/predictions.md before the first row. A predicted number is met where the 95 % interval "
        "contains it; **open** is what there are rows for and what they cannot tell."
    )
    rules = (
        f"**P5** holds if on every family the whole interval of the share kept is at least {LEAST_KEPT} %, does not "
        "hold if on one of them all of it is below, and is open otherwise. **P7** holds if on every family all "
        "allocators that cannot be told from the best one are among those predicted, does not hold if on one of them "
        "none is, and is open otherwise; told from it are those it beats by a paired difference whose interval "
        f"excludes 0 and whose p-value, after Holm, is below {ENOUGH:g}. **P9**: an image is large if its longer side "
        f"has at least {LARGE} pixels, and ambiguous if `{BASE}` is less than {100 * SURE:.0f} % sure of its answer; a "
        "second look is one tree over three places, which in the end has as many tokens as one look. **P8** holds if "
        "the whole interval of the families together is above a loss of one point, does not hold if all of it is below "
        "0, and is open otherwise; families that do not say the same are shown."
    )
    return [
        Heading("Predictions"),
        Text(lead),
        Table(["", "outcome", "prediction", "numbers", "rows"], lines, prose=True),
        Text(rules, "note"),
    ]


def _is_told(one: Prediction) -> bool:
    """Whether there were rows to ask, even if they leave it open."""
    return one.outcome != OUTCOMES[None]


def _questions(arms: Sequence[Arm]) -> list[Block]:
    found = _first_told(arms, open_questions, lambda one: one.sentence != NOT_MEASURED)
    lines = [
        [one.question, one.sentence, one.row if one.row == NONE else f"{one.row}; {SHORT[arm.name]}"]
        for arm, one in found
    ]
    return [Heading("Open questions"), Table(["question", "answer", "row"], lines, prose=True)]


def _methods(sheet: Sheet, arm: Arm) -> list[Block]:
    blocks: list[Block] = [Heading("Every method")]
    if picture := differences(arm):
        caption = f"Exact answers over `{BASE}` on {listed(asked_families(arm))} together, {ARMS[arm.name]}."
        blocks.append(Drawing([picture], caption, "wide"))
    keys = (
        f"{MARK} decides: these three comparisons were fixed beforehand (docs/predictions.md), and their p-value "
        "counts as it is. All other methods are exploratory and count by **p, after Holm**; `whole` is the ceiling, no "
        f"rival. Methods are in the order of their lead over `{BASE}` on the questions both were asked. **all**: the "
        "mean of the families, which count equally. **retained**: share of full-resolution accuracy, on the same "
        "questions and the same drawn images; **covered**: pixels inside some cell; **fine**: inside a cell of level 1 "
        "or less; **overlap**: of what is shown finely for two questions on one image, how much is the same; **hit**: "
        "relevance peaks in the true region; **cell**: the cell that scores highest lies in it. Click on a head to "
        "sort."
    )
    return [*blocks, *method_sections(sheet), Text(keys, "note")]


def _budgets(sheet: Sheet) -> list[Block]:
    blocks: list[Block] = []
    for arm in sheet.arms:
        table = budgets_table(arm)
        if table is None:
            continue
        drawn = [against_budget(arm), *(against_budget(arm, family) for family in asked_families(arm))]
        caption = f"Exact answers against tokens, {ARMS[arm.name]}; bands are 95 % intervals."
        pictures = [picture for picture in drawn if picture]
        blocks += [
            *([Drawing(pictures, caption)] if pictures else []),
            table,
            *as_shares(budgets_table(arm, shares=True)),
        ]
    return [Heading("Budgets"), *blocks] if blocks else []


def _costs(sheet: Sheet) -> list[Block]:
    found = [(arm, picture) for arm in sheet.arms if (picture := against_cost(arm))]
    note = "every budget of every method; dashed: the Pareto front, which nothing beats in both"
    drawings = [
        Drawing([picture], f"Exact answers against time, {ARMS[arm.name]}: {note}.", "wide") for arm, picture in found
    ]
    table = cost_table(sheet)
    if table is None:
        return []
    again = timed_again_table(sheet)
    more: list[Block] = [] if again is None else [Text(TIMED_AGAIN), again]
    return [Heading("Cost"), *drawings, Text(HOW_TIMED), table, *more]


def _ablations(arm: Arm) -> list[Block]:
    blocks = ablation_sections(arm)
    picture = against_hits(arm, spoilt_rates(arm, "hit"))
    best = forgiving(arm)
    if picture and best:
        text = f"Most is right at the lowest rate with {best[1].name.partition(',')[0]}: {number(best[2])} % exact."
        blocks[2:2] = [Drawing([picture], f"Exact answers as relevance is spoilt on purpose. {text}", "one")]
    return blocks


def _maps(arm: Arm) -> list[Block]:
    pictures = heat_maps(arm)
    caption = (
        f"Exact answers by place of the answer, {PARTS} by {PARTS} parts of the image, all families, which count "
        f"equally, {ARMS[arm.name]}; "
        f"parts with fewer than {FEWEST} questions are left empty."
    )
    return [Heading("Where on the page"), Drawing(pictures, caption, "maps")] if pictures else []


def _measured(sheet: Sheet, command: str) -> list[Block]:
    """Commands, devices, versions, dates, and the time all of it took."""
    measured = [*sheet.costs, *sheet.spent]
    devices = dict.fromkeys(line["device"] for line in measured if line.get("device"))
    torches = dict.fromkeys(line["torch"] for line in measured if line.get("torch"))
    dates = sorted({line["date"] for line in measured if line.get("date")})
    tuned = sum((model.get("tuned") or {}).get("seconds") or 0.0 for model in sheet.models.values())
    once = ". Each method was tuned once: how much another run would differ is not in them" if tuned else ""
    recorded = ", the steps of writing recorded as CUDA graphs" if sheet.graphs else ""
    lines = [
        ["command", f"`{command}`"],
        ["answers", f"{_grouped(sheet.answers())} of {len(sheet.ways)} ways of asking, in {sheet.dtype}"],
        ["images", f"{sheet.size[0]} × {sheet.size[1]} px unless said otherwise"],
        ["speed and memory", f"{sheet.device}, {sheet.measured_in}{recorded}" if sheet.costs else NOT_MEASURED],
        ["devices", listed(list(devices)) or NONE],
        ["versions", f"homunculus {__version__}" + (f", torch {listed(list(torches))}" if torches else "")],
        ["dates", " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else NONE],
        ["time of tuning", f"{tuned / 60:.1f} min"],
        ["time of answering", _time_of_answering(sheet.spent)],
        ["families together", EQUALLY],
        [
            "intervals",
            f"bootstrap over images (BCa), all questions of an image together; {RESAMPLES} draws{once}",
        ],
    ]
    if text := sheet.left_out():
        lines.append(["left out", text])
    return [Heading("How it was measured"), Table(["what", "how"], lines, prose=True)]


def _time_of_answering(spent: Sequence[Row]) -> str:
    """By device: an hour of one is not an hour of another."""
    by_device: dict[str, list[Row]] = defaultdict(list)
    for line in spent:
        by_device[line["device"]].append(line)
    told = [
        f"{sum(line['seconds'] for line in own) / 60:.1f} min on {device} for "
        f"{_grouped(sum(line['questions'] for line in own))} answers"
        for device, own in by_device.items()
    ]
    return f"{listed(told)}, without drawing" if told else NOT_MEASURED


def _grouped(count: int) -> str:
    """
    >>> _grouped(12345).split()
    ['12', '345']
    """
    return f"{count:,}".replace(",", "\N{NO-BREAK SPACE}")
