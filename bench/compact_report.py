"""What `bench.compact` wrote, as Markdown: every share in percent with its 95 % interval, images drawn anew.

When to look again is read from rows that looked to the end: what the first look was sure of, what it said and what was
said after more. Stopping at a confidence is then a sum over rows, for any confidence.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from homunculus.allocation import DEFAULT
from homunculus.errors import DataError
from homunculus.eval.answers import exactly
from homunculus.eval.answers_table import summarise, to_markdown
from homunculus.eval.rows import Kept, Row
from homunculus.eval.statistics import compare, interval
from homunculus.model.calibration import BELIEVED, Calibration, fit_calibration

Group = tuple[str, str]  # family and split
Rows = Sequence[Row]

BINS = 15  # of confidence, for its error
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0)
THRESHOLDS = (0.4, 0.5, 0.6, 0.7, 0.9, 0.99)
ONCE = "1 x 273"


def way_of(settings: Mapping[str, Any]) -> str:
    """How an image was looked at, in short.

    >>> way_of({"budget": 819, "how": {}}), way_of({"budget": 273, "how": {"looks": 3, "combine": "tree"}})
    ('1 x 819', '3 x 273 tree')
    """
    how = settings["how"]
    if how.get("progressive"):
        return "coarse to fine"
    looks = how.get("looks", 1)
    return f"{looks} x {settings['budget']}" + (f" {how.get('combine', 'tree')}" if looks > 1 else "")


class Sheet:
    """The rows of the weights that were asked last."""

    def __init__(self, kept: Kept) -> None:
        filled = [settings for mark, settings in kept.settings.items() if kept.rows[mark]]
        if not filled:
            raise DataError("there are no rows yet: answer first, without --report")
        self.weights = filled[-1]["weights"]
        own = [settings for settings in filled if settings["weights"] == self.weights]
        self.sets = [
            (about | {"way": way_of(about), "side": about["size"][0]}, list(kept.rows[about["mark"]].values()))
            for about in own
        ]
        self.sides = sorted({about["side"] for about, _ in self.sets})
        val = [row for about, rows in self.sets if about["split"] == "val" for row in rows]
        fits = [row["logp"] for row in val], [row["exact"] for row in val]
        self.calibration = fit_calibration(*fits) if val else BELIEVED
        for _, rows in self.sets:
            sure = self.calibration([row["logp"] for row in rows]).tolist()
            rows[:] = [
                {"looks": [{name: row[name] for name in ("said", "logp", "tokens")}]} | row | {"confidence": value}
                for row, value in zip(rows, sure, strict=True)
            ]

    def find(self, **wanted: Any) -> dict[Group, Rows]:
        """Rows of the settings wanted, by family and split. What is not named is as in the main table."""
        usual = {"relevance": "predicted", "method": DEFAULT, "way": ONCE, "side": self.sides[0]}
        return {
            (settings["family"], settings["split"]): rows
            for settings, rows in self.sets
            if settings["split"] != "val" and (usual | wanted).items() <= settings.items()
        }

    def names(self, name: str, **wanted: Any) -> list[Any]:
        """What a setting is in the rows there are."""
        found = (settings for settings, _ in self.sets if wanted.items() <= settings.items())
        return list(dict.fromkeys(settings[name] for settings in found if settings["split"] != "val"))


def markdown(head: Iterable[Any], lines: Iterable[Iterable[Any]]) -> str:
    """
    >>> print(markdown(["a", "b"], [[1, 2]]), end="")
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    head = list(head)
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in (head, ["---"] * len(head), *lines))


def share(values: Sequence[float], rows: Rows) -> str:
    """A mean in percent, with its interval where there are two images or more.

    >>> share([1.0, 0.0], [{"image": "a"}, {"image": "a"}])
    '50.0'
    """
    if not values:
        return ""
    images = [row["image"] for row in rows]
    if len(set(images)) < 2:
        return f"{100 * sum(values) / len(values):.1f}"
    mean, low, high = (100 * value for value in interval(values, images))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def right(rows: Rows) -> str:
    return share([row["exact"] for row in rows], rows)


