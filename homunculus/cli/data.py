"""`homunculus data`: see the families of questions, write them to files, try to answer them without looking."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from homunculus.cli.output import check_output, progress, write_png
from homunculus.errors import DataError

app = typer.Typer(name="data", help="Images with questions whose answers and places are known.", no_args_is_help=True)

Family = Annotated[str, typer.Argument(help="documents, scenes or scene-text.")]
SplitName = Annotated[str, typer.Option(help="train, val, test-iid or test-ood (faces, layouts and words held out).")]
Side = Annotated[str, typer.Option("--size", metavar="PIXELS", help="Of an image: 1024, or 1024x1280.")]
WARM = 40  # records made before any is timed
Clean = Annotated[bool, typer.Option("--clean", help="Without skew, blur, noise and compression.")]


@app.callback()
def data() -> None:
    """Images with questions whose answers and places are known."""


@app.command()
def preview(
    family: Family,
    split: SplitName = "train",
    start: Annotated[int, typer.Option(help="The first record.")] = 0,
    count: Annotated[int, typer.Option(help="How many.")] = 12,
    size: Side = "1024",
    clean: Clean = False,
    colours: Annotated[int | None, typer.Option(help="2 to 256: a smaller file.", min=2, max=256)] = None,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("sheet.png"),
) -> None:
    """Draw a contact sheet: images, a box round each answer, the questions underneath."""
    from homunculus.data.preview import contact_sheet, fewer_colours

    check_output(out, None)
    if count < 1 or start < 0:
        raise DataError(f"{count} records from number {start}: give a --count of at least 1 and a --start from 0")
    records = _records(family, split, start, start + count, size, clean)
    title = f"{family}, {split}, {'clean, ' if clean else ''}{start} to {start + count - 1}"
    sheet = contact_sheet(list(records), title)
    write_png(sheet if colours is None else fewer_colours(sheet, colours), out)
    print(out)


@app.command()
def write(
    family: Family,
    count: Annotated[int, typer.Option(help="How many records.")],
    out: Annotated[Path, typer.Option(help="The folder to write into. An unfinished one is continued.")],
    split: SplitName = "train",
    size: Side = "1024",
    clean: Clean = False,
    image_format: Annotated[str, typer.Option("--format", help="png (exact) or jpeg (smaller).")] = "png",
    shard: Annotated[int, typer.Option(help="Records in a file.")] = 256,
    workers: Annotated[int | None, typer.Option(help="Processes; one for each core by default.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for many machines that share the folder.")] = "local",
) -> None:
    """Write parquet files that `datasets` and lmms-eval load. Repeat after an interruption to go on."""
    from homunculus.data import files

    options: dict[str, Any] = {"size": parse_size(size), "clean": clean, "image_format": image_format, "shard": shard}
    begun = time.perf_counter()
    with progress(count, f"{family} {split}") as bar:
        made = files.write(
            family,
            split,
            count,
            out,
            engine=engine,
            workers=workers,
            advance=bar,
            **options,
        )
    seconds = time.perf_counter() - begun
    megabytes = sum(path.stat().st_size for path in out.glob("*.parquet")) / 1e6
    before = f", {count - made} were there" if made < count else ""
    print(f"{made} records in {seconds:.1f} s ({made / seconds:.1f} a second){before}; {out}, {megabytes:.1f} MB")


@app.command()
def blind(
    family: Family,
    train: Annotated[int, typer.Option(help="Images of train to learn answers from.")] = 1000,
    test: Annotated[int, typer.Option(help="Images of test-iid to answer questions about.")] = 300,
    size: Side = "1024",
    metric: Annotated[str | None, typer.Option(help="exact, anls or relaxed; by default the family's.")] = None,
) -> None:
    """How far one gets without looking: the most frequent answers of train, scored on test-iid."""
    from homunculus.data.stream import check
    from homunculus.eval.blind import KNOWS, blind
    from homunculus.eval.metrics import METRIC_OF, METRICS

    check(family, "train")
    metric = metric or METRIC_OF[family]
    if metric not in METRICS or metric == "vqa":
        raise DataError(f"no metric '{metric}' for a single answer: choose exact, anls or relaxed")
    if train < 1 or test < 2:
        raise DataError(f"--train {train} and --test {test}: learn from at least 1 image and test on at least 2")
    with progress(train + test, f"{family}, questions only") as bar:
        learnt = [q for r in _records(family, "train", 0, train, size, True, bar) for q in r.questions]
        asked = [(r.key, q) for r in _records(family, "test-iid", 0, test, size, True, bar) for q in r.questions]
    report = blind(learnt, asked, metric)
    title = "score of an answerer that sees no image and knows of the question"
    table = Table("kind", "questions", *KNOWS, "class prior", box=None, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in report.rows:
        scores = (f"{row.scores[name]:.1%}" for name in KNOWS)
        style = "bold" if row is report.rows[-1] else None
        table.add_row(row.kind or "-", str(row.questions), *scores, f"{row.prior:.1%}", style=style)
    Console().print(table, highlight=False)
    low, high = report.interval.low, report.interval.high
    found = f"{report.interval.mean:.1%} by {metric} (95 % of the time within {low:.1%} to {high:.1%})"
    print(f"the best of them, which knows {report.best}: {found}")


@app.command()
def speed(
    family: Family,
    count: Annotated[int, typer.Option(help="Records of each sort.")] = 40,
    size: Side = "1024",
) -> None:
    """How many records one core makes in a second: clean, as they come, and worn as much as any. Processor time."""
    import torch
    from PIL import Image

    from homunculus.data.degrade import degrade_page
    from homunculus.data.dice import Dice

    if count < 1:
        raise DataError(f"--count {count} measures nothing: give at least 1")
    torch.set_num_threads(1)
    for _ in _records(family, "train", count, count + WARM, size, False):  # letters and noise are made once
        pass
    table = Table(f"{family}, {size} pixels", "records a second", "ms each", box=None)
    for name in ("clean", "as they come", "fully degraded"):
        begun = time.process_time()
        for record in _records(family, "train", 0, count, size, name != "as they come"):
            if name == "fully degraded":
                degrade_page(Image.fromarray(record.image), record.question.boxes, Dice(record.key), fully=True)
        seconds = time.process_time() - begun
        table.add_row(name, f"{count / seconds:.1f}", f"{1000 * seconds / count:.1f}")
    Console().print(table, highlight=False)


def _records(
    family: str, split: str, start: int, stop: int, size: str, clean: bool, advance: Any = lambda records: None
) -> Iterator[Any]:
    from homunculus.data.stream import check, stream

    check(family, split)
    options: dict[str, Any] = {"size": parse_size(size), "clean": clean}
    for record in stream(family, split, start=start, stop=stop, **options):  # type: ignore[arg-type]
        yield record
        advance(1)


def parse_size(text: str) -> tuple[int, int]:
    """Width and height.

    >>> parse_size("1024"), parse_size("640x480")
    ((1024, 1024), (640, 480))
    """
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.strip().isdecimal() and int(side) >= 64 for side in sides):
        raise DataError(f"cannot read the size '{text}': write pixels, at least 64, as in 1024 or 1024x1280")
    return int(sides[0]), int(sides[-1])
