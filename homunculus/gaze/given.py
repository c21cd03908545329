"""Maps of others: a folder with one file for each image, of the same name, as a row beside ours.

NAME.npy holds any nonnegative array [rows, columns]; NAME.png and NAME.jpg are read as grey, brighter is more.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from PIL import Image

from homunculus.errors import DataError
from homunculus.gaze.compare import BASELINES, PEOPLE, SACCADES
from homunculus.gaze.formats import Stimulus
from homunculus.relevance.maps import SOURCES

ENDINGS = (".npy", ".png", ".jpg", ".jpeg")


def parse_maps(texts: Sequence[str]) -> dict[str, "Maps"]:
    """`NAME=FOLDER`, each as a row of that name.

    >>> parse_maps(["deepgaze"])
    Traceback (most recent call last):
    homunculus.errors.DataError: cannot read --maps 'deepgaze': write NAME=FOLDER
    """
    found: dict[str, Maps] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not name or not equals or not folder:
            raise DataError(f"cannot read --maps '{text}': write NAME=FOLDER")
        if name in (*SOURCES, *BASELINES, PEOPLE, SACCADES) or name in found:
            raise DataError(f"the name '{name}' of --maps is taken: choose another")
        if not Path(folder).is_dir():
            raise DataError(f"{folder} is no folder: --maps wants one with a map for each image")
        found[name] = Maps(Path(folder))
    return found


class Maps:
    """A folder of maps: called with what was looked at, the map of its image; `files` are those it would read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # By the name of the image without its ending; where there are several, the first ending counts.
        self.files = {path.stem: path for ending in reversed(ENDINGS) for path in folder.glob(f"*{ending}")}

    def __call__(self, stimulus: Stimulus) -> Float64[np.ndarray, "h w"]:
        stem = stimulus.picture.path.stem
        if stem not in self.files:
            raise DataError(f"{self.folder} has no map {stem}.npy, .png or .jpg: --maps wants one for each image")
        return read_map(self.files[stem])


def read_map(path: Path) -> Float64[np.ndarray, "h w"]:
    """A map from a file, checked."""
    try:
        if path.suffix == ".npy":
            values = np.load(path, allow_pickle=False).astype(np.float64)
        else:
            with Image.open(path) as opened:
                values = np.asarray(opened.convert("L"), dtype=np.float64)
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error}): write the map again") from None
    if values.ndim != 2 or not values.size or not np.isfinite(values).all() or (values < 0).any():
        raise DataError(f"{path} is no map: give rows and columns of finite numbers, none below 0")
    return values