def gain(after: Sequence[float], before: Sequence[float], rows: Rows) -> tuple[str, bool]:
    """How much better, in points, and whether that is more than chance."""
    images = [row["image"] for row in rows]
    if len(set(images)) < 2:
        return "", False
    found = compare(after, before, images)
    difference, low, high = (100 * value for value in found[:3])
    return f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]", low > 0


def common(*sets: Rows) -> list[list[Row]]:
    """The rows of the questions that all sets have, in one order."""
    by_key = [{row["key"]: row for row in rows} for rows in sets]
    keys = [key for key in by_key[0] if all(key in own for own in by_key)]
    return [[own[key] for key in keys] for own in by_key]


# ------------------------------------------------------------------------------------------------------ the tables


def main_tables(sheet: Sheet) -> str:
    parts = ["## 273 tokens, predicted relevance\n"]
    for group, rows in sheet.find().items():
        parts.append(f"### {' '.join(group)}\n\n{to_markdown(summarise(rows))}")
    return "\n".join(parts)


def true_table(sheet: Sheet) -> str:
    lines = []
    true = sheet.find(relevance="true")
    for group, rows in sheet.find().items():
        if group in true:
            ours, best = common(rows, true[group])
            more, _ = gain([row["exact"] for row in best], [row["exact"] for row in ours], ours)
            lines.append([" ".join(group), len(ours), right(ours), right(best), more])
    head = ["", "n", "predicted, exact %", "true, exact %", "true - predicted, points"]
    return "## The true region\n\n" + markdown(head, lines) if lines else ""


def scorer_table(sheet: Sheet) -> str:
    lines = []
    for group, rows in sheet.find().items():
        known = [row for row in rows if row["r2"] is not None]
        found = [share([row[name] for row in rows], rows) for name in ("hit", "mass")]
        lines.append([" ".join(group), len(rows), *found, share([row["r2"] for row in known], known)])
    head = ["", "n", "hit, %", "mass in the region grown by a leaf, %", "r², %"]
    return "## Where it looks\n\n" + markdown(head, lines)


def across_groups(found: Mapping[Any, Mapping[Group, Rows]], first: str, title: str) -> str:
    """A line for each name, a column for each family and split."""
    if len(found) < 2:
        return ""
    groups = list(dict.fromkeys(group for own in found.values() for group in own))
    head = [first, *(f"{' '.join(group)}, exact %" for group in groups)]
    lines = [[name, *(right(own.get(group, ())) for group in groups)] for name, own in found.items()]
    counts = " / ".join(str(len(next(iter(found.values())).get(group, ()))) for group in groups)
    return f"## {title}\n\n{counts} questions.\n\n" + markdown(head, lines)


def budgets_table(sheet: Sheet) -> str:
    budgets = sorted(set(sheet.names("budget", relevance="predicted", method=DEFAULT, side=sheet.sides[0])) - {819})
    found = {budget: sheet.find(budget=budget, way=f"1 x {budget}") for budget in budgets}
    return across_groups({budget: own for budget, own in found.items() if own}, "tokens", "Budgets")


def allocators_table(sheet: Sheet) -> str:
    """All on the questions that every one of them was asked, the best of the first family first."""
    sets = {name: sheet.find(method=name) for name in sheet.names("method", way=ONCE)}
    alike: dict[str, dict[Group, Rows]] = defaultdict(dict)
    for group in sets.get(DEFAULT, {}):
        having = [name for name, own in sets.items() if group in own]
        for name, rows in zip(having, common(*(sets[name][group] for name in having)), strict=True):
            alike[name][group] = rows

    def mean(name: str) -> float:
        rows = [row for own in alike[name].values() for row in own]
        return -sum(row["exact"] for row in rows) / max(1, len(rows))

    return across_groups({name: alike[name] for name in sorted(alike, key=mean)}, "allocator", "Allocators")


