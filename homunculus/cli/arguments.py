"""Arguments that several commands share: what they are called, and how they are read."""

from pathlib import Path
from typing import Annotated, Any

import typer

from homunculus.errors import FixationError, ImageError, ModelError

ImagePath = Annotated[Path | None, typer.Argument(help="An image file. Without one, an example page is drawn.")]
Question = Annotated[
    str | None,
    typer.Argument(help='A question; its spatial words in English ("top left", "footer") also guide the gaze.'),
]
Budget = Annotated[int, typer.Option(help="Visual tokens to spend, at least 16 for the tree methods.")]
Fixations = Annotated[
    list[str] | None, typer.Option("--fixation", metavar="X,Y", help="Look here: pixels, or 50%,30%. May be repeated.")
]
Seed = Annotated[int, typer.Option(help="For methods that draw at random.")]


def read(image: Path | None, question: str | None, fixation: list[str] | None) -> tuple[Any, str | None, Any]:
    """Pixels `[3, H, W]` of the image (or of the example page), the question, and the points to look at, if any."""
    from homunculus.images import open_image
    from homunculus.viz.example import QUESTION, example_page

    if image is not None and question is None and " " in str(image) and not is_file(image):
        raise ImageError(
            f"'{image}' is not a file: the image comes first, then the question (`homunculus example` makes one)"
        )
    pixels = example_page() if image is None else open_image(image)
    question = QUESTION if image is None else question
    points = [parse_fixation(text, (pixels.shape[2], pixels.shape[1])) for text in fixation or []]
    return pixels, question, points or None


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def parse_fixation(text: str, size: tuple[int, int]) -> tuple[float, float]:
    """`X,Y` in pixels or percent.

    >>> parse_fixation("50%,30", (640, 480))
    (320.0, 30.0)
    """
    parts = text.split(",")
    if len(parts) != 2:
        raise FixationError(
            f"cannot read the fixation '{text}': write X,Y in pixels, or with percent signs, as in 50%,30%"
        )
    try:
        x, y = (
            float(part.strip().removesuffix("%")) * (side / 100 if part.strip().endswith("%") else 1.0)
            for part, side in zip(parts, size, strict=True)
        )
    except ValueError:
        raise FixationError(
            f"cannot read the fixation '{text}': write X,Y in pixels, or with percent signs, as in 50%,30%"
        ) from None
    return x, y


def named_device(name: str | None) -> Any:
    """The device that is asked for, or a GPU if there is one.

    >>> named_device("cpu")
    device(type='cpu')
    """
    import torch

    from homunculus.train.processes import local_device

    try:
        device = local_device() if name is None else torch.device(name)
    except RuntimeError:
        raise ModelError(f"no device '{name}': give cpu, cuda or cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"no device '{name}' here: torch finds no GPU, give --device cpu")
    return device


def words(text: str) -> tuple[str, ...]:
    """What commas part.

    >>> words("topk, uniform")
    ('topk', 'uniform')
    """
    return tuple(word.strip() for word in text.split(",") if word.strip())
