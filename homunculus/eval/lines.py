"""Files of JSON lines, which runs append to and go on with."""

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from homunculus.errors import DataError, HomunculusError, OutputError
from homunculus.eval.columns import from_columns

Row = dict[str, Any]

PACKED = {".gz": gzip.decompress, ".xz": lzma.decompress}


def read_rows(file: Path, is_row: Callable[[Row], bool], mend: bool = True) -> list[Row]:
    """The rows of a file, which may be packed (.gz, .xz) and in columns. A line that is unfinished is left out: a
    killed run left it, or another process is writing it. With `mend` it is cut off, for who goes on with the file.

    Only the beginning of a row is ever cut off, and only behind whole lines that are all rows, as `is_row` knows them:
    a file that is not ours stays as it is, and one without a whole row is not known to be ours. A last line that lacks
    nothing but its end is a row.
    """
    try:
        if not file.exists():
            return []
        unpacked = PACKED.get(file.suffix)
        text = unpacked(file.read_bytes()) if unpacked else file.read_bytes()
        start = text.rfind(b"\n") + 1  # of the last line
        cut = _is_begun(text[start:])
        lines = list(_parsed(file, (text[:start] if cut else text).splitlines(), is_row))
        rows = list(from_columns(lines))
        if unpacked or not mend or start == len(text):
            return rows
        if not rows:
            raise ValueError("no line of it is whole")
        if cut:
            os.truncate(file, start)
        else:
            append(file, b"\n")
        return rows
    except HomunculusError:
        raise
    except (OSError, EOFError, ValueError, LookupError, RecursionError, lzma.LZMAError, zlib.error) as error:
        raise OutputError(
            f"cannot go on from {file} ({error}): it is no file of rows, so move it away or name another"
        ) from None


def append_rows(file: Path, rows: Iterable[Row]) -> None:
    """Rows behind those of a file: all of them, or none and the file is as it was."""
    append(file, "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode())


def append(file: Path, text: bytes) -> None:
    try:
        with file.open("ab", buffering=0) as out:  # all at once: others may be reading
            before, written = out.tell(), 0
            try:
                while written < len(text):  # a disk that is nearly full takes a part
                    written += out.write(text[written:])
            except OSError:
                out.truncate(before)
                raise
    except OSError as error:
        raise OutputError(
            f"cannot write {file} ({error.strerror or error}): make room there, or choose another --out"
        ) from None


def _is_begun(line: bytes) -> bool:
    """Whether a line is the beginning of a row and no more.

    >>> [_is_begun(line) for line in (b'{"mark":"a","ke', b"{", b'{"mark":"a"}', b"", b"my notes", b"{mine}")]
    [True, True, False, False, False, False]
    """
    if line[:2] not in (b"{", b'{"'):
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _parsed(file: Path, lines: Iterable[bytes], is_row: Callable[[Row], bool]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            raise ValueError(f"line {number} is not JSON") from None
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no row")
        if not is_row(row):
            raise DataError(f"{file}, line {number} is no row of ours: give a file that the same command wrote")
        yield row
