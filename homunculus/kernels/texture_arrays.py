"""Mip chains of batches of images in CUDA arrays, and a pool that keeps them: making one costs more than filling it.

A `MipArray` belongs to one user at a time, or to several that only read. Work on it is queued on streams; whoever takes
it up on another stream has that stream wait for an event, never the host. The host waits in one case: before memory is
handed back to CUDA, for the last work on that very array.
"""

import atexit
import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from homunculus.errors import KernelError
from homunculus.geometry import Size
from homunculus.kernels.texture_build import INSTEAD, load

Precision = Literal["byte", "half"]
Filter = Literal["point", "bilinear", "trilinear"]
ELEMENTS = {torch.uint8: 0, torch.float16: 1, torch.bfloat16: 2, torch.float32: 3}  # enum Image of texture.cu
FILTERS: dict[Filter, int] = {"point": 0, "bilinear": 1, "trilinear": 2}  # enum Filter
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
MAX_SIDE, MAX_LAYERS = 32768, 2048  # of layered arrays, on every device since compute capability 6.0
POOL_BYTES = 2 << 30  # of idle arrays, for all devices together; the last one used is kept even if it is larger


@dataclass(frozen=True)
class ArrayShape:
    """What makes one array as good as another: `size` (width, height) is a multiple of 2^(levels - 1).

    >>> ArrayShape.holding((1000, 750), layers=4, depth=5, precision="byte")
    ArrayShape(device=0, size=(1024, 768), layers=4, levels=6, precision='byte')
    """

    device: int
    size: Size
    layers: int
    levels: int
    precision: Precision

    @staticmethod
    def holding(image_size: Size, layers: int, depth: int, precision: Precision, device: int = 0) -> "ArrayShape":
        width, height = (-(-n // 2**depth) * 2**depth for n in image_size)
        return ArrayShape(device, (width, height), layers, depth + 1, precision)

    @property
    def bytes(self) -> int:
        """Memory of all levels; CUDA adds some for alignment."""
        width, height = self.size
        texels = sum((width >> level) * (height >> level) for level in range(self.levels))
        return texels * self.layers * (4 if self.precision == "byte" else 8)


@dataclass(frozen=True)
class Reading:
    """How cells are read: `reads` a side of each patch pixel, through which filter; value * scale + shift comes out."""

    leaf: int
    reads: int = 4
    filter: Filter = "bilinear"
    scale: Sequence[float] = (1.0, 1.0, 1.0)
    shift: Sequence[float] = (0.0, 0.0, 0.0)


class MipArray:
    """One layered mipmapped array with the surfaces and textures on it. `fill` and `sample` only queue kernels."""

    def __init__(self, shape: ArrayShape, library: ctypes.CDLL) -> None:
        self.shape, self._library = shape, library
        self._handle = ctypes.c_void_p()
        self._owner = os.getpid()
        self._uses: dict[int, torch.cuda.Event] = {}  # by stream: the last work there
        self._lock = threading.Lock()
        code = library.homunculus_texture_create(
            shape.device,
            *shape.size,
            shape.layers,
            shape.levels,
            int(shape.precision == "half"),
            ctypes.byref(self._handle),
        )
        width, height = shape.size
        self._check(code, f"making a texture of {shape.layers} x {width} x {height} pixels")

    def fill(self, images: Tensor, stream: int) -> None:
        """The images, `[B, 3, h, w]` of any strides with B up to the number of layers, and all their mips."""
        b, _, h, w = images.shape
        self._holds = b, w, h, 255.0 if images.dtype == torch.uint8 else 1.0  # the last: what stands for 1
        tiles, room = (w, h), 0  # float4s that carry the means of a pass of six levels to the next
        while max(tiles) > 1:
            tiles = (-(-tiles[0] // 64), -(-tiles[1] // 64))
            room += tiles[0] * tiles[1]
        means = images.new_empty(b * room * 4 if self.shape.levels > 7 else 0, dtype=torch.float32)
        strides = (ctypes.c_longlong * 4)(*images.stride())
        element = ELEMENTS[images.dtype]
        code = self._library.homunculus_texture_fill(
            self._handle, images.data_ptr(), element, strides, w, h, b, means.data_ptr(), stream
        )
        self._check(code, "filling a texture")

    def sample(
        self,
        patches: Tensor,
        boxes: Tensor,
        angle: Tensor | None,
        offsets: Tensor | None,
        reading: Reading,
        stream: int,
        *,
        images: int,
        first: int = 0,
    ) -> None:
        """Into `patches` `[cells, 3, leaf, leaf]`: those cells whose image is held, of a batch of so many `images`.

        The array holds image `first` of it and the next ones. Without `offsets` each image has as many cells as any
        other. All tensors are contiguous; `boxes` and `angle` share float32 or float64.
        """
        layers, width, height, unit = self._holds
        cells = patches.shape[0]
        room = boxes.new_empty(cells * self._library.homunculus_texture_cell_bytes(), dtype=torch.uint8)
        code = self._library.homunculus_texture_sample(
            self._handle,
            boxes.data_ptr(),
            None if angle is None else angle.data_ptr(),
            int(boxes.dtype == torch.float64),
            None if offsets is None else offsets.data_ptr(),
            cells,
            images,
            first,
            layers,
            width,
            height,
            reading.leaf,
            reading.reads,
            FILTERS[reading.filter],
            unit,
            (ctypes.c_float * 3)(*reading.scale),
            (ctypes.c_float * 3)(*reading.shift),
            room.data_ptr(),
            patches.data_ptr(),
            ELEMENTS[patches.dtype],
            stream,
        )
        self._check(code, "sampling a texture")

    def wait(self, stream: torch.cuda.Stream) -> None:
        """Work queued on `stream` from here on comes after all work noted so far."""
        with self._lock:
            uses = list(self._uses.values())
        for event in uses:
            stream.wait_event(event)

    def note(self, stream: torch.cuda.Stream, *, alone: bool) -> None:
        """Work was queued on `stream`; `alone`: after everything before, so that the rest may be forgotten."""
        event = torch.cuda.Event()
        event.record(stream)
        with self._lock:
            self._uses = {} if alone else self._uses
            self._uses[stream.cuda_stream] = event

    def last_used_on(self, stream: int) -> bool:
        return list(self._uses) == [stream]

    def free(self) -> None:
        """Memory back to CUDA, after the last work on it; a forked process leaves its parent's alone."""
        if self._handle and self._owner == os.getpid():
            for event in self._uses.values():
                event.synchronize()
            handle, self._handle = self._handle, ctypes.c_void_p()
            self._check(self._library.homunculus_texture_destroy(handle), "freeing a texture")

    def _check(self, code: int, doing: str) -> None:
        if code == OUT_OF_MEMORY:
            raise OutOfTextureMemory(
                f"{doing}: the device has not {self.shape.bytes / 1e6:.0f} MB left: sample fewer or smaller images at "
                "once, or call homunculus.kernels.texture.release() and torch.cuda.empty_cache()"
            )
        if code != 0:
            message = self._library.homunculus_texture_message(code).decode()
            raise KernelError(f"{doing}: {message} (CUDA error {code}): repair it, or use {INSTEAD}")


class OutOfTextureMemory(KernelError):
    """The device has no room for the array."""


class Pool:
    """Idle arrays, the longest unused first, in at most `limit` bytes; safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._idle: list[MipArray] = []
        self._lock = threading.RLock()  # the garbage collector may give an array back in the middle of anything

    def take(self, shape: ArrayShape, stream: int = 0) -> MipArray:
        """An idle array of this shape, best one last used on the same stream; a new one if there is none."""
        with self._lock:
            fitting = [array for array in self._idle if array.shape == shape]
            fitting.sort(key=lambda array: array.last_used_on(stream))
            if fitting:
                self._idle.remove(fitting[-1])
                return fitting[-1]
        return self._make(shape)

    def _make(self, shape: ArrayShape) -> MipArray:
        library = load(torch.device("cuda", shape.device))
        try:
            return MipArray(shape, library)
        except OutOfTextureMemory:  # what lies idle here and in torch may be enough; torch does the same for its own
            self.release()
            torch.cuda.empty_cache()
        return MipArray(shape, library)

    def give(self, array: MipArray) -> None:
        """Back for others to take. Work on it may still be running."""
        with self._lock:
            self._idle.append(array)
            surplus = []
            while len(self._idle) > 1 and self._bytes() > self.limit:
                surplus.append(self._idle.pop(0))
        for old in surplus:
            old.free()

    def release(self) -> None:
        """Free every idle array."""
        with self._lock:
            idle, self._idle = self._idle, []
        for array in idle:
            array.free()

    @property
    def bytes(self) -> int:
        with self._lock:
            return self._bytes()

    def _bytes(self) -> int:
        return sum(array.shape.bytes for array in self._idle)


POOL = Pool(POOL_BYTES)
atexit.register(POOL.release)
