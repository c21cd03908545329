"""What a run has found, in short: a line for every way of asking, a column for every family."""

import json
from collections.abc import Sequence

from rich.table import Table

from homunculus.eval.plans import Plan
from homunculus.eval.rows import Kept, Row
from homunculus.eval.statistics import proportion


def label(plan: Plan) -> str:
    """A plan in a few words.

    >>> label(Plan("scenes", method="topk", budget=64, relevance="hit-70", how={"longest": 9, "looks": 3}))
    'topk, 64 tokens, hit-70, looks=3'
    """
    told = [plan.method]
    if plan.budget is not None:
        told.append(f"{plan.budget} tokens")
    if plan.relevance != "predicted":
        told.append(plan.relevance)
    told += [f"{name}={json.dumps(value)}" for name, value in plan.how.items() if name != "longest"]
    return ", ".join(told)


def table(kept: Kept, plans: Sequence[Plan], weights: str) -> Table:
    """Exact answers in percent with 95 % intervals, the best mean first; and the tokens that were read, on average.

    Both means are of families, each of which counts as much as any other.
    """
    families = list(dict.fromkeys(f"{plan.family} {plan.split}" for plan in plans))
    found: dict[str, dict[str, list[Row]]] = {}
    for plan in plans:
        rows = list(kept.rows[plan.mark(weights)].values())
        found.setdefault(label(plan), {})[f"{plan.family} {plan.split}"] = rows

    def mean(own: dict[str, list[Row]], measure: str) -> float:
        means = [sum(row[measure] for row in rows) / len(rows) for rows in own.values() if rows]
        return sum(means) / max(1, len(means))

    lines = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title="exact answers, %", title_justify="left")
    for name in ("", "tokens", *families):
        lines.add_column(name, no_wrap=True, justify="left" if not name else "right")
    for name, own in sorted(found.items(), key=lambda one: -mean(one[1], "exact")):
        tokens = f"{mean(own, 'tokens'):.0f}" if any(own.values()) else ""
        lines.add_row(name, tokens, *(_share(own.get(family, [])) for family in families))
    return lines


def time_taken(kept: Kept, plans: Sequence[Plan], weights: str) -> str:
    """How long the answers to plans took, on what, and which methods took longest.

    >>> kept = Kept(None)
    >>> kept.add_spent(Plan("scenes"), "w", 512, 90.0, {"device": "Some GPU"})
    >>> kept.add_spent(Plan("scenes", method="topk"), "w", 512, 30.0, {"device": "Some GPU"})
    >>> time_taken(kept, [Plan("scenes"), Plan("scenes", method="topk")], "w")
    '1024 answers took 2.0 minutes of Some GPU, without drawing; longest foveated-pyramid 1.5, topk 0.5'
    """
    method = {plan.mark(weights): plan.method for plan in plans}
    spent = [line for line in kept.spent if line["spent"] in method]
    each: dict[str, float] = {}
    for line in spent:
        name = method[line["spent"]]
        each[name] = each.get(name, 0.0) + line["seconds"] / 60
    answers, devices = sum(line["questions"] for line in spent), dict.fromkeys(line["device"] for line in spent)
    longest = ", ".join(f"{name} {each[name]:.1f}" for name in sorted(each, key=lambda name: -each[name])[:5])
    if not spent:
        return "no answer was timed"
    told = f"{answers} answers took {sum(each.values()):.1f} minutes of {' and '.join(devices)}"
    return f"{told}, without drawing; longest {longest}"


def _share(rows: Sequence[Row]) -> str:
    images = [row["image"] for row in rows]
    if len(set(images)) < 2:
        return f"{100 * sum(row['exact'] for row in rows) / len(rows):.1f}" if rows else ""
    mean, low, high = (100 * value for value in proportion([row["exact"] for row in rows], images))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"
