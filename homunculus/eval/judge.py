"""The judge: Tesseract, an OCR engine that knows nothing of us, reads an image; `legibility` says what came back.

A yardstick, not a bound: a model may read more or less than Tesseract does. The engine comes with `pip install
tesserocr`, what it knows of a language with Debian's `tesseract-ocr` (or any copy of eng.traineddata).

Reading a region: the box is cut out with a little margin (rules nearby are taken for letters), scaled so that its
letters are some 30 pixels high, where the engine is at its best, framed in its own paper and read as a block: of all
modes the one that read most of the clean values of our documents (split `val`). A box neither flat nor low may hold one
line of large letters or several of small ones, so it is read at both scales; a tall one is also read turned left and
right; the reading the engine is surest of counts. How a box is cut and scaled depends on the box alone, never on how
the image was made.
"""

import math
import os
import subprocess
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from homunculus.data.record import Box
from homunculus.errors import DataError

LETTER = 30  # pixels
SMALL_LETTER = 20  # pixels, we assume, in a box of several lines
MARGIN = 0.2  # of the height of a line
FLAT = 4  # boxes this much wider than high hold one line
TALL = 2.5  # boxes this much higher than wide may hold a line that runs up or down
LOW = 36  # and so do boxes of fewer pixels than this
FRAME = 16  # pixels of paper round what is read
BLANK = 6  # grey levels: what varies less holds no letters
INSTALL = "apt install tesseract-ocr && pip install tesserocr"
FOLDERS = (
    "/usr/share/tesseract-ocr/*/tessdata",
    "/usr/share/tesseract*/tessdata",
    "/usr/share/tessdata",
    "/usr/local/share/tessdata",
)
_LOOK_ALIKES = str.maketrans("‐‑‒–—−‘’‚“”„×", "------'''\"\"\"x")


