"""Names made of contents, and the bound every cache keeps."""

import hashlib
from typing import Any

import torch
from torch import Tensor

from homunculus.errors import CacheError


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


def check_bound(max_bytes: Any) -> int:
    """A bound in bytes, or an error that says what it must be."""
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes <= 0:
        raise CacheError(f"max_bytes must be a positive whole number of bytes, got {max_bytes!r}")
    return max_bytes
