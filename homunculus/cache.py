"""What is kept between fixations, questions and runs: patches and their embeddings in memory, any tensors on disk.

A patch depends on its image and its box alone, and so does a context-free embedding of it (a linear or convolutional
patch embedding): both are reused. An encoding that has seen the other tokens depends on all of them and is never kept.
"""

import hashlib
import os
import threading
import uuid
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import torch
from jaxtyping import Float, Shaped
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from homunculus.errors import HomunculusError, ImageError
from homunculus.sampling import sample
from homunculus.structures import CELL_FIELDS, Allocation, CellKind


class CacheError(HomunculusError):
    """A cache was given something it cannot hold, or a bound it cannot keep."""


def content_key(*parts: Any) -> str:
    """A name made of contents: tensors by type, shape and values, texts, bytes, numbers, None, and sequences of these.

    Reads every byte once, about 1 ms a megabyte, and waits for the device a tensor is on: do it once for an image.

    >>> content_key(torch.zeros(2), "detail", 273) == content_key(torch.zeros(2), "detail", 273)
    True
    >>> content_key(torch.zeros(2)) == content_key(torch.zeros(1, 2))
    False
    """
    digest = hashlib.sha256()
    _digest(digest, parts)
    return digest.hexdigest()[:32]


def _digest(digest: Any, part: Any) -> None:
    def add(label: str, content: Any) -> None:
        digest.update(f"{label} {len(content)}:".encode())  # so that no two lists of parts run together
        digest.update(content)

    if isinstance(part, Tensor):
        values = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        add(f"{part.dtype} {list(part.shape)}", values.numpy())
    elif isinstance(part, (tuple, list)):
        add("list", str(len(part)).encode())
        for one in part:
            _digest(digest, one)
    elif isinstance(part, bytes):
        add("bytes", part)
    elif part is None or isinstance(part, (str, bool, int, float)):
        add(type(part).__name__, str(part).encode())
    else:
        raise CacheError(f"cannot make a key of {type(part).__name__}: give tensors, texts, bytes, numbers or lists")


# ------------------------------------------------------------------------------------------------------- in memory


@dataclass(frozen=True)
class CacheStats:
    """Cells found, cells that had to be made, cells dropped for room, and what is held now."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    entries: int = 0
    bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of cells that were there already; 0 before the first was asked for."""
        return self.hits / max(1, self.hits + self.misses)


