"""Spatial words of a question ("top-left", "footer", "in the middle of the page") as places to look.

English only. A phrase becomes one to four points in unit coordinates. Words that often mean something else ("is it
*right*?", "what is *left* to pay?", "the *top* five") count only where the sentence uses them as a place.
"""

import re

NEAR, FAR, EDGE = 1 / 6, 5 / 6, 0.05
Point = tuple[float, float]

_COLUMN = {"left": NEAR, "centre": 0.5, "right": FAR}
_ROW = {"top": NEAR, "centre": 0.5, "bottom": FAR}
_SYNONYM = {
    "upper": "top",
    "uppermost": "top",
    "lower": "bottom",
    "center": "centre",
    "middle": "centre",
    "central": "centre",
}
_SYNONYM |= {"topmost": "top", "bottommost": "bottom", "leftmost": "left", "rightmost": "right"}
_SYNONYM |= {"left-hand": "left", "right-hand": "right"}

_V, _H = r"top|upper|bottom|lower|centre|center|middle|central", r"left|right|centre|center|middle"
_PLACE = r"corner|side|half|part|third|quarter|quadrant|edge|margin|section|area|region|end|border|column|hand"
_OF = (
    r"of (?:the |this |that )?(?:page|image|picture|photo|document|form|sheet|screen|receipt|invoice|letter|sign|table)"
)

# Not a place: "the top five", "the bottom line", "in the right order", "on the left to pay", "the middle name".
_NOT_V = r"(?! (?:\d|line|price|ten|five|three|two))"
_NOT_H = r"(?! (?:order|way|time|answer|one|to))"
_NOT_C = r"(?! (?:name|initial|class))"

# Longest meaning first; what a pattern has matched is taken out of the sentence before the next one looks.
_PATTERNS: list[tuple[str, str]] = [
    ("both", rf"\b(?P<v>{_V})[- ](?:most )?(?:and )?(?P<h>{_H})(?:[- ]hand)?\b(?P<corner> corners?)?"),
    ("both", r"\b(?P<h>left|right)[- ](?P<v>top|bottom|upper|lower)\b(?P<corner> corners?)?"),
    ("corners", r"\bcorners\b"),
    ("header", r"\b(?:page |running )?(?:header|letterhead|masthead)s?\b"),
    ("footer", r"\b(?:page |running )?(?:footer|footnote)s?\b"),
    ("margin", r"\b(?P<side>left|right|top|upper|bottom|lower)(?:[- ]hand)? (?:margin|edge|border)\b"),
    ("v", r"\b(?P<v>topmost|uppermost|bottommost)\b"),
    ("h", r"\b(?P<h>leftmost|rightmost|left-hand|right-hand)\b"),
    ("start", r"\b(?:first|top) line\b|\b(?:start|beginning) of the page\b"),
    ("end", r"\b(?:last|bottom) line(?: of text| on the page)\b|\blast line\b|\bend of the page\b"),
    (
        "v",
        rf"\b(?:at|near|towards?|in|on|from|along|across) (?:the )?(?:very )?(?P<v>top|upper|bottom|lower)\b{_NOT_V}",
    ),
    ("h", rf"\b(?:at|near|towards?|to|on|in|from|along) (?:the )?(?:very |far )?(?P<h>left|right)\b{_NOT_H}"),
    ("v", rf"\b(?P<v>top|upper|bottom|lower)(?:[- ](?:{_PLACE})| {_OF})\b"),
    ("h", rf"\b(?P<h>left|right)(?:[- ](?:{_PLACE})| {_OF})\b"),
    ("centre", rf"\b(?:in|at|near|around|of) the (?:very |exact |dead )?(?:centre|center|middle)\b{_NOT_C}"),
    ("centre", rf"\b(?:centre|center|middle|central)(?:[- ](?:{_PLACE})| {_OF})\b"),
]


def spatial_points(query: str) -> list[Point]:
    """The places a question names, as (x, y) in [0, 1]; empty when it names none.

    >>> spatial_points("What is written in the footer?")
    [(0.16666666666666666, 0.95), (0.5, 0.95), (0.8333333333333334, 0.95)]
    >>> spatial_points("What is the code in the top-left corner?")
    [(0.05, 0.05)]
    >>> spatial_points("Is this the right answer, and how much is left to pay?")
    []
    """
    text = " ".join(query[:10_000].lower().replace("‑", "-").replace("–", "-").split())
    points: list[Point] = []
    for kind, pattern in _PATTERNS:
        for match in re.finditer(pattern, text):
            points += [point for point in _points(kind, match.groupdict()) if point not in points]
        text = re.sub(pattern, " | ", text)  # a bar no pattern crosses
    return points


def _points(kind: str, found: dict[str, str | None]) -> list[Point]:
    words = (found.get(group) or "" for group in ("v", "h", "side"))
    v, h, side = (_SYNONYM.get(word, word) for word in words)
    match kind:
        case "corners":
            return [(x, y) for y in (EDGE, 1 - EDGE) for x in (EDGE, 1 - EDGE)]
        case "both" if found.get("corner"):
            return [(EDGE if h == "left" else 1 - EDGE, EDGE if v == "top" else 1 - EDGE)]
        case "both":
            return [(_COLUMN[h], _ROW[v])]
        case "header" | "start":
            return [(x, EDGE) for x in _COLUMN.values()]
        case "footer" | "end":
            return [(x, 1 - EDGE) for x in _COLUMN.values()]
        case "margin" if side in ("left", "right"):
            return [(EDGE if side == "left" else 1 - EDGE, y) for y in _ROW.values()]
        case "margin":
            return [(x, EDGE if side == "top" else 1 - EDGE) for x in _COLUMN.values()]
        case "v":
            return [(0.5, _ROW[v])]
        case "h":
            return [(_COLUMN[h], 0.5)]
    return [(0.5, 0.5)]
