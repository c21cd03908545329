"""More typefaces for drills, from a folder: five faces teach five faces.

A family is NAME-regular.ttf and, where there are any, NAME-bold.ttf and NAME-italic.ttf (runs/faces.py gathers some
hundred). Those that `test-ood` is set in are refused: it would not be what it says any more.
"""

import re
from functools import lru_cache
from pathlib import Path
from string import printable

from PIL import ImageFont

from homunculus.cache.keys import content_key
from homunculus.data.fonts import Face, missing
from homunculus.errors import DataError

ASCII = printable.strip()
_KIN = (
    "(computer|latin|ml) ?modern",
    "new ?cm",
    r"\blm ?(roman|sans|mono|math)",
    r"^(cm|lm)[a-z]{1,6}[0-9]*\b",
    "^sfrm",
)
_HELD_OUT = re.compile("|".join(_KIN), re.IGNORECASE)


def held_out(family: str) -> bool:
    """Whether a family is one that `test-ood` is set in, or close kin, by its name.

    >>> held_out("Latin Modern Roman"), held_out("CMU Serif"), held_out("Cabin"), held_out("Palm Sans")
    (True, True, False, False)
    """
    return bool(_HELD_OUT.search(family))


@lru_cache(maxsize=4)
def faces_in(folder: str) -> tuple[Face, ...]:
    """The families of a folder, by name."""
    files = {path.stem.lower(): path for path in sorted(Path(folder).glob("*-*")) if path.suffix.lower() == ".ttf"}
    found = []
    for stem, path in files.items():
        if stem.endswith("-regular"):
            family = stem.removesuffix("-regular")
            bold, italic = (str(files.get(f"{family}-{cut}", "")) for cut in ("bold", "italic"))
            found.append(Face(path.stem[: -len("-regular")], "sans", str(path), bold, italic))
    if not found:
        raise DataError(f"{folder} is no folder with a NAME-regular.ttf: gather some with runs/faces.py")
    return tuple(found)


def check_faces(folder: str) -> str:
    """Open every file of a folder's families; a key of all that is in them, or an error that names the file."""
    for face in faces_in(folder):
        for file in filter(None, (face.regular, face.bold, face.italic)):
            try:
                names = (face.name, *filter(None, ImageFont.truetype(file, 16).getname()))
            except OSError as error:
                raise DataError(f"{file} is no typeface ({error}): take it out") from None
            if any(map(held_out, names)):
                raise DataError(f"{file} is a face of test-ood: take it out, or nothing is held out any more")
        if lacking := missing(face, ASCII):
            raise DataError(f"{face.regular} or another cut of it lacks {lacking}: take the family out")
    files = [file for face in faces_in(folder) for file in (face.regular, face.bold, face.italic) if file]
    return content_key(*(part for file in files for part in (Path(file).name, Path(file).read_bytes())))
