"""Records in parquet files that `datasets` and lmms-eval open: written in shards, whole or not at all, and resumable.

A shard holds the records of a range of indices and appears under its name only when it is complete and on the disk, so
after any interruption what is missing is what has no file yet. A hidden manifest keeps the options: a run is resumed
with the same ones or not at all. Rows are in the order of their indices, whoever wrote them.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

import PIL

import homunculus
from homunculus.data.record import Record, Split
from homunculus.data.rows import COLUMNS, ImageFormat, from_row, parquet, schema, to_row
from homunculus.data.stream import check, stream
from homunculus.errors import DataError
from homunculus.geometry import Size

ENGINES = ("local", "ray")
Advance = Callable[[int], None]  # hears how many more records are done
MANIFEST = ".manifest.json"  # hidden, so that load_dataset(folder) sees parquet only
ROW_GROUP = 32  # rows in memory at once, and what a reader has to decode to see one of them


@dataclass(frozen=True)
class Plan:
    """What is to be written: `count` records of a family's split, in shards of so many.

    >>> plan = Plan("scenes", "train", 600)
    >>> plan.shards, plan.name(2), plan.indices(2)
    (3, 'train-00002-of-00003.parquet', range(512, 600))
    """

    family: str
    split: str
    count: int
    size: Size = (1024, 1024)
    clean: bool = False
    image_format: str = "png"
    shard: int = 256

    def __post_init__(self) -> None:
        check(self.family, self.split)
        if self.count < 1 or self.shard < 1 or min(self.size) < 1:
            raise DataError(f"{self.count} records of {self.size} pixels, {self.shard} a file: give positive numbers")
        if self.image_format not in get_args(ImageFormat):
            raise DataError(f"no image format '{self.image_format}': choose png (exact) or jpeg (smaller)")

    @property
    def shards(self) -> int:
        return -(-self.count // self.shard)

    def name(self, number: int) -> str:
        return shard_name(self.split, number, self.shards)

    def indices(self, number: int) -> range:
        return range(number * self.shard, min((number + 1) * self.shard, self.count))

    def records(self, number: int) -> Iterator[Record]:
        mine, split = self.indices(number), cast(Split, self.split)
        return stream(self.family, split, start=mine.start, stop=mine.stop, size=self.size, clean=self.clean)

    def manifest(self) -> dict[str, Any]:
        """All that decides what is written, and the versions, since another Pillow may draw other pixels."""
        return asdict(self) | {"size": list(self.size), "homunculus": homunculus.__version__, "pillow": PIL.__version__}


def shard_name(split: str, number: int, shards: int) -> str:
    """As the hub names them, so that `datasets` knows the split and the order."""
    return f"{split}-{number:05d}-of-{shards:05d}.parquet"


def write(
    family: str,
    split: str,
    count: int,
    out: str | os.PathLike,
    *,
    engine: str = "local",
    workers: int | None = None,
    advance: Advance = lambda records: None,
    **options: Any,
) -> int:
    """Write the records of a family with the numbers 0 to count - 1; give how many had not been written before.

    `options` are those of `Plan`: size, clean, image_format, shard. `workers` processes do it, one for each core unless
    said otherwise; with the engine "ray" they may be on other machines that see the same folder.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     made = write("scenes", "val", 3, folder, size=(96, 96), workers=1)
    ...     again = write("scenes", "val", 3, folder, size=(96, 96), workers=1)
    ...     made, again, [record.key for record in read(folder)]
    (3, 0, ['scenes/val/0', 'scenes/val/1', 'scenes/val/2'])
    """
    plan, place = Plan(family, split, count, **options), Path(out)
    if workers is not None and workers < 1:
        raise DataError(f"{workers} workers can do nothing: give at least one")
    if engine not in ENGINES:
        raise DataError(f"no engine '{engine}': choose {' or '.join(ENGINES)}")
    with opened(plan, place) as missing:
        to_do = sum(len(plan.indices(number)) for number in missing)
        advance(plan.count - to_do)
        if engine == "ray":
            from homunculus.data import on_ray

            on_ray.write_shards(plan, place, missing, workers, advance)
        else:
            from homunculus.data import workers as on_processes

            on_processes.write_shards(plan, place, missing, workers, advance)
    return to_do


# ------------------------------------------------------------------------------------------------------- a folder


@contextmanager
def opened(plan: Plan, out: Path) -> Iterator[list[int]]:
    """The folder made ready and kept from other runs; gives the numbers of the shards that are not there yet."""
    parquet()
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / MANIFEST).exists():
            if any(path.suffix != ".part" for path in out.iterdir()):
                raise DataError(f"{out} holds something else: choose a new or an empty folder")
            _write_whole(out / MANIFEST, json.dumps(plan.manifest(), indent=1).encode())
    except OSError as error:
        raise DataError(f"cannot write into {out} ({error.strerror}): choose another folder") from None
    with _alone(out):
        _check_same(plan.manifest(), _manifest(out), out)
        for left in out.glob(".*.part"):  # of a run that was killed
            left.unlink()
        yield [number for number in range(plan.shards) if not _complete(out / plan.name(number), plan.indices(number))]


def _check_same(wanted: dict[str, Any], found: dict[str, Any], out: Path) -> None:
    other = [name for name in wanted if found.get(name) != wanted[name]]
    if other:
        was = ", ".join(f"{name} {found.get(name)}, not {wanted[name]}" for name in other)
        raise DataError(f"{out} was begun with other options ({was}): repeat those, or choose another folder")


def _manifest(out: Path) -> dict[str, Any]:
    try:
        return json.loads((out / MANIFEST).read_text())
    except (ValueError, OSError) as error:
        raise DataError(f"{out / MANIFEST} cannot be read ({error}): write into another folder") from None


def _complete(path: Path, indices: range) -> bool:
    """Whether the shard is there with all its rows: one that was damaged since is made again."""
    import pyarrow

    if not path.exists():
        return False
    try:
        return parquet().read_metadata(path).num_rows == len(indices)
    except (pyarrow.ArrowException, OSError):
        return False


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Refuse a second run at the same time. The lock goes with the process, however it ends."""
    import fcntl

    with open(out / MANIFEST) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"another run is writing into {out}: wait for it, or choose another folder") from None
        yield


