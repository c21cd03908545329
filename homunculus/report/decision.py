"""The decision rules of docs/predictions.md, applied to paired differences and measured speeds.

A rule holds, does not hold, or cannot be told because rows are missing; nothing is guessed. How the rules are read
where they leave room:

    beats by at least p     the mean difference is at least p points and its 95 % interval excludes 0
    a loss of less than p   the whole 95 % interval is above -p points, on every family: a loss that is not shown to be
                            smaller does not count as smaller
    within 1 of topk        pyramid is no more than 1 point ahead, in the mean over all families; behind it is within
    times as fast           questions per second against topk at the main budget; fewer tokens may make it fast, at any
                            budget that was asked in any arm; one that was timed and is not fast enough needs no answers
    less than twice as fast and pyramid is not, without losing a point, at any budget
    more than 1 point       over all families together
    everything within 2     no allocator is further ahead of the simplest, over all families, than by 2 points; who is
                            behind is within. One whose mean is, but not for sure, leaves it open. Everything is every
                            allocator of the package that was asked in any arm: a method of somebody's own stands in
                            the tables, and decides nothing
    the simplest            topk or stratified, whichever is ahead on the questions both were asked
    the best peer           of all peers of the package that were asked in any arm, the one that is least behind us on
                            the questions both were asked
    all families together   the mean of the three: each counts equally, however many questions it was asked

A decision on methods that were not tuned for, or by numbers of which one is about fewer than `FEWEST` questions of a
family, is provisional.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from homunculus.eval.plans import is_built_in
from homunculus.eval.signs import holm
from homunculus.eval.suites import DECIDE
from homunculus.report.numbers import Found, Paired, chance, counted, number, points, signed
from homunculus.report.sheet import BUDGET, THREE, Arm, Sheet

OURS, BASE = "foveated-pyramid", "topk"  # as the rules were written down, whatever becomes the default
SIMPLEST = ("topk", "stratified")
BASELINES = ("uniform", "random", "topk", "stratified")
FEWEST = 1000  # questions of each family that a decision wants
OUTCOMES = {True: "holds", False: "does not hold", None: "cannot be told"}
ENOUGH = 0.05


class Claim(NamedTuple):
    """True, False, or None where rows are missing or do not tell; the numbers it rests on; what is missing; how many
    questions of a family the least of these numbers is about."""

    holds: bool | None
    numbers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    fewest: float = math.inf


class Verdict(NamedTuple):
    """A rule, in words, and what came of it."""

    name: str
    rule: str
    claim: Claim

    @property
    def outcome(self) -> str:
        return OUTCOMES[self.claim.holds]


class Decision(NamedTuple):
    """GO (True), NO-GO (False) or neither yet (None), every rule, and which allocator becomes the default."""

    arm: Arm
    go: bool | None
    verdicts: tuple[Verdict, ...]
    default: str | None
    why: str

    @property
    def provisional(self) -> str | None:
        """Why this is no last word: the rules ask for methods tuned on equal samples, and for questions enough."""
        if self.arm.name != "tuned":
            return "the rules ask for every method tuned on equally many samples, and there are no such rows yet"
        fewest = min(verdict.claim.fewest for verdict in self.verdicts)
        return None if fewest >= FEWEST else f"it rests on a number about {fewest} questions of a family"

    @property
    def word(self) -> str:
        return {True: "GO", False: "NO-GO", None: "Not decided"}[self.go]


# ------------------------------------------------------------------------------------------------------ claims


def all_of(claims: Iterable[Claim]) -> Claim:
    """False as soon as one is, whatever is missing.

    >>> all_of([Claim(None), Claim(False)]).holds, all_of([Claim(None), Claim(True)]).holds
    (False, None)
    """
    claims = tuple(claims)
    every = [claim.holds for claim in claims]
    holds = False if False in every else None if None in every else True
    told = [claim for claim in claims if claim.holds is False] if holds is False else claims  # what made it fail
    return _together(told, holds)


def any_of(claims: Iterable[Claim]) -> Claim:
    """True as soon as one is.

    >>> any_of([Claim(None), Claim(True)]).holds, any_of([Claim(None), Claim(False)]).holds
    (True, None)
    """
    claims = tuple(claims)
    every = [claim.holds for claim in claims]
    holds = True if True in every else None if None in every else False
    told = [claim for claim in claims if claim.holds] if holds else claims  # what made it hold is enough
    return _together(told, holds)


def not_(claim: Claim) -> Claim:
    return claim._replace(holds=None if claim.holds is None else not claim.holds)


def _together(claims: Sequence[Claim], holds: bool | None) -> Claim:
    numbers = dict.fromkeys(text for claim in claims for text in claim.numbers)
    missing = dict.fromkeys(text for claim in claims for text in claim.missing) if holds is None else ()
    fewest = min((claim.fewest for claim in claims), default=math.inf)
    return Claim(holds, tuple(numbers), tuple(missing), fewest)


def beats(first: Found, second: Found, at_least: float, more: bool = False) -> Claim:
    """By so many points (or `more` than that), and more than chance would."""
    pair, claim = _pair(first, second)
    if pair is None:
        return claim
    enough = pair.difference > at_least if more else pair.difference >= at_least
    return claim._replace(holds=enough and pair.low > 0)


def loses_less(first: Found, second: Found, than: float) -> Claim:
    """A loss that is surely smaller than so many points; a gain is one."""
    pair, claim = _pair(first, second)
    return claim if pair is None else claim._replace(holds=pair.low > -than)


def no_further_ahead(first: Found, second: Found, than: float) -> Claim:
    """Ahead by no more than so many points in the mean, or behind; where the interval goes beyond, that is said."""
    pair, claim = _pair(first, second)
    if pair is None:
        return claim
    holds = pair.difference <= than
    unsure = " (the interval reaches beyond)" if holds and pair.high > than else ""
    return claim._replace(holds=holds, numbers=(claim.numbers[0] + unsure,))


def within(first: Found, second: Found, than: float, p: float | None) -> Claim:
    """Ahead by no more than so many points in the mean, or behind; open where it is further ahead, but not for sure."""
    pair, claim = _pair(first, second)
    if pair is None:
        return claim
    ahead = _for_sure(beats(first, second, than, more=True), p).holds
    return claim._replace(holds=True if pair.difference <= than else None if not ahead else False)


def _pair(first: Found, second: Found) -> tuple[Paired | None, Claim]:
    pair = first.against(second) if first and second else None
    if pair is not None:
        text = f"{first.on}: {first.name} − {second.name} = {points(pair)}, {counted(pair)}"
        return pair, Claim(None, (text,), (), pair.fewest)
    lacking = tuple(found.label for found in (first, second) if not found)
    return None, Claim(None, (), lacking or (f"questions asked of both {first.label} and {second.label}",))


def faster(arm: Arm, method: str, budget: int, than: str, times: float) -> Claim:
    """So many times the questions per second of another method at the main budget."""
    own, other = arm.cost(method, budget), arm.cost(than)
    if own is None or other is None:
        lacking = [(method, budget)] * (own is None) + [(than, arm.sheet.budget)] * (other is None)
        return Claim(None, (), tuple(f"the cost of `{name}` {tokens}" for name, tokens in lacking))
    ratio = own["per_second"] / other["per_second"]
    return Claim(ratio >= times, (f"speed: `{method}` {budget} / `{than}` {arm.sheet.budget} = {number(ratio, 2)}",))


def faster_without_loss(arm: Arm, method: str, times: float, loss: float) -> Claim:
    """At the main budget or a smaller one: so many times as fast as topk, losing less than so much anywhere."""
    budgets = _up_to_main(arm, method)
    smaller = [] if len(budgets) > 1 else [Claim(None, (), (f"`{method}` with fewer than {arm.sheet.budget} tokens",))]
    return any_of(
        [
            *smaller,
            *(
                all_of(
                    [
                        faster(arm, method, tokens, BASE, times),
                        *(loses_less(arm.find(method, [f], budget=tokens), arm.find(BASE, [f]), loss) for f in THREE),
                    ]
                )
                for tokens in budgets
            ),
        ]
    )


# ------------------------------------------------------------------------------------------------------ rules


def on(arm: Arm, method: str, family: str, at_least: float, against: str = BASE) -> Claim:
    return beats(arm.find(method, [family]), arm.find(against, [family]), at_least)


def tier_1(arm: Arm) -> Claim:
    wins = [on(arm, method, family, 3) for method in DECIDE for family in THREE]
    return any_of([*wins, *(faster_without_loss(arm, method, 2, 2) for method in DECIDE)])


def tier_2(arm: Arm) -> Claim:
    wins = all_of([on(arm, OURS, "documents", 5), on(arm, OURS, "scenes", 3)])
    return any_of([wins, faster_without_loss(arm, OURS, 3, 1)])


def tier_3(arm: Arm) -> Claim:
    """At one budget: ahead of every baseline on every family, and twice as fast as each of them."""
    return any_of(_tier_3_at(arm, tokens) for tokens in _up_to_main(arm, OURS))


def _up_to_main(arm: Arm, method: str) -> list[int]:
    budgets = {tokens for tokens in arm.expected_budgets(method) if tokens <= arm.sheet.budget}
    return sorted(budgets | {arm.sheet.budget})


def _tier_3_at(arm: Arm, tokens: int) -> Claim:
    absent = tuple(f"`{name}`" for name in filter(is_built_in, arm.expected(Arm.peers)) if name not in arm.peers())
    claims = [Claim(None, (), absent)] if absent else []
    for family, least in zip(THREE, (7, 5, 5), strict=True):
        ours = arm.find(OURS, [family], budget=tokens)
        peer = best_peer(arm, family)
        others = [arm.find(name, [family]) for name in BASELINES] + [peer or Found("peers", "any peer", family, {})]
        claims += [beats(ours, other, least) for other in others]
    rivals = dict.fromkeys([*BASELINES, *(peer.method for f in THREE if (peer := best_peer(arm, f)))])
    return all_of([*claims, *(faster(arm, OURS, tokens, name, 2) for name in rivals)])


def best_peer(arm: Arm, family: str) -> Found | None:
    """The published method that leaves us the least lead on a family, on the questions both were asked."""
    found = [one for name in filter(is_built_in, arm.peers()) if (one := arm.find(name, [family]))]
    return foremost(found, arm.find(OURS, [family])) if found else None


def foremost(found: Sequence[Found], base: Found) -> Found:
    """The one with the largest lead over another method, on the questions both were asked: means of different
    questions are not compared."""

    def lead(one: Found) -> float:
        pair = one.against(base) if base else None
        return -math.inf if pair is None else pair.difference

    return max(found, key=lead)


def multi_scale_fails(arm: Arm) -> Claim:
    close = no_further_ahead(arm.find("pyramid"), arm.find(BASE), 1)
    return all_of([close, not_(faster_without_loss(arm, "pyramid", 2, 1))])


def segmentation_fails(arm: Arm) -> Claim:
    p = corrected(arm, ["documents"]).get("atlas")
    claim = _for_sure(on(arm, "atlas", "documents", 5), p)
    return not_(claim)._replace(numbers=tuple(f"{text}, corrected p {chance(p)}" for text in claim.numbers))


def _for_sure(claim: Claim, p: float | None) -> Claim:
    """What a method wins that does not decide counts only if its corrected p-value is low enough too."""
    return claim._replace(holds=False) if claim.holds and p is not None and p >= ENOUGH else claim


def simplest_wins(arm: Arm) -> Claim:
    simple = simplest(arm)
    if simple is None:
        return Claim(None, (), tuple(arm.find(name).label for name in SIMPLEST if not arm.find(name)))
    names = dict.fromkeys([*filter(is_built_in, arm.expected(Arm.allocators)), *DECIDE])
    others = [arm.find(name) for name in names if name not in SIMPLEST]
    rivals = [one for one in others if one]
    p_values = corrected(arm, base=simple.method)
    claims = [within(one, simple, 2, p_values.get(one.method)) for one in rivals]
    lacking = tuple(one.label for one in others if not one)
    told = _pair(foremost(rivals, simple), simple)[1].numbers if rivals else ()
    every = all_of([*claims, *([Claim(None, (), lacking)] if lacking else [])])
    return every._replace(numbers=tuple(f"the best: {text}" for text in told))


def simplest(arm: Arm) -> Found | None:
    """Whichever of topk and stratified is ahead, over all families; both are needed to tell."""
    found = [arm.find(name) for name in SIMPLEST]
    return foremost(found, found[0]) if all(found) else None


def go(arm: Arm) -> Claim:
    return all_of([tier_2(arm), beats(arm.find(OURS), arm.find("pyramid"), 1, more=True)])


RULES = (
    ("tier 1", "one of `pyramid`, `log-polar-rings`, `foveated-pyramid` beats `topk` by at least 3 points on a "
     "dataset, or is at least twice as fast at a loss of less than 2", tier_1),
    ("tier 2", "`foveated-pyramid` beats `topk` by at least 5 points on documents and 3 on scenes, "
     "or is at least three times as fast at a loss of less than 1", tier_2),
    ("tier 3", "it beats every baseline (`uniform`, `random`, `topk`, `stratified`, the best peer) by at least 7, 5 "
     "and 5 points on documents, scenes and scene text, and is at least twice as fast", tier_3),
    ("multi-scale has not earned its keep", "`pyramid` within 1 point of `topk` and less than twice as fast",
     multi_scale_fails),
    ("segmentation is not worth its cost", "`atlas` less than 5 points over `topk` on documents", segmentation_fails),
    ("the simplest becomes the default", "everything within 2 points: `topk` or `stratified`", simplest_wins),
    ("GO", "tier 2 holds and `foveated-pyramid` beats `pyramid` by more than 1 point; otherwise NO-GO", go),
)  # fmt: skip


def deciding_arm(sheet: Sheet) -> Arm:
    """Tuned on equal samples; where there are no such rows, the first arm there is says what it can."""
    arms = {arm.name: arm for arm in sheet.arms}
    return next(arms[name] for name in ("tuned", "zero-shot", "seconds") if name in arms)


def at_main_budget(arm: Arm, claim: Claim) -> Claim:
    """Rules and predictions are about 273 tokens: rows with others tell nothing of them."""
    return claim if arm.sheet.budget == BUDGET else Claim(None, claim.numbers, (f"methods with {BUDGET} tokens",))


def decide(sheet: Sheet, arm: Arm | None = None) -> Decision:
    """Every rule, in the order of docs/predictions.md."""
    arm = arm or deciding_arm(sheet)
    verdicts = tuple(Verdict(name, rule, at_main_budget(arm, function(arm))) for name, rule, function in RULES)
    default, why = default_allocator(arm, verdicts[-2].claim)
    return Decision(arm, verdicts[-1].claim.holds, verdicts, default, why)


def default_allocator(arm: Arm, simple_rule: Claim) -> tuple[str | None, str]:
    """Which allocator becomes the default by these rules, and why, in one sentence."""
    simple = simplest(arm)
    if simple is None or simple_rule.missing:
        return None, f"rows are missing: {'; '.join(simple_rule.missing)}"
    name = simple.method
    if simple_rule.holds is None:
        return None, f"one is more than 2 points ahead of `{name}`, but that may be chance"
    if simple_rule.holds:
        return name, f"no allocator beats `{name}` by more than 2 points, so the simplest is the default"
    pairs = {own: arm.find(own).against(simple) for own in DECIDE}
    wins = [(pair.difference, own) for own, pair in pairs.items() if pair and pair.low > 0 and pair.difference > 2]
    if wins:
        gain, best = max(wins)
        return best, f"of the three that decide, `{best}` has the largest lead over `{name}`: {signed(gain)} points"
    why = "what an exploratory method wins has to be won again on fresh questions"
    return name, f"none of the three that decide beats `{name}` by more than 2 points; {why}"


def corrected(arm: Arm, families: Sequence[str] = THREE, base: str = BASE) -> dict[str, float]:
    """p-values against one method of all others that neither decide nor are shown every leaf, after Holm. Those of the
    package count as if there were no methods of somebody's own, and those of somebody's own among all."""
    names = [name for name in (*arm.allocators(), *arm.peers()) if name not in (*DECIDE, base)]
    pairs = {name: arm.find(name, families).against(arm.find(base, families)) for name in names}
    known = {name: pair.p for name, pair in pairs.items() if pair is not None}
    ours = {name: p for name, p in known.items() if is_built_in(name)}
    among_all, among_ours = (dict(zip(own, holm(list(own.values())), strict=True)) for own in (known, ours))
    return among_all | among_ours
