"""Where the words of a question stand on its page.

"What is the Valeary Nr.?" is answered beside the words it names: who finds these has done the hard part, and a page
says where every word of it stands, which teaches far more than the one place of an answer does. Words that stand in
many places point at none of them, and those that any question is made of are left out.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from homunculus.data.record import Box

ANCHORS = 8  # of a question at most
OFTEN = 3  # a word that stands in more places than this points at none
_ORDINARY = """
    a an and any are as at be begins below beside by can column comes does ends find first following follows for from
    give given has how in into is it its last left line look many named note of on or out page please printed read right
    row said say says second section shown stand stands stated table text than that the there third this title to top
    under up value was what where which who whose with word words written you
"""
ORDINARY = frozenset(_ORDINARY.split())


def words_in(text: str) -> list[tuple[str, int, int]]:
    """The words of a text, in small letters, and where each begins and ends.

    >>> words_in("Total due: 7-B")
    [('total', 0, 5), ('due', 6, 9), ('7-b', 11, 14)]
    """
    return [(match[0].casefold(), *match.span()) for match in re.finditer(r"\w[\w./-]*\w|\w", text)]


def places_of_words(texts: Sequence[Mapping[str, Any]], sine: float = 0.0) -> dict[str, list[Box]]:
    """Of every word of a page, the boxes in which it stands. A text is given with its box and how far along it its
    letters are; without that, only one of a single word has a place. A page that was turned clockwise by `sine` has
    boxes round lines that rise or fall: a word takes its part of them.

    >>> places_of_words([{"text": "Total due", "box": [0, 0, 90, 9], "letters": [0.05 + i / 9 for i in range(9)]}])
    {'total': [(0, 0, 50, 9)], 'due': [(60, 0, 90, 9)]}
    """
    found: dict[str, list[Box]] = defaultdict(list)
    for known in texts:
        along = known.get("letters", ())
        words = words_in(known["text"])
        if len(along) != len(known["text"]):
            words = [(word, 0, 0) for word, _, _ in words] if len(words) == 1 else []
        for word, begin, end in words:
            left, right = (_between(along, begin), _between(along, end)) if end else (0.0, 1.0)
            found[word].append(_part(known["box"], left, right, sine))
    return dict(found)


def _part(box: Sequence[float], left: float, right: float, sine: float) -> Box:
    """The box of a part of a line, from `left` to `right` of its length, that a turn made rise or fall."""
    x0, y0, x1, y1 = box
    fall = (x1 - x0) * sine  # from the line's beginning to its end
    middle = (y0 + y1) / 2 + ((left + right) / 2 - 0.5) * fall
    half = max(1.0, (y1 - y0 - (1 - (right - left)) * abs(fall)) / 2)
    return round(x0 + (x1 - x0) * left), round(middle - half), round(x0 + (x1 - x0) * right), round(middle + half)


def _between(along: Sequence[float], letter: int) -> float:
    """How far along a text its letter of this number begins: half-way from the middle of the one before."""
    if letter == 0:
        return 0.0
    if letter == len(along):
        return 1.0
    return (along[letter - 1] + along[letter]) / 2


def anchors(question: str, places: Mapping[str, Sequence[Box]]) -> list[Box]:
    """Where the words of a question stand, those that stand in few places, at most `ANCHORS`.

    >>> anchors("What is the total due?", {"total": [(0, 0, 50, 9)], "the": [(5, 20, 9, 29)]})
    [(0, 0, 50, 9)]
    """
    found: list[Box] = []
    for word in dict.fromkeys(word for word, _, _ in words_in(question)):
        own = places.get(word, ())
        if word not in ORDINARY and len(own) <= OFTEN:
            found += own
    return found[:ANCHORS]
