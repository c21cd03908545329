"""More typefaces for drills, from a folder: five faces teach five faces.

A family is NAME-regular.ttf and, where there are any, NAME-bold.ttf and NAME-italic.ttf (runs/faces.py gathers some
hundred). Those that `test-ood` is set in are refused: it would not be what it says any more.
"""

import re
from functools import lru_cache
from pathlib import Path

from homunculus.data.fonts import Face
from homunculus.errors import DataError

_HELD_OUT = re.compile("computer ?modern|latin ?modern|lm ?(roman|sans|mono|math)|^cmu|^cm[a-z]{1,4}[0-9]*$", re.I)


def held_out(family: str) -> bool:
    """Whether a family is one that `test-ood` is set in, by its name.

    >>> held_out("Latin Modern Roman"), held_out("CMU Serif"), held_out("Cabin")
    (True, True, False)
    """
    return bool(_HELD_OUT.search(family))


@lru_cache(maxsize=4)
def faces_in(folder: str) -> tuple[Face, ...]:
    """The families of a folder, by name."""
    found = []
    for regular in sorted(Path(folder).glob("*-regular.ttf")):
        family = regular.name.removesuffix("-regular.ttf")
        if held_out(family):
            raise DataError(f"{regular} is a face of test-ood: take it out, or nothing is held out any more")
        bold, italic = (str(p) if p.exists() else "" for p in map(regular.with_name, _others(family)))
        found.append(Face(family, "sans", str(regular), bold, italic))
    if not found:
        raise DataError(f"{folder} has no NAME-regular.ttf: gather some with runs/faces.py")
    return tuple(found)


def _others(family: str) -> tuple[str, str]:
    return f"{family}-bold.ttf", f"{family}-italic.ttf"
