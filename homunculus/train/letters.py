"""Dense supervision: every leaf on which letters lie says which, in their order, and every leaf on a thing what it is.

Encoder and scorer both learn to see so, long before answers could teach them: a question tells of one text, a page
shows thousands of letters. Images know where their letters and things are (train/marks.py); "letters" are both here.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from homunculus.geometry import Size
from homunculus.model.tokenizer import PAD
from homunculus.structures import Allocation
from homunculus.train.samples import sent

SLOTS = 3  # letters to a leaf, at most: of the smallest type


def text_density(
    letters: Int64[Tensor, "b texts length 3"], size: Size, grid: Size, step: int
) -> Float[Tensor, "b gh gw"]:
    """Where the letters are, some texts heavier than others, a little blurred."""
    b, texts, _, _ = letters.shape
    weight = torch.rand(b, texts, generator=torch.Generator().manual_seed(step)) ** 2
    weight = sent(weight, letters.device)[..., None] * (letters[..., 2] != PAD)
    density = torch.zeros(b, grid[0] * grid[1], device=letters.device)
    density.scatter_add_(1, leaf_of(letters, size, grid).flatten(1), weight.flatten(1))
    return F.avg_pool2d(density.view(b, 1, grid[1], grid[0]), 3, stride=1, padding=1)[:, 0]


def leaf_of(places: Int64[Tensor, "*b xy"], size: Size, grid: Size) -> Int64[Tensor, "*b"]:
    """The leaf, in reading order, in which each place lies: x and y in pixels, and whatever follows."""
    column = (places[..., 0] * grid[0] // size[0]).clamp(0, grid[0] - 1)
    line = (places[..., 1] * grid[1] // size[1]).clamp(0, grid[1] - 1)
    return line * grid[0] + column


def leaf_letters(letters: Int64[Tensor, "b texts length 3"], size: Size, grid: Size) -> Int64[Tensor, "b leaves slots"]:
    """The letters on each leaf, left to right, PAD where there is none.

    >>> ab = torch.tensor([[[[3, 5, 68], [9, 5, 69], [0, 0, 0]]]])
    >>> leaf_letters(ab, (32, 16), (2, 1)).tolist()
    [[[68, 69, 0], [0, 0, 0]]]
    """
    leaves = grid[0] * grid[1]
    leaf = leaf_of(letters, size, grid).flatten(1)
    number = letters[..., 2].flatten(1)
    slot, alike = torch.zeros_like(leaf), torch.ones_like(leaf, dtype=torch.bool)
    real = leaf.masked_fill((letters == 0).all(-1).flatten(1), -1)  # padding lies nowhere
    for back in range(1, SLOTS + 1):  # letters of a text come from left to right
        alike = alike & (F.pad(real, (back, 0), value=-2)[:, : leaf.shape[1]] == real)
        slot = slot + alike
    shown = (number != PAD) & (slot < SLOTS)
    found = torch.full((len(leaf), leaves * SLOTS + 1), PAD, device=leaf.device)
    places = torch.where(shown, leaf * SLOTS + slot, leaves * SLOTS)
    found.scatter_reduce_(1, places, number, "amax")  # of two lines on one leaf, the same letter on every device
    return found[:, :-1].unflatten(1, (leaves, SLOTS))


def known(letters: Int64[Tensor, "b texts length 3"]) -> Bool[Tensor, "b 1"]:
    """Which images know their letters: others may show some without saying where."""
    return (letters[..., 2] != PAD).flatten(1).any(1, keepdim=True)


def letter_targets(letters: Int64[Tensor, "b texts length 3"], allocation: Allocation) -> Int64[Tensor, "b n slots"]:
    """The letters on each token that is a leaf, left to right, PAD where there is none; other tokens have none."""
    size, grid = allocation.image_sizes[0], allocation.grids[0]
    tokens = leaf_of(allocation.centers.long(), size, grid)  # [b, n]
    found = leaf_letters(letters, size, grid).gather(1, tokens[..., None].expand(-1, -1, SLOTS))
    return found.masked_fill((allocation.levels != 0)[..., None], PAD)


def letter_loss(
    logits: Float[Tensor, "b n slots letters"], targets: Int64[Tensor, "b n slots"], counted: Bool[Tensor, "b n"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy over the leaves that count, and the share of letters that are right."""
    loss = F.cross_entropy(logits.flatten(0, 2).float(), targets.flatten(), reduction="none").view_as(targets)
    loss = (loss.sum(-1) * counted).sum() / counted.sum().clamp_min(1)
    with torch.no_grad():
        real = (targets != PAD) & counted[..., None]
        right = ((logits.argmax(-1) == targets) & real).sum() / real.sum().clamp_min(1)
    return loss, right
