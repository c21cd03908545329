"""The fused cut against the plain one, and on a GPU against the heap, to the last tie."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homunculus.allocation.heap import heap_allocation
from homunculus.allocation.hierarchical import HierarchicalAllocator
from homunculus.allocation.tree import (
    MAX_FUSED_NODES,
    Cut,
    Tree,
    cut_density,
    cut_tree,
    mass_inside,
    tree_over,
)
from homunculus.geometry import root_level
from homunculus.kernels import triton_cut
from homunculus.pyramid import Reduce, mass_pyramid
from homunculus.structures import View
from tests.devices import no_sync
from tests.kernels.oracle import DEVICE
from tests.strategies import KINDS, densities

pytestmark = pytest.mark.kernels
TINY = [
    (8, 8, 16),
    (8, 8, 17),
    (8, 8, 18),
    (8, 8, 64),
    (13, 7, 20),
    (13, 7, 61),
    (16, 16, 40),
    (3, 20, 33),
    (17, 1, 16),
]
CUT_FIELDS = ("nodes", "is_context", "filled")


def tree_for(gw: int, gh: int, budget: int, device: str = DEVICE) -> Tree:
    return tree_over(gw, gh, root_level(gw, gh, budget), device)


def plain_cut(tree: Tree, density: torch.Tensor, budget: int, reduce: Reduce = "sum", own=None) -> Cut:
    """What tree.py does without the kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOMUNCULUS_KERNELS", "reference")
        masses = tree.in_node_order(mass_pyramid(density, tree.root_level, reduce))
        return cut_tree(tree, masses, budget, own=own)


def assert_same(found: Cut, expected: Cut) -> None:
    for field in CUT_FIELDS:
        assert torch.equal(getattr(found, field), getattr(expected, field)), field


