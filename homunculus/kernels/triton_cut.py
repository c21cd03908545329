"""The tree's cut in one Triton kernel, one program to an image: from a leaf density to tokens in canonical order.

allocation/tree.py sorts all internal nodes by mass, heaviest first and stably, and splits the longest prefix whose cost
fits. Here nothing is sorted. Masses are at least 0, so their float64 bits, read as integers, are in the same order. Let
f(t) be the cost of all nodes whose bits are at least t; it never grows with t. The bisection finds the least t with
f(t) <= tokens. Then the prefix is

  every node with bits >= t: these come first in the list, and all of them fit;
  of the nodes of the next lower mass v, in node order, those up to which the running cost still fits.

Proof. By the choice of t, the nodes of mass v do not all fit, so the prefix ends among them, and the list has them in
node order. Costs are not negative, so "the running cost fits" holds for a prefix of them, free nodes (cost 0) included:
one of mass v belongs to it if it comes before the first that does not fit, and one of a mass between v and t does not
exist. If f(0) fits, t is 0 and everything is split. Where no split is free, the search stops as soon as what is left
buys none: a node between this t and the least one would have to be paid for, so there is none.

Masses are added as (x00 + x01) + (x10 + x11), level by level, so the bits are those of the pyramid. -0.0 counts as 0.0,
as do negative numbers, and NaN as heavier than anything: whatever is in the density, every loop ends and every store
stays inside. All of an image's internal nodes are held in registers, so a tree must not be too large.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from homunculus.kernels.launch import on

LARGEST = tl.constexpr(0x7FFFFFFFFFFFFFFE)  # heavier than infinity; the distance from -1 still fits in 64 bits
CHUNK = 1024  # nodes handled at a time where there is no need to have all of them at once


def cut(
    tree: Any,
    values: Float64[Tensor, "b *values"],
    budget: int,
    *,
    own: Int64[Tensor, "b 1"] | None = None,
    maximum: bool = False,
) -> tuple[Int64[Tensor, "b n"], Bool[Tensor, "b n"], Bool[Tensor, "b n"], Float64[Tensor, "b internal"]]:
    """Token nodes in canonical order, which of them are context, which are filled, and the masses they went by.

    `tree` is an `allocation.tree.Tree` of at most `allocation.tree.MAX_FUSED_NODES` internal nodes. `values` is the
    density over leaves `[B, gh, gw]` or the masses of the internal nodes `[B, internal]`. Nothing has a gradient: a cut
    is a choice.
    """
    tables = [
        tree.children,
        tree.flat,
        tree.starts,
        tree.cost,
        tree.level,
        tree.parent,
        tree.from_rank,
        tree.context_rank,
    ]
    sizes = [tree.root_level, tree.internal, tree.count, tree.roots]
    least = next(price for price, nodes in enumerate(tree.cost_counts) if nodes)
    nodes, is_context, filled, masses = cut_op(values.detach(), own, tables, sizes, budget, least, maximum)
    return nodes, is_context, filled, values if values.ndim == 2 else masses


def mass_inside(tree: Any, density: Float64[Tensor, "b gh gw"], nodes: Int64[Tensor, "b n"]) -> Float64[Tensor, "b n"]:
    """The density inside the cell of each node."""
    tables, sizes = [tree.children, tree.flat, tree.starts], [tree.root_level, tree.internal, tree.count]
    return mass_inside_op(density.detach(), nodes, tables, sizes)


@torch.library.custom_op("homunculus::cut", mutates_args=())
def cut_op(
    values: Tensor,
    own: Tensor | None,
    tables: Sequence[Tensor],
    sizes: Sequence[int],
    budget: int,
    least: int,
    maximum: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    nodes, is_context, filled, masses = _outputs(values, sizes, budget)
    batch, internal = len(values), sizes[1]
    flags = torch.empty((batch, internal), dtype=torch.int8, device=values.device)
    padded = max(32, triton.next_power_of_2(internal))
    if batch > 0:
        with on(values.device):
            cut_kernel[(batch,)](
                values.contiguous(),
                values if own is None else own.contiguous(),
                *tables,
                masses,
                flags,
                nodes,
                is_context.view(torch.int8),
                filled.view(torch.int8),
                *sizes,
                budget,
                least,
                NODES=padded,
                CHUNK=CHUNK,
                GIVEN=values.ndim == 2,
                OWN=own is not None,
                MAX=maximum,
                num_warps=warps(padded),
                enable_fp_fusion=False,
            )
    return nodes, is_context, filled, masses


def _outputs(values: Tensor, sizes: Sequence[int], budget: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch = values.shape[0]
    return (
        values.new_empty((batch, budget), dtype=torch.int64),
        values.new_empty((batch, budget), dtype=torch.bool),
        values.new_empty((batch, budget), dtype=torch.bool),
        values.new_empty((batch, 0 if values.ndim == 2 else sizes[1])),
    )


@cut_op.register_fake
def _(values, own, tables, sizes, budget, least, maximum):  # type: ignore[no-untyped-def]
    return _outputs(values, sizes, budget)


@torch.library.custom_op("homunculus::mass_inside", mutates_args=())
def mass_inside_op(density: Tensor, nodes: Tensor, tables: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    out = density.new_empty(nodes.shape)
    masses = density.new_empty((len(density), sizes[1]))
    if len(density) > 0:
        with on(density.device):
            mass_kernel[(len(density),)](
                density.contiguous(),
                nodes.contiguous(),
                *tables,
                masses,
                out,
                *sizes,
                nodes.shape[1],
                CHUNK,
                num_warps=8,
                enable_fp_fusion=False,
            )
    return out


@mass_inside_op.register_fake
def _(density, nodes, tables, sizes):  # type: ignore[no-untyped-def]
    return density.new_empty(nodes.shape)


def warps(padded: int) -> int:
    """So many that a thread holds 8 nodes, or 32 of the largest tree."""
    return min(16, max(4, padded // 256))


@triton.jit
def _child(values, children, flat, node, here, internal, count, which: tl.constexpr, LEAVES: tl.constexpr):
    child = tl.load(children + node * 4 + which, mask=here, other=count)
    exists = child < count
    place = tl.load(flat + child, mask=exists, other=internal) - internal if LEAVES else child
    return tl.load(values + place, mask=exists, other=0.0)


@triton.jit
def _pool_level(
    values,
    masses,
    children,
    flat,
    first,
    last,
    internal,
    count,
    LEAVES: tl.constexpr,
    MAX: tl.constexpr,
    CHUNK: tl.constexpr,
):
    for base in range(first, last, CHUNK):
        node = base + tl.arange(0, CHUNK)
        here = node < last
        x00 = _child(values, children, flat, node, here, internal, count, 0, LEAVES)
        x01 = _child(values, children, flat, node, here, internal, count, 1, LEAVES)
        x10 = _child(values, children, flat, node, here, internal, count, 2, LEAVES)
        x11 = _child(values, children, flat, node, here, internal, count, 3, LEAVES)
        largest = tl.maximum(tl.maximum(x00, x01), tl.maximum(x10, x11))
        tl.store(masses + node, largest if MAX else (x00 + x01) + (x10 + x11), mask=here)
    tl.debug_barrier()  # the next level reads what other threads wrote


@triton.jit
def _pool(
    leaves,
    masses,
    children,
    flat,
    starts,
    levels,
    internal,
    count,
    MAX: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Masses of all internal nodes in node order: coarse levels first, `starts` says where each begins and ends."""
    last = tl.load(starts + levels).to(tl.int32)
    first = tl.load(starts + levels - 1).to(tl.int32)
    _pool_level(leaves, masses, children, flat, first, last, internal, count, True, MAX, CHUNK)
    for done in range(1, levels):
        last = first
        first = tl.load(starts + levels - 1 - done).to(tl.int32)
        _pool_level(masses, masses, children, flat, first, last, internal, count, False, MAX, CHUNK)