# -------------------------------------------------------------------------------------------------------- a shard


def write_shard(plan: Plan, out: Path, number: int, advance: Advance) -> None:
    """Make the records of one shard and write it. `advance` hears of each record."""

    def told() -> Iterator[Record]:
        for record in plan.records(number):
            yield record
            advance(1)

    write_records(told(), out / plan.name(number), cast(ImageFormat, plan.image_format))


def write_records(records: Iterable[Record], path: Path, image_format: ImageFormat = "png") -> None:
    """Any records, of a hub data set too, as one parquet file that appears whole or not at all.

    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from homunculus.data.record import Question
    >>> record = Record("a/train/0", np.zeros((4, 4, 3), np.uint8), Question("What?", ("Nothing",)))
    >>> with TemporaryDirectory() as folder:
    ...     write_records([record], Path(folder) / "one.parquet")
    ...     [found.question.answer for found in read(folder)]
    ['Nothing']
    """
    import pyarrow

    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    layout = schema()
    try:
        with open(beside, "wb") as file:
            with parquet().ParquetWriter(file, layout) as writer:
                rows: list[dict[str, Any]] = []
                for record in records:
                    rows.append(to_row(record, image_format))
                    if len(rows) == ROW_GROUP:
                        writer.write_table(pyarrow.Table.from_pylist(rows, layout))
                        rows = []
                if rows:
                    writer.write_table(pyarrow.Table.from_pylist(rows, layout))
            file.flush()
            os.fsync(file.fileno())
        _put(beside, path)
    except OSError as error:
        raise DataError(f"cannot write {path} ({error.strerror or error}): free some space and repeat") from None
    finally:
        beside.unlink(missing_ok=True)


def _write_whole(path: Path, contents: bytes) -> None:
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    with open(beside, "wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    _put(beside, path)


def _put(beside: Path, path: Path) -> None:
    """Rename, and have the folder remember it through a power cut."""
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: str | os.PathLike) -> Iterator[Record]:
    """The records of a folder, or of one file, in order."""
    place = Path(path)
    files = sorted(place.glob("*.parquet")) if place.is_dir() else [place]
    if place.is_dir() and (place / MANIFEST).exists():
        made = _manifest(place)
        shards = -(-made["count"] // made["shard"])
        wanted = [place / shard_name(made["split"], number, shards) for number in range(shards)]
        missing = len(set(wanted) - set(files))
        if missing:
            raise DataError(f"{place} lacks {missing} of {shards} files: run `homunculus data write` again")
        files = wanted
    if not files or not files[0].exists():
        raise DataError(f"no parquet files in {place}: make some with `homunculus data write`")
    for file in files:
        yield from _read_file(file)


def _read_file(file: Path) -> Iterator[Record]:
    import pyarrow

    try:
        opened = parquet().ParquetFile(file)
        missing = [name for name in COLUMNS if name not in opened.schema_arrow.names]
        if missing:
            raise DataError(f"{file} lacks the columns {', '.join(missing)}: read a file of `homunculus data write`")
        for batch in opened.iter_batches(ROW_GROUP, columns=list(COLUMNS)):
            yield from map(from_row, batch.to_pylist())
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file} cannot be read ({str(error).splitlines()[0]}): write it again") from None
