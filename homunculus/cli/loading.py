"""Methods that others wrote: Python files that register allocators or peers when they are run.

homunculus --load mine.py look --allocator mine
homunculus --load mine.py eval --methods mine --out mine.jsonl
"""

import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from homunculus.errors import AllocatorError, HomunculusError


def load_methods(files: Iterable[Path]) -> None:
    """Run each file once, as a module named by its place; what goes wrong in it is told with its line."""
    for file in files:
        name = f"loaded.{file.resolve().with_suffix('')}"
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None or not file.is_file():
            raise AllocatorError(f"{file} is no Python file: give --load one that registers a method, such as mine.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where classes of the file, such as dataclasses, look for it
        try:
            spec.loader.exec_module(module)
        except HomunculusError:
            raise
        except Exception as error:
            lines = [frame.lineno for frame in frames_in([file], error)]
            line = lines[-1] if lines else getattr(error, "lineno", None)
            where = str(file) if line is None else f"{file}, line {line}"
            raise AllocatorError(told(where, error)) from error


def blamed(error: Exception) -> str | None:
    """What went wrong in a method of a loaded file, and where; None if none had a part in it."""
    files = [Path(module.__file__ or "") for name, module in sys.modules.items() if name.startswith("loaded.")]
    frames = frames_in(files, error)
    return told(f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}", error) if frames else None


def frames_in(files: Iterable[Path], error: Exception) -> list[traceback.FrameSummary]:
    """The lines of files that led to an error, the last of them last."""
    places = {file.resolve() for file in files}
    return [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).resolve() in places]


def told(where: str, error: Exception) -> str:
    return f"{where}: {type(error).__name__}: {error}: mend it, or leave out --load"
