"""Patches of cells seen before, and their embeddings: bounded in bytes, least recently used first out."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from homunculus.cache.keys import check_bound, content_key
from homunculus.errors import CacheError, ImageError
from homunculus.sampling import sample
from homunculus.structures import CELL_FIELDS, Allocation


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
        self.max_bytes = check_bound(max_bytes)
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


def _some(allocation: Allocation, image: int, cells: list[int]) -> Allocation:
    """Some cells of one image."""
    index = torch.tensor(cells).to(allocation.device, non_blocking=True)
    return replace(
        allocation.select([image]), **{name: getattr(allocation, name)[image, index][None] for name in CELL_FIELDS}
    )
