"""What every gaze data set becomes: one person's fixations on one image, in pixels of that image.

Coordinates are those of the library: pixel i covers [i, i+1), x to the right, y down. Durations are milliseconds, or
not a number where the data set has none. What is left out on the way, and why, is counted.
"""

import filecmp
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from PIL import Image

from homunculus.errors import DataError
from homunculus.geometry import Size

PICTURES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


@dataclass(frozen=True)
class Picture:
    """An image that was looked at.

    `size` is that of the image itself. `crop` (x0, y0, x1, y1) says where it is in its file, where the file has bars
    around it. `degree` is how many of its pixels a degree of visual angle took.
    """

    path: Path
    size: Size
    degree: float
    crop: tuple[int, int, int, int] | None = None

    @property
    def name(self) -> str:
        """What the image is known by: a photograph may lie in the folders of several tasks."""
        return self.path.name

    def pixels(self) -> Any:
        """The image as a tensor [3, h, w]."""
        from homunculus.images import open_image

        pixels = open_image(self.path)
        if self.crop is not None:
            x0, y0, x1, y1 = self.crop
            pixels = pixels[:, y0:y1, x0:x1]
        if pixels.shape[:0:-1] != self.size:
            found = f"{pixels.shape[2]}x{pixels.shape[1]}"
            raise DataError(f"{self.path} shows {found} pixels, not {self.size[0]}x{self.size[1]}: download it again")
        return pixels


@dataclass(frozen=True, eq=False)
class Viewing:
    """One person looking at one image: (x, y, duration) of each fixation in order, and what was searched for, if
    anything.

    >>> picture = Picture(Path("kitchen.jpg"), (640, 480), 30.0)
    >>> Viewing(picture, "7", np.array([[320.0, 200.0, 180.0]]), "cup").question
    'Find the cup.'
    """

    picture: Picture
    subject: str
    fixations: Float64[np.ndarray, "n 3"]
    target: str = ""

    @property
    def question(self) -> str | None:
        return f"Find the {self.target}." if self.target else None


class Few:
    """Lets in the first so many different images and no more; all where there is no limit.

    >>> few = Few(2)
    >>> [few(name) for name in ("a.jpg", "b.jpg", "a.jpg", "c.jpg")]
    [True, True, True, False]
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit, self.seen = limit, set[str]()

    def __call__(self, name: str) -> bool:
        if self.limit is None or name in self.seen:
            return True
        if len(self.seen) >= self.limit:
            return False
        self.seen.add(name)
        return True


def inside(fixations: Float64[np.ndarray, "n 3"], size: Size, counts: Counter[str]) -> Float64[np.ndarray, "kept 3"]:
    """The fixations on the image; the others are counted as "outside".

    >>> counts = Counter()
    >>> inside(np.array([[5.0, 5.0, 1.0], [64.0, 5.0, 1.0], [np.nan, 5.0, 1.0]]), (64, 64), counts)[:, 0], counts
    (array([5.]), Counter({'outside': 2}))
    """
    x, y = fixations[:, 0], fixations[:, 1]
    on = (x >= 0) & (x < size[0]) & (y >= 0) & (y < size[1])  # not a number is nowhere
    counts["outside"] += int((~on).sum())
    return fixations[on]


def size_of(path: Path) -> Size:
    """Width and height of an image file, from its header."""
    try:
        with Image.open(path) as opened:
            return opened.size
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read ({error}): download it again") from None


def find_pictures(folder: Path, without: Iterable[Path] = ()) -> dict[str, list[Path]]:
    """All image files anywhere in a folder, by name; `without` are files that are none of its photographs, but maps."""
    maps = {path.resolve() for path in without}
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in PICTURES and path.is_file() and not (maps and path.resolve() in maps):
            found.setdefault(path.name, []).append(path)
    return found


def the_one(found: Sequence[Path]) -> Path:
    """The first of some files, of which all others must be copies: nobody can tell which of two images was shown."""
    for other in found[1:]:
        if not filecmp.cmp(found[0], other, shallow=False):
            raise DataError(
                f"there are two different images {other.name} ({found[0]} and {other}): move away the one that nobody "
                "looked at, or name its folder in --maps"
            )
    return found[0]


def read_mat(path: Path) -> dict[str, Any]:
    """The variables of a MATLAB file, structures as dictionaries."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError:
        raise DataError(
            f"{path.name} is a MATLAB file and is read with scipy: pip install 'homunculus[gaze]'"
        ) from None
    try:
        return {name: value for name, value in loadmat(path, simplify_cells=True).items() if name[:2] != "__"}
    except NotImplementedError:
        raise DataError(f"{path} is a MATLAB 7.3 file: save it again with save -v7") from None
    except (OSError, ValueError, TypeError, KeyError, IndexError, EOFError, MatReadError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} is no whole MATLAB file ({reason}): download it again") from None
