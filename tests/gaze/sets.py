"""Small made-up data sets in exactly the published formats."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def photograph(path: Path, size: tuple[int, int], bars: tuple[int, int] = (0, 0), dark: float = 0.0) -> None:
    """A bright picture, with black bars left and right or above and below if asked for; `dark` is the share of its own
    width that is black at its left and right."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    inner = pixels[bars[1] : size[1] - bars[1], bars[0] : size[0] - bars[0]]
    ramp = np.linspace(60, 220, inner.shape[1], dtype=np.uint8)
    inner[:] = ramp[None, :, None]
    black = round(dark * inner.shape[1])
    inner[:, :black] = inner[:, inner.shape[1] - black :] = 0
    Image.fromarray(pixels).save(path, quality=92)


def trial(name: str = "000000000001.jpg", **changes: Any) -> dict[str, Any]:
    """A trial of COCO-Search18: the forced fixation at the centre of the display, then two on the image."""
    return {
        "name": name,
        "subject": 3,
        "task": "cup",
        "condition": "present",
        "bbox": [700, 400, 80, 90],
        "X": [840.0, 140.0, 1539.0],
        "Y": [525.0, 0.0, 1049.0],
        "T": [210, 180, 330],
        "length": 3,
        "correct": 1,
        "RT": 720,
        "split": "train",
        "fixOnTarget": True,
    } | changes


def coco_search18(folder: Path, trials: list[dict[str, Any]], size: tuple[int, int] = (640, 480)) -> Path:
    for one in trials:
        photograph(folder / "images" / "cup" / one["name"], size)
    (folder / "coco_search18_fixations_TP_train_split1.json").write_text(json.dumps(trials))
    return folder


def mit1003(folder: Path, traces: dict[tuple[str, str], Any], size: tuple[int, int] = (1024, 768)) -> Path:
    """Traces [n, 2] by (person, image): a structure of the image's name, cut to 63 letters, in a file of its own."""
    from scipy.io import savemat

    for (person, name), trace in traces.items():
        photograph(folder / "ALLSTIMULI" / f"{name}.jpeg", size)
        place = folder / "DATA" / person / f"{name}.mat"
        place.parent.mkdir(parents=True, exist_ok=True)
        data = {"eyeData": np.asarray(trace, dtype=np.float64), "subject": person}
        savemat(place, {name[:31]: {"DATA": data, "imgName": f"{name}.jpeg"}})
    return folder


def salicon_json(folder: Path, gaze: dict[str, list[Any]], size: tuple[int, int] = (640, 480)) -> Path:
    """Lists of places, one for each worker, by image."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (name, workers) in enumerate(gaze.items(), 100):
        photograph(folder / "images" / name, size)
        images.append({"id": number, "file_name": name, "width": size[0], "height": size[1], "license": 1})
        for worker, places in enumerate(workers):
            annotations.append({"id": len(annotations), "image_id": number, "worker_id": worker, "fixations": places})
    parts = {"info": {"year": 2014}, "images": images, "type": "fixations", "annotations": annotations}
    (folder / "fixations_val2014.json").write_text(json.dumps(parts))
    return folder


def salicon_mat(folder: Path, name: str, people: list[Any], size: tuple[int, int] = (640, 480)) -> Path:
    """One file for an image: gaze(person).location, .timestamp, .fixations."""
    from scipy.io import savemat

    photograph(folder / "images" / f"{name}.jpg", size)
    kinds = [("location", object), ("timestamp", object), ("fixations", object)]
    gaze = np.zeros((len(people), 1), dtype=kinds)
    for number, places in enumerate(people):
        places = np.asarray(places, dtype=np.uint16).reshape(-1, 2)
        gaze[number, 0] = (places.astype(np.float64), np.arange(len(places))[:, None], places)
    (folder / "fixations").mkdir(parents=True, exist_ok=True)
    where = folder / "fixations" / f"{name}.mat"
    savemat(where, {"gaze": gaze, "image": name, "resolution": np.array([[size[1], size[0]]])})
    return folder
