"""Three pages, their questions and what the shipped model says: the table and the figure of the README.

    python -m bench.ask_figure                       rows as Markdown, and docs/ask.png
    python -m bench.ask_figure --pages out/pages     also the pages as files, to ask about with `homunculus ask`

Nothing is picked: the first invoice, the first scene and the first picture of lettering of `test-iid`, and the first
three questions about each, one for every region. If all of these come out right, pages go on until an answer is wrong,
and that one is shown as well.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from homunculus import data
from homunculus.data.record import Question, Record
from homunculus.eval.metrics import exact
from homunculus.model.answer import Answer, answer
from homunculus.model.vlm import CompactVLM
from homunculus.model.weights import load_model
from homunculus.reconstruct import reconstruct
from homunculus.sampling import sample
from homunculus.structures import VisualTokens
from homunculus.viz.figures import Panel, compose
from homunculus.viz.overlay import mark_fixations, overlay, to_pil

PAGES = (("documents", 1), ("scenes", 0), ("scene-text", 0))  # documents/test-iid/1 is the first invoice
EACH = 3
SIDE, WINDOW = 420, (384, 256)  # of a panel, and of what is shown enlarged, in pixels of the image
COLOURS = 128


@dataclass(frozen=True, eq=False)
class Case:
    """A question about a page, and what was said."""

    record: Record
    question: Question
    said: Answer

    @property
    def right(self) -> bool:
        return bool(exact(self.said.text, self.question.answers))

    @property
    def pixels(self) -> Tensor:
        return torch.from_numpy(self.record.image).permute(2, 0, 1)


def cases_of(model: CompactVLM, record: Record, each: int = EACH) -> list[Case]:
    """The first questions about a page, answered."""
    asked = record.questions[:each]
    page = torch.from_numpy(record.image).permute(2, 0, 1)
    said = answer(model, [page] * len(asked), [question.text for question in asked])
    assert isinstance(said, list)  # as a list of images was given
    return [Case(record, *pair) for pair in zip(asked, said, strict=True)]


def examples(model: CompactVLM) -> list[Case]:
    """The questions of the three pages, and one that goes wrong if none of them does."""
    cases = [case for family, index in PAGES for case in cases_of(model, data.make(family, "test-iid", index))]
    return cases if any(not case.right for case in cases) else [*cases, next(failures(model))]


def failures(model: CompactVLM) -> Iterator[Case]:
    """What goes wrong on the pages that follow, family by family in turn."""
    for further in count(1):
        for family, index in PAGES:
            record = data.make(family, "test-iid", index + further)
            yield from (case for case in cases_of(model, record) if not case.right)


def rows(cases: Sequence[Case]) -> list[str]:
    """The table, as Markdown."""
    lines = ["| page | question | answer | sure | |", "|---|---|---|---|---|"]
    for case in cases:
        verdict = "right" if case.right else f"**wrong: {case.question.answer}**"
        said = case.said.text.replace("|", "\\|")
        lines.append(
            f"| `{case.record.key}` | {case.question.text} | {said} | {case.said.confidence:.0%} | {verdict} |"
        )
    return lines


def drawn(cases: Sequence[Case]) -> list[Case]:
    """For the figure: the first question of each page, and the first that went wrong."""
    firsts = {case.record.key: case for case in reversed(cases)}
    wrong = next(case for case in cases if not case.right)
    chosen = [firsts[f"{family}/test-iid/{index}"] for family, index in PAGES]
    return [*(case for case in chosen if case is not wrong), wrong]


def figure(cases: Sequence[Case]) -> Image.Image:
    """Above, the cells of each page; below, what the model sees about its gaze."""
    above, below = [], []
    for case in cases:
        allocation = case.said.allocation
        tokens = VisualTokens(sample(case.pixels[None], allocation), allocation)
        width, height = case.record.image_size
        cells = overlay(case.pixels, allocation, (SIDE, SIDE * height // width))
        gaze = case.said.look.fixations
        mark_fixations(cells, gaze, (SIDE / width,) * 2)
        words = case.said.text.replace("€", "EUR ").replace("£", "GBP ")  # signs that the figure's face lacks
        said = f"{words} ({case.said.confidence:.0%})"
        above.append(Panel(cells, case.question.text, case.record.key))
        seen = to_pil(reconstruct(tokens, max(width, height)).images[0])
        left, top = (
            int(min(max(at - window / 2, 0), side - window))
            for at, window, side in zip(gaze[0, :2].tolist(), WINDOW, (width, height), strict=True)
        )
        crop = seen.crop((left, top, left + WINDOW[0], top + WINDOW[1]))
        note = "right" if case.right else f"wrong: {case.question.answer}"
        below.append(Panel(crop.resize((SIDE, SIDE * WINDOW[1] // WINDOW[0])), said, note))
    tokens_each = cases[0].said.tokens
    title = f"{tokens_each} tokens each: where they went, what they show there, and the answer"
    return compose(title, [*above, *below], columns=len(cases))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="a folder; the shipped ones by default")
    parser.add_argument("--out", type=Path, default=Path("docs/ask.png"))
    parser.add_argument("--pages", type=Path, help="a folder for the pages as PNG files")
    asked = parser.parse_args()
    cases = examples(load_model(asked.weights))
    figure(drawn(cases)).quantize(COLOURS).save(asked.out, optimize=True)
    if asked.pages is not None:
        asked.pages.mkdir(parents=True, exist_ok=True)
        for record in {case.record.key: case.record for case in cases}.values():
            Image.fromarray(record.image).save(asked.pages / f"{record.key.replace('/', '-')}.png")
    print("\n".join(rows(cases)))


if __name__ == "__main__":
    main()
