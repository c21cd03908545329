"""The geometry of looking: how large a cell may be at which distance from the gaze, and how far the image reaches.

The law is s(e) = max(finest, k (e + e0)): acuity falls linearly with eccentricity, down to a leaf.
Its integrals are closed forms, and k is solved for, so that the cells 1/s^2 over the whole image are exactly the
budget. An image is star-shaped about a gaze inside it, so in polar coordinates it is one number for each direction.
All lengths here are pixels of the original image; directions are radians, clockwise as seen, since y is down.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.density import fold_sum
from homunculus.geometry import Size, leaf_side
from homunculus.relevance.gaze import first_gaze, peak
from homunculus.structures import View

BISECTIONS = 44


@dataclass(frozen=True)
class Acuity:
    """The law of one batch: slope `k` and offset `e0` per image `[B, 1]`, the finest cell for all; pixels.

    >>> law = Acuity(*torch.tensor([[0.25], [64.0]]).double().unsqueeze(1), 16.0)
    >>> law.side(torch.tensor([[0.0, 64.0]]).double())
    tensor([[16., 32.]], dtype=torch.float64)
    """

    k: Float64[Tensor, "b 1"]
    e0: Float64[Tensor, "b 1"]
    finest: float

    @property
    def knee(self) -> Float64[Tensor, "b 1"]:
        """The eccentricity below which the finest cell is fine enough."""
        return (self.finest / self.k - self.e0).clamp(min=0)

    def side(self, e: Float64[Tensor, "b n"]) -> Float64[Tensor, "b n"]:
        """The side of a cell at eccentricity e."""
        return (self.k * (e + self.e0)).clamp(min=self.finest)

    def steps(self, e: Float64[Tensor, "b n"]) -> Float64[Tensor, "b n"]:
        """How many cells lie between the gaze and e: the integral of 1/s."""
        knee = self.knee
        beyond = ((e.maximum(knee) + self.e0) / (knee + self.e0)).log() / self.k
        return e.minimum(knee) / self.finest + beyond

    def radius(self, steps: Float64[Tensor, "b n"]) -> Float64[Tensor, "b n"]:
        """The eccentricity that many cells away: the inverse of `steps`."""
        knee = self.knee
        flat = knee / self.finest
        # A radius far outside of every image need not be told apart from infinity.
        grown = (knee + self.e0) * ((steps - flat).clamp(min=0) * self.k).clamp(max=50).exp() - self.e0
        return torch.where(steps <= flat, steps * self.finest, grown)

    def tokens(self, e: Float64[Tensor, "b n"]) -> Float64[Tensor, "b n"]:
        """How many cells lie within e, per radian: the integral of e/s^2."""
        knee = self.knee
        near, far = e.minimum(knee), e.maximum(knee)
        start, end = knee + self.e0, far + self.e0
        beyond = ((end / start).log() + self.e0 / end - self.e0 / start) / (self.k * self.k)
        return near * near / (2 * self.finest**2) + beyond


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def directions(count: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Cosine and sine of `count` directions, the middles of equal angles beginning at 0.

    Computed on the CPU, so that every device has the same bits.
    """
    theta = (torch.arange(count, dtype=torch.float64) + 0.5) * (2 * math.pi / count)
    return theta.cos().to(device), theta.sin().to(device)


def side_distances(gaze: Float64[Tensor, "b 2"], size: Size) -> Float64[Tensor, "b 4"]:
    """How far the image goes to the right, down, to the left and up of the gaze.

    >>> side_distances(torch.tensor([[10.0, 20.0]]).double(), (64, 48)).tolist()
    [[54.0, 28.0, 10.0, 20.0]]
    """
    x, y = gaze.unbind(1)
    return torch.stack((size[0] - x, size[1] - y, x, y), dim=1).clamp(min=0)


def border(
    gaze: Float64[Tensor, "b 2"], size: Size, cos: Float64[Tensor, "*b n"], sin: Float64[Tensor, "*b n"]
) -> Float64[Tensor, "b n"]:
    """How far the image reaches from the gaze in each direction; directions `[n]` for all images or `[B, n]`.

    >>> right_and_down = torch.tensor([1.0, 0.0]).double(), torch.tensor([0.0, 1.0]).double()
    >>> border(torch.tensor([[16.0, 16.0]]).double(), (64, 48), *right_and_down)
    tensor([[48., 32.]], dtype=torch.float64)
    """
    right, down, left, up = side_distances(gaze, size)[..., None].unbind(1)
    across = torch.where(cos > 0, right, left) / cos.abs().clamp(min=1e-300)
    along = torch.where(sin > 0, down, up) / sin.abs().clamp(min=1e-300)
    return across.minimum(along)


def solve_acuity(
    gaze: Float64[Tensor, "b 2"], e0: Float64[Tensor, "b 1"], budget: int, view: View, count: int = 256
) -> Acuity:
    """The law whose cells over the image are the budget, e0 being given in pixels.

    >>> view = View(torch.ones(1, 64, 64, dtype=torch.float64), (1024, 1024))
    >>> middle = torch.tensor([[512.0, 512.0]]).double()
    >>> law = solve_acuity(middle, torch.tensor([[102.0]]).double(), 273, view)
    >>> round(law.k.item(), 3)
    0.155
    """
    finest = leaf_side(view.grid, view.image_size)
    reach = border(gaze, view.image_size, *directions(count, view.device))
    low = torch.full_like(e0, math.log(1e-5))
    high = torch.full_like(e0, math.log(1e3))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        cells = fold_sum(Acuity(middle.exp(), e0, finest).tokens(reach), -1) * (2 * math.pi / count)
        low, high = torch.where(cells > budget, middle, low), torch.where(cells > budget, high, middle)
    # Rounded, so that no last bit of a logarithm decides anything.
    return Acuity(((low + high) / 2).exp().float().double(), e0, finest)


def gaze_of(view: View) -> Float64[Tensor, "b 2"]:
    """Where a method with a single gaze looks: the first fixation, or else the peak of relevance.

    >>> gaze_of(View(torch.ones(1, 4, 4, dtype=torch.float64), (64, 64)))
    tensor([[32., 32.]], dtype=torch.float64)
    """
    return first_gaze(view.fixations, peak(view.relevance, view.image_size))


def boxes_about(
    view: View,
    x: Float64[Tensor, "b n"],
    y: Float64[Tensor, "b n"],
    half_x: Float64[Tensor, "b n"],
    half_y: Float64[Tensor, "b n"],
) -> Float64[Tensor, "b n 4"]:
    """Boxes given by centre and half sides in pixels, clipped to the image, in leaf units.

    >>> view = View(torch.ones(1, 4, 4, dtype=torch.float64), (64, 64))
    >>> boxes_about(view, *torch.tensor([[[32.0]], [[8.0]], [[16.0]], [[16.0]]]).double()).tolist()
    [[[1.0, 0.0, 3.0, 1.5]]]
    """
    (width, height), (gw, gh) = view.image_size, view.grid
    return torch.stack(
        (
            (x - half_x).clamp(min=0) * gw / width,
            (y - half_y).clamp(min=0) * gh / height,
            ((x + half_x) * gw / width).clamp(max=gw),
            ((y + half_y) * gh / height).clamp(max=gh),
        ),
        dim=-1,
    )
