"""Files of JSON lines, which runs append to and go on with."""

import gzip
import json
import lzma
import os
from pathlib import Path
from typing import Any

from homunculus.errors import OutputError
from homunculus.eval.columns import from_columns

PACKED = {".gz": gzip.decompress, ".xz": lzma.decompress}


def read_rows(file: Path, mend: bool = True) -> list[dict[str, Any]]:
    """The rows of a file, which may be packed (.gz, .xz). A line that is unfinished is left out: a killed run left it,
    or another process is writing it. With `mend` it is cut off, for who goes on with the file."""
    try:
        if not file.exists():
            return []
        if unpacked := PACKED.get(file.suffix):
            return list(from_columns(json.loads(line) for line in unpacked(file.read_bytes()).splitlines()))
        text = file.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text and mend:
            os.truncate(file, len(whole))
        return [json.loads(line) for line in whole.splitlines()]
    except (OSError, EOFError, ValueError, LookupError, lzma.LZMAError) as error:
        raise OutputError(
            f"cannot go on from {file} ({error}): it is no file of rows, so move it away or name another"
        ) from None
