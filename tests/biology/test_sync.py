"""Allocators of the eye's geometry never look at a value: on a device that would be to wait for it."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from homunculus.allocation import allocate_view
from homunculus.biology.cortex import cortical_area
from homunculus.biology.schwartz import from_cortex, to_cortex
from homunculus.structures import View
from tests.devices import no_sync

EYES = ["v1", "log-polar-rings", "acuity-bins"]
# Operations whose result, or its shape, the host must know: each is a wait on a CUDA device.
WAITS = {
    f"aten::{name}" for name in ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim")
}


class NoWait(TorchDispatchMode):
    """Raises where a device would have been waited for, also without one."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        # An index that is a mask has as many elements as it has hits.
        masks = name.startswith("aten::index") and any(_is_mask(index) for index in _flat(args[1:2]))
        assert name not in WAITS and not masks, f"{name} waits for the device"
        return function(*args, **(kwargs or {}))


def _flat(values):
    return [own for value in values for own in (value if isinstance(value, (list, tuple)) else [value])]


def _is_mask(index) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def views(batch: int, device: str) -> View:
    gaze = torch.rand(batch, 1, 3, dtype=torch.float64) * 1024
    gaze[..., 2] = 1
    return View(torch.ones(batch, 64, 64, dtype=torch.float64, device=device), (1024, 1024), fixations=gaze.to(device))


@pytest.mark.parametrize("name", EYES)
def test_a_batch_is_allocated_without_looking_at_a_value(name):
    view = views(8, "cpu")
    expected = allocate_view(view, 273, name)
    with NoWait():
        found = allocate_view(view, 273, name)
    assert torch.equal(found.boxes, expected.boxes)


def test_the_guard_sees_a_wait():
    for wait in (lambda x: x.sum().item(), lambda x: bool((x > 0).any()), lambda x: x[x > 0], lambda x: x.unique()):
        with pytest.raises(AssertionError, match="waits for the device"), NoWait():
            wait(torch.rand(4))


@pytest.mark.gpu
@pytest.mark.parametrize("name", EYES)
def test_a_batch_on_the_device_is_allocated_without_waiting(name):
    view = views(64, "cuda")
    expected = allocate_view(view, 273, name)  # builds the tables of this grid
    with no_sync():
        found = allocate_view(view, 273, name)
    assert found.device.type == "cuda" and torch.equal(found.boxes, expected.boxes)
    on_cpu = allocate_view(View(view.relevance.cpu(), (1024, 1024), fixations=view.fixations.cpu()), 273, name)
    assert (found.boxes.cpu() - on_cpu.boxes).abs().median() < 1e-3


@pytest.mark.gpu
def test_the_map_on_the_device():
    x, y = (torch.rand(1000, dtype=torch.float64, device="cuda") * 40 - 20 for _ in range(2))
    with no_sync():
        back = from_cortex(*to_cortex(x, y))
        cortical_area(x.abs())
    assert torch.allclose(back[0], x, atol=1e-12) and torch.allclose(back[1], y, atol=1e-12)
