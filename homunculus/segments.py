"""Which pixels belong together: label maps, the caller's own or cut out of the pixels.

A label map is whole numbers `[B, h, w]` of any resolution over the whole image. Each number above 0 is a segment, with
one meaning inside an image and none across images; 0 and everything below it is background.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from homunculus.errors import AllocatorError
from homunculus.kernels.resample import area_resample
from homunculus.pyramid import ImagePyramid
from homunculus.structures import View

# Nothing (cut the pixels), a label map, or a callable (images [B, 3, H, W]) -> label map.
Segments = None | Tensor | np.ndarray | Callable[[Tensor], Tensor | np.ndarray]

MAX_PIXELS = 1 << 18  # of the picture that is cut: segments of larger images are found in a smaller copy
SCALE = 300.0  # of felzenszwalb: larger joins more
BLUR = 0.2  # in leaves, so that the stairs of a slanted edge do not become segments
SMALL = 1 / 256  # share of the image below which a segment joins its equals
REACH = 0.5  # in leaves: how far a small segment reaches out for others


def read_labels(segments: Segments, view: View) -> Int64[Tensor, "b h w"]:
    """The label map that `segments` stands for, on the view's device.

    Waits for the device only where pixels are cut here, which scikit-image does on the CPU.

    >>> view = View(torch.ones(2, 8, 8, dtype=torch.float64), (128, 128))
    >>> read_labels(torch.eye(4, dtype=torch.int32), view).shape
    torch.Size([2, 4, 4])
    """
    if segments is None:
        return classical_labels(view.pixels("atlas without segments="))
    labels: Any = segments
    if callable(segments):
        labels = segments(view.pixels("atlas with a callable for segments=").images)
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "biu":
        labels = torch.from_numpy(np.ascontiguousarray(labels, dtype=np.int64))
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        kind = getattr(labels, "dtype", type(labels).__name__)
        raise AllocatorError(f"segments came as {kind}: give whole numbers [B, h, w], 0 for background, or a callable")
    labels = labels[None].expand(view.batch, -1, -1) if labels.ndim == 2 else labels
    if labels.ndim != 3 or labels.shape[0] != view.batch or 0 in labels.shape:
        raise AllocatorError(
            f"a label map of shape {list(labels.shape)} for {view.batch} images: give [h, w], or [B, h, w] with one "
            "for each image, or a callable if they differ in size"
        )
    return labels.to(view.device, torch.int64, non_blocking=True)


def classical_labels(pyramid: ImagePyramid) -> Int64[Tensor, "b h w"]:
    """Segments from colour alone: Felzenszwalb's merging of like neighbours in a small copy, then small ones joined.

    Words make a paragraph and leaves a tree: what is too small to be an object of its own is one with whatever is small
    and near. Image by image on the CPU, the same for an image alone and in a batch; needs scikit-image.

    >>> image = torch.full((1, 3, 256, 256), 0.8); image[:, 0, 64:192, 96:160] = 0.1
    >>> labels = classical_labels(ImagePyramid(image, (16, 16)))
    >>> labels.shape, bool(labels[0, 32, 32] != labels[0, 4, 4])
    (torch.Size([1, 64, 64]), True)
    """
    copy = pyramid.gaussian[pyramid.base_level]
    h, w = copy.shape[2:]
    if h * w > MAX_PIXELS:
        shrink = (MAX_PIXELS / (h * w)) ** 0.5
        copy = area_resample(copy, (max(1, int(w * shrink)), max(1, int(h * shrink))))
    pixels = (copy.shape[2] * copy.shape[3] / (pyramid.grid[0] * pyramid.grid[1])) ** 0.5  # to the side of a leaf
    return torch.stack([_cut(image, pixels) for image in copy.detach().cpu()]).to(pyramid.images.device)


def _cut(image: Float[Tensor, "3 h w"], leaf: float) -> Int64[Tensor, "h w"]:
    try:
        from skimage.measure import label
        from skimage.segmentation import felzenszwalb
    except ImportError:
        raise AllocatorError(
            "segments are found with scikit-image, which is not installed: pip install scikit-image, or give segments="
        ) from None
    picture = image.permute(1, 2, 0).double().numpy()
    found = felzenszwalb(picture, scale=SCALE, sigma=BLUR * leaf, min_size=max(1, round(leaf * leaf)))
    small = (np.bincount(found.ravel()) < SMALL * found.size)[found]
    reach = round(REACH * leaf)
    near = F.max_pool2d(torch.from_numpy(small)[None].float(), 2 * reach + 1, stride=1, padding=reach)[0] > 0
    joined = label(near.numpy(), connectivity=2) + found.max() + 1
    return torch.from_numpy(np.where(near.numpy(), joined, found + 1).astype(np.int64))  # with a margin, uncut
