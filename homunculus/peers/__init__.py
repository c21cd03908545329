"""Published ways of keeping fewer tokens, behind one interface and held to one budget: those after the encoder.

Those inside the language model, while it writes, and all together are in `reading`, which reads with any by its name.

>>> import torch
>>> from homunculus.peers import Seen, get_peer
>>> tokens, attention = torch.randn(2, 64, 16), torch.rand(2, 64)
>>> seen = Seen(tokens, torch.zeros(2, 64, 4), (8, 8), tokens, attention, attention)
>>> get_peer("tome")(seen, 10).features.shape
torch.Size([2, 10, 16])
"""

from homunculus.peers import (  # noqa: F401  (each registers its peers)
    aim,
    baselines,
    cdpruner,
    divprune,
    hired,
    prumerge,
    residual,
    tome,
    visionzip,
    vscan,
)
from homunculus.peers.registry import Peer, get_peer, peers, register
from homunculus.peers.tokens import Reduced, Seen, kept

__all__ = ["Peer", "Reduced", "Seen", "get_peer", "kept", "peers", "register"]
