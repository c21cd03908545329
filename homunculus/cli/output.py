"""What commands leave and show: files written whole or not at all, refused before any work; a bar while they run."""

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from homunculus.errors import OutputError


def check_output(out: Path, image: Path | None) -> None:
    """Refuse a place we cannot write to before any work is done."""
    try:
        _check_output(out, image)
    except OSError as error:  # a name too long, a loop of links
        raise OutputError(f"cannot write {out} ({error.strerror or error}): choose another --out") from None


def _check_output(out: Path, image: Path | None) -> None:
    if out.suffix.lower() != ".png":
        raise OutputError(f"the picture is a PNG and '{out}' is no name for one: choose a name such as look.png")
    if out.is_dir():
        raise OutputError(f"{out} is a directory: give the name of a PNG file in it")
    if not out.parent.is_dir():
        raise OutputError(f"the folder {out.parent} does not exist: create it or write elsewhere with --out")
    if not os.access(out.parent, os.W_OK):
        raise OutputError(f"cannot write into {out.parent}: check its permissions or write elsewhere with --out")
    if image is not None and image.exists() and out.exists() and out.samefile(image):
        raise OutputError(f"{out} is the image itself and would be overwritten: choose another --out")


def write_png(picture: Any, out: Path) -> None:
    """A picture, the whole file or nothing."""
    file = io.BytesIO()
    picture.save(file, format="PNG")
    write_whole(out, file.getvalue())


def write_whole(out: Path, content: bytes) -> None:
    """The whole file or nothing: written beside its place and moved there."""
    beside = None
    try:
        handle, name = tempfile.mkstemp(suffix=out.suffix, prefix=".homunculus-", dir=out.parent)
        beside = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        beside.chmod(0o666 & ~_umask())
        beside.replace(out)
    except OSError as error:
        raise OutputError(f"cannot write {out} ({error.strerror or error}): choose another --out") from None
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def progress(total: int, what: str) -> Iterator[Any]:
    """A bar on stderr, where somebody watches; gives the function that moves it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total, rate="")

        def advance(records: float) -> None:
            bar.advance(task, records)
            rate = bar.tasks[0].speed
            bar.update(task, rate=f"{rate:.1f}/s" if rate else "")

        yield advance