# ------------------------------------------------------------------------------------------------------ looking again


def ways_at(sheet: Sheet, side: int) -> dict[str, list[Row]]:
    """Rows of each way to look at images of one side: of the questions that were asked in all of these ways."""
    names = sheet.names("way", side=side, relevance="predicted", method=DEFAULT)
    found = {way: sheet.find(way=way, side=side) for way in names}
    looked = [way for way in found if way in (ONCE, "1 x 819") or not way.startswith("1 x ")]
    rows = [[row | {"group": group} for group, own in found[way].items() for row in own] for way in looked]
    return dict(zip(looked, common(*rows), strict=True)) if len(looked) > 1 else {}


def stopped(rows: Rows, at: float, curve: Calibration, surest: bool) -> tuple[list[float], list[int]]:
    """Whether each answer is right and how many tokens it took, had it stopped at the first look as sure as `at`.

    >>> looks = [{"said": "a", "logp": -1.0, "tokens": 9}, {"said": "b", "logp": -0.1, "tokens": 9}]
    >>> [stopped([{"looks": looks, "answers": ["b"]}], at, BELIEVED, False) for at in (0.3, 0.9)]
    [([0.0], [9]), ([1.0], [18])]
    """
    sure = iter(curve(torch.tensor([look["logp"] for row in rows for look in row["looks"]])).tolist())
    exact, tokens = [], []
    for row in rows:
        looks = [(next(sure), look) for look in row["looks"]]
        last = next((i for i, (confidence, _) in enumerate(looks) if confidence >= at), len(looks) - 1)
        seen = looks[: last + 1]
        _, chosen = max(seen, key=lambda one: one[0]) if surest else seen[-1]
        exact.append(exactly(chosen["said"], row["answers"]))
        tokens.append(sum(look["tokens"] for _, look in seen))
    return exact, tokens


def tokens_table(ways: Mapping[str, Rows], curve: Calibration) -> str:
    """Accuracy against tokens spent, looking to the end and stopping when it is sure; and against one look."""
    lines, once = [], [row["exact"] for row in ways.get(ONCE, ())]
    groups = list(dict.fromkeys(row["group"] for row in next(iter(ways.values()))))
    for way, rows in ways.items():
        for at in (None, *(THRESHOLDS if len(rows[0]["looks"]) > 1 else ())):
            exact, tokens = stopped(rows, 2.0 if at is None else at, curve, way.endswith("best"))
            own = [[value for value, row in zip(exact, rows, strict=True) if row["group"] == g] for g in groups]
            name = way if at is None else f"{way}, until {at:.0%} sure"
            means = (f"{100 * sum(values) / len(values):.1f}" for values in own)
            more = gain(exact, once, rows)[0] if once and name != ONCE else ""
            lines.append([name, f"{sum(tokens) / len(tokens):.0f}", share(exact, rows), more, *means])
    head = ["way", "tokens", "exact %", f"more than {ONCE}, points", *(" ".join(group) for group in groups)]
    return markdown(head, lines)