def read_text(image: Any, boxes: Sequence[Box] | None = None, language: str = "eng") -> str:
    """What Tesseract reads in an image (PIL, or uint8 [h, w, 3]), on the whole page or in some boxes of it."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))
    picture = picture.convert("RGB")
    if boxes is None:
        return _recognise(picture, "AUTO", language)[1]
    return " ".join(_read_box(picture, box, language) for box in boxes).strip()


def _read_box(picture: Image.Image, box: Box, language: str) -> str:
    cuts = [cut_out(picture, box, line) for line in line_heights(box)]
    width, height = box[2] - box[0], box[3] - box[1]
    if height >= TALL * width:
        upright = cut_out(picture, box, width)
        cuts += [upright.transpose(turn) for turn in (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_270)]
    readings = [_recognise(cut, "SINGLE_BLOCK", language) for cut in cuts]
    return max(readings, key=lambda reading: reading[0])[1]


def line_heights(box: Box) -> list[float]:
    """The height in pixels that a line of text in a box of this shape may have.

    >>> line_heights((0, 0, 100, 20)), line_heights((0, 0, 100, 90))
    ([20], [90, 20])
    """
    width, height = box[2] - box[0], box[3] - box[1]
    one = height < LOW or width >= FLAT * height
    return [height] if one else [height, SMALL_LETTER]


def cut_out(picture: Image.Image, box: Box, line: float) -> Image.Image:
    """A box with a margin, its lines scaled to some 30 pixels, in a frame of the median colour of its edge.

    >>> cut_out(Image.new("RGB", (200, 100), "white"), (50, 40, 110, 55), line=15).size
    (164, 74)
    """
    x0, y0, x1, y1 = box
    margin = MARGIN * line
    region = (
        max(0, int(x0 - margin)),
        max(0, int(y0 - margin)),
        min(picture.width, math.ceil(x1 + margin)),
        min(picture.height, math.ceil(y1 + margin)),
    )
    cut = picture.crop(region)
    scale = min(4.0, LETTER / line)
    size = max(8, round(cut.width * scale)), max(8, round(cut.height * scale))
    cut = cut.resize(size, Image.Resampling.BICUBIC)
    return ImageOps.expand(cut, FRAME, _edge_colour(cut))


def _edge_colour(cut: Image.Image) -> tuple[int, ...]:
    pixels = np.asarray(cut)
    edge = np.concatenate((pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))
    return tuple(int(level) for level in np.median(edge, axis=0))


def legibility(answer: str, read: str) -> float:
    """How much of a text was read: 1 - (edit distance to the nearest stretch of what was read) / (letters of the text).

    Case does not count, nor how much white space there is, nor which of several dashes or quotes. 1 means that the text
    is there as a whole, whatever else was read round it; 0 that no stretch of it is nearer than an empty one.

    >>> legibility("INV-2041", "No: inv—2041 /"), legibility("INV-2041", "INV-2O41"), legibility("INV-2041", "")
    (1.0, 0.875, 0.0)
    """
    wanted, given = plain(answer), plain(read)
    if not wanted:
        raise DataError("an empty answer cannot be read: legibility needs a text")
    # Sellers' alignment: row i holds the least cost of matching wanted[:i] with a stretch that ends at each letter.
    costs = [0] * (len(given) + 1)
    for i, letter in enumerate(wanted, 1):
        above, costs = costs, [i] * (len(given) + 1)
        for j, other in enumerate(given, 1):
            costs[j] = min(above[j - 1] + (letter != other), above[j] + 1, costs[j - 1] + 1)
    return 1 - min(costs) / len(wanted)


def plain(text: str) -> str:
    """Folded for comparison: compatible forms, dashes and quotes alike, lower case, single spaces.

    >>> plain("  “Nº 5” — A ")
    '"no 5" - a'
    """
    alike = unicodedata.normalize("NFKC", text).translate(_LOOK_ALIKES)
    return " ".join(unicodedata.normalize("NFKC", alike.casefold()).split())


def versions(language: str = "eng") -> str:
    """Engine and language data, for reports."""
    tesserocr = _engine_module()
    data = Path(tessdata(language)) / f"{language}.traineddata"
    engine = tesserocr.tesseract_version().split()[1]
    return f"Tesseract {engine} (tesserocr {tesserocr.__version__}), {data.name} of {data.stat().st_size} bytes"


def tessdata(language: str = "eng") -> str:
    """The folder with a language's data: TESSDATA_PREFIX, then the usual places, then where `tesseract` looks."""
    prefix = os.environ.get("TESSDATA_PREFIX")
    if prefix is not None:
        folders = [Path(prefix), Path(prefix) / "tessdata"]
    else:
        folders = [found for pattern in FOLDERS for found in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)]
        folders += _folder_of_command()
    for folder in folders:
        if (folder / f"{language}.traineddata").is_file():
            return str(folder)
    where = f" in TESSDATA_PREFIX={prefix}" if prefix is not None else ""
    raise DataError(f"no {language}.traineddata for Tesseract{where}: {INSTALL}, or set TESSDATA_PREFIX to its folder")


def _folder_of_command() -> list[Path]:
    """`tesseract --list-langs` names its folder in quotes on the first line."""
    try:
        listing = subprocess.run(["tesseract", "--list-langs"], capture_output=True, text=True, check=False)
    except OSError:  # there is no such command
        return []
    quoted = (listing.stdout + listing.stderr).partition("\n")[0].split('"')
    return [Path(quoted[1])] if len(quoted) == 3 else []


def _engine_module() -> Any:
    os.environ.setdefault("OMP_THREAD_LIMIT", "1")  # read when the library loads; its threads cost more than they give
    try:
        import tesserocr
    except ImportError as error:
        raise DataError(f"the judge is Tesseract, which is not here ({error}): {INSTALL}") from None
    return tesserocr


@lru_cache(maxsize=4)
def _engine(language: str) -> Any:
    tesserocr = _engine_module()
    return tesserocr.PyTessBaseAPI(path=tessdata(language), lang=language, oem=tesserocr.OEM.LSTM_ONLY)


def _recognise(picture: Image.Image, mode: str, language: str) -> tuple[int, str]:
    """How sure the engine is, in percent, and what it read; nothing read is -1 sure. It sees letters on blank paper."""
    if np.ptp(np.asarray(picture), axis=(0, 1)).max() < BLANK:
        return -1, ""
    engine = _engine(language)
    engine.SetPageSegMode(getattr(_engine_module().PSM, mode))
    engine.SetImage(picture)
    engine.SetSourceResolution(300)
    text = " ".join(engine.GetUTF8Text().split())
    sure = engine.MeanTextConf() if text else -1
    engine.Clear()
    return sure, text
