"""How `pyramid` should share 273 cells between its four levels, learned: what lets the reader of the shipped weights
find the true answers of `val` most likely.

    python -m bench.level_split --images 40

The choice of cells is hard, as when questions are asked, so no gradient reaches the split: its four logits are moved
one at a time, up and down, by ever smaller steps, and a move that makes answers likelier is kept. What comes out is an
arm of the suite `ablations` (`LEARNED_SPLIT` in eval/suites.py), asked on questions it has not seen.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from bench import plainly
from homunculus.allocation.levels import LEVELS, SPLIT
from homunculus.data import make
from homunculus.eval.suites import FAMILIES
from homunculus.model.looking import question_ids
from homunculus.model.tokenizer import EOS, PAD
from homunculus.model.vlm import CompactVLM, look
from homunculus.model.weights import load_model

STEPS = (1.0, 0.5, 0.25)
EACH = 2  # questions of an image
TOGETHER = 16


class Lot(NamedTuple):
    """Questions of one family that are read together."""

    images: Tensor  # [b, 3, h, w]
    density: Tensor  # [b, gh, gw]
    question: Tensor
    answer: Tensor


def counts(logits: Sequence[float], budget: int = 273) -> tuple[int, ...]:
    """Cells of each level, by largest remainder.

    >>> counts([math.log(share) for share in (64, 128, 64, 17)])
    (64, 128, 64, 17)
    """
    total = sum(map(math.exp, logits))
    exact = [budget * math.exp(logit) / total for logit in logits]
    floors = [int(value + 1e-9) for value in exact]
    order = sorted(range(len(exact)), key=lambda i: floors[i] - exact[i])
    for i in order[: budget - sum(floors)]:
        floors[i] += 1
    return tuple(floors)


def lots_of(model: CompactVLM, family: str, images: int) -> list[Lot]:
    """The questions of so many images of `val`, with where the scorer looks for each."""
    asked = [(one.image, question) for i in range(images) for one in [make(family, "val", i)] for question in
             one.questions[:EACH]]  # fmt: skip
    lots = []
    for start in range(0, len(asked), TOGETHER):
        part = asked[start : start + TOGETHER]
        pixels = torch.stack([torch.from_numpy(image).permute(2, 0, 1) for image, _ in part])
        question = question_ids(model, [one.text for _, one in part])
        letters = [[*model.tokenizer.spell(one.answers[0]), EOS] for _, one in part]
        lots.append(Lot(pixels, model.relevance(pixels, question), question, model.tokenizer.batch(letters)))
    return lots


def surprise(model: CompactVLM, lots: Sequence[Lot], split: Sequence[int]) -> float:
    """Minus the log-probability of a true answer, the mean over questions."""
    total, questions = 0.0, 0
    for lot in lots:
        tokens = look(lot.images, lot.density, sum(split), "pyramid", mode="split", split=tuple(split))
        logits = model.decoder(model.see(tokens), lot.question, lot.answer)
        total += F.cross_entropy(logits.flatten(0, 1), lot.answer.flatten(), ignore_index=PAD, reduction="sum").item()
        questions += len(lot.question)
    return total / questions


def learned(value: Callable[[tuple[int, ...]], float], start: Sequence[float]) -> tuple[tuple[int, ...], float]:
    """The split of least value that moves of one logit at a time lead to.

    >>> learned(lambda split: abs(split[0] - 200) + abs(split[1] - 50), [0.0] * 4)[1] < 25  # 223 at the start
    True
    """
    known: dict[tuple[int, ...], float] = {}

    def asked(logits: Sequence[float]) -> float:
        split = counts(logits)
        if split not in known:
            known[split] = value(split)
        return known[split]

    best = list(start)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for level in range(LEVELS):
                for by in (step, -step):
                    trial = [logit + by * (i == level) for i, logit in enumerate(best)]
                    if asked(trial) < asked(best):
                        best, moved = trial, True
    return counts(best), asked(best)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=40, help="of each family")
    options = parser.parse_args()
    if options.images < 1:
        parser.error(f"{options.images} images have no questions: give --images 1 or more")
    say, began = Console(width=120).print, time.monotonic()
    model = load_model()
    families = {name: lots_of(model, name, options.images) for name in FAMILIES}
    asked = sum(len(lot.question) for lots in families.values() for lot in lots)
    say(f"{asked} questions, {time.monotonic() - began:.0f} s to draw them and to look")

    def value(split: tuple[int, ...]) -> float:
        each = {name: surprise(model, lots, split) for name, lots in families.items()}
        mean = sum(each.values()) / len(each)
        told = "  ".join(f"{name} {own:.4f}" for name, own in each.items())
        say(f"{split}  {mean:.4f}  ({told})  {time.monotonic() - began:.0f} s")
        return mean

    split, least = learned(value, [math.log(share) for share in SPLIT])
    say(f"learned: {split}, {least:.4f}; as it is: {SPLIT}, {value(SPLIT):.4f}")


if __name__ == "__main__":
    plainly.run(main)
