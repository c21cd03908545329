"""One model instance and one processor instance put on a budget, and back again. Nothing else in the process changes.

Three methods are replaced, on these instances: the processor's `replace_image_token`, which writes as many placeholders
as there are tokens; the inner model's `get_image_features`, which makes them; its `get_rope_index`, which places them.
What they do is planned once for every call, in a hook before the forward pass and at the start of `generate`.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from homunculus.allocation import check_budget
from homunculus.cache.keys import content_key
from homunculus.errors import HomunculusError, ImageError
from homunculus.geometry import Size
from homunculus.integrations.qwen_vl import scorers
from homunculus.integrations.qwen_vl.features import encode_cells, encode_views, pool_features
from homunculus.integrations.qwen_vl.layout import Layout
from homunculus.integrations.qwen_vl.plan import (
    Choice,
    Looking,
    Plan,
    leaf_grids,
    make_plan,
    placeholder_runs,
    scorer_in,
)
from homunculus.integrations.qwen_vl.rope import Positions, padded_positions, rope_positions

STAGES = ("pre", "post", "views")
SUPPORTED = (
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
)
NAME = "_homunculus"  # where a patched model keeps its session
MOST_KEPT = 256  # images whose cells are remembered


class PatchError(HomunculusError):
    """A model that cannot be put on a budget, or inputs that do not fit one that was."""


def patch(
    model: nn.Module,
    processor: Any,
    budget: int | Sequence[int] = 273,
    stage: str = "pre",
    relevance: Any = None,
    allocator: str = "foveated-pyramid",
    positions: str | None = None,
    *,
    fixation: Any = None,
    region: Any = None,
    keep: bool = False,
    max_pixels: int | None = None,
    **options: Any,
) -> "Session":
    """Give this model and this processor exactly `budget` visual tokens an image; `unpatch` gives them back.

    `budget` may be a list: one for each image of a call, in order. `stage="pre"` lets only the chosen cells into the
    vision tower, `"post"` runs all of it and pools its features by cell, `"views"` shows an overview and `crops=1`
    crops at full resolution, each an ordinary image. `relevance`, `allocator`, `fixation` and `options` are those of
    `homunculus.foveate`; relevance may also be "text-similarity" or "coarse-pass", which ask the model (scorers.py).
    Spatial words of the last question set fixations; `region` says where to look instead, (x0, y0, x1, y1) as shares of
    the image or words such as "the footer". In a chat every turn looks anew, unless `keep` has an image look
    as it did when it was first shown. `positions` in the language model are "true", fractions for cells of several
    leaves, or "rounded"; views have those of images in a row, "stock", unless asked otherwise. Images keep up to
    `max_pixels` (default: 4096 leaves, for Qwen3-VL 2048 x 2048).

    Afterwards `model.last_allocation` has the cells of each image of the last call; `on_image(allocation, image.size)`
    puts them on the image as it was given.
    """
    looking = Looking(relevance, allocator, fixation, tuple(options.items()), stage == "views", region)
    session = Session(model, processor, budget, stage, positions, looking, keep, max_pixels)
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
        max_pixels: int | None,
    ) -> None:
        if type(model).__name__ not in SUPPORTED:
            raise PatchError(f"{type(model).__name__} is not supported: give one of {', '.join(SUPPORTED)}")
        if getattr(model, NAME, None) is not None:
            raise PatchError("this model is patched already: unpatch it first")
        positions = positions or ("stock" if stage == "views" else "true")
        if stage not in STAGES:
            raise PatchError(f"stage is one of {', '.join(STAGES)}, got {stage!r}")
        if positions not in ("true", "rounded", *(["stock"] if stage == "views" else [])):
            raise PatchError(f"positions are 'true' or 'rounded', for views also 'stock', got {positions!r}")
        budgets = [budget] if isinstance(budget, int) else list(budget)
        self.budgets = [check_budget(one) for one in budgets]
        self.model, self.inner, self.processor = model, model.model, processor
        self.stage, self.positions, self.looking = stage, cast(Positions, positions), looking
        vision = model.config.vision_config
        self.layout = Layout(vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
        self.max_pixels = max_pixels or 4096 * self.layout.leaf**2
        self._check_processor()
        self.coarse = scorers.Coarse()
        self.last_plan: Plan | None = None
        self.last_maps: list[Tensor] | None = None
        self._kept: OrderedDict[str, Choice] | None = OrderedDict() if keep else None
        self._plan: Plan | None = None
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
        image_processor = self.processor.image_processor
        before = image_processor.size
        smallest = max(self.budgets) * self.layout.leaf**2  # at least as many leaves as tokens
        image_processor.size = type(before)(
            **dict(before) | {"shortest_edge": smallest, "longest_edge": max(self.max_pixels, smallest)}
        )
        self._undo.append(lambda: setattr(image_processor, "size", before))

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
        pixels, grid_thw = inputs.get("pixel_values"), inputs.get("image_grid_thw")
        if pixels is None or grid_thw is None:
            return None
        if inputs.get("pixel_values_videos") is not None:
            raise PatchError("images and videos in one call are not supported: unpatch, or ask about them one by one")
        grids = leaf_grids(grid_thw, self.layout)
        input_ids = inputs.get("input_ids")
        if input_ids is None:
            raise PatchError("a patched model needs input_ids to count its placeholders: pass them, not inputs_embeds")
        runs = placeholder_runs(input_ids, self.model.config.image_token_id)
        questions = [self._question(row) for row in input_ids]
        colours = (self.processor.image_processor.image_mean, self.processor.image_processor.image_std)
        keys, kept = self._known(pixels, grids, runs)
        all_known = kept is not None and all(choice is not None for choice in kept)
        self.last_maps = maps = None if all_known else self._maps(inputs, grids, runs, questions)
        with torch.no_grad():
            plan = make_plan(pixels, grids, runs, questions, self.layout, colours, self.looking, maps, kept)
        self._remember(keys, plan)
        return plan

    def _known(
        self, pixels: Tensor, grids: list[Size], runs: list[list[int]]
    ) -> tuple[list[str], list[Choice | None] | None]:
        """What was chosen for these very images before, where that is to be kept."""
        if self._kept is None:
            return [], None
        parts = pixels.split([columns * lines * self.layout.merge**2 for columns, lines in grids])
        counts = [count for row in runs for count in row]
        keys = [content_key(part, list(grid), n) for part, grid, n in zip(parts, grids, counts, strict=False)]
        return keys, [self._kept.get(key) for key in keys]

    def _remember(self, keys: list[str], plan: Plan) -> None:
        self.last_plan, self.model.last_allocation = plan, list(plan.allocations)
        for i, key in enumerate(keys):
            self._kept[key] = plan.allocations[i], plan.views_of(i)  # type: ignore[index]
            self._kept.move_to_end(key)  # type: ignore[union-attr]
        while self._kept and len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def _maps(
        self, inputs: dict[str, Any], grids: list[Size], runs: list[list[int]], questions: list[str]
    ) -> list[Tensor] | None:
        """What the model itself finds relevant in each image, where it is to be asked."""
        name = scorer_in(self.looking.relevance, scorers.NAMES)
        every_leaf = [count for row in runs for count in row] == [columns * lines for columns, lines in grids]
        if name is None or every_leaf:
            return None
        numbers = iter(range(len(grids)))
        rows = [[next(numbers) for _ in own] for own in runs]
        plan = scorers.coarse_plan(rows, grids, self.layout, self.coarse)
        image_token = self.model.config.image_token_id
        tokenizer = self.processor.tokenizer
        return scorers.model_maps(
            name, self.inner, tokenizer, inputs, questions, image_token, plan, self.layout, self.coarse
        )

    def _question(self, input_ids: Tensor) -> str:
        """The text of the last turn of the user, or all text after the last image where turns are not marked."""
        tokenizer = self.processor.tokenizer
        ids = input_ids.tolist()
        turn = tokenizer.convert_tokens_to_ids("<|im_start|>")
        marks = [i for i, token in enumerate(ids) if token == turn]
        for start, stop in reversed(list(pairwise([*marks, len(ids)]))):
            text = tokenizer.decode(ids[start:stop], skip_special_tokens=True)
            if text.startswith("user"):
                return text.removeprefix("user").strip()
        images = [i for i, token in enumerate(ids) if token == self.model.config.image_token_id]
        return tokenizer.decode(ids[images[-1] + 1 if images else 0 :], skip_special_tokens=True).strip()

    @contextmanager
    def _planned(self, inputs: dict[str, Any]):  # type: ignore[no-untyped-def]
        self._plan = self._make_plan(inputs)
        self._generating = True
        try:
            yield
        finally:
            self._plan, self._generating = None, False

    def _generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        known = dict(kwargs) if inputs is None else {"input_ids": inputs, **kwargs}
        with self._planned(known):
            return self._stock_generate(inputs, *args, **kwargs)

    def _before(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if not self._generating:
            given = {"input_ids": args[0], **kwargs} if args else kwargs
            self._plan = self._make_plan(given)

    def _after(self, module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if not self._generating:
            self._plan = None

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
    ) -> tuple[Any, Sequence[Tensor], list[Sequence[Tensor]] | None]:
        """The tower's output object, the tokens of each image, and those of each DeepStack level, if there are any."""
        if self.stage != "post":
            encode = encode_cells if self.stage == "pre" else encode_views
            output = encode(self.inner.visual, pixel_values, plan, self.layout)
            levels = getattr(output, "deepstack_features", None)
            deepstack = None if levels is None else [level.split(plan.counts) for level in levels]
            return output, output.pooler_output.split(plan.counts), deepstack
        output = self._stock_features(pixel_values, image_grid_thw, return_dict=True)
        leaves = [columns * lines for columns, lines in plan.grids]
        levels = getattr(output, "deepstack_features", None)
        if levels is not None:
            levels = [level.split(leaves) if isinstance(level, Tensor) else level for level in levels]
            levels = [pool_features(level, plan) for level in levels]
        return output, pool_features(output.pooler_output, plan), levels

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
        self._times(len(input_ids), len(plan.rows), "rows")
        rows = [ids if attention_mask is None else ids[attention_mask[i].bool()] for i, ids in enumerate(input_ids)]
        is_image = [(row == self.model.config.image_token_id).tolist() for row in rows]
        positions, deltas = rope_positions(is_image, plan, self.positions, input_ids.device)
        placed = padded_positions(positions, attention_mask, input_ids.shape[1])
        if all(allocation.budget == c * r for allocation, (c, r) in zip(plan.allocations, plan.grids, strict=True)):
            placed = placed.to(input_ids.dtype)  # every leaf: whole numbers, as the stock model has them
        return placed, torch.tensor(deltas, device=input_ids.device)[:, None]

    def _times(self, given: int, planned: int, what: str) -> int:
        if planned == 0 or given % planned:
            raise ImageError(f"{given} {what} where the call was planned for {planned}: start a new call")
        return given // planned
