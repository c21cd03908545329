"""What flows through the pipeline: order, selection, packing, moving."""

import dataclasses

import pytest
import torch

import homunculus
from homunculus.errors import AllocatorError, DensityError
from homunculus.structures import (
    CELL_FIELDS,
    Allocation,
    PackedAllocation,
    View,
    VisualTokens,
    canonical_order,
    rectangular,
)


def batch(count: int = 3, budget: int = 40) -> Allocation:
    return homunculus.allocate(torch.rand(count, 16, 16), budget, fixation=(30, 40))


def same(a: Allocation, b: Allocation) -> bool:
    equal = all(torch.equal(torch.nan_to_num(getattr(a, f)), torch.nan_to_num(getattr(b, f))) for f in CELL_FIELDS)
    return equal and (a.image_sizes, a.grids, a.leaf, a.kind) == (b.image_sizes, b.grids, b.leaf, b.kind)


def test_canonical_order():
    """Context first, coarse to fine; then y before x; ties keep their place."""
    centers = torch.tensor([[[9.0, 5.0], [1.0, 5.0], [7.0, 2.0], [8.0, 8.0], [4.0, 4.0], [1.0, 5.0]]])
    levels = torch.tensor([[0.0, 0.0, 0.0, 2.0, 3.0, 1.0]])
    is_context = torch.tensor([[False, False, False, True, True, False]])
    assert canonical_order(centers, levels, is_context).tolist() == [[4, 3, 2, 1, 5, 0]]


def test_every_allocation_is_in_canonical_order():
    for name in ("foveated-pyramid", "uniform", "topk", "random", "stratified"):
        allocation = homunculus.allocate(torch.rand(2, 23, 31), 100, name)
        order = canonical_order(allocation.centers, allocation.levels, allocation.is_context)
        assert torch.equal(order, torch.arange(100).expand(2, -1)), name


def test_select_and_cat_are_inverse():
    allocation = batch()
    assert same(Allocation.cat([allocation.select([i]) for i in range(3)]), allocation)
    assert same(allocation.select([2, 0]).select([1]), allocation.select([0]))


def test_cat_of_kinds_is_sampled_by_the_general_method():
    uniform = homunculus.allocate(torch.rand(1, 16, 16), 40, "uniform")
    assert batch().kind == "dyadic" and uniform.kind == "box"
    assert Allocation.cat([batch(), uniform]).kind == "box"


def test_leaves_do_not_mix():
    with pytest.raises(AllocatorError, match=r"leaves of \[8, 16\] pixels"):
        Allocation.cat([batch(), homunculus.allocate(torch.rand(16, 16), 40, leaf=8)])


def test_pack_and_unpack_are_inverse():
    parts = [batch(2, 40), batch(1, 64)]
    packed = PackedAllocation.pack(parts)
    assert packed.offsets.tolist() == [0, 40, 80, 144] and packed.offsets.dtype == torch.int32
    assert len(packed) == 3
    expected = [parts[0].select([0]), parts[0].select([1]), parts[1]]
    assert all(same(a, b) for a, b in zip(packed.unpack(), expected, strict=True))
    with pytest.raises(AllocatorError, match="unpack"):
        rectangular(packed)


def test_moving_never_touches_precision():
    allocation = batch()
    tokens = VisualTokens(torch.rand(3, 40, 3, 16, 16), allocation).to("cpu", torch.bfloat16)
    assert tokens.patches.dtype == torch.bfloat16
    assert same(rectangular(tokens.allocation), allocation)
    assert len(tokens) == 3


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch().leaf = 8


def test_view_wants_a_batched_float64_density():
    with pytest.raises((DensityError, TypeError)):
        View(torch.ones(4, 4), (64, 64))
    with pytest.raises(AllocatorError, match="looks at pixels"):
        View(torch.ones(1, 4, 4, dtype=torch.float64), (64, 64)).pixels("somebody")
