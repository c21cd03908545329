"""Where kernels are launched."""

import contextlib

import torch


def on(device: torch.device) -> contextlib.AbstractContextManager:
    """Triton launches on the current device, whichever the tensors are on; the interpreter has none."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
