"""One question about one image, on a budget: the answer, what it cost, and a picture of what was looked at."""

import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Shaped
from PIL import Image
from torch import Tensor

from homunculus.allocation import DEFAULT
from homunculus.errors import HomunculusError
from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.checking import check_arguments
from homunculus.integrations.qwen_vl.layout import on_image
from homunculus.integrations.qwen_vl.loading import LoadError, import_transformers, load
from homunculus.integrations.qwen_vl.patching import patch, unpatch
from homunculus.integrations.qwen_vl.plan import Looking
from homunculus.reconstruct import reconstruct
from homunculus.sampling import sample
from homunculus.structures import Allocation, VisualTokens
from homunculus.viz.figures import Panel, compose, side_legend
from homunculus.viz.overlay import overlay, panel_size, to_pil


@dataclass(frozen=True)
class Answer:
    """What a model said about an image. `allocation` has the cells it looked at, in pixels of that image, or of a
    peer's tokens the leaf at the place of each."""

    question: str
    text: str
    tokens: int
    allocation: Allocation
    seconds: float
    peer: str | None = None

    def report(self) -> dict[str, Any]:
        """What can be written as JSON."""
        size = list(self.allocation.image_sizes[0])
        said = {"question": self.question, "answer": self.text, "seconds": self.seconds}
        return said | {"tokens": self.tokens, "image_size": size}


def ask_once(
    name: str | Path,
    image: Shaped[Tensor, "3 h w"],
    question: str,
    *,
    budget: int = 273,
    stage: str = "pre",
    allocator: str = DEFAULT,
    peer: str | None = None,
    **how: Any,
) -> Answer:
    """Load a model, ask it and let it go; only what goes wrong is said on the way."""
    looking = Looking(how.get("relevance"), allocator, region=how.get("region"), peer=peer)
    check_arguments(budget, stage, how.get("positions"), looking)  # before gigabytes are read
    transformers = import_transformers()
    transformers.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries, before our one line
    if not sys.stderr.isatty():
        transformers.logging.disable_progress_bar()
    model, processor = load(name)
    how |= {"budget": budget, "stage": stage, "allocator": allocator, "peer": peer}
    return ask(model, processor, image, question, **how)


def ask(
    model: Any,
    processor: Any,
    image: Shaped[Tensor, "3 h w"],
    question: str,
    *,
    max_new_tokens: int = 128,
    **how: Any,
) -> Answer:
    """Patch the pair with `how`, ask, decode greedily, and give the pair back as it was."""
    if max_new_tokens < 1:
        raise HomunculusError(f"an answer has 1 or more new tokens, got {max_new_tokens}")
    if not processor.chat_template:
        raise LoadError("this processor has no chat template: give an Instruct model")
    patch(model, processor, **how)
    try:
        start = time.perf_counter()
        inputs = processor.apply_chat_template(
            [
                {
                    "role": "user",
                    "content": [{"type": "image", "image": to_pil(image)}, {"type": "text", "text": question}],
                }
            ],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        ).to(model.device)
        greedy = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        ids = model.generate(**inputs, max_new_tokens=max_new_tokens, **greedy)
        text = processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        seconds = time.perf_counter() - start
        allocation = on_image(model.last_allocation[0].to("cpu"), (image.shape[2], image.shape[1]))
    finally:
        unpatch(model)
    shown = int((inputs["input_ids"] == model.config.image_token_id).sum())
    return Answer(question, text.strip(), shown, allocation, seconds, how.get("peer"))


def answer_figure(image: Shaped[Tensor, "3 h w"], answer: Answer, box: Size = (900, 920)) -> Image.Image:
    """The cells over the image and the image as its tokens show it, under the question, with the answer."""
    size = panel_size((image.shape[2], image.shape[1]), box)
    allocation = answer.allocation
    tokens = VisualTokens(sample(image[None], allocation), allocation)
    panels = [
        Panel(
            overlay(image, allocation, size), f"{answer.tokens} visual tokens", "cells by side", side_legend(allocation)
        ),
        Panel(
            to_pil(reconstruct(tokens, max(size)).images[0], size),
            "what the model saw" if answer.peer is None else "where its tokens lie",
            f"answer: {' '.join(answer.text.split())}",
        ),
    ]
    return compose(answer.question, panels, columns=2)
