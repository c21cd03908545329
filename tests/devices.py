"""What tests on a CUDA device share."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_sync() -> Iterator[None]:
    """Any call that waits for the device raises."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode itself warns that it is a prototype
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
