"""What an answer costs, end to end: pixels and a question in, text out, relevance and every encoding included.

`BATCH` questions are answered at a time, each about an image of its own, batch after batch. `per_second` is questions
over all the time taken, `p50` and `p99` are seconds of a batch; fewer than `BATCHES` of them have no 99th percentile.
`peak_mib` and `least_peak_mib` are the most memory that a batch took and the least; the model's own is `model_mib`, and
on a CPU nobody counts. `waste` is the share of tokens that are padding. Answers differ in length, and so do counts of
tokens, so all methods are timed on the same questions, of all families that are asked. With `graphs` the steps of
writing are recorded (model/recorded.py), without which eight answers keep a GPU waiting for its host whatever they are
read from; speeds with and without are never compared.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float64, Shaped
from torch import Tensor

from homunculus.allocation import get_allocator
from homunculus.errors import DataError
from homunculus.eval.answers import computed_in
from homunculus.eval.drawing import Asked, drawers, to_ask
from homunculus.eval.packed import allocated_together, padded_cells
from homunculus.eval.plans import Plan, weights_key
from homunculus.eval.relevances import LEAF, LEARNED, mixture_of
from homunculus.eval.rows import Kept, Row, short
from homunculus.eval.surroundings import surroundings
from homunculus.model.answer import answer
from homunculus.model.looking import question_ids
from homunculus.model.recorded import recorded
from homunculus.model.vlm import CompactVLM
from homunculus.peers.reading import read_with
from homunculus.peers.variable import remember_padded
from homunculus.pyramid import ImagePyramid
from homunculus.relevance import relevance as relevance_of

BATCH = 8
BATCHES = 100  # as many as a 99th percentile needs
WARM = 6  # batches that are not counted
IMAGES = 16  # of each family
MIB = 1 << 20


def what_costs(plan: Plan) -> dict[str, Any]:
    """All of a plan that its cost depends on: not which questions are asked.

    >>> what_costs(Plan("scenes")) == what_costs(Plan("documents", "val"))
    True
    """
    told = plan.settings()
    return {name: told[name] for name in ("method", "budget", "relevance", "size", "how", "dtype")}


def can_be_timed(plan: Plan) -> bool:
    """Whether relevance is made of the image and the question: a truth that is told costs nothing.

    >>> can_be_timed(Plan("scenes")), can_be_timed(Plan("scenes", relevance="hit-70"))
    (True, False)
    """
    return plan.relevance == "predicted" or all(
        source not in (*LEARNED, "true") and "-" not in source for source, _ in mixture_of(plan.relevance)
    )


def measure(
    model: CompactVLM,
    plan: Plan,
    asked: Sequence[Asked],
    *,
    batches: int = BATCHES,
    seconds: float = 10.0,
    warm: int = WARM,
    graphs: bool = False,
) -> Row:
    """The cost of a plan, from batches of these questions in turn: so many, or as many as the seconds allow.

    >>> from homunculus.eval.drawing import Drawn, to_ask
    >>> from homunculus.data import make
    >>> from homunculus.model.config import tiny
    >>> record = make("scenes", "val", 0, size=(256, 256))
    >>> asked = to_ask("abcdefgh", Drawn(record.image, record.questions * 8))
    >>> plan = Plan("scenes", budget=32, size=(256, 256), how={"longest": 2})
    >>> measure(CompactVLM(tiny()), plan, asked, batches=2)["batch"]
    8
    """
    if len(asked) < BATCH:
        raise DataError(f"{len(asked)} questions are no batch: time at least {BATCH}")
    count = len(asked) // BATCH  # every batch has of everything: questions are dealt out in turn
    groups = [asked[i : count * BATCH : count] for i in range(count)]
    inputs = [(torch.stack([one.image for one in own]).to(model.device), own) for own in groups]
    finish = synchroniser(model.device)
    taken, waste, peaks = list[float](), list[float](), list[int]()
    with recorded(model.decoder) if graphs else nullcontext():
        for images, own in inputs if graphs else inputs[:warm]:  # each may have a shape of its own to be recorded
            said_once(model, plan, images, own)
        finish()
        while len(taken) < batches and (len(taken) < 2 or sum(taken) < seconds):
            images, own = inputs[len(taken) % len(inputs)]
            before = memory(model.device)
            start = time.perf_counter()
            waste.append(said_once(model, plan, images, own))
            finish()
            taken.append(time.perf_counter() - start)
            peaks += [] if before is None else [torch.cuda.max_memory_allocated(model.device) - before]
    parameters = sum(value.numel() * value.element_size() for value in model.parameters())
    return {
        "cost": {"weights": weights_key(model)} | what_costs(plan),
        "per_second": short(BATCH * len(taken) / sum(taken)),
        "p50": short(statistics.median(taken)),
        "p99": short(statistics.quantiles(taken, n=100)[98]) if len(taken) >= BATCHES else None,
        "batches": len(taken),
        "batch": BATCH,
        "peak_mib": short(max(peaks) / MIB) if peaks else None,
        "least_peak_mib": short(min(peaks) / MIB) if peaks else None,
        "model_mib": short(parameters / MIB),
        "waste": short(statistics.mean(waste)),
        "graphs": graphs,
    } | surroundings(model.device)


def said_once(model: CompactVLM, plan: Plan, images: Shaped[Tensor, "b 3 h w"], asked: Sequence[Asked]) -> float:
    """Answers to a batch, thrown away; the share of tokens that were padding."""
    texts = [one.question.text for one in asked]
    relevance = None if plan.relevance == "predicted" else mixture_of(plan.relevance)
    how = dict(plan.how)
    with computed_in(plan.dtype, model), torch.no_grad():
        if plan.peer is not None:
            density = None if relevance is None else by_pixels(images, relevance)
            return read_with(model, plan.peer, images, texts, plan.budget, relevance=density, **how).waste
        allocator, budget = plan.cells
        if get_allocator(allocator).batchwide:
            ids, longest = question_ids(model, texts), how.pop("longest", 160)
            density = model.relevance(images, ids) if relevance is None else by_pixels(images, relevance)
            tokens = padded_cells(images, allocated_together(model, images, density, budget, allocator, **how))
            model.decoder.write(remember_padded(model, tokens), ids, longest)
            return tokens.waste
        how |= {"budget": budget, "allocator": allocator, "relevance": relevance, "batch": BATCH}
        answer(model, images, texts, **how)
    return 0.0


def by_pixels(images: Shaped[Tensor, "b 3 h w"], sources: list[tuple[str, float]]) -> Float64[Tensor, "b gh gw"]:
    """The density of sources that hear no question, on the leaves of images.

    >>> by_pixels(torch.rand(2, 3, 64, 100), [("detail", 1.0)]).shape
    torch.Size([2, 4, 7])
    """
    height, width = images.shape[-2:]
    return relevance_of(ImagePyramid(images, (-(-width // LEAF), -(-height // LEAF)), LEAF), sources)


def synchroniser(device: torch.device) -> Callable[[], None]:
    """What waits until a device has done all it was told."""
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else lambda: None


def memory(device: torch.device) -> int | None:
    """Bytes taken now, from where the peak is counted anew; None where nobody counts."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def known_cost(kept: Kept, plan: Plan, weights: str, device: torch.device, graphs: bool = False) -> bool:
    """Whether the rows have the cost of a plan on such a device, with steps recorded or not."""
    wanted = _plain({"weights": weights} | what_costs(plan)), surroundings(device)["device"], graphs
    return any((_plain(line["cost"]), line["device"], line.get("graphs", False)) == wanted for line in kept.costs)


