"""Who does the work: by device, by what is there, by what the environment names; loudly, and never something else."""

import warnings

import pytest
import torch

import homunculus
from homunculus.errors import KernelError
from homunculus.kernels import dispatch, plain
from homunculus.sampling import sample

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
WITHOUT = "Triton is not installed: pip install 'homunculus[kernels]'"


@pytest.fixture(autouse=True)
def _untold(monkeypatch):
    monkeypatch.delenv("HOMUNCULUS_KERNELS", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(dispatch, "_warned", set())


def has_triton(monkeypatch, there: bool) -> None:
    monkeypatch.setattr(dispatch, "triton_is_missing", lambda: None if there else WITHOUT)


def test_left_alone_triton_runs_on_cuda_and_torch_on_the_cpu(monkeypatch):
    has_triton(monkeypatch, True)
    assert dispatch.use_triton(CUDA) and not dispatch.use_triton(CPU)


def test_cuda_without_triton_is_said_once(monkeypatch):
    has_triton(monkeypatch, False)
    with pytest.warns(UserWarning, match=r"plain torch on cuda:0.*Triton is not installed: pip install"):
        assert not dispatch.use_triton(CUDA)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not dispatch.use_triton(CUDA)
        assert not dispatch.use_triton(CPU)  # nothing is missing there


def test_a_name_is_honoured_or_refused(monkeypatch):
    monkeypatch.setenv("HOMUNCULUS_KERNELS", "reference")
    has_triton(monkeypatch, True)
    assert not dispatch.use_triton(CUDA)
    monkeypatch.setenv("HOMUNCULUS_KERNELS", "triton")
    assert dispatch.use_triton(CUDA)
    with pytest.raises(KernelError, match="the tensors are on the CPU: move them to a CUDA device"):
        dispatch.use_triton(CPU)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert dispatch.use_triton(CPU)
    has_triton(monkeypatch, False)
    with pytest.raises(KernelError, match="HOMUNCULUS_KERNELS=triton, but Triton is not installed"):
        dispatch.use_triton(CUDA)
    monkeypatch.setenv("HOMUNCULUS_KERNELS", "metal")
    with pytest.raises(KernelError, match="names no implementation: use one of reference, triton, texture"):
        dispatch.use_triton(CPU)


def test_what_triton_cannot_do_goes_to_the_reference(monkeypatch):
    images, boxes = torch.rand(1, 3, 32, 32), torch.tensor([[[0.0, 0.0, 16.0, 16.0]]])
    cases = {
        (torch.float32, "box", False, torch.float32): True,
        (torch.uint8, "dyadic", False, torch.bfloat16): True,
        (torch.float64, "box", False, torch.float64): False,
        (torch.float32, "rotated", False, torch.float32): False,
        (torch.float32, "box", True, torch.float32): False,
    }
    for (dtype, kind, moving, patch), expected in cases.items():
        own = boxes.clone().requires_grad_(moving)
        assert dispatch._has_kernels(images.to(dtype), own, kind, patch) == expected


def test_forced_where_it_cannot_run_nothing_is_sampled(monkeypatch):
    images = torch.rand(1, 3, 64, 64)
    allocation = homunculus.allocate(torch.ones(4, 4), 16)
    expected = sample(images, allocation)
    monkeypatch.setenv("HOMUNCULUS_KERNELS", "reference")
    assert torch.equal(sample(images, allocation), expected)
    monkeypatch.setenv("HOMUNCULUS_KERNELS", "triton")
    with pytest.raises(KernelError, match="HOMUNCULUS_KERNELS=triton, but"):
        sample(images, allocation)
    monkeypatch.setenv("HOMUNCULUS_KERNELS", "texture")
    with pytest.raises(KernelError, match="CUDA"):
        sample(images, allocation)


def test_normalised_patches_of_any_type():
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    allocation = homunculus.allocate(torch.rand(2, 4, 4), 16)
    patches = sample(images, allocation)
    mean, std = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
    normalised = sample(images, allocation, mean=mean, std=std, dtype=torch.float16)
    expected = (patches - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert normalised.dtype == torch.float16 and torch.allclose(normalised.float(), expected, atol=2e-3)
    with pytest.raises(homunculus.errors.ImageError, match="three numbers each, std above 0"):
        sample(images, allocation, std=(1.0, 0.0, 1.0))
    with pytest.raises(homunculus.errors.ImageError, match=r"float32 or float64, not torch.uint8"):
        sample(images, allocation, dtype=torch.uint8)


def test_plain_torch_takes_packed_cells_too():
    images = torch.rand(2, 3, 32, 32)
    boxes = torch.tensor([[0.0, 0.0, 16.0, 16.0], [16.0, 0.0, 32.0, 16.0], [0.0, 0.0, 32.0, 32.0]])
    offsets = torch.tensor([0, 2, 3], dtype=torch.int32)
    found = plain.sample_cells(images, boxes, torch.zeros(3), leaf=16, kind="dyadic", offsets=offsets)
    assert torch.equal(found[:2], images[0, :, :16].unflatten(2, (2, 16)).permute(2, 0, 1, 3))
