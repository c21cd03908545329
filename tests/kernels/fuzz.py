"""Random allocations through the fused kernels, against the reference, until something differs.

    python -m tests.kernels.fuzz [--count 10000] [--seed 0]      on a CUDA device, some minutes

Every round draws an image size, layout, type, leaf, budget, allocator and gazes, and counts its images. Forward: both
kernels within a step of the reference. Every tenth round of float images: gradients too.
"""

import argparse
import random
import time

import torch

import homunculus
from homunculus.allocation import get_allocator
from homunculus.errors import HomunculusError
from homunculus.kernels import plain, triton_ops
from homunculus.sampling import _pixel_exact
from tests.kernels.oracle import picture

NAMES = [
    name
    for name in homunculus.allocators()
    if not get_allocator(name).needs_pixels and not get_allocator(name).batchwide and name != "frequency"
]
ROUNDING = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def one_round(dice: random.Random) -> tuple[int, str, float]:
    """Images checked, what they were, and the largest difference in units of what rounding allows."""
    leaf = dice.choice([16, 16, 28, 32])
    name, budget = dice.choice(NAMES), dice.choice([16, 64, 100, 273, 512])
    batch = dice.choice([1, 8, 24, 48])
    if dice.random() < 0.5:  # pixel-exact, so that trees are blocks
        width, height = (leaf * dice.choice([1, 2, 4, 8]) * dice.randint(1, 5) for _ in range(2))
        grid = (width // leaf, height // leaf)
    else:
        width, height = (round(2 ** dice.uniform(0, 9)) for _ in range(2))
        grid = (dice.randint(4, 40), dice.randint(4, 40))
    image, patch = dice.choice([torch.uint8, torch.uint8, *ROUNDING]), dice.choice(list(ROUNDING))
    layout = dice.choice(["planar", "planar", "channels_last", "slice", "grey"])
    what = f"{name} N={budget} {batch} x {width}x{height} {layout} {image} -> {patch}, leaf {leaf}, grid {grid}"
    density = torch.rand(batch, grid[1], grid[0], device="cuda", dtype=torch.float64) ** dice.choice([1, 8])
    gazes = torch.rand(batch, 1, 2, device="cuda", dtype=torch.float64) * torch.tensor([width, height], device="cuda")
    try:
        allocation = homunculus.allocate(
            density, budget, name, image_size=(width, height), leaf=leaf, fixation=gazes, validate=False
        )
    except HomunculusError:  # more tokens than leaves, say: another draw
        return 0, what, 0.0
    images = picture(image, batch, height, width, layout, seed=dice.randint(0, 1 << 30))
    kind = "dyadic" if allocation.kind == "dyadic" and _pixel_exact(allocation) else "box"
    gradients = image == torch.float32 and dice.random() < 0.1
    images.requires_grad_(gradients)
    cells = (images, allocation.boxes, allocation.angle)
    found = triton_ops.sample_cells(*cells, leaf=leaf, kind=kind, dtype=patch)
    expected = plain.sample_cells(*cells, leaf=leaf, kind="box")
    # Boxes far narrower than a pixel magnify the last digit of their edges.
    difference = (found.float() - expected).abs().max() / ROUNDING[patch]
    if gradients:
        cotangent = torch.randn_like(expected)
        back = [torch.autograd.grad(p, images, cotangent.to(p.dtype))[0] for p in (found, expected)]
        scale = back[1].abs().max() * (1 + 1e4 * ROUNDING[patch])
        difference = torch.maximum(difference, (back[0] - back[1]).abs().max() / (scale * ROUNDING[patch] * 4))
    return batch, what, float(difference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="allocations, that is, images")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    torch.manual_seed(arguments.seed)
    checked, rounds, worst, start = 0, 0, 0.0, time.monotonic()
    while checked < arguments.count:
        images, what, difference = one_round(dice)
        if not difference <= 1:
            raise SystemExit(
                f"round {rounds} (seed {arguments.seed}) differs by {difference:.3g} of its tolerance: {what}"
            )
        checked, rounds, worst = checked + images, rounds + 1, max(worst, difference)
        if rounds % 50 == 0:
            print(f"{checked} allocations in {rounds} rounds, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{checked} allocations, 0 differ; the worst used {worst:.2f} of its tolerance; {rounds} rounds")


if __name__ == "__main__":
    main()