def awkward(gw: int, gh: int, seed: int = 0) -> torch.Tensor:
    """One density of every kind in tests/strategies.py, and some more: [B, gh, gw]."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(10, gh, gw, generator=generator, dtype=torch.float64)
    values[1] = 1.0
    values[2] = 0.0
    values[3] = 0.0
    values[3].view(-1)[int(values[0, 0, 0] * gw * gh)] = 1.0
    values[4] *= values[4] > 0.9
    values[5] = 10 ** (values[5] * 60 - 30)
    values[6] = (values[6] * 4).floor()
    values[7] *= torch.linspace(0, 1, gw, dtype=torch.float64)
    values[8] *= 5e-324 / 1e-3  # subnormal
    values[9] = -0.0
    return values.to(DEVICE)


@pytest.mark.parametrize(("gw", "gh", "budget"), TINY)
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_fused_equals_plain(gw, gh, budget, reduce):
    tree, density = tree_for(gw, gh, budget), awkward(gw, gh)
    *cut, masses = triton_cut.cut(tree, density, budget, maximum=reduce == "max")
    assert torch.equal(masses, tree.in_node_order(mass_pyramid(density, tree.root_level, reduce)))
    assert_same(Cut(*cut), plain_cut(tree, density, budget, reduce))
    given = triton_cut.cut(tree, masses, budget)
    assert given[3] is masses
    assert_same(Cut(*given[:3]), Cut(*cut))


@settings(max_examples=12)
@given(st.data())
def test_fused_equals_plain_on_drawn_densities(data):
    gw, gh, budget = data.draw(st.sampled_from(TINY))
    density = data.draw(densities((2, gh, gw))).to(DEVICE)
    tree = tree_for(gw, gh, budget)
    assert_same(Cut(*triton_cut.cut(tree, density, budget)[:3]), plain_cut(tree, density, budget))


@pytest.mark.parametrize(("gw", "gh"), [(16, 16), (13, 11)])
def test_budgets_of_their_own(gw, gh):
    """Each image as if it were alone with its budget, and the rest of its row marked as empty."""
    tree, budget = tree_for(gw, gh, 16), 40
    density = awkward(gw, gh)
    own = torch.tensor([16, 17, 18, 19, 40, 23, 39, 30, 16, 40], device=DEVICE)[:, None]
    found = Cut(*triton_cut.cut(tree, density, budget, own=own)[:3])
    assert_same(found, plain_cut(tree, density, budget, own=own))
    assert found.filled.sum(1).tolist() == own[:, 0].tolist()
    alone = triton_cut.cut(tree, density[3:4], 19)
    assert torch.equal(found.nodes[3:4, :19], alone[0]) and torch.equal(found.is_context[3:4, :19], alone[1])


def test_an_image_does_not_depend_on_its_batch():
    tree, density = tree_for(16, 16, 40), awkward(16, 16)
    whole = triton_cut.cut(tree, density, 40)
    for i in range(len(density)):
        for together, alone in zip(whole, triton_cut.cut(tree, density[i : i + 1], 40), strict=True):
            assert torch.equal(together[i : i + 1], alone)


def test_strides_do_not_matter():
    tree, density = tree_for(13, 7, 20), awkward(7, 13).transpose(1, 2)
    assert_same(Cut(*triton_cut.cut(tree, density, 20)[:3]), plain_cut(tree, density, 20))
    one = density[:1].expand(3, -1, -1)
    assert_same(Cut(*triton_cut.cut(tree, one, 20)[:3]), plain_cut(tree, one, 20))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, -float("nan")])
def test_nonsense_ends_and_leaves_the_others_alone(bad):
    """Nothing is promised for such an image, but the kernel returns, its nodes exist, and its neighbour is right."""
    tree, density = tree_for(16, 16, 40), awkward(16, 16)[:2].clone()
    expected = plain_cut(tree, density, 40)
    density[1, 3, 5] = bad
    nodes, is_context, filled, _ = triton_cut.cut(tree, density, 40)
    assert torch.equal(nodes[0], expected.nodes[0]) and torch.equal(is_context[0], expected.is_context[0])
    assert filled[0].all() and ((nodes >= 0) & (nodes < tree.count)).all()
    density[1] = bad
    nodes = triton_cut.cut(tree, density, 40)[0]
    assert ((nodes >= 0) & (nodes < tree.count)).all()


@pytest.mark.parametrize(("gw", "gh", "budget"), TINY)
def test_mass_inside(gw, gh, budget, monkeypatch):
    tree, density = tree_for(gw, gh, budget), awkward(gw, gh)
    nodes = torch.randint(tree.count, (len(density), budget), device=DEVICE)
    found = triton_cut.mass_inside(tree, density, nodes)
    monkeypatch.setenv("HOMUNCULUS_KERNELS", "reference")
    assert torch.equal(found, mass_inside(tree, density, nodes))


@pytest.mark.parametrize(("gw", "gh", "budget"), [(16, 16, 50), (13, 7, 20)])
def test_the_allocator_uses_it(gw, gh, budget, monkeypatch):
    """Every field of the allocation as without the kernel; the scores keep their gradient."""
    density = awkward(gw, gh)
    calls = []
    real_cut = triton_cut.cut
    monkeypatch.setattr(triton_cut, "cut", lambda *a, **k: calls.append(1) or real_cut(*a, **k))

    def allocations(name: str):
        monkeypatch.setenv("HOMUNCULUS_KERNELS", name)
        view = View(density, (gw * 16, gh * 16))
        learned = View(density[:1].clone().requires_grad_(), (gw * 16, gh * 16))
        allocation = HierarchicalAllocator(lambda view: view.density, budget)(view)
        trained = HierarchicalAllocator(lambda view: view.density, budget)(learned)
        (gradient,) = torch.autograd.grad(trained.scores[0, 0], learned.density)
        masses = HierarchicalAllocator(lambda view: mass_pyramid(view.density, 6), budget)(view)
        return allocation, masses, gradient

    fused, expected = allocations("triton"), allocations("reference")
    assert len(calls) == 3
    for found, plain in zip(fused[:2], expected[:2], strict=True):
        for field in ("boxes", "centers", "levels", "eccentricity", "scores", "is_context", "gaze"):
            assert torch.equal(getattr(found, field), getattr(plain, field)), field
    assert torch.equal(fused[2], expected[2]) and fused[2].abs().sum() > 0


def test_what_the_kernel_is_not_for(monkeypatch):
    """Context levels and trees too large for the registers: plain torch, whatever is asked for."""
    monkeypatch.setenv("HOMUNCULUS_KERNELS", "triton")
    monkeypatch.setattr(triton_cut, "cut", lambda *a, **k: pytest.fail("the kernel was called"))
    density = torch.rand(1, 16, 16, dtype=torch.float64, device=DEVICE)
    assert cut_density(tree_for(16, 16, 40), density, 40, context_level=1)[0].nodes.shape == (1, 40)
    large = tree_for(192, 192, 40)
    assert large.internal > MAX_FUSED_NODES
    assert cut_density(large, torch.rand(1, 192, 192, dtype=torch.float64, device=DEVICE), 40)[0].filled.all()


def test_the_operators_are_sound():
    """Schema, fake kernel, and what torch.compile asks of an operator."""
    tree, density = tree_for(8, 8, 17), torch.rand(2, 8, 8, dtype=torch.float64, device=DEVICE)
    tables = [tree.children, tree.flat, tree.starts]
    cutting = [*tables, tree.cost, tree.level, tree.parent, tree.from_rank, tree.context_rank]
    sizes = [tree.root_level, tree.internal, tree.count]
    checks = ("test_schema", "test_faketensor")
    for arguments in ((density, None), (tree.in_node_order(mass_pyramid(density, tree.root_level)), None)):
        torch.library.opcheck(
            triton_cut.cut_op, (*arguments, cutting, [*sizes, tree.roots], 17, 3, False), test_utils=checks
        )
    nodes = torch.tensor([[0, 5], [7, 80]], device=DEVICE)
    torch.library.opcheck(triton_cut.mass_inside_op, (density, nodes, tables, sizes), test_utils=checks)


# ------------------------------------------------------------------------------------------------ on a CUDA device


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("gw", "gh", "budget"),
    [(64, 64, 273), (64, 64, 272), (64, 64, 1024), (61, 45, 273), (128, 128, 273), (40, 3, 100), (90, 91, 600)],
)
def test_fused_plain_and_heap_agree(gw, gh, budget):
    tree, on_cpu = tree_for(gw, gh, budget), tree_for(gw, gh, budget, "cpu")
    assert tree.internal <= MAX_FUSED_NODES
    for seed in range(6):
        density = awkward(gw, gh, seed)
        cut = Cut(*triton_cut.cut(tree, density, budget)[:3])
        assert_same(cut, plain_cut(tree, density, budget))
        boxes = tree.boxes(cut.nodes).cpu()
        expected = plain_cut(on_cpu, density.cpu(), budget)
        assert torch.equal(cut.nodes.cpu(), expected.nodes)
        for image in range(len(density)) if seed == 0 else (0,):
            cells = heap_allocation(density[image].cpu().numpy(), budget, tree.root_level)
            assert boxes[image].tolist() == [list(map(float, cell.box)) for cell in cells]
            assert cut.is_context[image].tolist() == [cell.is_context for cell in cells]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_images_of_each_kind(kind):
    @settings(max_examples=3)
    @given(st.data())
    def run(data):
        density = data.draw(densities((1000, 64, 64), kind=kind)).to(DEVICE)
        tree = tree_for(64, 64, 273)
        assert_same(Cut(*triton_cut.cut(tree, density, 273)[:3]), plain_cut(tree, density, 273))

    run()


@pytest.mark.gpu
def test_nothing_waits_for_the_device():
    tree, density = tree_for(64, 64, 273), awkward(64, 64)
    own = torch.full((len(density), 1), 200, device=DEVICE)
    cut_density(tree, density, 273), cut_tree(tree, density.flatten(1)[:, : tree.internal], 273, own=own)
    with no_sync():
        cut, _ = cut_density(tree, density, 273)
        mass_inside(tree, density, cut.nodes)
        cut_tree(tree, density.flatten(1)[:, : tree.internal], 273, own=own)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["triton", "reference"])
def test_replayed_graphs_read_new_densities(name, monkeypatch):
    monkeypatch.setenv("HOMUNCULUS_KERNELS", name)
    tree, density = tree_for(64, 64, 273), torch.rand(16, 64, 64, dtype=torch.float64, device=DEVICE)

    def run() -> tuple[torch.Tensor, ...]:
        cut, _ = cut_density(tree, density, 273)
        return cut.nodes, cut.is_context, mass_inside(tree, density, cut.nodes)

    with torch.cuda.stream(torch.cuda.Stream()):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for seed in range(3):
        density.copy_(awkward(64, 64, seed)[:8].repeat(2, 1, 1))
        graph.replay()
        for found, expected in zip(captured, run(), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler warns about torch
def test_compiled_without_a_break():
    tree, density = tree_for(64, 64, 273), torch.rand(4, 64, 64, dtype=torch.float64, device=DEVICE)

    def run(density: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nodes, is_context, _, _ = triton_cut.cut(tree, density * 2, 273)
        return triton_cut.mass_inside(tree, density, nodes), is_context

    for found, expected in zip(torch.compile(run, fullgraph=True)(density), run(density), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.gpu
def test_on_a_stream_of_its_own():
    """Work queued on a side stream: the kernel must see it, and run after it."""
    tree, density = tree_for(64, 64, 273), torch.zeros(64, 64, 64, dtype=torch.float64, device=DEVICE)
    fresh = torch.rand_like(density)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(50):
            density.mul_(1.0)
        density.copy_(fresh)
        nodes = triton_cut.cut(tree, density, 273)[0]
    stream.synchronize()
    assert torch.equal(nodes, plain_cut(tree, fresh, 273).nodes)