class TokenCache:
    """Patches of cells seen before, and their embeddings, up to `max_bytes`; what was used longest ago goes first.

    A cell is known by its image and the exact bits of its box and angle, beside what else decides its pixels: leaf,
    device, kind of cell and, for dyadic cells, the grid. One look at 273 tokens takes 0.8 MiB. Calls from several
    threads are safe; each call waits for the device once, to learn which cells are missing. Nothing kept here carries
    gradients.

    >>> import homunculus
    >>> image, cache = torch.rand(1, 3, 256, 256), TokenCache()
    >>> for gaze in ((60, 60), (60, 60), (200, 180)):
    ...     tokens = homunculus.foveate(image, fixation=gaze, budget=64)
    ...     assert torch.equal(cache.sample(image, tokens.allocation), tokens.patches)
    >>> cache.stats.misses < 2 * 64 < 3 * 64 == cache.stats.hits + cache.stats.misses
    True
    """

    def __init__(self, max_bytes: int = 256 << 20) -> None:
        self.max_bytes = _check_bound(max_bytes)
        # A tensor of its own for every cell, in a plain dictionary: as fast at 273 cells as binary search in a sorted
        # table (bench/cache.py), and memory is given back cell by cell.
        self._rows: OrderedDict[bytes, tuple[str, Tensor]] = OrderedDict()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._encoders: dict[Callable, int] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"TokenCache({len(self._rows)} cells, {self.total_bytes:,} of {self.max_bytes:,} bytes)"

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors held, patches and embeddings: never above `max_bytes`."""
        return sum(self._counts[kind, "bytes"] for kind in ("patch", "embedding"))

    @property
    def stats(self) -> CacheStats:
        """How sampling fared."""
        return self._stats("patch")

    @property
    def embedding_stats(self) -> CacheStats:
        """How encoding fared."""
        return self._stats("embedding")

    def clear(self) -> None:
        """Forget all cells: after the weights of an encoder have changed, for instance. The statistics go on."""
        with self._lock:
            self._rows.clear()
            for kind in ("patch", "embedding"):
                self._counts[kind, "bytes"] = self._counts[kind, "entries"] = 0

    def sample(
        self, images: Shaped[Tensor, "b 3 h w"], allocation: Allocation, image_keys: Sequence[str] | None = None
    ) -> Float[Tensor, "b n 3 leaf leaf"]:
        """What `sampling.sample` returns, bit for bit; only cells not seen before are read from the images.

        `image_keys` names the images, one each; without it their contents are hashed (`content_key`), every time.
        """
        cells = self._cells(images, allocation, image_keys)
        return self._patches(images, allocation, cells, range(len(cells))).unflatten(0, allocation.boxes.shape[:2])

    def encode(
        self,
        images: Shaped[Tensor, "b 3 h w"],
        allocation: Allocation,
        encoder: Callable[[Tensor], Tensor],
        image_keys: Sequence[str] | None = None,
    ) -> Shaped[Tensor, "b n d"]:
        """Context-free embeddings of all cells: `encoder` maps patches [M, 3, leaf, leaf] to [M, D] and sees new ones.

        Embeddings belong to the encoder object, so give the same one each time, and `clear` when its weights change.

        >>> import homunculus
        >>> image, cache = torch.rand(1, 3, 64, 64), TokenCache()
        >>> allocation = homunculus.foveate(image, budget=16).allocation
        >>> embed = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 32))
        >>> cache.encode(image, allocation, embed).shape
        torch.Size([1, 16, 32])
        """
        cells = self._cells(images, allocation, image_keys)

        def embed(missing: list[int]) -> Tensor:
            rows = encoder(self._patches(images, allocation, cells, missing))
            if not isinstance(rows, Tensor) or rows.ndim != 2 or len(rows) != len(missing):
                found = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
                raise CacheError(f"the encoder made {found} of {len(missing)} patches: it must return [patches, D]")
            return rows

        with self._lock:
            prefix = b"%d:" % self._encoders.setdefault(encoder, len(self._encoders))
        rows = self._rows_of("embedding", [prefix + cell for cell in cells], embed)
        return rows.unflatten(0, allocation.boxes.shape[:2])

    def _cells(self, images: Tensor, allocation: Allocation, image_keys: Sequence[str] | None) -> list[bytes]:
        """What every cell is known by, image after image."""
        if images.requires_grad or allocation.boxes.requires_grad:
            raise CacheError("a cache keeps numbers, not gradients: use sampling.sample where gradients are wanted")
        b, _, h, w = images.shape
        if allocation.image_sizes != ((w, h),) * b:
            raise ImageError(
                f"{b} images of {w}x{h} pixels do not match {len(allocation)} allocations made for "
                f"{sorted(set(allocation.image_sizes))}: sample the images that were allocated"
            )
        names = [content_key(image) for image in images] if image_keys is None else image_keys
        if len(names) != b:
            raise CacheError(f"{len(names)} image keys for {b} images: give one for each image")
        boxes = torch.cat((allocation.boxes, allocation.angle[..., None].to(allocation.boxes.dtype)), dim=-1)
        bits = boxes.detach().cpu().numpy()  # the wait for the device
        own = bits.view(f"V{bits.itemsize * 5}")[..., 0].tolist()
        keys: list[bytes] = []
        for name, grid, cells in zip(names, allocation.grids, own, strict=True):
            place = grid if allocation.kind == "dyadic" else None  # these are read from mips where the grid allows it
            prefix = repr((name, str(images.device), allocation.leaf, allocation.kind, place)).encode()
            keys += [prefix + cell for cell in cells]
        return keys

    def _patches(self, images: Tensor, allocation: Allocation, cells: list[bytes], places: Sequence[int]) -> Tensor:
        """The patches of some of the cells `[len(places), 3, leaf, leaf]`, found or sampled."""

        def read(missing: list[int]) -> Tensor:
            own: dict[int, list[int]] = {}  # by image, since each misses its own number of cells; places ascend
            for place in missing:
                image, cell = divmod(places[place], allocation.budget)
                own.setdefault(image, []).append(cell)
            return torch.cat([sample(images[i : i + 1], _some(allocation, i, own[i]))[0] for i in own])

        return self._rows_of("patch", [cells[place] for place in places], read)

    @torch.no_grad()
    def _rows_of(self, kind: str, keys: Sequence[bytes], make: Callable[[list[int]], Tensor]) -> Tensor:
        """Rows `[len(keys), ...]`: those we have, and `make` of the places of the others, each key made once."""
        found: dict[bytes, Tensor] = {}
        missing: dict[bytes, int] = {}
        with self._lock:
            for place, key in enumerate(keys):
                if (kept := self._rows.get(key)) is not None:
                    found[key] = kept[1]
                    self._rows.move_to_end(key)
                else:
                    missing.setdefault(key, place)
            self._counts[kind, "misses"] += len(missing)
            self._counts[kind, "hits"] += len(keys) - len(missing)
        if missing:
            fresh = make(list(missing.values()))
            size = fresh[0].numel() * fresh.element_size()
            if size > self.max_bytes:
                raise CacheError(f"one {kind} takes {size} bytes and the cache holds {self.max_bytes}: raise max_bytes")
            made = dict(zip(missing, fresh.unbind(), strict=True))
            self._keep(kind, made, size)
            found |= made
        return torch.stack([found[key] for key in keys])

    def _keep(self, kind: str, rows: dict[bytes, Tensor], size: int) -> None:
        with self._lock:
            for key, row in rows.items():
                if key in self._rows:  # another thread was faster
                    continue
                while self.total_bytes + size > self.max_bytes:
                    _, (other, old) = self._rows.popitem(last=False)
                    self._counts[other, "bytes"] -= old.numel() * old.element_size()
                    self._counts[other, "entries"] -= 1
                    self._counts[other, "evictions"] += 1
                self._rows[key] = kind, row.clone()  # not a view, which would hold on to all its neighbours
                self._counts[kind, "bytes"] += size
                self._counts[kind, "entries"] += 1

    def _stats(self, kind: str) -> CacheStats:
        with self._lock:
            return CacheStats(**{name: self._counts[kind, name] for name in CacheStats.__dataclass_fields__})


def _check_bound(max_bytes: Any) -> int:
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes <= 0:
        raise CacheError(f"max_bytes must be a positive whole number of bytes, got {max_bytes!r}")
    return max_bytes


def _some(allocation: Allocation, image: int, cells: list[int]) -> Allocation:
    """Some cells of one image."""
    index = torch.tensor(cells).to(allocation.device, non_blocking=True)
    return replace(
        allocation.select([image]), **{name: getattr(allocation, name)[image, index][None] for name in CELL_FIELDS}
    )


# --------------------------------------------------------------------------------------------------------- on disk


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
        self.max_bytes = None if max_bytes is None else _check_bound(max_bytes)
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
