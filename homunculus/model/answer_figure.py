"""A picture of an answer: the cells, the density they were spent by, and the image as the model saw it."""

from jaxtyping import Shaped
from PIL import Image
from torch import Tensor

from homunculus.allocation import Allocator
from homunculus.model.answer import Answer
from homunculus.pyramid import ImagePyramid
from homunculus.sampling import sample
from homunculus.structures import View, VisualTokens
from homunculus.viz.figures import look_figure


def answer_figure(image: Shaped[Tensor, "3 h w"], question: str, said: Answer, method: Allocator) -> Image.Image:
    """What was looked at, under the question and the answer; several places with the path between them."""
    allocation = said.allocation.to("cpu")
    fixations = said.look.fixations[said.look.fixations[:, 2] > 0].cpu()
    density = said.density[None].cpu()
    grid = density.shape[2], density.shape[1]
    pyramid = ImagePyramid(image[None], grid, allocation.leaf)
    view = View(density, allocation.image_sizes[0], allocation.leaf, pyramid, fixations[None], [question])
    tokens = VisualTokens(sample(image[None], allocation), allocation)
    title = f"{question} {' '.join(said.text.split())} ({said.confidence:.0%})"
    return look_figure(image, view, tokens, title, method, scanpath=fixations if len(fixations) > 1 else None)