def kinds_table(ways: Mapping[str, Rows]) -> str:
    named: dict[Any, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for way, rows in ways.items():
        for row in rows:
            named[(*row["group"], row["kind"])][way].append(row)
    lines = [
        [" ".join(name), len(next(iter(own.values()))), *(right(own[way]) for way in ways)]
        for name, own in sorted(named.items())
    ]
    return markdown(["questions", "n", *(f"{way}, exact %" for way in ways)], lines)


def again_table(way: str, rows: Rows, curve: Calibration) -> tuple[str, float]:
    """What looking on gives, by how sure the first look was; and the confidence below which it gives anything."""
    surest = way.endswith("best")
    first = curve(torch.tensor([row["looks"][0]["logp"] for row in rows])).tolist()
    after = [_said_after(looks, rows, curve, surest) for looks in range(max(len(row["looks"]) for row in rows))]
    lines, below = [], 0.0
    for low, high in pairwise(EDGES):
        places = [i for i, sure in enumerate(first) if low <= sure < high or (high == 1.0 == sure)]
        if not places:
            continue
        own = [rows[i] for i in places]
        found = [[values[i] for i in places] for values in after]
        more, real = gain(found[-1], found[0], own)
        below = high if real else below
        lines.append([f"{low:g} to {high:g}", len(own), *(share(values, own) for values in found), more])
    head = ["first look sure", "n", *(f"look {i + 1}, exact %" for i in range(len(after))), "last - first, points"]
    return markdown(head, lines), below


def _said_after(looks: int, rows: Rows, curve: Calibration, surest: bool) -> list[float]:
    cut = [row | {"looks": row["looks"][: looks + 1]} for row in rows]
    return stopped(cut, 2.0, curve, surest)[0]


def looks_tables(sheet: Sheet) -> str:
    parts = []
    for side in sheet.sides:
        ways = ways_at(sheet, side)
        if not ways or not next(iter(ways.values())):
            continue
        curve = sheet.calibration
        parts += [f"## Looking again, {side} x {side}\n", tokens_table(ways, curve), kinds_table(ways)]
        for way, rows in ways.items():
            if len(rows[0]["looks"]) < 2:
                continue
            table, below = again_table(way, rows, curve)
            exact, tokens = stopped(rows, below, curve, way.endswith("best"))
            rule = (
                f"Look again below {below:g}: {share(exact, rows)} % exact with {sum(tokens) / len(tokens):.0f} tokens."
                if below
                else "Do not look again: no bin gains more than chance would."
            )
            parts.append(f"### {way}\n\n{table}\n{rule}\n")
    return "\n".join(parts)


# ------------------------------------------------------------------------------------------------------ how sure it is


def error_of_confidence(rows: Rows, curve: Callable[[Any], torch.Tensor]) -> float:
    """The expected calibration error: how far confidence is from the share of right answers, over equal bins.

    >>> rows = [{"logp": -0.1, "exact": 1.0}, {"logp": -0.1, "exact": 0.0}]
    >>> round(error_of_confidence(rows, BELIEVED), 4)  # exp(-0.1) sure, right half of the time
    0.4048
    """
    sure = curve(torch.tensor([row["logp"] for row in rows], dtype=torch.float64))
    correct = torch.tensor([row["exact"] for row in rows], dtype=torch.float64)
    place = (sure * BINS).long().clamp(max=BINS - 1)
    gap = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, sure - correct)
    return gap.abs().sum().item() / len(rows)


def sure_table(sheet: Sheet) -> str:
    curve = sheet.calibration
    lines = [
        [" ".join(group), len(rows), *(f"{error_of_confidence(rows, own):.4f}" for own in (BELIEVED, curve))]
        for group, rows in sheet.find().items()
    ]
    fitted = f"slope {curve.slope:.4f}, offset {curve.offset:.4f}" if curve != BELIEVED else "no rows of val to fit it"
    head = ["", "n", "calibration error before", "after"]
    return f"## How sure it is\n\nCalibration: {fitted}.\n\n" + markdown(head, lines)


def report(kept: Kept) -> str:
    """All tables that the rows have."""
    sheet = Sheet(kept)
    dtypes = ", ".join(sorted({settings["dtype"] for settings, _ in sheet.sets}))
    count = sum(len(rows) for _, rows in sheet.sets)
    parts = [f"# The compact model\n\n{count} answers of the weights {sheet.weights[:8]}, computed in {dtypes}.\n"]
    if sheet.find():
        parts += [main_tables(sheet), true_table(sheet), scorer_table(sheet), budgets_table(sheet)]
        parts += [allocators_table(sheet), sure_table(sheet)]
    parts.append(looks_tables(sheet))
    return "\n".join(part for part in parts if part)
