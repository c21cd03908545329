"""Features of all leaves of an image, for stage `post`: made by the whole tower, once for an image if they are kept.

A token's features depend on the whole image and not on the question, so in a chat only the pooling changes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from homunculus.cache.keys import check_bound
from homunculus.geometry import Size
from homunculus.integrations.qwen_vl.layout import Layout
from homunculus.integrations.qwen_vl.remembered import Remembered
from homunculus.integrations.qwen_vl.watching import Looks, Watched


class Features(NamedTuple):
    """Of one image: the tower's last features of all leaves, then those of each DeepStack level; what was watched."""

    levels: tuple[Tensor, ...]
    looks: Looks | None = None

    @property
    def nbytes(self) -> int:
        return sum(own.nbytes for own in (*self.levels, *(self.looks or ())))

    def copied(self) -> "Features":
        """In memory of their own, not views of the whole batch."""
        looks = None if self.looks is None else Looks(*(own.clone() for own in self.looks))
        return Features(tuple(own.clone() for own in self.levels), looks)


class WholeFeatures:
    """The stock tower, which is spared images it has seen where `cache_bytes` has room for their features.

    `watch` is what its runs are watched by, if they are (see watching.py).
    """

    def __init__(
        self,
        cache_bytes: int,
        layout: Layout,
        watch: Callable[[Tensor, Sequence[int]], AbstractContextManager[Watched]] | None = None,
    ) -> None:
        self.layout, self._watch = layout, watch
        self._held: Remembered[Features] | None = None
        if cache_bytes:
            self._held = Remembered(check_bound(cache_bytes), lambda own: own.nbytes)
        self._output_type: Any = None

    @property
    def remembers(self) -> bool:
        return self._held is not None

    def of(
        self,
        tower: Callable[..., Any],
        pixel_values: Float[Tensor, "patches values"],
        image_grid_thw: Int64[Tensor, "images 3"],
        grids: Sequence[Size],
        keys: Sequence[Any],
    ) -> tuple[Any, list[Features]]:
        """The tower's output object, still empty, and the features of every image. `keys` name images to remember."""
        cache = self._held if keys and not torch.is_grad_enabled() else None
        features = [None if cache is None else cache.get(keys[image]) for image in range(len(grids))]
        missing = [image for image, own in enumerate(features) if own is None]
        if missing:
            parts = pixel_values.split([columns * lines * self.layout.merge**2 for columns, lines in grids])
            rows = pixel_values if len(missing) == len(parts) else torch.cat([parts[image] for image in missing])
            leaves = [grids[image][0] * grids[image][1] for image in missing]
            sizes = image_grid_thw[missing]
            with nullcontext() if self._watch is None else self._watch(sizes, leaves) as seen:
                output = tower(rows, sizes, return_dict=True)
            looks = [None] * len(missing) if seen is None else seen.of_images(leaves)
            levels = [output.pooler_output, *(getattr(output, "deepstack_features", None) or [])]
            levels = [level.split(leaves) if isinstance(level, Tensor) else level for level in levels]
            for image, own, look in zip(missing, zip(*levels, strict=True), looks, strict=True):
                made = features[image] = Features(own, look)
                if cache is not None:
                    cache.put(keys[image], made.copied())
            self._output_type = type(output)
        return self._output_type(), cast(list[Features], features)
