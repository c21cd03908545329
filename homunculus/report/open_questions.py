"""The questions this project was started with, each answered in one sentence made of rows, or "not measured"."""

from typing import NamedTuple

from homunculus.data import REGIONS
from homunculus.report.decision import BASE, OURS
from homunculus.report.numbers import NONE, Found, Paired, listed, number, percent, points
from homunculus.report.predictions import looked_again, region
from homunculus.report.sheet import THREE, WHOLE, Arm, said, told
from homunculus.report.tables import is_followup, retained

NOT_MEASURED = "not measured"


class Answered(NamedTuple):
    """A question, the sentence that answers it, and the row that shows it."""

    question: str
    sentence: str
    row: str = NONE


def verdict(pair: Paired, better: str, worse: str, same: str) -> str:
    """Which of three words fits a difference: it counts only where its interval excludes 0."""
    return same if not pair.counts else better if pair.difference > 0 else worse


def compared(question: str, first: Found, second: Found, better: str, worse: str, same: str) -> Answered:
    """Two rows and the sentence for how they differ."""
    pair = first.against(second) if first and second else None
    if pair is None:
        return Answered(question, NOT_MEASURED)
    sentence = (
        f"{verdict(pair, better, worse, same)}: {points(pair)} points ({pair.first:.1f} against {pair.second:.1f} %)."
    )
    return Answered(question, sentence, shown(first, second, pair))


def shown(first: Found, second: Found, pair: Paired) -> str:
    return f"{first.name} against {second.name}, {first.on}, {pair.questions} questions"


def multi_scale(arm: Arm) -> Answered:
    words = "Yes, cells of several sizes are better", "No, they are worse", "It cannot be told from chance"
    return compared("Does multi-scale help?", arm.find("pyramid"), arm.find(BASE), *words)


def fewer(arm: Arm) -> Answered:
    words = "Yes, and better", "No", "Yes, they cannot be told apart"
    question = "Do 150 foveated tokens match 273 of top-K?"
    return compared(question, arm.find(OURS, budget=150), arm.find(BASE, budget=273), *words)


def coverage(arm: Arm) -> Answered:
    question = "Is coverage worth its tokens on periphery and follow-up questions?"
    edge = [region(arm.find(name), "periphery") for name in (OURS, BASE)]
    after = [arm.find(name, relevance="first-turn").where("follow-ups", is_followup) for name in (OURS, BASE)]
    parts, rows = [], []
    for what, (first, second) in (("periphery", edge), ("follow-ups of a kept allocation", after)):
        pair = first.against(second) if first and second else None
        if pair is not None:
            parts.append(f"{what}: {verdict(pair, 'yes', 'no', 'not told from chance')}, {points(pair)} points")
            rows.append(shown(first, second, pair))
    return Answered(question, "; ".join(parts).capitalize() + "." if parts else NOT_MEASURED, "; ".join(rows) or NONE)


def anisotropy(arm: Arm) -> Answered:
    question = "Is anisotropy real?"
    square = next((one for value in (1, 1.0) if (one := arm.find("frequency", how={"stretch": value}))), None)
    words = "Yes, stretched cells are better", "No, they are worse", "It cannot be told from chance"
    return compared(question, arm.find("frequency"), square or arm.find("detail-tree"), *words)


def downsampling(arm: Arm) -> Answered:
    question = "Does plain downsampling win anywhere?"
    wins, asked = [], 0
    for family in THREE:
        for place in REGIONS:
            first, second = (region(arm.find(name, [family]), place) for name in ("uniform", OURS))
            pair = first.against(second) if first and second else None
            asked += pair is not None
            if pair is not None and pair.low > 0:
                wins.append(f"{family}, {place} ({points(pair)})")
    if not asked:
        return Answered(question, NOT_MEASURED)
    sentence = f"Yes, over `{OURS}`: {listed(wins)}." if wins else f"No: nowhere does `uniform` beat `{OURS}`."
    return Answered(question, sentence, f"`uniform` against `{OURS}`, {asked} pairs of family and region")


def full(arm: Arm) -> Answered:
    question = "What does the full 4096 give?"
    whole, ours = arm.find(WHOLE), arm.find(OURS)
    pair = whole.against(ours) if whole and ours else None
    if pair is None:
        return Answered(question, NOT_MEASURED)
    costs = arm.cost(WHOLE), arm.cost(OURS)
    speed = f", at {number(costs[1]['per_second'] / costs[0]['per_second'], 1)} times the time" if all(costs) else ""  # type: ignore[index]
    kept = percent(retained(ours, whole))
    sentence = f"{pair.first:.1f} %, {points(pair)} points over {ours.name} (which keeps {kept} % of it){speed}."
    return Answered(question, sentence, shown(whole, ours, pair))