def _plain(cost: dict[str, Any]) -> str:
    return json.dumps(cost, sort_keys=True)


def add_costs(
    model: CompactVLM,
    plans: Sequence[Plan],
    kept: Kept,
    *,
    until: float = float("inf"),
    tick: Callable[[], None] = lambda: None,
    graphs: bool = False,
    **how: Any,
) -> bool:
    """Time every plan whose cost the rows do not have; False if the time was over before. All are timed on the same
    questions of all families that are asked about images of their size, each about an image of its own."""
    weights = weights_key(model)
    families = {
        size: list(dict.fromkeys(p.pictures for p in plans if p.size == size)) for size in {p.size for p in plans}
    }
    drawn: dict[Any, list[Asked]] = {}
    for plan in plans:
        tick()
        if not can_be_timed(plan) or known_cost(kept, plan, weights, model.device, graphs):
            continue
        if time.monotonic() >= until:
            return False
        if plan.size not in drawn:
            with drawers(0) as draw:
                jobs = [(Plan(own[0], own[1]), own, i) for own in families[plan.size] for i in range(IMAGES)]
                asked = [to_ask(one.keys(i, 1), draw(own, i, False)(), model.device) for one, own, i in jobs]
            drawn[plan.size] = [one for (one,) in asked]
        kept.add_cost(measure(model, plan, drawn[plan.size], graphs=graphs, **how))
    return True
