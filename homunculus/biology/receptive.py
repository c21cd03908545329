"""How wide a cell of visual cortex looks, and which spatial frequencies it may hear.

Receptive fields grow as k (e + e0), as the inverse of magnification does: on the cortex every cell collects from about
the same number of millimetres. k is a parameter, not a constant of nature: 0.14 to 0.26 for V1, by method and by what
is called the edge of a field. Later areas see wider; how much is not modelled.

A field as wide as half a cycle sets the lowest band, SF = 1 / (2 RF), and two octaves lie above it. Every place of the
visual field has several bands. A token holds one low-pass of its cell: the likeness is an analogy and no more.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from homunculus.biology.cortex import E0

K_RANGE = (0.14, 0.26)  # degrees of field for a degree of e + e0, of V1
K = 0.2
OCTAVES = 3


def receptive_field(e: Float64[Tensor, "*n"], k: float = K, e0: float = E0) -> Float64[Tensor, "*n"]:
    """The width of a receptive field of V1 at eccentricity e, in degrees.

    >>> receptive_field(torch.tensor([0.25, 9.25]).double())
    tensor([0.2000, 2.0000], dtype=torch.float64)
    """
    return k * (e + e0)


def channels(e: Float64[Tensor, "*n"], k: float = K, e0: float = E0) -> Float64[Tensor, "*n octaves"]:
    """The middles of three bands an octave apart, in cycles per degree, coarse to fine: V1 at eccentricity e.

    >>> channels(torch.tensor([1.75]).double())
    tensor([[1., 2., 4.]], dtype=torch.float64)
    """
    lowest = 1 / (2 * receptive_field(e, k, e0))
    return lowest[..., None] * 2.0 ** torch.arange(OCTAVES, dtype=e.dtype, device=e.device)
