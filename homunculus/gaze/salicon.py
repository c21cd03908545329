"""SALICON: a mouse that uncovers a blurred photograph, by very many people; the mouse is not the eye.

Either one JSON file for each split, COCO style (`images`, and `annotations` with image_id, worker_id, fixations), or
one MATLAB file for each image whose `gaze` holds the `fixations` of each person. Places are pixels counted from 1:
(row, column) in the JSON files, or (x, y) in early ones, which a place below the image gives away; (x, y) in the MATLAB
files. There are no durations and no forced first fixation.

Reference: Jiang et al. 2015. A degree stands for the 19 pixels over which the authors blur.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from homunculus.errors import DataError
from homunculus.gaze.json_stream import elements
from homunculus.gaze.record import Few, Picture, Viewing, find_pictures, inside, read_mat, size_of
from homunculus.geometry import Size

DEGREE = 19.0  # pixels


def read(folder: Path, counts: Counter[str], wanted: Few) -> Iterator[Viewing]:
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
    photographs = {name: paths[0] for name, paths in find_pictures(folder).items()}
    shown: dict[str, Picture] = {}

    def picture(name: str) -> Picture:
        if name not in photographs:
            raise DataError(f"{folder} holds no image {name}: unpack the images of SALICON there")
        if name not in shown:
            shown[name] = Picture(photographs[name], size_of(photographs[name]), DEGREE)
        return shown[name]

    for file in listed:
        names, across_first = _overview(file)
        for number, annotation in enumerate(_annotations(file)):
            where = f"annotation {number} of {file}"
            name = names.get(annotation.get("image_id"))
            if name is None:
                raise DataError(f"{where} is of an image that the file does not list: download it again")
            if not wanted(name):
                continue
            places = _places(annotation.get("fixations"), where)
            places = places if across_first else places[:, ::-1]
            yield _viewing(picture(name), str(annotation.get("worker_id", number)), places, counts)
    for file in [] if listed else matlab:
        if not wanted(f"{file.stem}.jpg"):
            continue
        variables = read_mat(file)
        gaze = variables.get("gaze")
        if gaze is None:
            raise DataError(f"{file} has no variable gaze: give the MATLAB files of SALICON")
        for number, person in enumerate([gaze] if isinstance(gaze, dict) else gaze):
            found = person.get("fixations") if isinstance(person, dict) else None
            places = _places(found, f"person {number} of {file}")
            yield _viewing(picture(f"{file.stem}.jpg"), f"{file.stem}/{number}", places, counts)


def _viewing(shown: Picture, subject: str, places: np.ndarray, counts: Counter[str]) -> Viewing:
    # From 1 to the middle of the pixel; the mouse has no durations.
    fixations = np.column_stack((places - 0.5, np.full(len(places), np.nan)))
    return Viewing(shown, subject, inside(fixations, shown.size, counts))


def _overview(file: Path) -> tuple[dict[Any, str], bool]:
    """The images a file lists, and whether its places are (x, y): some then lie lower than the image is high."""
    names: dict[Any, str] = {}
    sizes: dict[Any, Size] = {}
    furthest: dict[Any, float] = {}
    for key, element in elements(file):
        if key == "images":
            try:
                names[element["id"]] = element["file_name"]
                sizes[element["id"]] = element["width"], element["height"]
            except (KeyError, TypeError):
                raise DataError(
                    f"an image of {file} lacks id, file_name, width or height: give the JSON files of SALICON"
                ) from None
        elif key == "annotations":
            _check(element, file)
            first = [place[0] for place in element["fixations"] or [] if isinstance(place, list) and place]
            image = element["image_id"]
            furthest[image] = max(furthest.get(image, 0.0), *first, 0.0)
    if not names or not furthest:
        raise DataError(f"{file} has no images or no annotations: give the JSON files of SALICON")
    return names, any(furthest[image] > sizes[image][1] for image in furthest if image in sizes)


def _annotations(file: Path) -> Iterator[Mapping[str, Any]]:
    for key, element in elements(file):
        if key == "annotations":
            yield element


def _check(annotation: Any, file: Path) -> None:
    missing = [name for name in ("image_id", "fixations") if name not in annotation]
    if missing:
        raise DataError(f"an annotation of {file} has no {', '.join(missing)}: give the JSON files of SALICON")


def _places(found: Any, where: str) -> np.ndarray:
    """[n, 2] of a list of pairs; an empty list is nobody's fault."""
    try:
        places = np.asarray([] if found is None else found, dtype=np.float64)
        if places.size == 0:
            return np.zeros((0, 2))
        return places.reshape(-1, 2) if places.shape[-1] == 2 and places.ndim < 3 else _refuse(where)
    except (TypeError, ValueError):
        return _refuse(where)


def _refuse(where: str) -> np.ndarray:
    raise DataError(f"{where} has fixations that are no pairs of numbers: download it again")
