"""Where on the page answers are right: 8 x 8 parts of the image, by the centre of the answer's first box.

Families count equally: a question weighs as much as its family has fewer of them.
"""

from collections import Counter

import torch

from homunculus.report.decision import BASE, DECIDE
from homunculus.report.numbers import Found, Row, family_of
from homunculus.report.sheet import WHOLE, Arm
from homunculus.report.tables import asked_families, ranked
from homunculus.viz.palette import heat

PARTS = 8
FEWEST = 5  # questions; a part with fewer says nothing
SIDE, TOP = 18, 22  # pixels of a part, and above them


def part_of(row: Row) -> tuple[int, int] | None:
    """The column and row of the part in which the answer stands.

    >>> part_of({"boxes": [[0, 500, 10, 524]], "size": [1024, 1024]}), part_of({"boxes": []})
    ((0, 4), None)
    """
    if not row.get("boxes"):
        return None
    (x0, y0, x1, y1), (width, height) = row["boxes"][0], row["size"]
    place = (x0 + x1) / 2 / width, (y0 + y1) / 2 / height
    across, down = (min(PARTS - 1, max(0, int(PARTS * share))) for share in place)
    return across, down


def accuracy_map(found: Found) -> dict[tuple[int, int], tuple[float, int]]:
    """Percent of exact answers and how many were asked, for each part."""
    placed = [(part, row) for row in found.rows.values() if (part := part_of(row)) is not None]
    asked = Counter(family_of(row["image"]) for _, row in placed)
    values: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for part, row in placed:
        values.setdefault(part, []).append((row["exact"], 1 / asked[family_of(row["image"])]))
    return {
        part: (100 * sum(exact * weight for exact, weight in own) / sum(weight for _, weight in own), len(own))
        for part, own in values.items()
    }


def heat_maps(arm: Arm) -> list[str]:
    """A picture for each of the methods that matter most; all in one scale, the last is its legend."""
    families = asked_families(arm)
    names = [name for name in ranked(arm) if name in (*DECIDE, BASE, "uniform", "stratified", WHOLE)]
    names += [name for name in ranked(arm) if name.startswith("peers/")][:1]
    maps = {name: accuracy_map(arm.find(name, families)) for name in names}
    known = [share for own in maps.values() for share, count in own.values() if count >= FEWEST]
    if not known:
        return []
    low, high = min(known), max(known)
    return [*(_picture(name, own, low, high) for name, own in maps.items() if own), _legend(low, high)]


def _picture(name: str, parts: dict[tuple[int, int], tuple[float, int]], low: float, high: float) -> str:
    side = PARTS * SIDE
    text = [
        f'<svg viewBox="0 0 {side} {side + TOP}" role="img" aria-label="{name}: exact answers by place">',
        f'<text y="14" fill="currentColor" font-size="12">{name}</text>',
    ]
    for (x, y), (share, count) in sorted(parts.items()):
        fill = _colour(share, low, high) if count >= FEWEST else "none"
        told = f"{share:.0f} % of {count}" if count >= FEWEST else f"only {count} asked"
        box = f'x="{x * SIDE}" y="{TOP + y * SIDE}" width="{SIDE - 1}" height="{SIDE - 1}"'
        text.append(f'<rect {box} fill="{fill}"><title>{told}</title></rect>')
    return "".join([*text, "</svg>"])


def _legend(low: float, high: float) -> str:
    steps, height = 24, PARTS * SIDE
    bars = [
        f'<rect y="{TOP + (steps - 1 - i) * height / steps:.1f}" width="14" height="{height / steps + 0.5:.1f}" '
        f'fill="{_colour(low + (high - low) * i / (steps - 1), low, high)}"/>'
        for i in range(steps)
    ]
    marks = [
        f'<text x="20" y="{y}" fill="currentColor" font-size="11">{share:.0f} %</text>'
        for y, share in ((TOP + 9, high), (TOP + height, low))
    ]
    return f'<svg viewBox="0 0 {height} {height + TOP}" role="img" aria-label="scale">{"".join(bars + marks)}</svg>'


def _colour(share: float, low: float, high: float) -> str:
    place = (share - low) / (high - low) if high > low else 1.0
    red, green, blue = heat(torch.tensor([[place]]))[:, 0, 0].tolist()
    return f"#{red:02x}{green:02x}{blue:02x}"
