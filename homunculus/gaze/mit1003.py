"""MIT1003: fifteen people who look at photographs for three seconds, free to look wherever they like.

ALLSTIMULI/NAME.jpeg, and for every person a folder DATA/PERSON/NAME.mat that holds the raw trace, 240 positions of the
gaze a second, in pixels of the image. Fixations are found in the trace here, by a velocity threshold; the database's
own MATLAB code uses accelerations, so counts differ a little. The first fixation lay at the centre before the image
came and is dropped, as the authors do.

Reference: Judd et al. 2009. A degree is about 35 pixels.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from homunculus.errors import DataError
from homunculus.gaze.record import Few, Picture, Viewing, find_pictures, inside, read_mat, size_of, the_one

STIMULI = "ALLSTIMULI"
DEGREE = 35.0  # pixels
RATE = 240.0  # samples a second
FORCED = 1
SPEED = 30.0  # degrees a second: faster is a saccade
SMOOTH = 4  # samples over which speed is measured
SHORTEST = 50.0  # milliseconds


def read(folder: Path, counts: Counter[str], wanted: Few, without: Iterable[Path] = ()) -> Iterator[Viewing]:
    """The viewings of a folder, person by person.

    >>> next(read(Path("no such folder"), Counter(), Few()))
    Traceback (most recent call last):
    homunculus.errors.DataError: no such folder holds no DATA/PERSON/*.mat: unpack DATA.zip of MIT1003 there
    """
    files = sorted(path for path in folder.rglob("*.mat") if path.parent.parent.name == "DATA")
    if not files:
        raise DataError(f"{folder} holds no DATA/PERSON/*.mat: unpack DATA.zip of MIT1003 there")
    stimuli: dict[str, list[Path]] = {}
    for paths in find_pictures(folder, without).values():
        for path in paths:
            stimuli.setdefault(path.stem, []).append(path)
    shown: dict[str, Picture] = {}
    for file in files:
        if not wanted(file.stem):
            continue
        if file.stem not in stimuli:
            raise DataError(f"{folder} holds no image {file.stem}.jpeg: unpack ALLSTIMULI.zip of MIT1003 there")
        if file.stem not in shown:
            own = stimuli[file.stem]
            path = the_one([path for path in own if path.parent.name == STIMULI] or own)
            shown[file.stem] = Picture(path, size_of(path), DEGREE)
        picture = shown[file.stem]
        found = fixations_of(trace_of(file))
        counts["forced"] += min(FORCED, len(found))
        yield Viewing(picture, file.parent.name, inside(found[FORCED:], picture.size, counts))


def trace_of(file: Path) -> Float64[np.ndarray, "samples 2"]:
    """The raw gaze of one person on one image."""
    variables = read_mat(file)
    trial: Any = next(iter(variables.values()), None)  # the variable has the image's name, cut to 63 letters
    try:
        data = trial["DATA"]
        data = data if isinstance(data, dict) else data[0]
        trace = np.asarray(data["eyeData"], dtype=np.float64)
        if trace.ndim != 2 or trace.shape[1] < 2:
            raise ValueError
    except (KeyError, TypeError, ValueError, IndexError):
        raise DataError(
            f"{file} has no DATA.eyeData of two columns: give the files of DATA.zip of MIT1003 as they are"
        ) from None
    return trace[:, :2]


def fixations_of(
    trace: Float64[np.ndarray, "samples 2"], rate: float = RATE, degree: float = DEGREE
) -> Float64[np.ndarray, "n 3"]:
    """Where a trace stands still: stretches slower than a saccade, at least 50 ms long, at their median.

    A blink (positions that are no numbers) ends a fixation.

    >>> still = np.repeat([[100.0, 100.0], [300.0, 200.0]], 60, axis=0)  # a quarter of a second each
    >>> fixations_of(still).round()
    array([[100., 100., 233.],
           [300., 200., 250.]])
    """
    if len(trace) <= SMOOTH:
        return np.zeros((0, 3))
    # The speed at a sample is that over the next few: a jump of one sample is seen by all that look across it.
    step = np.linalg.norm(trace[SMOOTH:] - trace[:-SMOOTH], axis=1) * rate / SMOOTH / degree
    speed = np.concatenate((step, np.full(SMOOTH, step[-1])))
    still = (speed < SPEED) & np.isfinite(trace).all(1)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], still, [False])).astype(np.int8)))
    starts, ends = edges[0::2], edges[1::2]
    lasting = (ends - starts) * 1000 / rate
    long = lasting >= SHORTEST
    spans = zip(starts[long], ends[long], strict=True)
    places = [np.median(trace[start:end], axis=0) for start, end in spans]
    return np.column_stack((np.array(places).reshape(-1, 2), lasting[long]))
