"""On a CUDA device: the same results as on the CPU, and no waiting for the device inside the pipeline."""

import pytest
import torch

import homunculus
from homunculus.allocation import allocate_view, get_allocator
from homunculus.allocation.hierarchical import HierarchicalAllocator
from homunculus.foveate import make_view
from homunculus.sampling import sample
from homunculus.structures import View, VisualTokens

from .devices import no_sync

pytestmark = pytest.mark.gpu
FIELDS = ("boxes", "centers", "levels", "is_context")


def scene(batch: int = 4, width: int = 512, height: int = 512) -> torch.Tensor:
    return torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8)


# On densities alone, and by arithmetic that every device rounds alike; rings and spirals take logarithms and angles.
EVERYWHERE_ALIKE = [
    n
    for n in homunculus.allocators()
    if not get_allocator(n).needs_pixels and n not in ("log-polar-rings", "acuity-bins", "scene-aware", "v1", "vortex")
]


@pytest.mark.parametrize("name", EVERYWHERE_ALIKE)
@pytest.mark.parametrize("grid", [(64, 64), (61, 45)])
def test_allocation_is_bit_equal_to_the_cpu(name, grid):
    density = torch.rand(8, grid[1], grid[0], dtype=torch.float64)
    density[1], density[2] = 0, 1
    density[3] *= density[3] > 0.98
    on_cpu = homunculus.allocate(density, 273, name, fixation=[(100, 200), (500, 30)])
    on_gpu = homunculus.allocate(density.cuda(), 273, name, fixation=[(100, 200), (500, 30)])
    assert on_gpu.device.type == "cuda"
    for field in FIELDS:
        assert torch.equal(getattr(on_gpu, field).cpu(), getattr(on_cpu, field)), field
    assert torch.allclose(on_gpu.scores.cpu(), on_cpu.scores, atol=1e-7)
    assert torch.allclose(on_gpu.eccentricity.cpu(), on_cpu.eccentricity, rtol=1e-6)


@pytest.mark.parametrize("name", homunculus.allocators())
@pytest.mark.parametrize("size", [(512, 512), (500, 390)])
def test_nothing_inside_waits_for_the_device(name, size):
    images = scene(4, *size).cuda()
    fixation = torch.tensor([100.0, 50.0], device="cuda")

    # Segmentation of pixels is the one thing done on the CPU: here its labels are given.
    labels = torch.arange(36, device="cuda").reshape(1, 6, 6).expand(4, -1, -1)
    options = {"segments": labels} if name == "atlas" else {}

    def pipeline():
        view = make_view(images, fixation=fixation, validate=False)
        allocation = allocate_view(view, 273, name, **options)
        return sample(images, allocation)

    expected = pipeline()  # builds and caches the tables of this grid
    with no_sync():
        found = pipeline()
    assert torch.equal(found, expected)


def test_mixed_sizes_do_not_wait():
    images = [scene(1, 320, 256)[0].cuda(), scene(1, 200, 300)[0].cuda(), scene(1, 320, 256)[0].cuda()]
    call = {"budget": 64, "query": ["top left", None, "footer"], "validate": False}
    expected = homunculus.foveate(images, **call)
    with no_sync():
        found = homunculus.foveate(images, **call)
    assert torch.equal(found.patches, expected.patches)


def test_public_calls_without_validation_do_not_wait():
    density = torch.rand(4, 64, 64, dtype=torch.float64, device="cuda")
    homunculus.allocate(density, 273, validate=False)
    with no_sync():
        homunculus.allocate(density, 273, validate=False)


def test_soft_cut_does_not_wait():
    view = View(torch.rand(2, 32, 32, dtype=torch.float64, device="cuda") + 0.1, (512, 512))
    allocator = HierarchicalAllocator(lambda view: view.density, 64, validate=False)
    allocator.soft(view)
    with no_sync():
        weights = allocator.soft(view).weights
    on_cpu = allocator.soft(View(view.density.cpu(), (512, 512))).weights
    assert all(torch.allclose(a.cpu(), b, atol=1e-9) for a, b in zip(weights, on_cpu, strict=True))


@pytest.mark.parametrize("name", homunculus.allocators())
def test_foveate_agrees_with_the_cpu(name):
    """Relevance of pixels may differ in the last bit between devices, so the allocation is taken from one of them."""
    images = scene(3)
    on_cpu = homunculus.foveate(images, "bottom right", allocator=name)
    patches = sample(images.cuda(), on_cpu.allocation.to("cuda"))
    assert torch.allclose(patches.cpu(), on_cpu.patches, atol=1e-6)
    on_gpu = homunculus.foveate(images.cuda(), "bottom right", allocator=name)
    assert on_gpu.patches.shape == on_cpu.patches.shape and on_gpu.patches.is_cuda
    own = [part.allocation for part in on_gpu.unpack()]
    cells = [torch.cat((part.boxes[0], part.angle[0, :, None]), dim=1) for part in own]
    assert all(part.unique(dim=0).shape[0] == len(part) for part in cells) and sum(map(len, cells)) == 3 * 273


def test_reconstruct_agrees_with_the_cpu():
    for name in ("foveated-pyramid", "uniform"):
        tokens = homunculus.foveate(scene(2, 300, 200), allocator=name)
        on_cpu = homunculus.reconstruct(tokens)
        on_gpu = homunculus.reconstruct(VisualTokens(tokens.patches.cuda(), tokens.allocation.to("cuda")))
        assert torch.allclose(on_gpu.images.cpu(), on_cpu.images, atol=1e-5)


def test_allocation_under_a_cuda_graph():
    density = torch.rand(16, 64, 64, dtype=torch.float64, device="cuda")
    allocator = HierarchicalAllocator(lambda view: view.density, 273, validate=False)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            allocator(View(density, (1024, 1024)))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = allocator(View(density, (1024, 1024)))
    fresh = torch.rand(16, 64, 64, dtype=torch.float64)
    density.copy_(fresh)
    graph.replay()
    assert torch.equal(captured.boxes.cpu(), allocator(View(fresh, (1024, 1024))).boxes)
