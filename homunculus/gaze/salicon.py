"""SALICON: a mouse that uncovers a blurred photograph, by very many people; the mouse is not the eye.

Either one JSON file for each split, COCO style (`images`, and `annotations` with image_id, worker_id, fixations), or
one MATLAB file for each image whose `gaze` holds the `fixations` of each person. Places are pixels counted from 1:
(row, column) in the JSON files, or (x, y) in early ones; (x, y) in the MATLAB files. Which of the two a JSON file has
is told by the places that lie on the image in one reading only. There are no durations and no forced first fixation.

Reference: Jiang et al. 2015. A degree stands for the 19 pixels over which the authors blur.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from homunculus.errors import DataError
from homunculus.gaze.json_stream import elements
from homunculus.gaze.record import Few, Picture, Viewing, find_pictures, inside, read_mat, size_of, the_one
from homunculus.geometry import Size

DEGREE = 19.0  # pixels
CLEAR = 5  # times as many places must speak for one reading of a file as for the other


def read(folder: Path, counts: Counter[str], wanted: Few, without: Iterable[Path] = ()) -> Iterator[Viewing]:
    """The viewings of a folder, person by person of each image.

    >>> next(read(Path("no such folder"), Counter(), Few()))
    Traceback (most recent call last):
    homunculus.errors.DataError: no such folder holds neither fixations_*.json nor MATLAB files: unpack ... there
    """
    listed, matlab = sorted(folder.rglob("fixations*.json")), sorted(folder.rglob("*.mat"))
    if not listed and not matlab:
        raise DataError(
            f"{folder} holds neither fixations_*.json nor MATLAB files: unpack the fixations of SALICON there"
        )
    photographs = find_pictures(folder, without)
    shown: dict[str, Picture] = {}

    def picture(name: str) -> Picture:
        if name not in photographs:
            raise DataError(f"{folder} holds no image {name}: unpack the images of SALICON there")
        if name not in shown:
            path = the_one(photographs[name])
            shown[name] = Picture(path, size_of(path), DEGREE)
        return shown[name]

    for file in listed:
        images = _images(file)
        across_first = _across_first(file, images)
        for worker, (name, _), places in _annotations(file, images):
            if wanted(name):
                yield _viewing(picture(name), worker, places if across_first else places[:, ::-1], counts)
    for file in [] if listed else matlab:
        if wanted(f"{file.stem}.jpg"):
            for number, places in enumerate(_people(file)):
                yield _viewing(picture(f"{file.stem}.jpg"), f"{file.stem}/{number}", places, counts)


def _viewing(shown: Picture, subject: str, places: np.ndarray, counts: Counter[str]) -> Viewing:
    # From 1 to the middle of the pixel; the mouse has no durations.
    fixations = np.column_stack((places - 0.5, np.full(len(places), np.nan)))
    return Viewing(shown, subject, inside(fixations, shown.size, counts))


def _images(file: Path) -> dict[Any, tuple[str, Size]]:
    """Name and size of the images that a JSON file lists, by their number."""
    images: dict[Any, tuple[str, Size]] = {}
    for key, element in elements(file):
        if key == "images":
            own = element if isinstance(element, dict) else {}
            parts: list[Any] = [own.get(part) for part in ("id", "file_name", "width", "height")]
            number, name, width, height = parts
            sides = all(isinstance(side, int) and side > 0 for side in (width, height))
            if not (isinstance(number, int | str) and isinstance(name, str) and sides):
                raise DataError(
                    f"an image of {file} lacks id, file_name, width or height: give the JSON files of SALICON"
                )
            images[number] = name, (width, height)
    return images


def _across_first(file: Path, images: dict[Any, tuple[str, Size]]) -> bool:
    """Whether the places of a JSON file are (x, y) and not (row, column): by the majority of those that can be only one
    of them, so that a few bad ones decide nothing."""
    across = down = annotations = 0
    if not images:
        raise DataError(f"{file} has no images: give the JSON files of SALICON")
    for _, (_, size), places in _annotations(file, images):
        as_across, as_down = _on(places, size), _on(places, size[::-1])
        across += int((as_across & ~as_down).sum())
        down += int((as_down & ~as_across).sum())
        annotations += 1
    if not annotations:
        raise DataError(f"{file} has no annotations: give the JSON files of SALICON")
    if min(across, down) * CLEAR > max(across, down):
        raise DataError(
            f"{file} has {down} places that can only be (row, column), and {across} that can only be (x, y): "
            "give the JSON files of SALICON, one order in each"
        )
    return across > down


def _on(places: Float64[np.ndarray, "n 2"], size: Size) -> Bool[np.ndarray, " n"]:
    """Which places, counted from 1, lie within a size."""
    return np.all((places >= 0.5) & (places < np.array(size) + 0.5), axis=1)


def _annotations(
    file: Path, images: dict[Any, tuple[str, Size]]
) -> Iterator[tuple[str, tuple[str, Size], Float64[np.ndarray, "n 2"]]]:
    """Worker, image and places of each annotation of a JSON file, checked."""
    found = (element for key, element in elements(file) if key == "annotations")
    for number, annotation in enumerate(found):
        own = annotation if isinstance(annotation, dict) else {}
        missing = [name for name in ("image_id", "fixations") if name not in own]
        if missing:
            raise DataError(f"an annotation of {file} has no {', '.join(missing)}: give the JSON files of SALICON")
        where, image = f"annotation {number} of {file}", own["image_id"]
        if not isinstance(image, int | str) or image not in images:
            raise DataError(f"{where} is of an image that the file does not list: download it again")
        yield str(own.get("worker_id", number)), images[image], _places(own["fixations"], where)


def _people(file: Path) -> Iterator[Float64[np.ndarray, "n 2"]]:
    """The places of each person of a MATLAB file."""
    gaze = read_mat(file).get("gaze")
    if gaze is None:
        raise DataError(f"{file} has no variable gaze: give the MATLAB files of SALICON")
    people: Iterable[Any] = gaze if isinstance(gaze, list | np.ndarray) else [gaze]
    for number, person in enumerate(people):
        if not isinstance(person, dict) or "fixations" not in person:
            raise DataError(f"{file} has a gaze without fixations: give the MATLAB files of SALICON")
        yield _places(person["fixations"], f"person {number} of {file}")


def _places(found: Any, where: str) -> Float64[np.ndarray, "n 2"]:
    """[n, 2] of a list of pairs; nothing at all is nobody's fault."""
    try:
        places = np.asarray([] if found is None else found)
    except ValueError:  # rows of different lengths
        places = np.array("")
    if places.size == 0:
        return np.zeros((0, 2))
    if places.dtype.kind not in "iuf" or places.ndim not in (1, 2) or places.shape[-1] != 2:
        raise DataError(f"{where} has fixations that are no pairs of numbers: download it again")
    return places.astype(np.float64).reshape(-1, 2)
