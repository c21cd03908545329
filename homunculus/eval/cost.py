"""What an answer costs, end to end: pixels and a question in, text out, relevance and every encoding included.

`BATCH` questions are answered at a time, each about an image of its own, batch after batch. All methods take turns,
some batches each: a host that is busy for a while slows all of them alike, where one after another would blame whoever
was being timed (see docs/LOG.md). `per_second` is questions over all the time taken, `p50` and `p99` are seconds of a
batch; fewer than `BATCHES` of them have no 99th percentile. `peak_mib` and `least_peak_mib` are the most memory that a
batch took and the least, before anything is recorded; the model's own is `model_mib`, and on a CPU nobody counts.
`waste` is the share of tokens that are padding. Answers differ in length, and so do counts of tokens, so all methods
are timed on the same questions, of all families that are asked. With `graphs` the steps of writing are recorded
(model/recorded.py), without which eight answers keep a GPU waiting for its host whatever they are read from; speeds
with and without are never compared.
"""

import json
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
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
from homunculus.eval.summary import label
from homunculus.eval.surroundings import surroundings
from homunculus.geometry import Size
from homunculus.model.answer import answer
from homunculus.model.looking import question_ids
from homunculus.model.recorded import Recorder, recorded
from homunculus.model.vlm import CompactVLM
from homunculus.peers.reading import read_with
from homunculus.peers.variable import remember_padded
from homunculus.pyramid import ImagePyramid
from homunculus.relevance import relevance as relevance_of

BATCH = 8
BATCHES = 100  # as many as a 99th percentile needs
WARM = 6  # batches that are not counted
IMAGES = 32  # of each family: twelve batches of three
SECONDS = 10.0  # of a way of asking, at most
NEARLY = 0.999  # what was rounded may be a little less
MIB = 1 << 20

Batch = tuple[Shaped[Tensor, "b 3 h w"], Sequence[Asked]]  # images on the device, a question about each


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


def batches_of(asked: Sequence[Asked], device: torch.device | str) -> list[Batch]:
    """Questions in batches that have of everything: they are dealt out in turn."""
    if len(asked) < BATCH:
        raise DataError(f"{len(asked)} questions are no batch: time at least {BATCH}")
    count = len(asked) // BATCH
    groups = [asked[i : count * BATCH : count] for i in range(count)]
    return [(torch.stack([one.image for one in own]).to(device), own) for own in groups]


class Timing:
    """A way of asking that is being timed: its batches, and how long each that was answered took."""

    def __init__(self, model: CompactVLM, plan: Plan, inputs: Sequence[Batch]) -> None:
        self.model, self.plan, self.inputs = model, plan, inputs
        self.taken, self.waste, self.peaks = list[float](), list[float](), list[int]()

    def warm(self, batches: int) -> None:
        """Answer some of the batches, of which only the memory they take counts."""
        for images, own in self.inputs[:batches]:
            before = memory(self.model.device)
            said_once(self.model, self.plan, images, own)
            self.peaks += [] if before is None else [torch.cuda.max_memory_allocated(self.model.device) - before]

    def record(self, recorder: Recorder) -> None:
        """Answer every batch: each may have a shape of its own to be recorded, unless memory has no room for all."""
        known = set(recorder.steps)
        try:
            for images, own in self.inputs:
                said_once(self.model, self.plan, images, own)
        except torch.OutOfMemoryError:
            recorder.forget(recorder.steps.keys() - known)
            raise

    def turn(self, batches: int, seconds: float, finish: Callable[[], None]) -> int:
        """Answer every batch once, but no more than are wanted in all; how many were answered."""
        before = len(self.taken)
        for _ in self.inputs:
            if not self.wants(batches, seconds):
                break
            images, own = self.inputs[len(self.taken) % len(self.inputs)]
            finish()
            start = time.perf_counter()
            self.waste.append(said_once(self.model, self.plan, images, own))
            finish()
            self.taken.append(time.perf_counter() - start)
        return len(self.taken) - before

    def wants(self, batches: int, seconds: float) -> bool:
        """Whether there are to be more batches: so many, or as many as the seconds allow, two at least."""
        return len(self.taken) < batches and (len(self.taken) < 2 or sum(self.taken) < seconds)

    def row(self, weights: str, graphs: bool) -> Row:
        """What was found."""
        taken = self.taken
        parameters = sum(value.numel() * value.element_size() for value in self.model.parameters())
        return {
            "cost": {"weights": weights} | what_costs(self.plan),
            "per_second": short(BATCH * len(taken) / sum(taken)),
            "p50": short(statistics.median(taken)),
            "p99": short(statistics.quantiles(taken, n=100)[98]) if len(taken) >= BATCHES else None,
            "batches": len(taken),
            "batch": BATCH,
            "peak_mib": short(max(self.peaks) / MIB) if self.peaks else None,
            "least_peak_mib": short(min(self.peaks) / MIB) if self.peaks else None,
            "model_mib": short(parameters / MIB),
            "waste": short(statistics.mean(self.waste)),
            "graphs": graphs,
        } | surroundings(self.model.device)


