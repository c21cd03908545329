"""What is asked together: named lists of plans, for every family.

main        every allocator and every peer with 273 tokens, and all leaves: the table
budgets     the six of most interest with 64 to 1024 tokens
fewer       the three that decide with 64 to 150: what rules about speed compare, where readers are tuned
forgiving   relevance that is wrong on purpose: which method forgives it?
ablations   one dial of a method at a time
turns       several questions on one image: one allocation kept, its cells alone, or a new one for each
looks       once, three times, coarse to fine
large       the same on images of 2048 x 2048 pixels
unlike      images unlike those of training: `test-ood`
tiny        a few of everything on small images, in a minute of a CPU; its numbers mean nothing
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from homunculus.allocation import DEFAULT, get_allocator
from homunculus.errors import DataError
from homunculus.eval.plans import PEERS, WHOLE, Plan, keeps_cells, method_names, own_budget
from homunculus.eval.relevances import KEPT_CELLS
from homunculus.eval.running import without_repeats
from homunculus.geometry import Size
from homunculus.peers.reading import stage_of

FAMILIES = ("documents", "scenes", "scene-text")
BUDGETS = (64, 100, 150, 400, 1024)
DECIDE = ("pyramid", "log-polar-rings", "foveated-pyramid")  # by docs/predictions.md
INTERESTING = (DEFAULT, "log-polar-rings", "pyramid", "topk", "uniform", "peers/visionzip")
RATES = (100, 90, 70, 50, 30)
LEAVES = (0, 1, 2, 4, 8)
FORGIVING = (DEFAULT, "log-polar-rings", "pyramid", "stratified", "topk", "topk-coverage", "uniform")
TURNS = (DEFAULT, "log-polar-rings", "pyramid", "stratified", "topk", "uniform")
MIXTURES = (
    "0.75 predicted + 0.25 detail",
    "0.4 predicted + 0.3 saliency + 0.3 detail",
    "pixels",
    "uniform",
)
THRICE: dict[str, Any] = {"looks": 3, "threshold": None}  # however sure
LARGE = (2048, 2048)
LEARNED_SPLIT = (71, 53, 118, 31)  # cells of each level: bench/level_split.py
UNLIKE = (*FORGIVING, "peers/visionzip", "peers/cdpruner", WHOLE)
ARMS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((DEFAULT, {"foveal_share": share}) for share in (0.2, 0.3, 0.4)),
    *((DEFAULT, {"fixation_share": share}) for share in (0.0, 1.0)),  # a tree by relevance alone, by distance alone
    *((DEFAULT, {"e0": e0}) for e0 in (1.0, 2.0, 6.0, 12.0)),
    *((DEFAULT, {"context_level": level}) for level in (3, 4)),  # 64 and 16 cells of 64 x 64 leaves
    (DEFAULT, {"reduce": "max"}),
    # 64, 128, 64 and 17 cells of each level; as learned; a tenth of them in each at least
    *(("pyramid", {"mode": "split", "split": split}) for split in (None, LEARNED_SPLIT, (28, 189, 28, 28))),
    *(("stratified", {"strata": strata}) for strata in (4, 8)),
    *(("topk-coverage", {"weight": weight}) for weight in (0.02, 0.05, 0.2, 0.5)),
    *(("frequency", {"stretch": stretch}) for stretch in ("across", "none")),
    *((PEERS + "tome", {"rounds": rounds}) for rounds in (12, 96)),
    (PEERS + "cdpruner", {"logarithm": True}),
    (PEERS + "prumerge+", {"grid_first": True}),
    *((PEERS + name, {"told": False}) for name in ("whole", "tome", "visionzip", "divprune", "fastv")),
)


@dataclass(frozen=True)
class Scope:
    """How much is asked, and of what. `few` are the questions of each arm of an ablation."""

    families: Sequence[str] = FAMILIES
    split: str = "test-iid"
    questions: int = 2000
    few: int = 1000
    budget: int = 273
    size: Size = (1024, 1024)
    longest: int = 144  # letters; of the first 2000 questions on documents the longest answer has 134
    dtype: str = "float32"
    methods: Sequence[str] | None = None  # of the main table; all by default
    relevance: str = "predicted"

    def plans(self, questions: int, method: str = DEFAULT, how: Any = None, **settings: Any) -> Iterator[Plan]:
        """One plan for each family."""
        usual: dict[str, Any] = {"budget": own_budget(method, self.budget), "relevance": self.relevance}
        options = {"longest": self.longest} | (how or {})
        if method.startswith(PEERS) and stage_of(method.removeprefix(PEERS)) == "layers":
            # The first layer is shown all there is, which no mean allows for; none is shown less than the budget.
            options["shown"] = settings.pop("budget", self.budget)
        for family in self.families:
            told = usual | settings | {"size": self.size, "how": options, "dtype": self.dtype}
            yield Plan(family, self.split, questions, method=method, **told)


def main(scope: Scope) -> Iterator[Plan]:
    for method in scope.methods or [name for name in method_names() if name != PEERS + WHOLE]:  # which is whole
        yield from scope.plans(scope.questions, method)


def budgets(scope: Scope) -> Iterator[Plan]:
    for method in scope.methods or INTERESTING:
        for budget in (*BUDGETS, scope.budget):
            yield from scope.plans(scope.questions, method, budget=budget)
    yield from scope.plans(scope.questions, WHOLE)


def fewer(scope: Scope) -> Iterator[Plan]:
    for method in scope.methods or DECIDE:
        for budget in BUDGETS:
            if budget < scope.budget:
                yield from scope.plans(scope.questions, method, budget=budget)


def forgiving(scope: Scope) -> Iterator[Plan]:
    for method in scope.methods or FORGIVING:
        for rate in RATES:  # the first is the truth, as is the first of the leaves: asked once
            yield from scope.plans(scope.few, method, relevance=f"hit-{rate}")
    for method in scope.methods or FORGIVING[:1]:
        for leaves in LEAVES:
            yield from scope.plans(scope.few, method, relevance=f"moved-{leaves}")


def ablations(scope: Scope) -> Iterator[Plan]:
    for method, how in ARMS:
        if scope.methods is None or method in scope.methods:
            yield from scope.plans(scope.few, method, how)
            yield from scope.plans(scope.few, method)  # what it is compared with
    if scope.methods is None or DEFAULT in scope.methods:
        for words in MIXTURES:
            yield from scope.plans(scope.few, relevance=words)


def turns(scope: Scope) -> Iterator[Plan]:
    for method in scope.methods or TURNS:
        for relevance in ("predicted", "first-turn", *([KEPT_CELLS] if keeps_cells(method) else [])):
            yield from scope.plans(scope.few, method, relevance=relevance)


def looks(scope: Scope) -> Iterator[Plan]:
    for method in scope.methods or (DEFAULT,):
        ways = combinations(method)
        for how in ({}, *(THRICE | {"combine": combine} for combine in ways), *until_sure(method)):
            yield from scope.plans(scope.few, method, how)
        if is_nested(method):
            yield from scope.plans(scope.few, method, {"progressive": True, "threshold": None})
        yield from scope.plans(scope.few, method, budget=3 * scope.budget)


def combinations(method: str) -> tuple[str, ...]:
    """How several looks of a method may be combined, the usual way first."""
    return ("concat", "best") if get_allocator(method).single_gaze else ("tree", "concat", "best")


def until_sure(method: str) -> tuple[dict[str, Any], ...]:
    """Looking again as `answer` does it: not where it is sure enough."""
    thrice = {"looks": 3, "combine": combinations(method)[0]}
    return (thrice, {"progressive": True}) if is_nested(method) else (thrice,)


def is_nested(method: str) -> bool:
    """Whether a larger budget only refines what a smaller one shows, as coarse to fine needs it."""
    return "depth" in get_allocator(method).options()


def large(scope: Scope) -> Iterator[Plan]:
    wide = replace(scope, size=LARGE)
    for method in wide.methods or (DEFAULT,):
        for how in ({}, THRICE | {"combine": combinations(method)[0]}, *until_sure(method)):
            yield from wide.plans(max(2, wide.few // 2), method, how)


def unlike(scope: Scope) -> Iterator[Plan]:
    other = replace(scope, split="test-ood")
    for method in other.methods or UNLIKE:
        yield from other.plans(other.few, method)


def tiny(scope: Scope) -> Iterator[Plan]:
    small = replace(scope, families=("scenes", "scene-text"), questions=8, few=4, budget=64, size=(256, 256), longest=4)
    for method in small.methods or method_names():
        if method == WHOLE or method.startswith(PEERS) or get_allocator(method).minimum <= small.budget:
            yield from small.plans(small.questions, method)
    for method in ("topk", DEFAULT):
        yield from small.plans(small.few, method, relevance="hit-50")
        yield from small.plans(small.few, method, relevance="first-turn")
        yield from small.plans(small.few, method, relevance=KEPT_CELLS)
        yield from small.plans(small.few, method, budget=32)
    yield from small.plans(small.few, how={"foveal_share": 0.3})


SUITES: dict[str, Callable[[Scope], Iterator[Plan]]] = {
    "main": main,
    "budgets": budgets,
    "fewer": fewer,
    "forgiving": forgiving,
    "ablations": ablations,
    "turns": turns,
    "looks": looks,
    "large": large,
    "unlike": unlike,
    "tiny": tiny,
}


def plans_of(names: Sequence[str], scope: Scope) -> list[Plan]:
    """The plans of suites, in their order, each once and with the most questions that any of them asks.

    >>> some = plans_of(["forgiving"], Scope(methods=("topk",), families=("scenes",)))
    >>> [plan.relevance for plan in some]  # hit-100 and moved-0 are the truth
    ['true', 'hit-90', 'hit-70', 'hit-50', 'hit-30', 'moved-1', 'moved-2', 'moved-4', 'moved-8']
    """
    if unknown := [name for name in names if name not in SUITES]:
        raise DataError(f"no suite '{unknown[0]}': choose from {', '.join(SUITES)}")
    for method in scope.methods or ():
        Plan(scope.families[0], method=method, budget=own_budget(method, scope.budget))  # refuses what it does not know
    return without_repeats(plan for name in names for plan in SUITES[name](scope))
