"""The picture of docs/conventions.md: one gaze on 1024 and on 4096 pixels, drawn at the same pixel scale.

python -m bench.fovea [docs/fovea.png]
"""

import sys

import torch
from PIL import Image

import homunculus
from homunculus.viz.figures import Panel, compose, level_counts, side_legend
from homunculus.viz.overlay import mark_fixations, overlay

SHOWN = 1024  # pixels of each image around its centre


def main() -> None:
    panels = []
    for side in (1024, 4096):
        density = torch.ones(side // 16, side // 16)
        fixation = (side / 2, side / 2)
        allocation = homunculus.allocate(density, 273, fixation=fixation, fixation_share=1.0)
        drawn = overlay(torch.ones(3, side, side), allocation, (side // 2, side // 2))
        middle, half = side // 4, SHOWN // 4
        panel: Image.Image = drawn.crop((middle - half, middle - half, middle + half, middle + half))
        mark_fixations(panel, torch.tensor([[half, half, 1.0]]), (1.0, 1.0))
        counts = level_counts(allocation)
        note = "whole image" if side == SHOWN else f"the middle {SHOWN} x {SHOWN} pixels of it"
        panels.append(Panel(panel, f"{side} x {side} px", note, side_legend(allocation)))
        context = int(allocation.is_context.sum())
        print(f"| {side}² | " + " / ".join(str(count) for _, count in counts) + f" (+{context}) |")
    compose("e0 is a length: 3 leaves, 273 tokens, one scale", panels, columns=2).save(
        sys.argv[1] if sys.argv[1:] else "fovea.png"
    )


if __name__ == "__main__":
    main()
