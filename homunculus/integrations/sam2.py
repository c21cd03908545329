"""SAM 2 as a source of segments for `atlas`: a regular grid of points asks for masks, the masks become a label map.

    from homunculus.integrations.sam2 import Sam2Segments

    segments = Sam2Segments("facebook/sam2.1-hiera-tiny", device="cuda")
    tokens = homunculus.foveate(image, allocator="atlas", segments=segments)

Weights come through transformers (`pip install 'homunculus[hf]'`), from the hub or from a folder.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from homunculus.errors import AllocatorError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the pixels SAM 2 was trained on
MARGIN = 1.0  # a mask is stable if moving the threshold of its logits by this much hardly changes it


class Sam2Segments:
    """A callable (images `[B, 3, H, W]`) -> labels `[B, h, w]` at the resolution of SAM 2's masks, 0 for background.

    `points` x `points` places are asked, `at_once` of them in one pass, each for three masks. Kept are those whose
    predicted IoU and stability reach `min_score` and `min_stability`, and of masks that overlap by more than `overlap`
    (IoU) the best. Where masks lie over each other the smallest shows. Image by image, and it waits for the device.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        *,
        points: int = 16,
        min_score: float = 0.8,
        min_stability: float = 0.95,
        overlap: float = 0.7,
        at_once: int = 64,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if points < 1 or at_once < 1:
            raise AllocatorError(f"SAM 2 is asked at 1 or more points, 1 or more at once, got {points=}, {at_once=}")
        self.model = _load(checkpoint, dtype).to(device).eval()
        self.side: int = self.model.config.prompt_encoder_config.image_size
        self.points, self.at_once = points, at_once
        self.min_score, self.min_stability, self.overlap = min_score, min_stability, overlap

    def __call__(self, images: Shaped[Tensor, "b 3 h w"]) -> Int64[Tensor, "b h2 w2"]:
        return torch.stack([self.segment(image) for image in images])

    @torch.no_grad()
    def segment(self, image: Shaped[Tensor, "3 h w"]) -> Int64[Tensor, "h2 w2"]:
        """The label map of one image: larger masks have lower numbers."""
        device, dtype = self.model.device, self.model.dtype
        features = self.model.get_image_embeddings(prepare(image[None].to(device), self.side).to(dtype))
        found = [self._ask(features, points) for points in point_grid(self.points, self.side).split(self.at_once)]
        masks, scores = (torch.cat(parts) for parts in zip(*found, strict=True))
        return paint(masks[best_of_each(masks, scores, self.overlap)]).to(image.device)

    def _ask(self, features: list[Tensor], points: Float[Tensor, "p 2"]) -> tuple[Tensor, Tensor]:
        """The masks `[m, h, w]` worth keeping at these points, and their scores `[m]`."""
        asked = points[None, :, None].to(self.model.device)  # one image, p prompts of one point each
        answer = self.model(image_embeddings=features, input_points=asked, multimask_output=True)
        logits, scores = answer.pred_masks.flatten(0, 2).float(), answer.iou_scores.flatten().float()
        inner, outer = ((logits > margin).sum((1, 2)) for margin in (MARGIN, -MARGIN))
        masks = logits > 0
        kept = (scores >= self.min_score) & (inner >= self.min_stability * outer) & masks.any(2).any(1)
        return masks[kept], scores[kept]


def _load(checkpoint: str | Path, dtype: torch.dtype) -> Any:
    try:
        from transformers import Sam2Model
    except ImportError:
        raise AllocatorError("SAM 2 needs transformers 5.17 or later: pip install 'homunculus[hf]'") from None
    fix = "name a SAM 2 checkpoint, such as facebook/sam2.1-hiera-tiny, or a folder with one"
    try:
        loaded: Any = Sam2Model.from_pretrained(checkpoint, dtype=dtype, output_loading_info=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().split("\n")[0]
        raise AllocatorError(f"cannot load SAM 2 from '{checkpoint}' ({reason}): {fix}") from error
    model, report = loaded
    if missing := report["missing_keys"]:  # transformers would fill them with random numbers
        raise AllocatorError(f"'{checkpoint}' lacks {len(missing)} of the weights of SAM 2: {fix}")
    return model


def prepare(images: Shaped[Tensor, "b 3 h w"], side: int) -> Float[Tensor, "b 3 side side"]:
    """Images, uint8 or float in [0, 1], as SAM 2 wants them: a square whatever their aspect, standardised.

    >>> prepare(torch.full((1, 3, 20, 30), 0.5), 64).shape
    torch.Size([1, 3, 64, 64])
    """
    pixels = images.float() if images.is_floating_point() else images.float() / 255
    pixels = F.interpolate(pixels, (side, side), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(values, device=images.device)[:, None, None] for values in (MEAN, STD))
    return (pixels - mean) / std


def point_grid(points: int, side: int) -> Float[Tensor, "p 2"]:
    """The centres (x, y) of `points` x `points` equal cells of a square, as indices of pixels.

    >>> point_grid(2, 8).tolist()
    [[1.5, 1.5], [5.5, 1.5], [1.5, 5.5], [5.5, 5.5]]
    """
    line = (torch.arange(points) + 0.5) * side / points - 0.5  # SAM 2 adds half a pixel itself
    y, x = torch.meshgrid(line, line, indexing="ij")
    return torch.stack((x, y), dim=-1).reshape(-1, 2)


def best_of_each(
    masks: Bool[Tensor, "m h w"], scores: Float[Tensor, "m"], overlap: float = 0.7
) -> Int64[Tensor, "kept"]:
    """Non-maximum suppression: indices of masks, best first, no two of which overlap by more than `overlap` (IoU).

    >>> masks = torch.zeros(3, 4, 4, dtype=torch.bool); masks[:2, :2] = True; masks[2, 3] = True
    >>> best_of_each(masks, torch.tensor([0.8, 0.9, 0.7]))
    tensor([1, 2])
    """
    flat = masks.flatten(1).float()  # sums of so many ones are exact
    shared, area = flat @ flat.T, flat.sum(1)
    repeats = (shared > overlap * (area[:, None] + area - shared)).cpu()
    kept: list[int] = []
    for mask in torch.sort(scores, descending=True, stable=True).indices.tolist():
        if not repeats[mask, kept].any():
            kept.append(mask)
    return torch.tensor(kept, dtype=torch.int64, device=masks.device)


def paint(masks: Bool[Tensor, "m h w"]) -> Int64[Tensor, "h w"]:
    """One label map of all masks, numbered from 1, the largest first, the smaller over the larger; 0 where none is.

    >>> masks = torch.zeros(2, 2, 4, dtype=torch.bool); masks[0, 0, :1] = True; masks[1, 0, :3] = True
    >>> paint(masks).tolist()
    [[2, 1, 1, 0], [0, 0, 0, 0]]
    """
    order = torch.sort(masks.flatten(1).sum(1), descending=True, stable=True).indices
    number = torch.arange(1, len(masks) + 1, device=masks.device)[:, None, None]
    return F.pad(masks[order] * number, (0, 0, 0, 0, 1, 0)).amax(0)  # the pad is the ground, number 0
