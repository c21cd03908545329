"""What Hypothesis draws: image sizes, budgets, gazes, and densities as awkward as users' own."""

import math

import torch
from hypothesis import strategies as st

KINDS = ("random", "constant", "zero", "one-hot", "sparse", "extreme", "integers", "gradient")


@st.composite
def image_sizes(draw, low: int = 16, high: int = 4096, max_aspect: float = 8.0) -> tuple[int, int]:
    """(width, height), each in low..high, aspect at most max_aspect either way; small sizes as likely as large ones."""
    long = round(math.exp(draw(st.floats(math.log(low), math.log(high)))))
    short = max(low, round(long / draw(st.floats(1.0, max_aspect))))
    return (long, short) if draw(st.booleans()) else (short, long)


@st.composite
def densities(draw, shape: tuple[int, ...], kind: str | None = None) -> torch.Tensor:
    """A float64 density of that shape; the numbers come from a drawn seed, the kind is drawn too."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values = torch.rand(shape, generator=generator, dtype=torch.float64)
    match kind or draw(st.sampled_from(KINDS)):
        case "constant":
            return torch.full_like(values, draw(st.sampled_from([1e-30, 1.0, 1e30])))
        case "zero":
            return torch.zeros_like(values)
        case "one-hot":
            flat = torch.zeros_like(values).flatten(-2)
            hot = torch.randint(flat.shape[-1], flat.shape[:-1], generator=generator)
            return flat.scatter(-1, hot[..., None], 1.0).reshape(shape)
        case "sparse":
            return values * (values > 0.98)
        case "extreme":  # sixty orders of magnitude
            return 10 ** (values * 60 - 30)
        case "integers":  # ties everywhere
            return (values * 4).floor()
        case "gradient":
            return values * torch.linspace(0, 1, shape[-1], dtype=torch.float64)
    return values
