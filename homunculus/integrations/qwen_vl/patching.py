"""One model instance and one processor instance put on a budget, and back again. Nothing else in the process changes.

Three methods are replaced, on these instances: the processor's `replace_image_token`, which writes as many placeholders
as there are tokens; the inner model's `get_image_features`, which makes them; its `get_rope_index`, which places them.
What they do is planned once for every call, in a hook before the forward pass and at the start of `generate`.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from homunculus.errors import ImageError
from homunculus.integrations.qwen_vl import rectangular, scorers
from homunculus.integrations.qwen_vl.call import Call, last_question, leaf_grids, read_call
from homunculus.integrations.qwen_vl.checking import PatchError, check_arguments
from homunculus.integrations.qwen_vl.features import encode_cells, encode_views, pool_features
from homunculus.integrations.qwen_vl.layout import Layout
from homunculus.integrations.qwen_vl.plan import Looking, Plan, densities_of, gaze_of, make_plan, scorer_in
from homunculus.integrations.qwen_vl.prompts import Prompts, lay_out
from homunculus.integrations.qwen_vl.reducing import reduce_features
from homunculus.integrations.qwen_vl.remembered import Remembered, fingerprints
from homunculus.integrations.qwen_vl.rope import extent, places
from homunculus.integrations.qwen_vl.watching import watched
from homunculus.integrations.qwen_vl.whole import WholeFeatures
from homunculus.peers import Peer

SUPPORTED = (
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
)
NAME = "_homunculus"  # where a patched model keeps its session
MOST_KEPT = 256  # images whose cells are remembered


def patch(
    model: nn.Module,
    processor: Any,
    budget: int | Sequence[int] = 273,
    stage: str = "pre",
    relevance: Any = None,
    allocator: str = "foveated-pyramid",
    positions: str | None = None,
    *,
    peer: str | None = None,
    fixation: Any = None,
    region: Any = None,
    expect: Sequence[str] = (),
    keep: bool = False,
    cache_bytes: int = 0,
    max_pixels: int | None = None,
    **options: Any,
) -> "Session":
    """Give this model and this processor exactly `budget` visual tokens an image; `unpatch` gives them back.

    `budget` may be a list: one for each image of a call, in order. `stage="pre"` lets only the chosen cells into the
    vision tower, `"post"` runs all of it and pools its features by cell, `"views"` shows an overview and `crops=1`
    crops at full resolution, each an ordinary image. `peer` names a published reducer of features (`homunculus.peers`)
    for stage "post", in place of an allocator; `options` are then its own, and `positions` "rounded" unless asked
    otherwise. `relevance`, `allocator`, `fixation` and `options` are those of
    `homunculus.foveate`; relevance may also be "text-similarity" or "coarse-pass", which ask the model (scorers.py).
    Spatial words of the last question set fixations; `region` says where to look instead, (x0, y0, x1, y1) as shares of
    the image or words such as "the footer". In a chat every turn looks anew, unless `keep` has an image look as it did
    when it was first shown; `expect` names further questions that the cells should serve as well. With `cache_bytes`
    stage "post" remembers the features of images, as many as fit, and only pools them anew. `positions` in the language
    model are "true", fractions for cells of several leaves, or "rounded"; views have those of images in a row, "stock",
    unless asked otherwise. Images keep up to `max_pixels` (default: 4096 leaves, for Qwen3-VL 2048 x 2048).

    Afterwards `model.last_allocation` has the cells of each image of the last call; `on_image(allocation, image.size)`
    puts them on the image as it was given.
    """
    expect = (expect,) if isinstance(expect, str) else tuple(expect)
    looking = Looking(relevance, allocator, fixation, tuple(options.items()), stage == "views", region, expect, peer)
    session = Session(model, processor, budget, stage, positions, looking, keep, cache_bytes, max_pixels)
    session.install()
    return session


def unpatch(model: nn.Module) -> None:
    """Undo `patch`: model and processor behave as if it had never been."""
    session = getattr(model, NAME, None)
    if session is None:
        raise PatchError("this model is not patched: there is nothing to undo")
    session.uninstall()


class Session:
    """A patched pair. `last_plan` has the cells of the last call, in pixels of the images as they were resized, and
    `last_maps` what the model found relevant, if it was asked."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        budget: int | Sequence[int],
        stage: str,
        positions: str | None,
        looking: Looking,
        keep: bool,
        cache_bytes: int,
        max_pixels: int | None,
    ) -> None:
        if type(model).__name__ not in SUPPORTED:
            raise PatchError(f"{type(model).__name__} is not supported: give one of {', '.join(SUPPORTED)}")
        if getattr(model, NAME, None) is not None:
            raise PatchError("this model is patched already: unpatch it first")
        self.budgets, self.positions, self.peer = check_arguments(budget, stage, positions, looking)
        self.model, self.inner, self.processor = model, model.model, processor
        self.stage, self.looking = stage, looking
        vision = model.config.vision_config
        self.layout = Layout(vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
        self.max_pixels = max_pixels or 4096 * self.layout.leaf**2
        self._check_processor()
        image_token = model.config.image_token_id
        self._question = partial(last_question, tokenizer=processor.tokenizer, image_token=image_token)
        self._colours = processor.image_processor.image_mean, processor.image_processor.image_std
        self.coarse = scorers.Coarse()
        self.last_plan: Plan | None = None
        self.last_maps: list[Tensor] | None = None
        self._cells: Remembered[Any] | None = Remembered(MOST_KEPT) if keep else None  # choices; of a peer, densities
        watch = None if self.peer is None else partial(watched, self.inner.visual, attention=self.peer.attention)
        self._whole = WholeFeatures(cache_bytes, self.layout, watch)
        self._keys: list[tuple[int, int]] = []
        self._plan: Plan | None = None
        self._call: Call | None = None
        self._reduced: tuple[Any, list[list[Tensor]]] | None = None  # by a peer, until the model asks
        self._generating = False
        # Features of images come as tensors until 5.17 and as one tensor for each image from 5.18 on.
        self._split_deepstack = "mm_encoder_outputs" in inspect.signature(type(model).forward).parameters
        self._undo: list[Callable[[], Any]] = []

    def _check_processor(self) -> None:
        if not hasattr(type(self.processor), "replace_image_token"):
            raise PatchError(
                f"{type(self.processor).__name__} writes its placeholders in a way we do not know: "
                "give the model's own processor, of transformers 5.17 or later"
            )
        images = self.processor.image_processor
        if (images.patch_size, images.merge_size) != (self.layout.patch, self.layout.merge):
            raise PatchError(
                f"the processor cuts patches of {images.patch_size} pixels and the model wants {self.layout.patch}: "
                "give the processor of this very model"
            )

    # ------------------------------------------------------------------------------------------ there and back

    def install(self) -> None:
        setattr(self.model, NAME, self)
        self.model.last_allocation = []
        self._undo += [lambda: delattr(self.model, NAME), lambda: delattr(self.model, "last_allocation")]
        self._stock_features, self._stock_rope = self.inner.get_image_features, self.inner.get_rope_index
        self._stock_generate = self.model.generate
        self._replace(self.processor, "replace_image_token", self._replace_image_token)
        self._replace(self.inner, "get_image_features", self._get_image_features)
        self._replace(self.inner, "get_rope_index", self._get_rope_index)
        self._replace(self.model, "generate", self._generate)
        hooks = [
            self.inner.register_forward_pre_hook(self._before, with_kwargs=True),
            self.inner.register_forward_hook(self._after, with_kwargs=True, always_call=True),
        ]
        self._undo += [hook.remove for hook in hooks]
        self._undo.append(rectangular.install(self.inner.visual))
        image_processor = self.processor.image_processor
        before = image_processor.size
        smallest = max(self.budgets) * self.layout.leaf**2  # at least as many leaves as tokens
        image_processor.size = type(before)(
            **dict(before) | {"shortest_edge": smallest, "longest_edge": max(self.max_pixels, smallest)}
        )
        self._undo.append(lambda: setattr(image_processor, "size", before))

    @property
    def keeps(self) -> bool:
        """Whether images keep the cells they were first given."""
        return self._cells is not None

    def uninstall(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._plan = None

    def _replace(self, owner: Any, name: str, method: Callable) -> None:
        """Shadow a method of the class by one of the instance."""
        setattr(owner, name, method)
        self._undo.append(lambda: delattr(owner, name))

    # -------------------------------------------------------------------------------------------- the processor

    def _replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        columns, lines = leaf_grids(torch.as_tensor(image_inputs["image_grid_thw"]), self.layout)[image_idx]
        budget = self.budgets[0] if len(self.budgets) == 1 else self.budgets[image_idx]
        return self.processor.image_token * min(budget, columns * lines)

    # ------------------------------------------------------------------------------------------------- the plan

    @torch.compiler.disable  # decided on the host, from contents: nothing for a graph
    def _make_plan(self, inputs: dict[str, Any]) -> Plan | None:
        """The plan of a call, or None if it shows no images."""
        call = self.read(inputs)
        if call is None:
            return None
        pixels = inputs["pixel_values"]
        self._keys = self._names(pixels, call)
        names = list(zip(self._keys, call.counts, strict=True)) if self.keeps else []
        kept = None if self._cells is None else [self._cells.get(name) for name in names]
        known = kept is not None and all(choice is not None for choice in kept)
        views = [] if known else self.first_views(call)
        if self.peer is None:
            gazes = gaze_of(call, self.looking, self.layout)
            plan = self.choose(pixels, call, views, None if gazes is None else gazes.to(call.device), kept)
            chosen: Sequence[Any] = [(own, plan.views_of(image)) for image, own in enumerate(plan.allocations)]
        else:
            plan, chosen = self._reduce(inputs, call, views, kept)
        self._call, self.last_plan, self.model.last_allocation = call, plan, list(plan.allocations)
        if self._cells is not None:
            for name, choice in zip(names, chosen, strict=True):
                self._cells.put(name, choice)
        return plan

    def _reduce(
        self, inputs: dict[str, Any], call: Call, views: Sequence[scorers.FirstView], kept: Sequence[Any] | None
    ) -> tuple[Plan, Sequence[Any]]:
        """What a peer leaves of features of whole images, which the model will ask for, and by which densities."""
        peer, pixels, densities = cast(Peer, self.peer), inputs["pixel_values"], kept or [None] * len(call.grids)
        output, whole = self._whole.of(self._stock_features, pixels, inputs["image_grid_thw"], call.grids, self._keys)
        if peer.query and not call.every_leaf and any(old is None for old in densities):
            maps = self._ask_model(pixels, views)
            with torch.no_grad():
                new = densities_of(pixels, call, self.layout, self._colours, self.looking, maps)
            densities = [own if old is None else old for old, own in zip(densities, new, strict=True)]
        plan, levels = reduce_features(peer, whole, pixels, densities, call, self.layout, dict(self.looking.options))
        self._reduced = output, levels
        return plan, densities

    def read(self, inputs: dict[str, Any]) -> Call | None:
        """What the host must know of a call, or None if it shows no images (waits for the device)."""
        if inputs.get("pixel_values") is None or inputs.get("image_grid_thw") is None:
            return None
        if inputs.get("pixel_values_videos") is not None:
            raise PatchError("images and videos in one call are not supported: unpatch, or ask about them one by one")
        if inputs.get("input_ids") is None:
            raise PatchError("a patched model needs input_ids to count its placeholders: pass them, not inputs_embeds")
        return read_call(inputs, self.layout, self.model.config.image_token_id, self._question)

    def first_views(self, call: Call) -> list[scorers.FirstView]:
        """What the model is shown first, for each question it is to be asked, where it is asked at all."""
        return scorers.first_views(call, self.layout, self.coarse, self.looking, self.processor.tokenizer)

    def choose(
        self,
        pixels: Tensor,
        call: Call,
        views: Sequence[scorers.FirstView],
        gazes: Tensor | None,
        kept: Sequence[Any] | None = None,
    ) -> Plan:
        """The cells of every image. From here on nothing waits for the device."""
        maps = self._ask_model(pixels, views)
        with torch.no_grad():
            return make_plan(pixels, call, self.layout, self._colours, self.looking, maps, gazes, kept)

    def _ask_model(self, pixels: Tensor, views: Sequence[scorers.FirstView]) -> list[Tensor] | None:
        """What the model finds relevant, where it is asked."""
        self.last_maps = None
        if views:
            name = cast(str, scorer_in(self.looking.relevance, scorers.NAMES))
            self.last_maps = scorers.model_maps(name, self.inner, pixels, views, self.layout, self.coarse)
        return self.last_maps

    def _names(self, pixels: Tensor, call: Call) -> list[tuple[int, int]]:
        """What to remember each image by, where anything is remembered."""
        if self._cells is None and not self._whole.remembers:
            return []
        return fingerprints(pixels.split([columns * lines * self.layout.merge**2 for columns, lines in call.grids]))

    def _generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        known = dict(kwargs) if inputs is None else {"input_ids": inputs, **kwargs}
        with torch.no_grad():
            self._plan = self._make_plan(known)
        self._generating = True
        try:
            return self._stock_generate(inputs, *args, **kwargs)
        finally:
            self._plan = self._call = self._reduced = None
            self._generating = False

    def _before(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if not self._generating:
            given = {"input_ids": args[0], **kwargs} if args else kwargs
            self._plan = self._make_plan(given)

    def _after(self, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if not self._generating:
            self._plan = self._call = self._reduced = None

    # -------------------------------------------------------------------------------------------- the model

    def _get_image_features(self, pixel_values: Tensor, image_grid_thw: Tensor | None = None, **kwargs: Any) -> Any:
        plan = self._plan
        if plan is None or image_grid_thw is None:  # a video, which comes this way too, or a call for features alone
            return self._stock_features(pixel_values, image_grid_thw, **kwargs)
        times = self._times(len(image_grid_thw), len(plan.grids), "images")
        order = plan.repeated(times)
        if times > 1:  # beams show the same images again: they are encoded once
            sizes = [c * r * self.layout.merge**2 for c, r in plan.grids]
            shown = pixel_values.split([sizes[i] for i in order])
            pixel_values = torch.cat([shown[order.index(i)] for i in range(len(plan.grids))])
            image_grid_thw = image_grid_thw[[order.index(i) for i in range(len(plan.grids))]]
        output, tokens, deepstack = self._tokens(pixel_values, image_grid_thw, plan)
        output.pooler_output = tuple(tokens[i] for i in order)
        if deepstack is not None:
            split = [tuple(level[i] for i in order) for level in deepstack]
            output.deepstack_features = split if self._split_deepstack else [torch.cat(level) for level in split]
        return output

    def _tokens(
        self, pixel_values: Tensor, image_grid_thw: Tensor, plan: Plan
    ) -> tuple[Any, Sequence[Tensor], Sequence[Sequence[Tensor]] | None]:
        """The tower's output object, the tokens of each image, and those of each DeepStack level, if there are any."""
        if self.stage != "post":
            encode = encode_cells if self.stage == "pre" else encode_views
            output = encode(self.inner.visual, pixel_values, plan, self.layout)
            levels = getattr(output, "deepstack_features", None)
            deepstack = None if levels is None else [level.split(plan.counts) for level in levels]
            return output, output.pooler_output.split(plan.counts), deepstack
        if self._reduced is not None:
            output, levels = self._reduced
        else:
            tower = self._stock_features
            output, whole = self._whole.of(tower, pixel_values, image_grid_thw, plan.grids, self._keys)
            levels = [pool_features(level, plan) for level in zip(*(own.levels for own in whole), strict=True)]
        return output, levels[0], levels[1:] or None

    def _get_rope_index(
        self,
        input_ids: Tensor,
        mm_token_type_ids: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        video_grid_thw: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        plan = self._plan
        if plan is None:
            return self._stock_rope(
                input_ids,
                mm_token_type_ids=mm_token_type_ids,
                image_grid_thw=image_grid_thw,
                video_grid_thw=video_grid_thw,
                attention_mask=attention_mask,
                **kwargs,
            )
        times = self._times(len(input_ids), len(plan.rows), "rows")
        prompts = self._prompts(input_ids, attention_mask, plan, times)
        where = places(plan, self.positions).to(input_ids.device)
        counts = plan.counts
        if times > 1:  # beams: each row's images again
            parts = where.split(counts)
            where = torch.cat([parts[image] for image in plan.repeated(times)])
        placed = prompts.positions(where)
        if all(count == c * r for count, (c, r) in zip(counts, plan.grids, strict=True)):
            placed = placed.to(input_ids.dtype)  # every leaf: whole numbers, as the stock model has them
        return placed, prompts.deltas

    def _prompts(self, input_ids: Tensor, attention_mask: Tensor | None, plan: Plan, times: int) -> Prompts:
        """Where everything lies; read before, unless rows have been repeated since."""
        extents = [extent(plan, image, self.positions) for image in range(len(plan.grids))]
        call = self._call
        same_mask = attention_mask is None or (call is not None and call.mask is not None)
        if call is not None and same_mask and call.ids.shape == tuple(input_ids.shape):
            return call.prompts(extents)
        by_row = [[extents[image] for image in row] for row in plan.rows for _ in range(times)]
        mask = None if attention_mask is None else attention_mask.cpu().numpy()
        token = self.model.config.image_token_id
        return lay_out(input_ids.cpu().numpy(), mask, token, by_row, input_ids.device)

    def _times(self, given: int, planned: int, what: str) -> int:
        if planned == 0 or given % planned:
            raise ImageError(f"{given} {what} where the call was planned for {planned}: start a new call")
        return given // planned
