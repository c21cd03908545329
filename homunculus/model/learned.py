"""The scorer that came with the package as a source of relevance: what `look` and `foveate` ask by default.

It is loaded with the first question, once for each device. On a CPU images are scored one by one,
so that what is said of one does not depend on its batch, to the last bit; a GPU takes them together.
"""

import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from homunculus.model import weights
from homunculus.model.looking import LONGEST_QUESTION
from homunculus.model.scorer import Scorer, as_density
from homunculus.model.tokenizer import Tokenizer


def packaged_scorer(device: torch.device) -> "Listening | None":
    """The shipped scorer on a device, None where the package has no weights."""
    return _loaded(weights.SHIPPED, device) if (weights.SHIPPED / weights.ABOUT).exists() else None


@cache
def _loaded(folder: Path, device: torch.device) -> "Listening":
    model = weights.load_model(folder, device)
    return Listening(model.scorer, model.tokenizer)


class Listening:
    """A scorer that takes images and questions as they come. What does not depend on the question is kept while the
    images are: asking again is cheap.

    >>> from homunculus.model.vlm import CompactVLM
    >>> from homunculus.model.config import tiny
    >>> model = CompactVLM(tiny())
    >>> Listening(model.scorer, model.tokenizer)(torch.rand(2, 3, 64, 96), ["Who?", "What is it?"]).shape
    torch.Size([2, 4, 6])
    """

    def __init__(self, scorer: Scorer, tokenizer: Tokenizer) -> None:
        self.scorer, self.tokenizer = scorer, tokenizer
        self._seen: Any = lambda: None
        self._features: list[Tensor] = []

    @torch.no_grad()
    def __call__(self, images: Shaped[Tensor, "b 3 h w"], questions: Sequence[Any]) -> Float[Tensor, "b gh gw"]:
        together = 1 if images.device.type == "cpu" else len(images)
        if self._seen() is not images:
            self._features = [self.scorer.features(part) for part in images.split(together)]
            self._seen = weakref.ref(images)
        found = []
        for number, features in enumerate(self._features):
            asked = questions[number * together : (number + 1) * together]
            found.append(as_density(self.scorer(features, self.ids(asked).to(features.device, non_blocking=True))))
        return torch.cat(found)

    def ids(self, questions: Sequence[Any]) -> Tensor:
        """Questions as the scorer reads them; what is none is as good as "?", for nobody listens to what comes out."""
        texts = [question if isinstance(question, str) and question.strip() else "?" for question in questions]
        return self.tokenizer.batch([self.tokenizer.encode(text)[:LONGEST_QUESTION] for text in texts])
