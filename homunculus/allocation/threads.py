"""Rings around the gaze of an image too thin for sectors: a thread is cut across, into slabs that grow to both ends."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.allocation.polar import BISECTIONS, Acuity
from homunculus.structures import View


def thread_slabs(
    view: View, budget: int, gaze: Float64[Tensor, "b 2"], e0: Float64[Tensor, "b 1"]
) -> tuple[Float64[Tensor, "b n 4"], Float64[Tensor, "b n 2"]]:
    """Half rings to both sides of the gaze along an image too thin for more: sectors, and the angles they fill."""
    axis = int(view.image_size[1] > view.image_size[0])
    length, count = view.image_size[axis], view.grid[axis]
    before = gaze[:, axis : axis + 1]
    reach = torch.cat((length - before, before), dim=1)  # [B, 2], forwards and backwards
    # A slab is as wide as the image, so the slabs to be had are the steps, not the areas, that the law wants.
    finest = length / max(count, 2 * budget)
    low, high = torch.full_like(e0, math.log(1e-5)), torch.full_like(e0, math.log(1e3))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        slabs = Acuity(middle.exp(), e0, finest).steps(reach).sum(1, keepdim=True)  # two of them: no order to fear
        low, high = torch.where(slabs > budget, middle, low), torch.where(slabs > budget, high, middle)
    law = Acuity(((low + high) / 2).exp().float().double(), e0, finest)
    steps = law.steps(reach)
    forwards = (steps[:, :1] * budget / steps.sum(1, keepdim=True)).round()
    forwards = torch.where(reach[:, :1] > 0, forwards.clamp(min=1), 0.0)
    forwards = torch.where(reach[:, 1:] > 0, forwards.clamp(max=budget - 1), float(budget))

    token = torch.arange(budget, dtype=torch.float64, device=view.device)
    ahead = token < forwards
    place = torch.where(ahead, token, token - forwards)
    share = torch.where(ahead, steps[:, :1] / forwards.clamp(min=1), steps[:, 1:] / (budget - forwards).clamp(min=1))
    last = torch.where(ahead, place + 1 == forwards, place + 1 == budget - forwards)
    rho0, rho1 = law.radius(place * share), torch.where(last, torch.inf, law.radius((place + 1) * share))
    theta0 = torch.where(ahead, -math.pi / 2, math.pi / 2) + axis * (math.pi / 2)
    # Far from the gaze a slab fills no more than a narrow angle about the axis.
    width = view.image_size[1 - axis]
    half = torch.where(rho0 < 2 * width, math.pi / 2, width / rho0.clamp(min=width))
    middle = theta0 + math.pi / 2
    sector = torch.stack((rho0, rho1, theta0, theta0 + math.pi), dim=-1)
    return sector, torch.stack((middle - half, middle + half), dim=-1)
