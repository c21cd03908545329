"""What a training step reads: images, what is asked of them, what is right and where that is seen."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Samples:
    """A batch of questions, `each` in a row of one image, all on one device.

    Images are a view of [b, h, w, 3] memory. An answer is spelled in bytes and ends with EOS unless it was cut. Boxes
    are in pixels of the image; rows without one are zeros. `anchors` are the boxes of the question's own words on the
    page. `slot` and `number` say which image of the pool it is and which of that image's questions.
    """

    images: UInt8[Tensor, "images 3 h w"]
    question: Int64[Tensor, "b tq"]
    answer: Int64[Tensor, "b ta"]
    boxes: Float32[Tensor, "b k 4"]
    anchors: Float32[Tensor, "b a 4"]
    slot: Int64[Tensor, " b"]
    number: Int64[Tensor, " b"]

    @property
    def each(self) -> int:
        """How many questions there are of an image."""
        return len(self.question) // len(self.images)


class Pages(NamedTuple):
    """Images whole, with all letters whose place is known: x and y of its middle in pixels, and its number; 0: none."""

    images: UInt8[Tensor, "b 3 h w"]
    letters: Int64[Tensor, "b texts length 3"]


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, without waiting for the device.

    >>> sent(torch.arange(3), torch.device("cpu"))
    tensor([0, 1, 2])
    """
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
