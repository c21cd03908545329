"""The typefaces: those of the matplotlib wheel and Pillow's own, with the letters each of them really has.

Computer Modern keeps other signs where ASCII has some of its own (a < comes out as an inverted !), so a face states
what it can write, and what it cannot is an error, never a box. `test-ood` is set in faces no other split uses.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from PIL import ImageFont

from homunculus.data.record import Split
from homunculus.errors import DataError

Style = Literal["sans", "serif", "mono", "math"]

_NO_GLYPH = "\uffff"  # a code point that will never be a letter: draws what a face draws for letters it lacks
_TEX_MISPLACED = frozenset('"<>\\^_`{|}~')


@dataclass(frozen=True)
class Face:
    """A typeface in its cuts: files of matplotlib by name, or any others by path. Where a cut is missing the regular
    one stands in."""

    name: str
    style: Style
    regular: str
    bold: str = ""
    italic: str = ""
    held_out: bool = False
    misplaced: frozenset[str] = frozenset()


FACES = (
    Face("DejaVu Sans", "sans", "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique"),
    Face("Aileron", "sans", "pillow"),
    Face("DejaVu Serif", "serif", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic"),
    Face("STIX", "serif", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic"),
    Face("DejaVu Sans Mono", "mono", "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique"),
    Face("Computer Modern Sans", "sans", "cmss10", held_out=True, misplaced=_TEX_MISPLACED),
    Face("Computer Modern Roman", "serif", "cmr10", "cmb10", "cmti10", held_out=True, misplaced=_TEX_MISPLACED | {"$"}),
    Face("Computer Modern Typewriter", "mono", "cmtt10", held_out=True, misplaced=frozenset("`~")),
)


def faces(split: Split, style: Style | None = None) -> tuple[Face, ...]:
    """The faces a split is set in, of one style or of all.

    >>> [face.name for face in faces("test-ood", "mono")]
    ['Computer Modern Typewriter']
    """
    held_out = split == "test-ood"
    return tuple(face for face in FACES if face.held_out == held_out and style in (None, face.style))


@lru_cache(maxsize=4096)
def load(face: Face, size: int, cut: Literal["regular", "bold", "italic"] = "regular") -> ImageFont.FreeTypeFont:
    """A face at a size in pixels, laid out without RAQM so that every Pillow sets the same lines."""
    return _open(getattr(face, cut) or face.regular, size)


@lru_cache(maxsize=512)
def load_file(name: str, size: int) -> ImageFont.FreeTypeFont:
    """A font file of the matplotlib wheel by name: the symbol fonts that formulas need."""
    return _open(name, size)


@lru_cache(maxsize=4096)
def missing(face: Face, text: str) -> str:
    """The letters of a text that a face cannot write, in any of its cuts; empty when it can write all.

    >>> missing(FACES[0], "Total: 41.20 €"), missing(FACES[1], "41.20 €")
    ('', '€')
    """
    return "".join(sorted({letter for letter in text if not _has(face, letter)}))


@lru_cache(maxsize=8192)
def _has(face: Face, letter: str) -> bool:
    if letter in face.misplaced or letter == _NO_GLYPH or (face.misplaced and not letter.isascii()):
        return False
    if letter == " ":
        return True
    cuts = {file for file in (face.regular, face.bold, face.italic) if file}
    return all(bytes(_open(cut, 32).getmask(letter)) != _blank(cut) for cut in cuts)


@lru_cache(maxsize=64)
def _blank(file: str) -> bytes:
    return bytes(_open(file, 32).getmask(_NO_GLYPH))


@lru_cache(maxsize=1024)
def _open(file: str, size: int) -> ImageFont.FreeTypeFont:
    if file == "pillow":
        font = ImageFont.load_default(size)
        assert isinstance(font, ImageFont.FreeTypeFont)  # what Pillow returns when it is given a size
        return font.font_variant(layout_engine=ImageFont.Layout.BASIC)
    path = file if file.lower().endswith(".ttf") else str(_folder() / f"{file}.ttf")
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=1)
def _folder() -> Path:
    found = find_spec("matplotlib")
    if found is None or found.origin is None:
        raise DataError("the generators take their fonts from matplotlib: pip install 'homunculus[data]'")
    return Path(found.origin).parent / "mpl-data" / "fonts" / "ttf"
