"""How far texture sampling may be from its definition (kernels/reference.py): the error, step by step.

Let values lie in [-peak, peak], let two neighbouring texels of a mip differ by at most `contrast`, and two mips by at
most `between` at any place. Then, for one read:

  texels      A stored mip is rounded once, from float32 means: bytes to 1/255, so 0.5/255; halves to 11 binary digits,
              so half a unit of the last one at `peak`, 2^-12 for values up to 1 (and never under 2^-25).
  weights     CUDA filters with weights of 8 fractional bits. NVIDIA's guide says so and does not say how they are
              rounded, so we allow for the worst, dropped digits: each is off by less than 1/256. A bilinear read is
              a(1-s)(1-t) + b s(1-t) + c (1-s)t + d s t; its derivative in s is a mean of b-a and d-c, in t likewise, so
              s and t off by e move it by at most 2 e contrast.
  places      Coordinates are float32 in [0, 1]: the last addition rounds by up to 2^-25 and the hardware's own product
              with the width as much again, on an axis of `longest` texels; steps away from the centre add three
              roundings of 2^-24 of at most half of `extent`, the width plus height of the box. Same effect as weights.
  two mips    The weight between mips has 8 bits too: one more 1/256, of `between`.
  filter      What the unit returns has at least the 11 digits of a half: 2^-12 peak. No guide says so; a test on
              constant images asks the device.
  sums        float32: reads^2 additions, and the means of up to 16 levels in both implementations.
  output      multiplied by `scale`; then rounded to the output type.

A mean of reads is off by no more than one read. Dyadic cells are single texels: nothing but `texels`, `sums` and
`output`; in bytes and at level 0, and in halves from bytes at levels 0 and 1, not even the first.
"""

import math

import torch

from homunculus.kernels.texture_arrays import Precision

WEIGHT = 1 / 256
DIGITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def texture_error_bound(
    precision: Precision,
    *,
    dyadic: bool = False,
    trilinear: bool = False,
    reads: int = 4,
    contrast: float = 1.0,
    between: float = 1.0,
    peak: float = 1.0,
    longest: int = 1024,
    extent: float | None = None,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
    shift: float = 0.0,
) -> float:
    """The largest possible difference from the reference, for values up to `peak` (see the top of this file).

    `longest` is the longer side of the array; boxes are taken to be no larger than twice that unless `extent` says so.

    >>> round(255 * texture_error_bound("byte", dyadic=True), 2)  # half a code value
    0.5
    >>> texture_error_bound("byte") < 0.012 and texture_error_bound("half", contrast=0.05) < 0.001
    True
    """
    # uint8 images are kept in halves as 0..255, a range that is 256/255 of a power of two.
    texels = 0.5 / 255 if precision == "byte" else 2.0 ** max(math.ceil(math.log2(peak)) - 12, -25) * 256 / 255
    sums = (reads**2 + 2 * 2 * 16) * 2.0**-24 * peak
    error = texels + sums
    if not dyadic:
        places = 2.0**-25 * (2 * longest + 3 * (4 * longest if extent is None else extent))
        error += 2 * (WEIGHT + places) * (contrast + 2 * texels) + 2.0**-12 * peak
    if trilinear:
        error += WEIGHT * (1 + 2.0**-8) * (between + 2 * texels)
    error *= abs(scale)
    largest = abs(scale) * peak + abs(shift) + error
    return error + largest * (2.0**-24 + 2.0 ** -DIGITS[dtype])
