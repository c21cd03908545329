"""`homunculus ask --csv`: many questions from a file, their answers into another.

Paths of images are as seen from the folder of the file. Answers are written as they come, the file always whole; a run
that was stopped goes on where it was. Each answer says how it was asked for: those of two settings never share a file.
"""

import csv
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from homunculus.cli.output import progress, write_whole
from homunculus.errors import DataError, HomunculusError, OutputError, QueryError

COLUMNS = ("image", "question", "answer", "confidence", "how")
TOGETHER = 8  # questions answered at once
PATIENCE = 2.0  # seconds between two states of the file


class Asked(NamedTuple):
    """A line of the file: its number, the image as written, the question."""

    line: int
    image: str
    question: str


def ask_csv(
    file: Path, out: Path | None, load: Callable[[], Any], how: dict[str, Any], weights: Path | None = None
) -> None:
    """Ask all of a file; answers to `out`, or printed. The model is loaded once nothing is wrong with the files."""
    from homunculus.allocation import check_budget, get_allocator
    from homunculus.images import open_image
    from homunculus.model.answer import answer, check_questions
    from homunculus.model.looking import check_looks

    get_allocator(how["allocator"])
    check_budget(how["budget"])
    check_looks(how["looks"], "tree", how["allocator"], how["progressive"])
    asked = read_questions(file)
    if out is not None and out.exists() and out.samefile(file):
        raise OutputError(f"{out} holds the questions and would be overwritten: choose another --out")
    told = in_words(how, weights)
    done = [] if out is None else read_answers(out, asked, told)
    before = len(done)
    model = load()
    for one in asked:
        _of_line(file, one, lambda question: check_questions(model, [question]), one.question)
    if out is None:
        print(as_csv([COLUMNS]), end="")
    written = time.monotonic()
    with progress(len(asked), "questions") as advance:
        advance(len(done))
        try:
            for start in range(len(done), len(asked), TOGETHER):
                some = asked[start : start + TOGETHER]
                pixels = [_of_line(file, one, open_image, file.parent / one.image) for one in some]
                said = answer(model, pixels, [one.question for one in some], **how)
                assert isinstance(said, list)  # as a list of images was given
                rows = [
                    (one.image, one.question, own.text, f"{own.confidence:.4f}", told)
                    for one, own in zip(some, said, strict=True)
                ]
                done += rows
                advance(len(rows))
                if out is None:
                    print(as_csv(rows), end="", flush=True)
                elif time.monotonic() - written > PATIENCE:
                    write_whole(out, as_csv([COLUMNS, *done]).encode())
                    written = time.monotonic()
        finally:
            if out is not None and len(done) > before:
                write_whole(out, as_csv([COLUMNS, *done]).encode())
    if out is not None:
        kept = f", {before} of them there before and not asked again" if before else ""
        print(f"{len(asked)} answers{kept}; {out}", file=sys.stderr)


def in_words(how: dict[str, Any], weights: Path | None = None) -> str:
    """How questions are asked.

    >>> in_words({"budget": 273, "allocator": "topk", "relevance": None, "looks": 3, "progressive": False})
    'topk, 273 tokens, 3 looks'
    """
    told = [how["allocator"], "progressive" if how["progressive"] else f"{how['budget']} tokens"]
    if how["looks"] > 1:
        told.append(f"{how['looks']} looks")
    if how["relevance"] is not None:
        told.append(f"relevance {how['relevance']}")
    return ", ".join(told + ([] if weights is None else [f"weights {weights}"]))


def read_questions(file: Path) -> list[Asked]:
    """The lines of a file with columns image and question; images must be there and questions must not be empty."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            table = csv.DictReader(text)
            missing = [name for name in COLUMNS[:2] if name not in (table.fieldnames or ())]
            if missing:
                raise DataError(f"{file} has no column {missing[0]}: its first line must name image and question")
            asked = [Asked(table.line_num, row["image"] or "", row["question"] or "") for row in table]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {file} ({error}): give a CSV file in UTF-8") from None
    if not asked:
        raise DataError(f"{file} holds no questions: write a line for each, image and question")
    for one in asked:
        if not one.question.strip():
            raise QueryError(f"line {one.line} of {file} has no question: write one")
        if not (file.parent / one.image).is_file():
            raise DataError(f"line {one.line} of {file}: there is no image {file.parent / one.image}")
    return asked


def read_answers(out: Path, asked: list[Asked], told: str) -> list[tuple[str, ...]]:
    """The answers a stopped run has left, which must be to the first of these questions, asked as these are."""
    if not out.parent.is_dir() or out.is_dir():
        raise OutputError(f"cannot write {out}: give the name of a file in a folder that exists")
    if not out.exists():
        return []
    other = OutputError(f"{out} is there and holds no answers to these questions: choose another --out")
    try:
        with out.open(encoding="utf-8", newline="") as text:
            head, *rows = map(tuple, csv.reader(text))
    except (OSError, ValueError, csv.Error):
        raise other from None
    same = [row[:2] for row in rows] == [(one.image, one.question) for one in asked[: len(rows)]]
    if head != COLUMNS or len(rows) > len(asked) or not same:
        raise other
    if others := [row[-1] for row in rows if row[-1] != told]:
        raise OutputError(f"the answers in {out} are by {others[0]}, these by {told}: choose another --out")
    return rows


def as_csv(rows: Any) -> str:
    """
    >>> as_csv([("a.png", "Who, then?", "Ada", "0.9000")])
    'a.png,"Who, then?",Ada,0.9000\\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _of_line(file: Path, one: Asked, do: Callable[[Any], Any], what: Any) -> Any:
    """Do it; what is wrong with it is wrong with a line of the file."""
    try:
        return do(what)
    except HomunculusError as error:
        raise type(error)(f"line {one.line} of {file}: {error}") from None
