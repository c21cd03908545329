"""Features of all leaves of an image, for stage `post`: made by the whole tower, once for an image if they are kept.

A token's features depend on the whole image and not on the question, so in a chat only the pooling changes.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from homunculus.cache.keys import check_bound
from homunculus.integrations.qwen_vl.layout import Layout
from homunculus.integrations.qwen_vl.plan import Plan
from homunculus.integrations.qwen_vl.remembered import Remembered

# Of one image: the tower's last features of all leaves, then those of each DeepStack level.
Features = tuple[Tensor, ...]


class WholeFeatures:
    """The stock tower, which is spared images it has seen where `cache_bytes` has room for their features."""

    def __init__(self, cache_bytes: int, layout: Layout) -> None:
        self.layout = layout
        self._held: Remembered[Features] | None = None
        if cache_bytes:
            self._held = Remembered(check_bound(cache_bytes), lambda own: sum(level.nbytes for level in own))
        self._output_type: Any = None

    @property
    def remembers(self) -> bool:
        return self._held is not None

    def of(
        self,
        tower: Callable[..., Any],
        pixel_values: Float[Tensor, "patches values"],
        image_grid_thw: Int64[Tensor, "images 3"],
        plan: Plan,
        keys: Sequence[Any],
    ) -> tuple[Any, list[Features]]:
        """The tower's output object, still empty, and the features of every image. `keys` name images to remember."""
        cache = self._held if keys and not torch.is_grad_enabled() else None
        features = [None if cache is None else cache.get(keys[image]) for image in range(len(plan.grids))]
        missing = [image for image, own in enumerate(features) if own is None]
        if missing:
            parts = pixel_values.split([columns * lines * self.layout.merge**2 for columns, lines in plan.grids])
            rows = pixel_values if len(missing) == len(parts) else torch.cat([parts[image] for image in missing])
            output = tower(rows, image_grid_thw[missing], return_dict=True)
            leaves = [plan.grids[image][0] * plan.grids[image][1] for image in missing]
            levels = [output.pooler_output, *(getattr(output, "deepstack_features", None) or [])]
            levels = [level.split(leaves) if isinstance(level, Tensor) else level for level in levels]
            for image, own in zip(missing, zip(*levels, strict=True), strict=True):
                features[image] = own
                if cache is not None:
                    cache.put(keys[image], tuple(level.clone() for level in own))  # not views of the whole batch
            self._output_type = type(output)
        return self._output_type(), cast(list[Features], features)