@triton.jit
def _prefix(bits, price, real, tokens, least):
    """Which nodes are split: see the top of this file."""
    infeasible = tl.full((), -1, tl.int64)
    feasible = tl.full((), LARGEST, tl.int64)
    while feasible - infeasible > 1:
        middle = infeasible + ((feasible - infeasible) >> 1)
        spent = tl.sum(tl.where(bits >= middle, price, 0))
        fits = spent <= tokens
        done = fits & (spent + least > tokens)  # never where a split is free: least is 0
        feasible = tl.where(fits, middle, feasible)
        infeasible = tl.where(done, middle - 1, tl.where(fits, infeasible, middle))
    above = bits >= feasible
    next_lower = tl.max(tl.where(above, -1, bits))
    tied = (bits == next_lower) & real
    spent = tl.sum(tl.where(above, price, 0)) + tl.cumsum(tl.where(tied, price, 0))
    return (above & real) | (tied & (spent <= tokens))


@triton.jit
def _coarsest(allowed, level, bits, node, NODES: tl.constexpr):
    """The first of the allowed nodes, coarser before heavier before earlier; NODES if there is none."""
    top = tl.max(tl.where(allowed, level, -1))
    allowed = allowed & (level == top)
    heaviest = tl.max(tl.where(allowed, bits, -1))
    return tl.min(tl.where(allowed & (bits == heaviest), node, NODES))


