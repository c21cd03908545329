"""Make the shipped vocabulary again, bit for bit: `python -m homunculus.train.vocabulary` (minutes, all of it drawing).

It learns from questions of the train split alone: what is asked is in the vocabulary, what is answered is not.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from homunculus.data.stream import FAMILIES, stream
from homunculus.model.tokenizer import VOCABULARY, Tokenizer

SIZE = 1024
RECORDS = 1000  # of each family


def questions(records: int, families: Iterable[str] = FAMILIES) -> list[str]:
    """All that is asked of the first records of each family.

    >>> all(question.endswith("?") for question in questions(2, ["scenes"]))
    True
    """
    asked = []
    for family in families:
        for record in stream(family, "train", stop=records):
            asked += [question.text for question in record.questions]
    return asked


def main(
    out: Annotated[Path, typer.Option(help="The file to write.")] = VOCABULARY,
    records: Annotated[int, typer.Option(help="How many records of each family to learn from.")] = RECORDS,
) -> None:
    """Learn the vocabulary from questions of all families and write it."""
    tokenizer = Tokenizer.train(questions(records), SIZE)
    tokenizer.save(out)
    typer.echo(f"{tokenizer.size} numbers in {out}", err=True)


if __name__ == "__main__":
    typer.run(main)
