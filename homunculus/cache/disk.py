"""Tensors in a folder, by the contents they were made from: written whole or not at all, checked when read."""

import os
import uuid
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from homunculus.cache.keys import check_bound, content_key
from homunculus.errors import CacheError
from homunculus.structures import CELL_FIELDS, Allocation, CellKind


class DiskCache:
    """Dictionaries of tensors in a folder, each in a safetensors file named after what it was made from.

    For what is dear to make and needed again in another run: pyramids, segments, allocations of a training set. Files
    appear whole or not at all, so any number of processes may share a folder. A damaged file is made again, with a
    warning. With `max_bytes` the files used longest ago are removed before a new one would not fit.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     cache = DiskCache(folder)
    ...     first = cache.get_or_make(["squares", 3], lambda: {"squares": torch.arange(3) ** 2})
    ...     again = cache.get_or_make(["squares", 3], lambda: {"squares": torch.zeros(0)})
    >>> again["squares"].tolist()
    [0, 1, 4]
    """

    def __init__(self, folder: str | os.PathLike, max_bytes: int | None = None) -> None:
        self.folder = Path(folder)
        self.max_bytes = None if max_bytes is None else check_bound(max_bytes)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheError(f"cannot keep files in {folder} ({error.strerror}): choose another folder") from None

    def path(self, parts: Sequence[Any]) -> Path:
        """The file of what is made from these parts (see `content_key`): everything that the result depends on."""
        return self.folder / f"{content_key(*parts)}.safetensors"

    def get_or_make(self, parts: Sequence[Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The tensors made from these parts, on the CPU: read if they were made before, or else made and written."""
        path = self.path(parts)
        tensors = self._read(path)
        if tensors is None:
            tensors = {name: _on_its_own(name, value) for name, value in make().items()}
            self._write(path, tensors)
        return tensors

    def _read(self, path: Path) -> dict[str, Tensor] | None:
        try:
            with safe_open(path, framework="pt") as file:
                expected = (file.metadata() or {}).get("contents")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if expected != _contents(tensors):
                raise SafetensorError("its contents do not match its checksum")
            os.utime(path)  # used just now
        except FileNotFoundError:  # not made yet, or removed by another process a moment ago
            return None
        except (SafetensorError, OSError) as error:
            warnings.warn(f"{path} is damaged and will be made again: {error}", RuntimeWarning, stacklevel=3)
            return None
        return tensors

    def _write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        beside = self.folder / f".{uuid.uuid4().hex}.part"
        try:
            save_file(tensors, beside, metadata={"contents": _contents(tensors)})
            self._make_room(beside.stat().st_size)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        if self.max_bytes is None:
            return
        if size > self.max_bytes:
            raise CacheError(f"a file of {size} bytes in a cache of {self.max_bytes}: raise max_bytes")
        files = sorted(file for path in self.folder.glob("*.safetensors") if (file := _age(path)))
        total = sum(length for _, length, _ in files)
        for _, length, path in files:
            if total + size <= self.max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= length


def _age(path: Path) -> tuple[int, int, Path] | None:
    """When a file was last used and how long it is; None if another process has removed it."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size, path


def _contents(tensors: dict[str, Tensor]) -> str:
    return content_key(*(part for name in sorted(tensors) for part in (name, tensors[name])))


def _on_its_own(name: str, value: Any) -> Tensor:
    """A tensor that shares memory with no other, as a file of tensors wants it."""
    if not isinstance(name, str) or not isinstance(value, Tensor):
        raise CacheError(f"a file holds named tensors, not {type(value).__name__} under {name!r}: return a dictionary")
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


KINDS = get_args(CellKind)


def allocation_to_tensors(allocation: Allocation) -> dict[str, Tensor]:
    """An allocation as tensors only, on the CPU, to be written to a file.

    >>> import homunculus
    >>> allocation = homunculus.allocate(torch.rand(64, 64))
    >>> torch.equal(allocation_from_tensors(allocation_to_tensors(allocation)).boxes, allocation.boxes)
    True
    """
    tensors = {name: getattr(allocation, name).detach().cpu() for name in (*CELL_FIELDS, "gaze")}
    host = {name: torch.tensor(getattr(allocation, name)) for name in ("image_sizes", "grids", "leaf")}
    return tensors | host | {"kind": torch.tensor(KINDS.index(allocation.kind))}


def allocation_from_tensors(tensors: dict[str, Tensor]) -> Allocation:
    """The allocation that `allocation_to_tensors` took apart."""
    lost = [name for name in (*CELL_FIELDS, "gaze", "image_sizes", "grids", "leaf", "kind") if name not in tensors]
    if lost:
        raise CacheError(f"these tensors are no allocation, {', '.join(lost)} missing: write allocation_to_tensors")
    return Allocation(
        **{name: tensors[name] for name in (*CELL_FIELDS, "gaze")},
        image_sizes=tuple((int(w), int(h)) for w, h in tensors["image_sizes"]),
        grids=tuple((int(w), int(h)) for w, h in tensors["grids"]),
        leaf=int(tensors["leaf"]),
        kind=cast(CellKind, KINDS[int(tensors["kind"])]),
    )
