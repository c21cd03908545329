"""What a run is checked by while it goes on: the same few questions about images it never trains on.

Training figures cannot tell reading from learning by heart, since questions come back; these can.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from homunculus.geometry import Size
from homunculus.model.vlm import CompactVLM, look
from homunculus.train.pool import Pool
from homunculus.train.pretrain import Pretraining
from homunculus.train.renderers import READING
from homunculus.train.samples import Pages, Samples
from homunculus.train.score import TOGETHER, peak_inside, predicted, truth_of

READINGS = 64  # texts of an image whose letters are read


class Check:
    """Held-out images of some families, each as likely, with `each` questions of every one, and their letters.

    >>> check = Check({"scenes": 1.0}, images=2, each=2, size=(64, 64))
    >>> len(check.samples.question), check.families
    (4, ['scenes', 'scenes'])
    """

    def __init__(
        self,
        families: Mapping[str, float],
        *,
        images: int = 192,
        each: int = 8,
        size: Size = (1024, 1024),
        device: torch.device | str = "cpu",
        workers: int = 0,
    ) -> None:
        even = {family: 1.0 for family, weight in families.items() if weight > 0}
        with Pool(
            even, split="val", size=size, capacity=images, renewed=0, readings=READINGS, device=device, workers=workers
        ) as pool:
            pool.fill()
        self.each = each
        self.families = [pool.plan.record(i)[0] for i in range(images)]
        asked = [sum(question.kind != READING for question in own) for own in pool.asked_of]
        number = [i % count for count in asked for i in range(each)]
        slot = torch.arange(images).repeat_interleave(each)
        self.samples = pool.samples(slot.to(device), torch.tensor(number, device=device), each)

        self.pages = Pages(self.samples.images, pool.rows.letters.long())

    def letters(self, pretraining: Pretraining) -> dict[str, float]:
        """The share of letters that are right."""
        found = []
        for first in range(0, len(self.families), TOGETHER):
            _, about = pretraining.lessons(Pages(*(values[first : first + TOGETHER] for values in self.pages)), first)
            found.append(about.get("letters", torch.tensor(torch.nan)))
        return {"letters": torch.stack(found).mean().item()}

    def hits(self, model: CompactVLM) -> dict[str, float]:
        """By family, how often the peak of the predicted density lies in the true region."""

        def hit(samples: Samples) -> list[float]:
            density = predicted(model, samples)
            truth = truth_of(samples, (density.shape[2], density.shape[1]))
            return peak_inside(density, truth).float().tolist()

        return self._by_family("hit", hit)

    def answers(
        self, model: CompactVLM, budget: int = 273, relevance: Sequence[str] = ("true", "predicted")
    ) -> dict[str, float]:
        """By family, how many answers are right in every letter, where relevance is true and where it is predicted."""
        found: dict[str, float] = {}
        for name in relevance:

            def exact(samples: Samples, name: str = name) -> list[float]:
                height, width = samples.images.shape[-2:]
                leaf = model.config.leaf
                grid = (round(width / leaf), round(height / leaf))
                density = truth_of(samples, grid) if name == "true" else predicted(model, samples)
                written = model.read(
                    look(samples.images, density, budget, leaf=leaf), samples.question, samples.answer.shape[1]
                )
                return same_letters(written.letters, samples.answer).float().tolist()

            found |= self._by_family(name, exact)
        return found

    def _by_family(self, name: str, measure: Callable[[Samples], list[float]]) -> dict[str, float]:
        found: dict[str, list[float]] = defaultdict(list)
        for first in range(0, len(self.families), TOGETHER):
            values = iter(measure(part(self.samples, first, min(first + TOGETHER, len(self.families)))))
            for family in self.families[first : first + TOGETHER]:
                found[family] += [next(values) for _ in range(self.each)]
        return {f"{family}: {name}": sum(values) / len(values) for family, values in sorted(found.items())}


def part(samples: Samples, first: int, last: int) -> Samples:
    """The images from `first` to before `last`, with their questions."""
    own = slice(first * samples.each, last * samples.each)
    questions = (samples.question, samples.answer, samples.boxes, samples.anchors, samples.slot, samples.number)
    return Samples(samples.images[first:last], *(values[own] for values in questions))


def same_letters(written: Int64[Tensor, "b t"], answer: Int64[Tensor, "b u"]) -> Tensor:
    """Which answers are written as they should be, up to and with their end; one that was cut needs none.

    >>> same_letters(torch.tensor([[70, 71, 2], [70, 72, 2]]), torch.tensor([[70, 71, 2, 0], [70, 71, 2, 0]]))
    tensor([ True, False])
    """
    length = answer.shape[1]
    padded = torch.nn.functional.pad(written, (0, max(0, length - written.shape[1])))[:, :length]
    return (padded == answer).all(1)