def right_budget(arm: Arm) -> Answered:
    """The fewest tokens that lose no more than a point to the most."""
    question = "Is 273 right?"
    budgets = [tokens for tokens in arm.budgets(OURS) if arm.find(OURS, budget=tokens)]
    if len(budgets) < 2:
        return Answered(question, NOT_MEASURED)
    most = arm.find(OURS, budget=budgets[-1])
    pairs = {tokens: arm.find(OURS, budget=tokens).against(most) for tokens in budgets[:-1]}
    if None in pairs.values():  # too few questions in common
        return Answered(question, NOT_MEASURED)
    enough = next((tokens for tokens, pair in pairs.items() if pair and pair.difference >= -1), budgets[-1])
    curve = ", ".join(
        f"{tokens}: {number(100 * (arm.find(OURS, budget=tokens).average('exact') or 0))}" for tokens in budgets
    )
    word = "Yes" if enough == arm.sheet.budget else "More than needed" if enough < arm.sheet.budget else "Too few"
    sentence = f"{word}: {enough} is the smallest budget within 1 point of {budgets[-1]} ({curve} %)."
    return Answered(
        question, sentence, f"`{OURS}`, all families, budgets {listed([str(tokens) for tokens in budgets])}"
    )


def boundaries(arm: Arm) -> Answered:
    words = "Yes, segments are better than squares", "No, squares are better", "It cannot be told from chance"
    return compared("Do semantic boundaries matter?", arm.find("atlas"), arm.find(OURS), *words)


def best_option(arm: Arm, question: str, method: str, *options: str) -> Answered:
    """Of the values of these options that were tried, the one with the most exact answers, against the usual one."""
    ways = [way for way in arm.ways() if way.method == method and way.options and set(way.options) <= set(options)]
    tried = {how: one for how in sorted({way.how for way in ways}) if (one := arm.find(method, how=how))}
    usual = arm.find(method)
    best = max(tried, key=lambda how: tried[how].average("exact") or 0.0, default=None)
    pair = tried[best].against(usual) if best is not None and usual else None
    if best is None or pair is None:
        return Answered(question, NOT_MEASURED)
    word = verdict(pair, "it is better than the default", "the default is better", "no different from the default")
    value = said(next(way.options for way in ways if way.how == best))
    sentence = f"Of {len(tried)} tried, {value} does best; {word}: {points(pair)} points."
    return Answered(question, sentence, shown(tried[best], usual, pair))


def looks(arm: Arm) -> Answered:
    question, words = (
        "One look or three?",
        ("More looks are better", "One look is better", "It cannot be told from chance"),
    )
    again = looked_again(arm)
    return Answered(question, NOT_MEASURED) if again is None else compared(question, again, arm.find(OURS), *words)


def progressive(arm: Arm) -> Answered:
    """By accuracy and by tokens: it pays where it loses nothing and spends less, or wins."""
    question = "Does progressive loading pay?"
    hows = sorted({way.how for way in arm.ways() if way.method == OURS and way.options.get("progressive")})
    found = next((one for how in [told({"progressive": True}), *hows] if (one := arm.find(OURS, how=how))), None)
    usual = arm.find(OURS)
    pair = found.against(usual) if found and usual else None
    if found is None or pair is None:
        return Answered(question, NOT_MEASURED)
    spent, before = found.average("tokens") or 0.0, usual.average("tokens") or 0.0
    pays = pair.low > 0 or (pair.high >= 0 and spent < before)
    sentence = f"{'Yes' if pays else 'No'}: {points(pair)} points with {spent:.0f} tokens instead of {before:.0f}."
    return Answered(question, sentence, shown(found, usual, pair))


def open_questions(arm: Arm) -> list[Answered]:
    """All of them, in the order in which they were asked."""
    return [
        multi_scale(arm),
        fewer(arm),
        coverage(arm),
        anisotropy(arm),
        downsampling(arm),
        full(arm),
        right_budget(arm),
        boundaries(arm),
        best_option(arm, "Which foveal share?", OURS, "foveal_share"),
        best_option(arm, "Fixed or learned split?", "pyramid", "mode", "split"),
        looks(arm),
        progressive(arm),
    ]