def time_in_turn(
    timings: Sequence[Timing],
    *,
    batches: int = BATCHES,
    seconds: float = SECONDS,
    warm: int = WARM,
    graphs: bool = False,
    until: float = float("inf"),
    tick: Callable[[float], None] = lambda share: None,
    timed: Callable[[Timing], None] = lambda timing: None,
    dropped: Callable[[Timing], None] = lambda timing: None,
) -> None:
    """Time ways of asking one model side by side: some batches of each, then some more of each, until all have as many
    as are wanted, or the time, as of `time.monotonic`, is over. `tick` hears how much of one way was done, `timed` who
    has all that is wanted, `dropped` who did not fit into memory: the others go on.

    >>> from homunculus.eval.drawing import Drawn, to_ask
    >>> from homunculus.data import make
    >>> from homunculus.model.config import tiny
    >>> record = make("scenes", "val", 0, size=(256, 256))
    >>> inputs = batches_of(to_ask("abcdefgh", Drawn(record.image, record.questions * 8)), "cpu")
    >>> model, how = CompactVLM(tiny()), {"size": (256, 256), "how": {"longest": 2}}
    >>> timings = [Timing(model, Plan("scenes", budget=budget, **how), inputs) for budget in (32, 64)]
    >>> time_in_turn(timings, batches=3, warm=0)
    >>> [len(timing.taken) for timing in timings]
    [3, 3]
    """
    if not timings:
        return
    model, going = timings[0].model, list(timings)
    finish = synchroniser(model.device)

    def each(work: Callable[[Timing], None]) -> None:
        for timing in list(going):
            if time.monotonic() >= until:
                return
            if not _fits(partial(work, timing)):
                going.remove(timing)
                dropped(timing)

    def turn(timing: Timing) -> None:
        tick(timing.turn(batches, seconds, finish) / batches)
        if not timing.wants(batches, seconds):
            tick(1.0 - len(timing.taken) / batches)
            going.remove(timing)
            timed(timing)

    each(lambda timing: timing.warm(warm))
    with recorded(model.decoder) if graphs else nullcontext() as recorder:
        if recorder is not None:
            each(lambda timing: timing.record(recorder))
        while going and time.monotonic() < until:
            each(turn)


def _fits(work: Callable[[], None]) -> bool:
    """Do what there may be no memory for; whether there was."""
    try:
        work()
        return True
    except torch.OutOfMemoryError:
        pass
    torch.cuda.empty_cache()  # not before the error is gone, which holds on to all that was computed
    return False


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


