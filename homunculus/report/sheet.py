"""The rows of one or more evaluations, found by what was asked.

Every way of asking belongs to one arm, and arms are never mixed:

    tuned       weights fine-tuned for the method, all methods on equally many samples
    seconds     weights fine-tuned for the method, all methods for equally many seconds
    zero-shot   the weights that all methods share

All of an arm comes from one model, tuned for one amount: the zero-shot model with the most answers, the readers that
were tuned from it, and of these the amount with the most answers. A page has one main way of asking (budget, size of
image, precision); what is not named is as in it, and answers in another precision are left out. Relevance has one name
here as well: `hit-100` and `moved-0` are `true`, and are found under either. Where several weights would fit, those
tuned at the asked budget come first, then those with the most rows, then the latest.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from homunculus.allocation.levels import SPLIT
from homunculus.data import FAMILIES
from homunculus.errors import DataError
from homunculus.eval.plans import one_name, reader_of
from homunculus.model.looking import SURE
from homunculus.report.numbers import Found, Row, listed

BUDGET = 273
WHOLE = "whole"
PEERS = "peers/"
ARMS = {
    "tuned": "tuned for each method, equal samples",
    "seconds": "tuned for each method, equal seconds",
    "zero-shot": "zero-shot",
}
SHORT = {"tuned": "tuned", "seconds": "tuned, equal seconds", "zero-shot": "zero-shot"}
ALIKE = ("longest", "shown")  # letters of an answer, and the fewest tokens of a layer: no choice of a method
THREE = tuple(FAMILIES)  # what the rules are about


@dataclass(frozen=True)
class Way:
    """One way of asking a family of questions: what the settings say, and the arm they belong to."""

    arm: str
    method: str
    budget: int | None
    relevance: str
    how: str  # as sorted JSON
    size: tuple[int, int]
    split: str
    family: str
    dtype: str
    weights: str

    @property
    def options(self) -> dict[str, Any]:
        return json.loads(self.how)


def told(how: Mapping[str, Any]) -> str:
    """Options in one order, so that equal ones are equal, without those that every way of a suite is given alike.

    >>> told({"looks": 3, "longest": 112, "combine": "tree"})
    '{"combine": "tree", "looks": 3}'
    """
    return json.dumps({name: value for name, value in how.items() if name not in ALIKE}, sort_keys=True)


def arm_of(method: str, tuned: Mapping[str, Any] | None) -> str | None:
    """The arm of weights that were tuned like this, asked by this method; None where they are another's reader.

    >>> arm_of("topk", None), arm_of("topk", {"method": "topk", "equal": "samples"}), arm_of("topk", {"method": "v1"})
    ('zero-shot', 'tuned', None)
    """
    if tuned is None:
        return "zero-shot"
    if tuned.get("method") != reader_of(method):
        return None
    return "seconds" if tuned.get("equal") == "seconds" else "tuned"


class Sheet:
    """All rows of some files, by the way they were asked. `kept` are as `homunculus.eval.rows.Kept` reads them."""

    def __init__(self, kept: Sequence[Any]) -> None:
        settings: dict[str, Row] = {}
        rows: dict[str, dict[str, Row]] = defaultdict(dict)
        self.models: dict[str, Row] = {}
        self.costs: list[Row] = []
        self.spent: list[Row] = []
        for one in kept:
            settings |= one.settings
            self.models |= one.models
            self.costs += one.costs
            self.spent += one.spent
            for mark, own in one.rows.items():
                rows[mark] |= own
        self.ways: dict[Way, dict[str, Row]] = {}
        self.elsewhere: Counter[str] = Counter()  # what is left out, by why
        for mark, about in settings.items():
            arm = arm_of(about["method"], self.models.get(about["weights"], {}).get("tuned"))
            if arm is None:
                self.elsewhere["answers of weights tuned for another method"] += len(rows[mark])
            elif rows[mark]:
                self.ways.setdefault(_way(arm, about), {}).update(rows[mark])
        self._drop_other_models()
        if not self.ways:
            raise DataError(
                "there are no answers in these files: run `homunculus eval` first and give the file it wrote"
            )
        self.budget = BUDGET if any(way.budget == BUDGET for way in self.ways) else self._most("budget")
        self.size, self.dtype = self._most("size"), self._most("dtype")
        for arm in ARMS:
            self._keep(
                arm, lambda way: way.dtype, self.dtype, f"answers not in {self.dtype}, as most are: ask with --dtype"
            )
        self._drop_other_costs()
        self.device, self.measured_in, self.graphs = self._machine()
        usual = [line for line in self.costs if measured_how(line) == (self.device, self.measured_in, self.graphs)]
        recorded = "with" if self.graphs else "without"
        why = f"timings of other devices, precisions or steps than most, which are of {self.device} {recorded} --graphs"
        self.elsewhere[why] += len(self.costs) - len(usual)
        self.costs = usual
        ways = {(line.get("date"), told(line["cost"])) for line in usual}
        self.timed_on = Counter(date for date, _ in ways)  # how many ways, by day
        self._found: dict[Any, Found] = {}

    def _drop_other_models(self) -> None:
        """Zero-shot is one model for all methods. Readers were tuned from it, where there is one, and equally much."""
        shared = self._elected("zero-shot", lambda way: way.weights)
        other = "answers of another model than most"
        self._keep("zero-shot", lambda way: way.weights, shared, other)
        for arm in ("tuned", "seconds"):
            if shared is not None:
                self._keep(arm, lambda way: self._tuning(way)[0], shared, other)
            elected = self._elected(arm, self._tuning)
            self._keep(arm, self._tuning, elected, "answers of readers tuned otherwise than most")

    def _drop_other_costs(self) -> None:
        """What was timed is of the same models, or of readers tuned from them."""
        there = {way.weights for way in self.ways}
        there |= {base for weights in there if (base := self.models.get(weights, {}).get("base"))}

        def belongs(weights: str) -> bool:
            return weights in there or self.models.get(weights, {}).get("base") in there

        own = [line for line in self.costs if belongs(line["cost"]["weights"])]
        self.elsewhere["timings of another model than most"] += len(self.costs) - len(own)
        self.costs = own

    def _tuning(self, way: Way) -> tuple[Any, Any]:
        """The model a reader was tuned from, and how much."""
        about = self.models.get(way.weights, {})
        return about.get("base"), (about.get("tuned") or {}).get("asked")

    def _elected(self, arm: str, what: Callable[[Way], Any]) -> Any:
        """The value with the most answers of an arm; None where it has none."""
        votes: Counter[Any] = Counter()
        for way, rows in self.ways.items():
            if way.arm == arm:
                votes[what(way)] += len(rows)
        return votes.most_common(1)[0][0] if votes else None

    def _keep(self, arm: str, what: Callable[[Way], Any], value: Any, why: str) -> None:
        """Leave out what is otherwise in an arm."""
        for way in [way for way in self.ways if way.arm == arm and what(way) != value]:
            self.elsewhere[why] += len(self.ways.pop(way))

    def _most(self, name: str) -> Any:
        """The value with the most answers, of ways that may be compared at all."""
        votes: Counter[Any] = Counter()
        for way, rows in self.ways.items():
            if getattr(way, name) is not None and way.method != WHOLE:
                votes[getattr(way, name)] += len(rows)
        return votes.most_common(1)[0][0] if votes else getattr(next(iter(self.ways)), name)

    def _machine(self) -> tuple[str | None, str | None, bool]:
        """The device and precision of most cost lines, and whether steps were recorded: speeds that differ in one of
        these are never compared."""
        votes = Counter(map(measured_how, self.costs))
        return votes.most_common(1)[0][0] if votes else (None, None, False)

    @property
    def families(self) -> list[str]:
        """Those of our own first, in their order."""
        there = dict.fromkeys(way.family for way in self.ways)
        return [*(name for name in THREE if name in there), *(name for name in there if name not in THREE)]

    @property
    def arms(self) -> list["Arm"]:
        there = {way.arm for way in self.ways}
        return [Arm(self, name) for name in ARMS if name in there]

    def answers(self) -> int:
        return sum(len(rows) for rows in self.ways.values())

    def left_out(self) -> str:
        """How many answers and timings no table has, and why; nothing where all are in."""
        told = {what: what if count > 1 else what.replace("s ", " ", 1) for what, count in self.elsewhere.items()}
        return listed([f"{count} {told[what]}" for what, count in self.elsewhere.items() if count])


def measured_how(line: Mapping[str, Any]) -> tuple[str | None, str | None, bool]:
    """On what, in which precision, and whether the steps of writing were recorded."""
    return line.get("device"), line["cost"].get("dtype"), line.get("graphs", False)


def _way(arm: str, about: Mapping[str, Any]) -> Way:
    size = int(about["size"][0]), int(about["size"][1])
    how, dtype = told(about.get("how") or {}), about["dtype"]
    named = {name: about[name] for name in ("method", "split", "family", "weights")}
    named["relevance"] = one_name(about["relevance"])
    return Way(arm=arm, how=how, size=size, dtype=dtype, budget=tokens_of(about), **named)


def tokens_of(about: Mapping[str, Any]) -> int | None:
    """The budget of a way of asking: for a method in layers, the fewest tokens that one of them is shown.

    >>> tokens_of({"budget": 273}), tokens_of({"budget": None, "how": {"shown": 64}}), tokens_of({"budget": None})
    (273, 64, None)
    """
    return about["budget"] if about["budget"] is not None else (about.get("how") or {}).get("shown")


@dataclass(frozen=True)
class Arm:
    """The rows of one arm."""

    sheet: Sheet
    name: str

    def ways(self) -> list[Way]:
        return [way for way in self.sheet.ways if way.arm == self.name]

    def find(
        self,
        method: str,
        families: Sequence[str] = THREE,
        *,
        budget: int | None = None,
        relevance: str = "predicted",
        how: Mapping[str, Any] | str = "{}",
        split: str = "test-iid",
        size: tuple[int, int] | None = None,
    ) -> Found:
        """Rows of a method on these families together; empty where any of them is missing."""
        options, relevance = how if isinstance(how, str) else told(how), one_name(relevance)
        wanted = (method, budget or self.sheet.budget, relevance, options, split, size or self.sheet.size)
        asked = (self.name, wanted, tuple(families))
        if asked not in self.sheet._found:
            self.sheet._found[asked] = self._find(wanted, families)
        return self.sheet._found[asked]

    def _find(self, wanted: tuple[Any, ...], families: Sequence[str]) -> Found:
        method, budget, relevance, options, split, size = wanted
        name = f"`{method}`" + ("" if method == WHOLE or budget == self.sheet.budget else f" {budget}")
        name += "" if relevance == "predicted" else f", relevance {relevance}"
        name += "" if options == "{}" else f", {said(json.loads(options))}"
        name += "" if size == self.sheet.size else f", {size[0]} × {size[1]} px"
        asked = "all families" if tuple(families) == THREE else " + ".join(families)
        asked += "" if split == "test-iid" else f" {split}"
        found: dict[str, Row] = {}
        for family in families:
            way = self._way(wanted, family)
            if way is None:
                return Found(method, name, asked, {})
            found |= self.sheet.ways[way]
        return Found(method, name, asked, dict(sorted(found.items())))  # intervals do not depend on the files' order

    def _way(self, wanted: tuple[Any, ...], family: str) -> Way | None:
        """The fittest of the ways of asking a family that are wanted."""
        method, budget, relevance, options, split, size = wanted
        fits = [
            way
            for way in self.ways()
            if (way.method, way.relevance, way.how) == (method, relevance, options)
            and (way.split, way.size, way.family) == (split, size, family)
            and (way.budget in (budget, None) or method == WHOLE)
        ]
        return max(fits, key=lambda way: self._fitness(way, budget), default=None)

    def tuning(self, method: str) -> Mapping[str, Any]:
        """What was done to the reader that answers by a method in the main way; nothing where it was not tuned."""
        wanted = (method, self.sheet.budget, "predicted", "{}", "test-iid", self.sheet.size)
        ways = (self._way(wanted, family) for family in self.sheet.families)
        way = next((own for own in ways if own is not None), None)
        return {} if way is None else self.sheet.models.get(way.weights, {}).get("tuned") or {}

    def _fitness(self, way: Way, budget: int) -> tuple[Any, ...]:
        tuned = (self.sheet.models.get(way.weights) or {}).get("tuned") or {}
        total = sum(len(rows) for other, rows in self.sheet.ways.items() if other.weights == way.weights)
        return tuned.get("budget") == budget, total, list(self.sheet.ways).index(way)

    def methods(self) -> list[str]:
        """Methods asked in the main way, of any family, in the order of the file. `peers/whole` is `whole`."""
        main = (
            way.method
            for way in self.ways()
            if way.method != PEERS + WHOLE
            and (way.relevance, way.how, way.split, way.size) == ("predicted", "{}", "test-iid", self.sheet.size)
            and (way.budget in (self.sheet.budget, None) or way.method == WHOLE)
        )
        return list(dict.fromkeys(main))

    def allocators(self) -> list[str]:
        return [name for name in self.methods() if name != WHOLE and not name.startswith(PEERS)]

    def peers(self) -> list[str]:
        return [name for name in self.methods() if name.startswith(PEERS)]

    def expected(self, kind: Callable[["Arm"], list[str]]) -> list[str]:
        """Allocators, say, that were asked in this arm or in any other: what a complete arm would have."""
        return list(dict.fromkeys(name for arm in (self, *self.sheet.arms) for name in kind(arm)))

    def expected_budgets(self, method: str) -> list[int]:
        """Budgets a method was asked at in this arm or in any other, or timed at: what a complete arm would have."""
        asked = (tokens for arm in (self, *self.sheet.arms) for tokens in arm.budgets(method))
        return sorted({*asked, *self.timed_budgets(method)})

    def timed_budgets(self, method: str) -> list[int]:
        """Budgets at which the speed of a method is known, all else as in the main way."""
        lines = (line["cost"] for line in self.sheet.costs if line["cost"]["method"] == method)
        there = {tokens for about in lines if (tokens := tokens_of(about)) is not None}
        return sorted(tokens for tokens in there if self.cost(method, tokens) is not None)

    def budgets(self, method: str) -> list[int]:
        """Budgets a method was asked at, all else as in the main way."""
        there = {
            way.budget
            for way in self.ways()
            if way.method == method
            and way.method != WHOLE
            and way.budget is not None
            and (way.relevance, way.how, way.split, way.size) == ("predicted", "{}", "test-iid", self.sheet.size)
        }
        return sorted(there)

    def cost(
        self, method: str, budget: int | None = None, relevance: str = "predicted", how: Mapping[str, Any] | None = None
    ) -> Row | None:
        """The cost line of a way of asking that counts, measured where most were; None where it was not timed."""
        return next(iter(self.costs(method, budget, relevance, how)), None)

    def costs(
        self, method: str, budget: int | None = None, relevance: str = "predicted", how: Mapping[str, Any] | None = None
    ) -> list[Row]:
        """All its cost lines: of these weights' own first, then that of the day most ways were timed on, since on
        another the machine may be a faster one, then of the most batches, then the latest."""
        budget = budget or self.sheet.budget
        fits: list[tuple[bool, int, int, int, Row]] = []
        for line in self.sheet.costs:
            about = line["cost"]
            same = (about["method"], one_name(about["relevance"])) == (method, one_name(relevance))
            same &= told(about.get("how") or {}) == told(how or {})
            same &= tuple(about["size"]) == self.sheet.size
            if same and (tokens_of(about) in (budget, None) or method == WHOLE):
                arm = arm_of(method, (self.sheet.models.get(about["weights"]) or {}).get("tuned"))
                others = self.sheet.timed_on[line.get("date")]
                fits.append((arm == self.name, others, line["batches"], len(fits), line))
        return [line for *_, line in sorted(fits, key=lambda one: one[:-1], reverse=True)]


def said(how: Mapping[str, Any]) -> str:
    """Options for people; what is left to the method is not said.

    >>> said({"combine": "tree", "looks": 3, "threshold": None}), said({"progressive": True}), said({"seed": None})
    ('combine tree, looks 3, however sure', 'progressive, until 60% sure', '')
    >>> said({"mode": "split", "split": None}), said({"mode": "split", "split": [1, 2]})
    ('split 64/128/64/17', 'split 1/2')
    """
    how = dict(how)
    sure = how.pop("threshold", SURE)
    if how.get("mode") == "split":
        how |= {"mode": None, "split": how.get("split") or SPLIT}
    words = [_option(name, value) for name, value in sorted(how.items()) if value is not None]
    if how.get("looks", 1) > 1 or how.get("progressive"):
        words.append("however sure" if sure is None else f"until {sure:.0%} sure")
    return ", ".join(words)


def _option(name: str, value: Any) -> str:
    name = name.replace("_", " ")
    if value is True:
        return name
    return f"{name} {'/'.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"
