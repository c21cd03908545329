"""From pixels to the first token as one CUDA graph: looking, choosing, sampling, tower and language model.

With a budget the shapes of a pass are known before it runs, and what the host must know of it (prompts.py) is read at
its start. So all of it can be recorded once and replayed: at batch 1 a pass of the 8B model is otherwise bound by the
thousands of kernels the host launches one by one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from homunculus.integrations.qwen_vl.call import Call
from homunculus.integrations.qwen_vl.checking import PatchError
from homunculus.integrations.qwen_vl.features import encode_cells
from homunculus.integrations.qwen_vl.patching import NAME, Session
from homunculus.integrations.qwen_vl.plan import Plan, gaze_of, scorer_in
from homunculus.integrations.qwen_vl.prompts import Prompts, read
from homunculus.integrations.qwen_vl.remembered import Remembered
from homunculus.integrations.qwen_vl.rope import extent, places
from homunculus.integrations.qwen_vl.scorers import FirstView

MOST_GAZES = 16  # fixations of an image
MOST_COMPILED = 256  # kernels of one norm: each recorded shape brings a few of its own


@dataclass(frozen=True, eq=False)
class FirstToken:
    """What comes after each prompt, and the keys and values to go on from."""

    logits: Float[Tensor, "b vocabulary"]
    past_key_values: Any
    rope_deltas: Int64[Tensor, "b 1"]
    plan: Plan

    def kept(self) -> Any:
        """The keys and values in memory of their own: a cache that `model.generate` goes on from."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for number, layer in enumerate(self.past_key_values.layers):
            cache.update(layer.keys.clone(), layer.values.clone(), number)
        return cache


@dataclass(frozen=True, eq=False)
class Given:
    """All that differs between two calls of one shape, as tensors on the device."""

    pixels: Float[Tensor, "patches values"]
    gazes: Float64[Tensor, "images f 3"]
    prompts: Prompts
    views: Sequence[FirstView]

    def tensors(self) -> list[Tensor]:
        own = [self.pixels, self.gazes]
        for prompts in (self.prompts, *(view.prompts for view in self.views)):
            own += [prompts.ids, prompts.slots, prompts.starts, prompts.deltas]
            own += [] if prompts.mask is None else [prompts.mask]
        return own

    def copied(self) -> "Given":
        """The same in memory of its own, for a graph to read from."""
        views = [replace(view, prompts=_copied(view.prompts)) for view in self.views]
        return Given(self.pixels.clone(), self.gazes.clone(), _copied(self.prompts), views)

    def shape(self, call: Call) -> tuple:
        """What two calls must share to be of one shape."""
        sizes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in self.tensors())
        return call.grids, call.runs, sizes


def _copied(prompts: Prompts) -> Prompts:
    mask = None if prompts.mask is None else prompts.mask.clone()
    starts = prompts.starts.contiguous().clone()
    return Prompts(prompts.ids.clone(), mask, prompts.slots.clone(), starts, prompts.deltas.clone())


def given_of(session: Session, inputs: dict[str, Any]) -> tuple[Call, Given]:
    """What a call gives, or an error that says why it cannot be one pass (waits for the device)."""
    call = session.read(inputs)
    if call is None:
        raise PatchError("this call shows no images: use model(...) or model.generate(...)")
    if len(set(zip(call.grids, call.counts, strict=True))) > 1:
        raise PatchError("images of several sizes or budgets in one call have no one shape: call them size by size")
    if call.mask is not None and not call.mask[:, -1].all():
        raise PatchError("prompts must be padded on the left: set processor.tokenizer.padding_side = 'left'")
    found = gaze_of(call, session.looking, session.layout)
    gazes = torch.zeros(len(call.grids), 0, 3, dtype=torch.float64) if found is None else found
    if gazes.shape[1] > MOST_GAZES:
        raise PatchError(f"{gazes.shape[1]} fixations in one image where a graph has room for {MOST_GAZES}: give fewer")
    gazes = pad(gazes, (0, 0, 0, MOST_GAZES - gazes.shape[1])).to(call.device)
    skeleton = Plan((), call.grids, call.rows)
    prompts = call.prompts([extent(skeleton, image, session.positions) for image in range(len(call.grids))])
    return call, Given(inputs["pixel_values"], gazes, prompts, session.first_views(call))