def known_cost(
    kept: Kept,
    plan: Plan,
    weights: str,
    device: torch.device,
    graphs: bool = False,
    batches: int = BATCHES,
    seconds: float = SECONDS,
) -> bool:
    """Whether the rows have the cost of a plan on such a device, with steps recorded or not, from as many batches or
    seconds as are wanted: one that was cut short is timed again."""
    wanted = _plain({"weights": weights} | what_costs(plan)), surroundings(device)["device"], graphs
    own = (line for line in kept.costs if (_plain(line["cost"]), line["device"], line.get("graphs", False)) == wanted)
    return any(line["batches"] >= batches or _spent(line) >= NEARLY * seconds for line in own)


def _spent(line: Row) -> float:
    """Seconds that a method was timed for."""
    return line["batches"] * line["batch"] / line["per_second"]


def _plain(cost: dict[str, Any]) -> str:
    return json.dumps(cost, sort_keys=True)


def add_costs(
    model: CompactVLM,
    plans: Sequence[Plan],
    kept: Kept,
    *,
    until: float = float("inf"),
    tick: Callable[[float], None] = lambda share: None,
    say: Callable[[str], None] = lambda line: None,
    graphs: bool = False,
    batches: int = BATCHES,
    seconds: float = SECONDS,
    warm: int = WARM,
) -> bool:
    """Time every plan whose cost the rows do not have, all side by side on the same questions of all families that are
    asked about images of their size, each about an image of its own. What was timed as long as it should be is kept at
    once, what was timed for less when the time is over, or it is interrupted; what memory has no room for is not kept,
    and `say` tells of it. False if the time was over before all others were timed as long as they should be."""
    weights, device = weights_key(model), model.device
    wanted: dict[str, Plan] = {}  # families have one cost
    for plan in plans:
        if can_be_timed(plan) and not known_cost(kept, plan, weights, device, graphs, batches, seconds):
            wanted.setdefault(_plain(what_costs(plan)), plan)
    tick(float(len(plans) - len(wanted)))
    if wanted and time.monotonic() >= until:
        return False
    sizes = dict.fromkeys(plan.size for plan in wanted.values())
    inputs = {size: batches_of(_questions(plans, size, device), device) for size in sizes}
    timings = [Timing(model, plan, inputs[plan.size]) for plan in wanted.values()]
    left, too_large = list(timings), list[Timing]()

    def keep(timing: Timing) -> None:
        kept.add_cost(timing.row(weights, graphs))
        left.remove(timing)

    def drop(timing: Timing) -> None:
        left.remove(timing)
        too_large.append(timing)
        way, alone = label(timing.plan), f"--methods {timing.plan.method}"
        say(f"{way} does not fit into memory and is not timed: try it alone, with {alone}")

    how: dict[str, Any] = {"batches": batches, "seconds": seconds, "warm": warm, "graphs": graphs, "until": until}
    with ended_like_ctrl_c():
        try:
            time_in_turn(timings, tick=tick, timed=keep, dropped=drop, **how)
        finally:
            for timing in [one for one in left if one.taken]:
                keep(timing)
    return not any(timing.wants(batches, seconds) for timing in timings if timing not in too_large)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """While this lasts SIGTERM, too, is an exception: what has to be kept is kept on the way out, however often it is
    sent.

    >>> try:
    ...     with ended_like_ctrl_c():
    ...         signal.raise_signal(signal.SIGTERM)
    ... except SystemExit as left:
    ...     left.code == 128 + signal.SIGTERM
    True
    """
    if threading.current_thread() is not threading.main_thread():  # no other may set handlers
        yield
        return

    def leave(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _questions(plans: Sequence[Plan], size: Size, device: torch.device) -> list[Asked]:
    """What is asked about images of a size, one question each: of every family and split in turn."""
    found = list[Asked]()
    with drawers(0) as draw:
        for pictures in dict.fromkeys(plan.pictures for plan in plans if plan.size == size):
            keys = Plan(*pictures[:2]).keys
            found += [one for i in range(IMAGES) for one in to_ask(keys(i, 1), draw(pictures, i, False)(), device)]
    return found
