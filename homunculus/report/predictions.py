"""What was expected before the first row (docs/predictions.md), and what came.

A predicted number is met where the 95 % interval of the measured one contains it, a range where the interval meets it.
That something is better is met only where the interval excludes 0; as good as, where the whole interval is above a loss
of one point, and not where all of it is below 0.
At least a share is met where the whole interval is at least that, and not where all of it is below; best is met where
all that cannot be told from the best are among the predicted, and not where none of them is. What is neither is open.
"""

from collections.abc import Sequence
from typing import NamedTuple

from homunculus.data import REGIONS
from homunculus.eval.plans import is_built_in
from homunculus.eval.signs import holm
from homunculus.eval.suites import THRICE
from homunculus.relevance.maps import SOURCES
from homunculus.report.decision import BASE, ENOUGH, OURS, Claim, all_of, any_of, at_main_budget, beats, foremost, not_
from homunculus.report.numbers import MARGIN, Found, disagreeing, listed, percent, points, signed
from homunculus.report.sheet import THREE, WHOLE, Arm

OUTCOMES = {True: "held", False: "did not hold", None: "cannot be told"}
OPEN = "open"  # there are rows enough to ask, and not to tell
LEAST_KEPT = 97  # percent of full resolution
LARGE = 2048  # pixels: an image is large if its longer side has as many
MOST_NAMES = 4
BY_REGION = {BASE: (94, 67, 45), "log-polar-rings": (92, 81, 73)}
OVER_TOPK = {"topk-coverage": 1.8, "pseudo-log-polar": 2.5, "stratified": 2.8}
BY_FAMILY = dict(zip(THREE, (6, 2, 4), strict=True))
BEST = {"documents": ("frequency", "atlas"), "scene-text": ("frequency", "atlas"), "scenes": ("pyramid", "detail-tree")}
SURE = 0.9  # an image that topk is less sure of than this is ambiguous


class Prediction(NamedTuple):
    """A prediction as it was written down, and what came of it."""

    name: str
    text: str
    claim: Claim

    @property
    def outcome(self) -> str:
        return OPEN if self.claim.holds is None and not self.claim.missing else OUTCOMES[self.claim.holds]


def lacking(*found: Found) -> Claim:
    absent = tuple(one.label for one in found if not one)
    return Claim(None, (), absent or (f"more questions asked of all: {listed([one.label for one in found])}",))


def is_by(first: Found, second: Found, low: float, high: float | None = None) -> Claim:
    """The difference is a predicted number, or lies in a predicted range."""
    pair = first.against(second) if first and second else None
    if pair is None:
        return lacking(first, second)
    meets = pair.low <= (low if high is None else high) and low <= pair.high
    wanted = signed(low) if high is None else f"{signed(low)} to {signed(high)}"
    return Claim(meets, (f"{first.on}: {first.name} − {second.name} = {points(pair)}, predicted {wanted}",))


def as_good(first: Found, second: Found) -> Claim:
    pair = first.against(second) if first and second else None
    if pair is None:
        return lacking(first, second)
    holds = True if pair.low > -MARGIN else False if pair.high < 0 else None
    told = [(first.on, pair), *disagreeing(first, second)]
    return Claim(holds, tuple(f"{on}: {first.name} − {second.name} = {points(own)}" for on, own in told))


def region(found: Found, name: str) -> Found:
    return found.where(name, lambda row: row.get("region") == name)


def p1(arm: Arm) -> Claim:
    return all_of(beats(arm.find(a), arm.find(b), 0) for a, b in (("log-polar-rings", BASE), (BASE, "uniform")))


def p2(arm: Arm) -> Claim:
    claims = []
    for method, wanted in BY_REGION.items():
        for name, share in zip(REGIONS, wanted, strict=True):
            own = region(arm.find(method), name)
            if own.exact is None:
                claims.append(lacking(arm.find(method)) if not own else Claim(None, (), (own.label,)))
            else:
                meets = own.exact.low <= share <= own.exact.high
                claims.append(Claim(meets, (f"`{method}`, {name}: {percent(own.exact)}, predicted {share}",)))
    return all_of(claims)


def p3(arm: Arm) -> Claim:
    return all_of(is_by(arm.find(name), arm.find(BASE), by) for name, by in OVER_TOPK.items())


def p4(arm: Arm) -> Claim:
    """Against the best of the sources that hear no question."""
    ours, blind = arm.find(OURS), best_blind(arm)
    if blind is None:
        return Claim(None, (), (f"{ours.name} by relevance that does not hear the question",))
    return is_by(ours, blind, 8, 12)


def best_blind(arm: Arm) -> Found | None:
    found = [one for name in SOURCES if name != "learned" and (one := arm.find(OURS, relevance=name))]
    return max(found, key=lambda one: one.average("exact") or 0.0) if found else None


def p5(arm: Arm) -> Claim:
    """On every family; the interval decides, and one that holds 97 % within it leaves it open."""
    return all_of(keeps(arm.find(OURS, [family]), arm.find(WHOLE, [family]), LEAST_KEPT) for family in THREE)


def keeps(own: Found, whole: Found, least: float) -> Claim:
    """At least so many percent of what the other has right."""
    pair = own.against(whole) if own and whole else None
    share = own.share_of(whole) if pair else None
    if pair is None or share is None:
        return lacking(own, whole)
    holds = True if share.low >= least else False if share.high < least else None
    text = f"{own.on}: {pair.first:.1f} of {pair.second:.1f}, {percent(share)} % kept"
    return Claim(holds, (text if holds is not None else f"{text} (the interval includes {least:g})",))


