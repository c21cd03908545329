"""`combined`: everything compatible at once, to see how fast it can get.

Fewer cells before the encoder (foveated-pyramid), the most alike of them merged after it (tome), fewer shown to each
layer of the language model than to the one before (pyramiddrop), and fewer kept for each letter that is written
(dyrate). Each acts on what the one before it has left, with its own rules.
"""

from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from homunculus.errors import AllocatorError
from homunculus.model.decoder import Memory
from homunculus.model.encoder import cells_of
from homunculus.model.vlm import CompactVLM, look
from homunculus.peers.compact import seen_cells
from homunculus.peers.layers import LAYER_PEERS, remember_reduced
from homunculus.peers.registry import get_peer
from homunculus.structures import rectangular

CELLS = 150
MERGED = 2 / 3  # of the cells are left after merging
ROUNDS = 12  # of merging, a few pairs in each: every round takes time
SHOWN = 0.6  # of those are shown to the layers on average


def remember_combined(
    model: CompactVLM,
    images: Shaped[Tensor, "b 3 h w"],
    density: Float[Tensor, "b gh gw"],
    question: Int64[Tensor, "b q"],
    cells: int = CELLS,
    *,
    merged: float = MERGED,
    shown: float = SHOWN,
) -> Memory:
    """What is left before the first letter is written. `dyrate.write_forgetting` goes on from there.

    >>> import torch
    >>> from homunculus.model.config import tiny
    >>> model = CompactVLM(tiny())
    >>> question = model.tokenizer.batch([model.tokenizer.encode("What is the total?")])
    >>> remember_combined(model, torch.rand(1, 3, 256, 256), torch.rand(1, 16, 16), question).counts
    (100, 20)
    """
    if not (0 < merged <= 1 and 0 < shown <= 1):
        raise AllocatorError(f"merged and shown of combined are shares above 0 up to 1, got {merged!r} and {shown!r}")
    tokens = look(images, density, cells, leaf=model.config.leaf)
    told = cells_of(rectangular(tokens.allocation))
    seen = seen_cells(model, tokens.patches, told, (cells, 1), attention=())  # no grid, and tome asks for none
    left = get_peer("tome")(seen, max(1, round(cells * merged)), rounds=ROUNDS)
    mean = shown * left.features.shape[1]
    return remember_reduced(model.decoder, left.features, left.places, question, LAYER_PEERS["pyramiddrop"], mean)
