"""The questions this project was started with, each answered in one sentence made of rows, or "not measured"."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from homunculus.allocation.levels import SPLIT
from homunculus.data import REGIONS
from homunculus.eval.relevances import KEPT_CELLS
from homunculus.eval.signs import holm
from homunculus.eval.suites import LEARNED_SPLIT, THRICE
from homunculus.report.decision import BASE, ENOUGH, OURS
from homunculus.report.numbers import MARGIN, NONE, Found, Paired, disagreeing, listed, number, percent, points
from homunculus.report.predictions import region
from homunculus.report.sheet import SHORT, THREE, WHOLE, Arm, said, told
from homunculus.report.tables import is_followup, retained

NOT_MEASURED = "not measured"
MOST = 1 << 30  # tokens


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
    sides = f"{number(pair.first)} against {number(pair.second)} %"
    sentence = f"{verdict(pair, better, worse, same)}: {points(pair)} points ({sides})."
    if each := disagreeing(first, second):
        sentence += f" By family: {listed([f'{family} {points(own)}' for family, own in each])}."
    return Answered(question, sentence, shown(first, second, pair))


def shown(first: Found, second: Found, pair: Paired) -> str:
    return f"{first.name} against {second.name}, {first.on}, {pair.questions} questions"


def multi_scale(arm: Arm) -> Answered:
    words = "Yes, cells of several sizes are better", "No, they are worse", "It cannot be told from chance"
    return compared("Does multi-scale help?", arm.find("pyramid"), arm.find(BASE), *words)


def fewer(arm: Arm) -> Answered:
    """They match where the interval shows that they lose less than a point."""
    question = "Do 150 foveated tokens match 273 of top-K?"
    first, second = arm.find(OURS, budget=150), arm.find(BASE, budget=273)
    words = "Yes, and better", "No", "It cannot be told"
    pair = first.against(second) if first and second else None
    if pair is not None and pair.low > -MARGIN and not pair.counts:
        words = words[0], words[1], "Yes, they lose less than a point"
    return compared(question, first, second, *words)


def periphery(arm: Arm) -> Answered:
    words = "Yes", "No, it costs more than it gives", "It cannot be told from chance"
    ours, base = (region(arm.find(name), "periphery") for name in (OURS, BASE))
    return compared("Is coverage worth its tokens on the periphery?", ours, base, *words)


def followups(arm: Arm) -> Answered:
    """On cells that were chosen for the first question and kept, each told anew how relevant it is. Where all was
    kept, what the encoder was told of the first question misleads it whatever the cells are: that says nothing."""
    words = "Yes", "No, it costs more than it gives", "It cannot be told from chance"
    ours, base = (arm.find(name, relevance=KEPT_CELLS).where("follow-ups", is_followup) for name in (OURS, BASE))
    return compared("Is coverage worth its tokens on follow-up questions?", ours, base, *words)


def anisotropy(arm: Arm) -> Answered:
    """Which way cells are stretched is the clean comparison: square ones are one tree that tiles, not four."""
    question, along = "Is anisotropy real?", arm.find("frequency")
    across, square = (arm.find("frequency", how={"stretch": way}) for way in ("across", "none"))
    pairs = [one.against(along) if one and along else None for one in (across, square)]
    if pairs[0] is None or pairs[1] is None:
        return Answered(question, NOT_MEASURED)
    matters = "Yes, which way cells are stretched matters" if pairs[0].counts else "Not that it could be told"
    sentence = (
        f"{matters}: across strokes instead of along them {points(pairs[0])} points; square cells, of one tree that "
        f"tiles in place of four that overlap, {points(pairs[1])}."
    )
    return Answered(question, sentence, shown(across, along, pairs[0]))


def downsampling(arm: Arm) -> Answered:
    pairs: dict[str, list[Found]] = {}
    for family in THREE:
        both = [arm.find(name, [family]) for name in ("uniform", OURS)]
        pairs |= {f"{family}, {place}": [region(one, place) for one in both] for place in REGIONS}
    return winner("Does plain downsampling win anywhere?", pairs)


def downsampling_elsewhere(arm: Arm) -> Answered:
    """Where much speaks for it."""
    ways: dict[str, dict[str, Any]] = {
        "relevance wrong for 70 %": {"relevance": "hit-30"},
        "1024 tokens": {"budget": 1024},
        "images unlike training": {"split": "test-ood"},
    }
    pairs = {
        f"{family}, {what}": [arm.find(name, [family], **settings) for name in ("uniform", OURS)]
        for family in THREE
        for what, settings in ways.items()
    }
    return winner("And where relevance is wrong, tokens are many or images are of another kind?", pairs)


def winner(question: str, found: Mapping[str, Sequence[Found]]) -> Answered:
    """Where the first of each two is better; all that were compared are corrected for."""
    known = {name: pair for name, (a, b) in found.items() if a and b and (pair := a.against(b)) is not None}
    if not known:
        return Answered(question, NOT_MEASURED)
    likely = dict(zip(known, holm([pair.p for pair in known.values()]), strict=True))
    wins = [f"{name} ({points(pair)})" for name, pair in known.items() if pair.low > 0 and likely[name] < ENOUGH]
    sentence = f"Yes, over `{OURS}`: {listed(wins)}." if wins else f"No: nowhere does `uniform` beat `{OURS}`."
    return Answered(question, sentence, f"`uniform` against `{OURS}`, {len(known)} pairs of rows, p after Holm")


def full(arm: Arm) -> Answered:
    question = "What does the full 4096 give?"
    whole, ours = arm.find(WHOLE), arm.find(OURS)
    pair = whole.against(ours) if whole and ours else None
    if pair is None:
        return Answered(question, NOT_MEASURED)
    costs = arm.cost(WHOLE), arm.cost(OURS)
    speed = f", at {number(costs[1]['per_second'] / costs[0]['per_second'], 1)} times the time" if all(costs) else ""  # type: ignore[index]
    kept = percent(retained(ours, whole))
    sentence = f"{pair.first:.1f} %: {points(pair)} points against {ours.name}, which keeps {kept} % of it{speed}."
    return Answered(question, sentence, shown(whole, ours, pair))


def right_budget(arm: Arm) -> Answered:
    """Whether fewer surely lose less than a point, and whether more are surely better; on the same questions. What this
    arm was not asked, fewer or more, another may have been."""
    question, usual = "Is 273 right?", arm.sheet.budget
    arms = [arm, *(other for other in arm.sheet.arms if other.name != arm.name)]
    fewer = next(((one, found) for one in arms if (found := _against_usual(one, range(usual)))), None)
    more = next(((one, found) for one in arms if (found := _against_usual(one, range(usual + 1, MOST)))), None)
    if fewer is None or more is None:
        return Answered(question, NOT_MEASURED)
    enough = [tokens for tokens, pair in fewer[1].items() if pair.low > -MARGIN]
    better = [tokens for tokens, pair in more[1].items() if pair.low > 0]
    words = [f"{min(enough)} lose less than a point"] if enough else []
    words += [f"{max(better, key=lambda tokens: more[1][tokens].difference)} are better"] if better else []
    curves = [listed([f"{tokens} {points(pair)}" for tokens, pair in own.items()]) for _, own in (fewer, more)]
    if fewer[0] != more[0]:
        curves = [f"{SHORT[one.name]} {curve}" for (one, _), curve in zip((fewer, more), curves, strict=True)]
    sentence = f"{listed(words).capitalize() if words else 'Yes'}: against {usual}, {'; '.join(curves)} points."
    budgets = listed([str(tokens) for tokens in (*fewer[1], usual, *more[1])])
    if others := dict.fromkeys(SHORT[one.name] for one, _ in (fewer, more) if one != arm):
        budgets += f", some of them {listed([*others])}"
    return Answered(question, sentence, f"`{OURS}`, all families, budgets {budgets}")


def _against_usual(arm: Arm, budgets: range) -> dict[int, Paired]:
    """Our allocator with these budgets against the main one, where both were asked."""
    usual = arm.find(OURS)
    pairs = {tokens: arm.find(OURS, budget=tokens).against(usual) for tokens in arm.budgets(OURS) if tokens in budgets}
    return {tokens: pair for tokens, pair in pairs.items() if pair is not None}


def boundaries(arm: Arm) -> Answered:
    words = "Yes, segments are better than squares", "No, squares are better", "It cannot be told from chance"
    answered = compared("Do semantic boundaries matter?", arm.find("atlas"), arm.find(OURS), *words)
    if answered.sentence == NOT_MEASURED:
        return answered
    seen = ", and readers saw those of 96 images" if arm.name != "zero-shot" else ""
    return answered._replace(sentence=f"{answered.sentence} No recipe trains with segments{seen}.")


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
    sentence = f"Of {len(tried)} tried, {value} does best on these questions; {word}: {points(pair)} points."
    return Answered(question, sentence, shown(tried[best], usual, pair))


def split(arm: Arm) -> Answered:
    """The fixed split against the learned one, and both against one ranking of all cells."""
    question, ranked = "Fixed or learned split?", arm.find("pyramid")
    fixed, learned = (arm.find("pyramid", how={"mode": "split", "split": own}) for own in (None, LEARNED_SPLIT))
    pair = learned.against(fixed) if learned and fixed else None
    other = ranked.against(learned) if ranked and learned else None
    if pair is None or other is None:
        return Answered(question, NOT_MEASURED)
    word = verdict(pair, "Learned", "Fixed", "It cannot be told from chance")
    sentence = (
        f"{word}: {'/'.join(map(str, LEARNED_SPLIT))} cells, learned on `val`, instead of {'/'.join(map(str, SPLIT))} "
        f"{points(pair)} points; one ranking of all cells instead of the learned split {points(other)}."
    )
    return Answered(question, sentence, shown(learned, fixed, pair))


def looks(arm: Arm) -> Answered:
    """As many tokens on both sides: one tree over three places against one, three looks side by side against one of
    three times the tokens."""
    question, budget = "One look or three?", arm.sheet.budget
    pairs = {}
    for combine, tokens in (("tree", budget), ("concat", 3 * budget)):
        again, once = arm.find(OURS, how=THRICE | {"combine": combine}), arm.find(OURS, budget=tokens)
        pair = again.against(once) if again and once else None
        if pair is None:
            return Answered(question, NOT_MEASURED)
        pairs[combine] = (again, once, pair)
    (tree, one, first), (_, _, second) = pairs.values()
    gains = [pair.low > 0 for pair in (first, second)]
    losses = [pair.high < 0 for pair in (first, second)]
    word = "Three" if any(gains) and not any(losses) else "One" if not any(gains) else "It depends"
    sentence = (
        f"{word}: one tree over three places instead of one {points(first)} points at {budget} tokens in the end, "
        f"{number(tree.average('tokens'), 0)} in all; three looks side by side instead of one of {3 * budget} tokens "
        f"{points(second)}."
    )
    return Answered(question, sentence, shown(tree, one, first))


def progressive(arm: Arm) -> Answered:
    """By accuracy and by tokens: it pays where it wins, or spends less and surely loses less than a point."""
    question = "Does progressive loading pay?"
    hows = sorted({way.how for way in arm.ways() if way.method == OURS and way.options.get("progressive")})
    found = next((one for how in [told({"progressive": True}), *hows] if (one := arm.find(OURS, how=how))), None)
    usual = arm.find(OURS)
    pair = found.against(usual) if found and usual else None
    if found is None or pair is None:
        return Answered(question, NOT_MEASURED)
    spent, before = found.average("tokens") or 0.0, usual.average("tokens") or 0.0
    pays = pair.low > 0 or (pair.low > -MARGIN and spent < before)
    counted = f"{points(pair)} points with {spent:.0f} tokens instead of {before:.0f}"
    sentence = f"{'Yes' if pays else 'No'}: {counted}; time was not measured."
    return Answered(question, sentence, shown(found, usual, pair))


def open_questions(arm: Arm) -> list[Answered]:
    """All of them, in the order in which they were asked."""
    return [
        multi_scale(arm),
        fewer(arm),
        periphery(arm),
        followups(arm),
        anisotropy(arm),
        downsampling(arm),
        downsampling_elsewhere(arm),
        full(arm),
        right_budget(arm),
        boundaries(arm),
        best_option(arm, "Which foveal share?", OURS, "foveal_share"),
        split(arm),
        looks(arm),
        progressive(arm),
    ]