def p6(arm: Arm) -> Claim:
    return all_of(is_by(arm.find(OURS, [name]), arm.find(BASE, [name]), by) for name, by in BY_FAMILY.items())


def p7(arm: Arm) -> Claim:
    claims = []
    for family, names in BEST.items():
        found = [one for name in filter(is_built_in, arm.allocators()) if (one := arm.find(name, [family]))]
        absent = [one for name in names if not (one := arm.find(name, [family]))]
        if absent or len(found) < 3:
            claims.append(Claim(None, (), tuple(one.label for one in absent) or (f"more allocators on {family}",)))
        else:
            claims.append(is_best(found, names))
    return all_of(claims)


def is_best(found: Sequence[Found], names: Sequence[str]) -> Claim:
    """One of these methods is best: of those that cannot be told from the best, all are among them. Open where only
    some are."""
    base = next((one for one in found if one.method == BASE), found[0])
    first = foremost(found, base)
    equals = level_with(first, [one for one in found if one is not first])
    if equals is None:
        return Claim(None, (), (f"questions on {first.on} that all allocators were asked",))
    named = [one.method in names for one in (first, *equals)]
    told = [f"{one.name} ({points(one.against(first))})" for one in equals[:MOST_NAMES]]
    told += [f"{len(equals) - MOST_NAMES} more"] if len(equals) > MOST_NAMES else []
    beside = f"; not told from it: {listed(told)}" if equals else ", ahead of every other"
    text = f"{first.on}: best is {first.name} with {percent(first.exact)}{beside}"
    return Claim(True if all(named) else None if any(named) else False, (text,))


def level_with(first: Found, others: Sequence[Found]) -> list[Found] | None:
    """Those that the best of all is not surely ahead of, the nearest first: the interval of the paired difference
    includes 0, or its p-value, corrected after Holm for all of them, is not low enough. None where any cannot be
    paired."""
    pairs = [(one, pair) for one in others if (pair := first.against(one)) is not None]
    if len(pairs) < len(others):
        return None
    p_values = holm([pair.p for _, pair in pairs])
    level = [
        (pair.difference, one) for (one, pair), p in zip(pairs, p_values, strict=True) if pair.low <= 0 or p >= ENOUGH
    ]
    return [one for _, one in sorted(level, key=lambda own: own[0])]


def p8(arm: Arm) -> Claim:
    return as_good(arm.find(OURS, budget=150), arm.find(BASE, budget=273))


def p9(arm: Arm) -> Claim:
    """Pays on large images (whose longer side has 2048 pixels or more) or on ambiguous ones, and not on the others.

    Ambiguous is what `topk` is unsure of, not what the first look is unsure of: whatever else were asked again about
    answers that were picked for being doubtful, looks or not, would do better than they did.
    """
    usual, again, other = arm.find(OURS), looked_again(arm), arm.find(BASE)
    if not usual or not again:
        return Claim(None, (), (f"`{OURS}` with more than one look",))
    if not other:
        return Claim(None, (), (other.label,))
    sure = {key for key, row in other.rows.items() if (row.get("confidence") or 0.0) >= SURE}
    unsure = other.rows.keys() - sure
    clear = again.where(f"`{BASE}` is sure", lambda row: row["key"] in sure)
    unclear = again.where(f"`{BASE}` is unsure", lambda row: row["key"] in unsure)
    large = [beats(more, one, 0) for one, more in large_images(arm)] or [
        Claim(None, (), (f"`{OURS}` with one look and with more on images with a side of {LARGE} px or more",))
    ]
    pays = any_of([beats(unclear, usual, 0), *large])
    if max(arm.sheet.size) >= LARGE:  # all are large: nothing is said of the others
        return all_of([Claim(None, (), (f"images without a side of {LARGE} px or more",)), pays])
    return all_of([not_(beats(clear, usual, 0)), pays])


def looked_again(arm: Arm, size: tuple[int, int] | None = None) -> Found:
    """Three looks, however sure, in one tree of as many tokens as one look has."""
    return arm.find(OURS, how=THRICE | {"combine": "tree"}, size=size)


def large_images(arm: Arm) -> list[tuple[Found, Found]]:
    """One look and more than one, for every size whose longer side has at least `LARGE` pixels."""
    sizes = sorted({way.size for way in arm.ways() if max(way.size) >= LARGE})
    pairs = [(arm.find(OURS, size=size), looked_again(arm, size)) for size in sizes]
    return [(one, more) for one, more in pairs if one and more]


PREDICTIONS = (
    ("P1", "`log-polar-rings` beats `topk`, and `topk` beats `uniform`.", p1),
    ("P2", "By region (target, secondary, periphery): `topk` 94, 67, 45; `log-polar-rings` 92, 81, 73.", p2),
    ("P3", "Over `topk`: with the coverage loss +1.8 points, in pseudo-log-polar order +2.5, stratified +2.8.", p3),
    ("P4", "Relevance that hears the question beats relevance that does not by 8 to 12 points.", p4),
    ("P5", "273 tokens keep at least 97 % of the accuracy of full resolution.", p5),
    ("P6", "`foveated-pyramid` over `topk`: documents +6 points, scenes +2, scene text +4.", p6),
    ("P7", "Best on documents and scene text: `frequency` or `atlas`. Best on scenes: `pyramid` or `detail-tree`.", p7),
    ("P8", "150 tokens of `foveated-pyramid` do as well as 273 of `topk`.", p8),
    ("P9", "A second look pays on large or ambiguous images only.", p9),
)


def outcomes(arm: Arm) -> Sequence[Prediction]:
    """Every prediction with what came of it."""
    return [Prediction(name, text, at_main_budget(arm, function(arm))) for name, text, function in PREDICTIONS]
