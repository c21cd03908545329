"""COCO-Search18: people who look for an object in a photograph, its name told beforehand.

JSON lists of trials with name, subject, task, condition, X, Y, T, correct and more. Positions are those of a display of
1680x1050 pixels on which the photograph was letterboxed; that is undone, whether the folder holds the photographs
themselves or the padded ones the data set comes with. The first fixation is the forced one at the centre and is
dropped; trials with a wrong response are left out. The published files part the same trials in two ways (split1 and
split2): a person counts once for an image and a task, however many files say so.

Reference: Chen et al. 2021, Yang et al. 2020. A degree is 31 display pixels (54 x 35 degrees; from memory).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from homunculus.errors import DataError
from homunculus.gaze.json_stream import elements
from homunculus.gaze.letterbox import undo_letterbox, without_bars
from homunculus.gaze.record import Few, Picture, Viewing, find_pictures, inside, size_of, the_one
from homunculus.geometry import Size

DISPLAY: Size = (1680, 1050)
DEGREE = 31.0  # display pixels
FORCED = 1  # fixations at the start of a trial that nobody chose
NEEDS = ("name", "subject", "task", "X", "Y", "T", "correct")
CONDITIONS = ("present", "absent")


def read(
    folder: Path, counts: Counter[str], wanted: Few, without: Iterable[Path] = (), condition: str = "present"
) -> Iterator[Viewing]:
    """The viewings of a folder, trial by trial, with the target present, absent, or both ("").

    >>> next(read(Path("no such folder"), Counter(), Few()))
    Traceback (most recent call last):
    homunculus.errors.DataError: no such folder holds no *fixations*.json: unpack the fixations of COCO-Search18 there
    """
    files = sorted(folder.rglob("*fixations*.json"))
    if not files:
        raise DataError(f"{folder} holds no *fixations*.json: unpack the fixations of COCO-Search18 there")
    photographs = find_pictures(folder, without)
    shown: dict[Path, Picture] = {}
    met: set[tuple[str, ...]] = set()
    for file in files:
        for number, (_, trial) in enumerate(elements(file)):
            where = f"trial {number} of {file}"
            _check(trial, where)
            who = str(trial["name"]), str(trial["task"]), str(trial["subject"])
            if who in met:
                counts["repeated"] += 1
                continue
            met.add(who)
            if trial["correct"] != 1:
                counts["wrong response"] += 1
            elif condition and str(trial.get("condition", condition)).lower() != condition:
                counts["other condition"] += 1
            elif wanted(str(trial["name"])):
                path = _photograph(trial, photographs, folder)
                if path not in shown:
                    shown[path] = picture(path)
                yield _viewing(trial, shown[path], where, counts)


def picture(path: Path) -> Picture:
    """A photograph, or its padded version, as it stood on the display."""
    size = size_of(path)
    if size[0] * DISPLAY[1] != size[1] * DISPLAY[0]:  # the photograph itself
        _, scale = undo_letterbox(np.zeros((0, 2)), size, DISPLAY)
        return Picture(path, size, DEGREE / scale)
    crop = without_bars(path)
    whole = crop == (0, 0, *size)
    return Picture(path, (crop[2] - crop[0], crop[3] - crop[1]), DEGREE * size[0] / DISPLAY[0], None if whole else crop)


def _viewing(trial: Mapping[str, Any], shown: Picture, where: str, counts: Counter[str]) -> Viewing:
    try:
        points = np.array([trial["X"], trial["Y"], trial["T"]], dtype=np.float64).T
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{where} has X, Y and T that are no lists of as many numbers: download it again") from None
    if points.ndim != 2:
        raise DataError(f"{where} has X, Y and T that are no lists of as many numbers: download it again")
    counts["forced"] += min(FORCED, len(points))
    points = points[FORCED:]
    if shown.crop is None:
        places, _ = undo_letterbox(points[:, :2], shown.size, DISPLAY)
    else:
        x0, y0, x1, y1 = shown.crop
        file = (x0 + x1, y0 + y1)  # bars are equal, so the file ends as far behind the image as it begins before it
        places = points[:, :2] * file[0] / DISPLAY[0] - (x0, y0)
    fixations = inside(np.column_stack((places, points[:, 2])), shown.size, counts)
    return Viewing(shown, str(trial["subject"]), fixations, str(trial["task"]))


def _photograph(trial: Mapping[str, Any], photographs: Mapping[str, list[Path]], folder: Path) -> Path:
    found = photographs.get(str(trial["name"]), [])
    if not found:
        raise DataError(f"{folder} holds no image {trial['name']}: unpack the images of COCO-Search18 there")
    task = str(trial["task"]).replace("_", " ")
    return the_one([path for path in found if path.parent.name.replace("_", " ") == task] or found)


def _check(trial: Any, where: str) -> None:
    if not isinstance(trial, dict):
        raise DataError(f"{where} is no trial: give files of COCO-Search18, lists of trials")
    missing = [name for name in NEEDS if name not in trial]
    if missing:
        raise DataError(f"{where} has no {', '.join(missing)}: give files of COCO-Search18")
