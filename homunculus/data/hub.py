"""DocVQA, VQAv2 and TextVQA as records, streamed from the Hugging Face hub or from parquet files with the same columns.

Nobody has said where the answers are, so there are no boxes and no regions. Where ten people answered, all ten answers
are kept, the most frequent first. The published test splits have no answers and are refused.
"""

import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from homunculus.data.record import Question, Record
from homunculus.errors import DataError, ImageError
from homunculus.images import load_images


@dataclass(frozen=True)
class Source:
    """A data set of the hub: where it is, and which of its columns says what."""

    repository: str
    config: str | None
    splits: tuple[str, ...]  # those with answers
    key: str
    kind: Callable[[Mapping[str, Any]], str]
    answers: Callable[[Mapping[str, Any]], list[str]]
    needs: tuple[str, ...]  # besides the key, the question, the image and the answers


SOURCES: Mapping[str, Source] = {
    "docvqa": Source(
        repository="lmms-lab/DocVQA",
        config="DocVQA",
        splits=("validation",),
        key="questionId",
        kind=lambda row: ", ".join(row["question_types"] or ()),
        answers=lambda row: list(row["answers"] or ()),
        needs=("question_types",),
    ),
    "vqav2": Source(
        repository="lmms-lab/VQAv2",
        config=None,
        splits=("validation",),
        key="question_id",
        kind=lambda row: row["question_type"] or "",
        answers=lambda row: [one["answer"] for one in row["answers"] or ()],
        needs=("question_type",),
    ),
    "textvqa": Source(
        repository="lmms-lab/textvqa",
        config=None,
        splits=("train", "validation"),
        key="question_id",
        kind=lambda row: "",  # TextVQA does not sort its questions
        answers=lambda row: list(row["answers"] or ()),
        needs=(),
    ),
}


def load(name: str, split: str = "validation", path: str | os.PathLike | None = None) -> Iterator[Record]:
    """The records of a data set one by one, from the hub or from a parquet file or folder of them.

    In a folder, files named after splits (validation-00000-of-00006.parquet) are those of their split; files without
    such names all count. Every other column goes into `meta`.

    >>> {name: source.repository for name, source in SOURCES.items()}
    {'docvqa': 'lmms-lab/DocVQA', 'vqav2': 'lmms-lab/VQAv2', 'textvqa': 'lmms-lab/textvqa'}
    >>> first_page = next(load("docvqa"))  # doctest: +SKIP
    """
    source = SOURCES.get(name)
    if source is None:
        raise DataError(f"no data set '{name}': choose one of {', '.join(SOURCES)}")
    if split not in source.splits:
        raise DataError(f"{name} has no answers in a split '{split}': choose {' or '.join(source.splits)}")
    rows = _from_hub(source, split) if path is None else _from_files(source, split, Path(path))
    where = f"{source.repository} on the hub" if path is None else str(path)
    needed = (source.key, "question", "image", "answers", *source.needs)
    for row in _read(rows, where):
        missing = [column for column in needed if column not in row]
        if missing:
            raise DataError(f"{where} has no column {', '.join(missing)}, only {', '.join(row)}: it is not {name}")
        yield _record(source, f"{name}/{split}/{row[source.key]}", row)


def _record(source: Source, key: str, row: Mapping[str, Any]) -> Record:
    answers = [answer for answer in source.answers(row) if answer]
    if not answers:
        raise DataError(f"{key} has no answers: it cannot be scored, choose a split that has them")
    counts = Counter(answers)
    answers.sort(key=lambda answer: -counts[answer])  # stable, so ties stay as they came
    used = {"question", "image", "answers", source.key, *source.needs}
    meta = {column: value for column, value in row.items() if column not in used}
    question = Question(row["question"], tuple(answers), kind=source.kind(row))
    return Record(key, _pixels(row["image"], key), question, meta=meta)


def _pixels(image: Any, key: str) -> Any:
    """[h, w, 3] of an undecoded image column: bytes, or a path beside the file."""
    try:
        with Image.open(io.BytesIO(image["bytes"]) if image["bytes"] is not None else image["path"]) as opened:
            (pixels,) = load_images(opened)
    except (TypeError, KeyError, OSError, ImageError) as error:
        raise DataError(f"the image of {key} cannot be read ({error}): download the file again") from None
    return pixels.permute(1, 2, 0).numpy()


def _from_hub(source: Source, split: str) -> Any:
    try:
        return _datasets().load_dataset(source.repository, source.config, split=split, streaming=True)
    except OSError as error:  # no network, no such name, no permission
        reason = str(error).splitlines()[0]
        raise DataError(f"{reason}: check the network, or give path= a copy of {source.repository}") from None


def _from_files(source: Source, split: str, path: Path) -> Any:
    if not path.exists():
        raise DataError(f"{path} does not exist: give a parquet file or a folder of them")
    if source.config is not None and (path / source.config).is_dir():
        path = path / source.config
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    named = {file.name.split("-")[0] for file in files if "-of-" in file.name}
    if named:
        files = [file for file in files if file.name.startswith(f"{split}-")]
    if not files:
        there = f"only the splits {', '.join(sorted(named))}" if named else "no parquet files"
        raise DataError(f"{path} holds {there}: download {source.repository} with its split '{split}'")
    try:
        return _datasets().load_dataset("parquet", data_files=list(map(str, files)), split="train", streaming=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({' '.join(str(error).split())}): download it again") from None


def _read(rows: Any, where: str) -> Iterator[Mapping[str, Any]]:
    if rows.features is not None and "image" in rows.features:
        rows = rows.cast_column("image", _datasets().Image(decode=False))  # as in files that are not of `datasets`
    rows = iter(rows)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:  # a damaged file, a lost connection: each in its own library's words
            raise DataError(f"{where} cannot be read ({' '.join(str(error).split())}): download it again") from None
        yield row


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise DataError("data sets of others are read with datasets: pip install 'homunculus[eval]'") from None
    return datasets