@triton.jit(do_not_specialize=["levels", "internal", "count", "wanted"])
def mass_kernel(
    density,  # [B, leaves] float64
    nodes,  # [B, wanted] int64
    children,  # [internal, 4] int64, likewise all tables
    flat,
    starts,
    masses,  # [B, internal] float64, scratch
    out,  # [B, wanted] float64
    levels,
    internal,
    count,
    wanted,
    CHUNK: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    density += image * (count - internal)
    masses += image * internal
    _pool(density, masses, children, flat, starts, levels, internal, count, False, CHUNK)
    for base in range(0, wanted, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        inside = slot < wanted
        node = tl.load(nodes + image * wanted + slot, mask=inside, other=0)
        divisible = node < internal
        inner = tl.load(masses + node, mask=inside & divisible, other=0.0)
        place = tl.load(flat + node, mask=inside, other=0) - internal
        leaf = tl.load(density + place, mask=inside & (node >= internal), other=0.0)
        tl.store(out + image * wanted + slot, tl.where(divisible, inner, leaf), mask=inside)


# Compiled for few sizes of images and not for each: a new one is not to wait seconds for its first allocation.
@triton.jit(do_not_specialize=["levels", "internal", "count", "roots", "budget", "least"])
def cut_kernel(
    values,  # [B, leaves] float64, or [B, internal] masses if GIVEN
    own,  # [B] int64
    children,  # [internal, 4] int64, likewise all tables
    flat,
    starts,
    cost,
    level,
    parent,
    from_rank,
    context_rank,
    masses,  # [B, internal] float64, out
    flags,  # [B, internal] int8, scratch
    nodes,  # [B, budget] int64, out
    is_context,  # [B, budget] int8, out
    filled,  # [B, budget] int8, out
    levels,
    internal,
    count,
    roots,
    budget,
    least,  # what the cheapest split costs
    NODES: tl.constexpr,  # `internal` rounded up
    CHUNK: tl.constexpr,
    GIVEN: tl.constexpr,
    OWN: tl.constexpr,
    MAX: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    nodes += image * budget
    flags += image * internal
    if GIVEN:
        masses = values + image * internal
    else:
        masses += image * internal
        leaves = values + image * (count - internal)
        _pool(leaves, masses, children, flat, starts, levels, internal, count, MAX, CHUNK)

    node = tl.arange(0, NODES)
    real = node < internal
    mass = tl.load(masses + node, mask=real, other=0.0)
    bits = tl.where(real, tl.maximum(mass.to(tl.int64, bitcast=True), 0), -1)
    price = tl.load(cost + node, mask=real, other=0).to(tl.int32)
    tokens = budget - roots
    if OWN:
        tokens = tl.load(own + image).to(tl.int32) - roots
    split = _prefix(bits, price, real, tokens, least)
    tl.store(flags + node, split.to(tl.int8), mask=real)

    # What is left, 2 at most, goes to the first split cells, which then have a token of their own: context, in front.
    left = tokens - tl.sum(tl.where(split, price, 0))
    at_level = tl.load(level + node, mask=real, other=0).to(tl.int32)
    several = split & (price > 0)
    first = _coarsest(several, at_level, bits, node, NODES)
    second = _coarsest(several & (node != first), at_level, bits, node, NODES)
    has_first, has_second = (left > 0) & (first < NODES), (left > 1) & (second < NODES)
    contexts = has_first.to(tl.int32) + has_second.to(tl.int32)
    swap = has_second & (
        tl.load(context_rank + second, mask=has_second, other=0)
        < tl.load(context_rank + first, mask=has_first, other=0)
    )
    tl.store(nodes, tl.where(swap, second, first).to(tl.int64), mask=has_first)
    tl.store(nodes + 1, tl.where(swap, first, second).to(tl.int64), mask=has_second)

    # All others in reading order: a root or a child of a split cell that is not split itself.
    tl.debug_barrier()
    taken = contexts
    for base in range(0, count, CHUNK):
        rank = base + tl.arange(0, CHUNK)
        here = rank < count
        cell = tl.load(from_rank + rank, mask=here, other=0)
        above = tl.load(parent + cell, mask=here, other=0)
        reached = tl.load(flags + above, mask=here & (cell >= roots), other=1)
        divided = tl.load(flags + cell, mask=here & (cell < internal), other=0)
        token = (here & (reached != 0) & (divided == 0)).to(tl.int32)
        slot = taken + tl.cumsum(token) - 1
        tl.store(nodes + slot, cell, mask=(token > 0) & (slot < budget))
        taken += tl.sum(token)

    tl.debug_barrier()
    nowhere = tl.load(from_rank + count - 1)
    for base in range(0, budget, CHUNK):
        slot = base + tl.arange(0, CHUNK)
        inside, full = slot < budget, slot < taken
        tl.store(is_context + image * budget + slot, (slot < contexts).to(tl.int8), mask=inside)
        tl.store(filled + image * budget + slot, full.to(tl.int8), mask=inside)
        tl.store(nodes + slot, nowhere, mask=inside & (slot >= taken))
