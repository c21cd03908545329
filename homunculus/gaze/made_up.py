"""Made-up gaze whose answer is known, in a folder of the COCO-Search18 format: nobody looked at anything.

Each image shows discs on a textured ground; one, of a colour of its own, is the target. Every fixation of every made-up
person is drawn from the same planted density: target, centre and anywhere in fixed shares. So the planted map is the
best there is, that of another image the worst of its kind, and both are written beside the data. A file says that it is
made up, and tables and pictures of it repeat that.

    python -m homunculus.gaze.made_up out/made-up
"""

import json
import sys
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from PIL import Image, ImageDraw

from homunculus.data.dice import Dice
from homunculus.gaze.baselines import drawn_path
from homunculus.gaze.coco_search18 import DISPLAY
from homunculus.gaze.maps import density
from homunculus.geometry import Size

SIZES: tuple[Size, ...] = ((640, 480), (480, 640), (640, 427))
COLOURS = {"red": (205, 50, 45), "blue": (50, 85, 200), "green": (45, 150, 70), "yellow": (225, 195, 50)}
SHARES = (0.35, 0.5, 0.15)  # of fixations: at the target, about the centre, anywhere
TARGET_SIGMA, CENTRE_SIGMA = 0.05, 0.12  # of the longer side
TASK = "{} disc"
MARK = "MADE_UP.txt"
SAYS = "made up, nobody looked"


def is_made_up(folder: Path) -> bool:
    """Whether the gaze in a folder, or in one below, was written here.

    >>> is_made_up(Path("no such folder"))
    False
    """
    return any(True for _ in folder.rglob(MARK))


def planted_density(size: Size, target: tuple[float, float], cells: int = 8) -> Float64[np.ndarray, "h w"]:
    """Where the made-up people look, on cells of so many pixels.

    >>> round(float(planted_density((64, 64), (20.0, 20.0)).sum()), 9)
    1.0
    """
    x = (np.arange(size[0] // cells) + 0.5) * size[0] / (size[0] // cells)
    y = (np.arange(size[1] // cells) + 0.5)[:, None] * size[1] / (size[1] // cells)

    def hill(place: tuple[float, float], sigma: float) -> np.ndarray:
        wide = sigma * max(size)
        return density(np.exp(-((x - place[0]) ** 2 + (y - place[1]) ** 2) / (2 * wide**2)))

    even = density(np.ones((len(y), len(x))))
    parts = (hill(target, TARGET_SIGMA), hill((size[0] / 2, size[1] / 2), CENTRE_SIGMA), even)
    return sum((share * part for share, part in zip(SHARES, parts, strict=True)), np.zeros_like(even))


def write(out: Path, images: int = 40, people: int = 10, fixations: int = 5, seed: int = 0) -> None:
    """Images, their gaze and the maps `planted` and `shuffled` into a folder."""
    photographs, maps, another = out / "images", out / "maps" / "planted", out / "maps" / "shuffled"
    for folder in (photographs, maps, another):
        folder.mkdir(parents=True, exist_ok=True)
    trials, names, planted = [], [], []
    for number in range(images):
        dice = Dice("made-up gaze", seed, number)
        size = SIZES[number % len(SIZES)]
        name = f"{number:012d}"
        picture, colour, target = _scene(dice, size)
        picture.save(photographs / f"{name}.jpg", quality=92)
        truth = planted_density(size, target)
        np.save(maps / f"{name}.npy", truth)
        names.append(name)
        planted.append(truth)
        for person in range(people):
            path = drawn_path(dice, truth, fixations, size)[:, :2]
            scale = min(DISPLAY[0] / size[0], DISPLAY[1] / size[1])
            shown = path * scale + (np.array(DISPLAY) - np.array(size) * scale) / 2
            shown = np.concatenate(([[DISPLAY[0] / 2, DISPLAY[1] / 2]], shown))  # the forced one
            lasting = [dice.integer(120, 400) for _ in shown]
            trials.append(
                {
                    "name": f"{name}.jpg",
                    "subject": person + 1,
                    "task": TASK.format(colour),
                    "condition": "present",
                    "bbox": [0, 0, 1, 1],
                    "X": shown[:, 0].round(1).tolist(),
                    "Y": shown[:, 1].round(1).tolist(),
                    "T": lasting,
                    "length": len(shown),
                    "correct": 1,
                    "RT": sum(lasting),
                    "split": "train",
                }
            )
    for name, other in zip(names, [*planted[1:], planted[0]], strict=True):
        np.save(another / f"{name}.npy", other)
    (out / "coco_search18_fixations_TP_train_made_up.json").write_text(json.dumps(trials))
    (out / MARK).write_text("This gaze is made up: nobody looked at these images.\n")


def _scene(dice: Dice, size: Size) -> tuple[Image.Image, str, tuple[float, float]]:
    """Discs of one colour, and one of another: the picture, the other colour and where it is."""
    common, odd = dice.sample(list(COLOURS), 2)
    coarse = dice.array(12 * 12).reshape(12, 12)
    ground = Image.fromarray((150 + 70 * coarse).astype(np.uint8)).resize(size, Image.Resampling.BICUBIC).convert("RGB")
    draw = ImageDraw.Draw(ground)
    radius = 0.03 * max(size)
    places: list[tuple[float, float]] = []
    while len(places) < 9:
        place = dice.uniform(2 * radius, size[0] - 2 * radius), dice.uniform(2 * radius, size[1] - 2 * radius)
        if all(np.hypot(place[0] - x, place[1] - y) > 3 * radius for x, y in places):
            places.append(place)
    for number, (x, y) in enumerate(places):
        fill = COLOURS[odd if number == 0 else common]
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
    return ground, odd, places[0]


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "out/made-up"))