def first_token(session: Session, call: Call, given: Given) -> FirstToken:
    """The whole pass; nothing in it waits for the device."""
    plan = session.choose(given.pixels, call, given.views, given.gazes)
    vision = encode_cells(session.inner.visual, given.pixels, plan, session.layout)
    where = places(plan, session.positions)
    deepstack = getattr(vision, "deepstack_features", None)
    text = read(session.inner, given.prompts, vision.pooler_output, deepstack, where, use_cache=True)
    logits = session.model.lm_head(text.last_hidden_state[:, -1])
    return FirstToken(logits, text.past_key_values, given.prompts.deltas, plan)


def check_static(session: Session) -> None:
    """Refuse what cannot be one pass without waiting."""
    if session.stage != "pre":
        raise PatchError(f"stage '{session.stage}' runs a tower that waits for the host: patch with stage='pre'")
    if hasattr(session.inner.visual, "fullatt_block_indexes"):
        raise PatchError("the windows of Qwen2.5-VL depend on the cells, so its shapes are not known: use Qwen3-VL")
    if scorer_in(session.looking.relevance, ["text-similarity"]):
        raise PatchError("'text-similarity' has as many words as the question: use relevance='coarse-pass'")
    if session.keeps:
        raise PatchError("keep=True looks images up on the host: patch without it")


@contextmanager
def compiled_norms(language_model: Any) -> Iterator[None]:
    """While this lasts, norms and MLPs of the language model run through `torch.compile`: a norm is one kernel and not
    six. Whole layers are not compiled, since each has a number of its own and would be compiled anew."""
    modules = [m for m in language_model.modules() if type(m).__name__.endswith(("RMSNorm", "MLP"))]
    for module in modules:
        module.forward = torch.compile(module.forward, dynamic=False)
    try:
        with torch._dynamo.config.patch(recompile_limit=MOST_COMPILED):
            yield
    finally:
        for module in modules:
            del module.forward


class FirstTokens:
    """First tokens of a patched Qwen3-VL on a CUDA device, each shape of call recorded when it is first seen.

    `first = FirstTokens(model)`, then `first(**inputs)` with inputs as for `model(**inputs)`. What it returns, and
    `model.last_allocation`, lies in the graph's own memory and holds until the next call of that shape; `kept()` of a
    result copies keys and values to go on from. Up to `most` shapes are remembered. `compiled` records norms and MLPs
    as `torch.compile` makes them: faster, slower to record, and rounded differently; the model itself stays as it is.
    """

    def __init__(self, model: Any, most: int = 8, compiled: bool = False) -> None:
        session = getattr(model, NAME, None)
        if session is None:
            raise PatchError("this model is not patched: call qwen_vl.patch(model, processor) first")
        check_static(session)
        if model.device.type != "cuda":
            raise PatchError(f"CUDA graphs need a CUDA device and the model is on {model.device}: use model.generate")
        self.session: Session = session
        self.compiled = compiled
        self._graphs: Remembered[tuple[Given, FirstToken, Any]] = Remembered(most)

    def __call__(self, **inputs: Any) -> FirstToken:
        with torch.no_grad():
            call, given = given_of(self.session, inputs)
            shape = given.shape(call)
            known = self._graphs.get(shape)
            if known is None:
                known = self._record(call, given)
                self._graphs.put(shape, known)
            static, result, graph = known
            for own, new in zip(static.tensors(), given.tensors(), strict=True):
                own.copy_(new)
            graph.replay()
        self.session.inner.rope_deltas = result.rope_deltas
        self.session.last_plan, self.session.model.last_allocation = result.plan, list(result.plan.allocations)
        return result

    def _record(self, call: Call, given: Given) -> tuple[Given, FirstToken, Any]:
        static = given.copied()
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with compiled_norms(self.session.inner.language_model) if self.compiled else nullcontext():
            with torch.cuda.stream(beside):
                for _ in range(2):  # what is compiled or cached on first use must not be recorded
                    first_token(self.session, call, static)
            torch.cuda.current_stream().wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = first_token(self.session, call, static)
        return static, result, graph
