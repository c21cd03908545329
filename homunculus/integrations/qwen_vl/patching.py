"""One model instance and one processor instance put on a budget, and back again. Nothing else in the process changes.

Three methods are replaced, on these instances: the processor's `replace_image_token`, which writes as many placeholders
as there are tokens; the inner model's `get_image_features`, which makes them; its `get_rope_index`, which places them.
What they do is planned once for every call, in a hook before the forward pass and at the start of `generate`.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from homunculus.allocation import check_budget
from homunculus.errors import HomunculusError, ImageError
from homunculus.integrations.qwen_vl.features import encode_cells, pool_features
from homunculus.integrations.qwen_vl.layout import Layout
from homunculus.integrations.qwen_vl.plan import Looking, Plan, leaf_grids, make_plan, placeholder_runs
from homunculus.integrations.qwen_vl.rope import padded_positions, rope_positions

Stage = Literal["pre", "post"]
SUPPORTED = (
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
)
NAME = "_homunculus"  # where a patched model keeps its session


class PatchError(HomunculusError):
    """A model that cannot be put on a budget, or inputs that do not fit one that was."""


def patch(
    model: nn.Module,
    processor: Any,
    budget: int | Sequence[int] = 273,
    stage: Stage = "pre",
    relevance: Any = None,
    allocator: str = "foveated-pyramid",
    positions: Literal["true", "rounded"] = "true",
    *,
    fixation: Any = None,
    max_pixels: int | None = None,
    **options: Any,
) -> "Session":
    """Give this model and this processor exactly `budget` visual tokens an image; `unpatch` gives them back.

    `budget` may be a list: one for each image of a call, in order. `stage="pre"` lets only the chosen cells into the
    vision tower, `"post"` runs all of it and pools its features by cell. `relevance`, `allocator`, `fixation` and
    `options` are those of `homunculus.foveate`; spatial words of the last question set fixations. `positions="rounded"`
    rounds the language model's positions, which are fractions for cells of several leaves. Images keep up to
    `max_pixels` (default: 4096 leaves, for Qwen3-VL 2048 x 2048).
    """
    looking = Looking(relevance, allocator, fixation, tuple(options.items()))
    session = Session(model, processor, budget, stage, positions, looking, max_pixels)
    session.install()
    return session


def unpatch(model: nn.Module) -> None:
    """Undo `patch`: model and processor behave as if it had never been."""
    session = getattr(model, NAME, None)
    if session is None:
        raise PatchError("this model is not patched: there is nothing to undo")
    session.uninstall()


class Session:
    """A patched pair. `last_plan` has the cells of the last call, in pixels of the images as they were resized."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        budget: int | Sequence[int],
        stage: Stage,
        positions: str,
        looking: Looking,
        max_pixels: int | None,
    ) -> None:
        if type(model).__name__ not in SUPPORTED:
            raise PatchError(f"{type(model).__name__} is not supported: give one of {', '.join(SUPPORTED)}")
        if getattr(model, NAME, None) is not None:
            raise PatchError("this model is patched already: unpatch it first")
        if stage not in ("pre", "post") or positions not in ("true", "rounded"):
            raise PatchError(
                f"stage is 'pre' or 'post' and positions 'true' or 'rounded', got {stage!r}, {positions!r}"
            )
        budgets = [budget] if isinstance(budget, int) else list(budget)
        self.budgets = [check_budget(one) for one in budgets]
        self.model, self.inner, self.processor = model, model.model, processor
        self.stage, self.rounded, self.looking = stage, positions == "rounded", looking
        vision = model.config.vision_config
        self.layout = Layout(vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
        self.max_pixels = max_pixels or 4096 * self.layout.leaf**2
        self.last_plan: Plan | None = None
        self._plan: Plan | None = None
        self._generating = False
        # Features of images come as tensors until 5.17 and as one tensor for each image from 5.18 on.
        self._split_deepstack = "mm_encoder_outputs" in inspect.signature(type(model).forward).parameters
        self._undo: list[Callable[[], Any]] = []

    # ------------------------------------------------------------------------------------------ there and back

    def install(self) -> None:
        setattr(self.model, NAME, self)
        self._undo.append(lambda: delattr(self.model, NAME))
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
        with torch.no_grad():
            return make_plan(pixels, grids, runs, questions, self.layout, colours, self.looking)

    def _question(self, input_ids: Tensor) -> str:
        """The text of the last turn of the user, or all text after the last image where turns are not marked."""
        tokenizer = self.processor.tokenizer
        ids = input_ids.tolist()
        marks = [i for i, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids("<|im_start|>")]
        for start, stop in reversed(list(pairwise([*marks, len(ids)]))):
            text = tokenizer.decode(ids[start:stop], skip_special_tokens=True)
            if text.startswith("user"):
                return text.removeprefix("user").strip()
        images = [i for i, token in enumerate(ids) if token == self.model.config.image_token_id]
        return tokenizer.decode(ids[images[-1] + 1 if images else 0 :], skip_special_tokens=True).strip()

    @contextmanager
    def _planned(self, inputs: dict[str, Any]):  # type: ignore[no-untyped-def]
        self._plan = self._make_plan(inputs)
        self.last_plan = self._plan or self.last_plan
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
            self.last_plan = self._plan or self.last_plan

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
        if self.stage == "pre":
            output = encode_cells(self.inner.visual, pixel_values, plan, self.layout)
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
        positions, deltas = rope_positions(is_image, plan, self.rounded, input_ids.device)
        placed = padded_positions(positions, attention_mask, input_ids.shape[1])
        if all(allocation.budget == c * r for allocation, (c, r) in zip(plan.allocations, plan.grids, strict=True)):
            placed = placed.to(input_ids.dtype)  # every leaf: whole numbers, as the stock model has them
        return placed, torch.tensor(deltas, device=input_ids.device)[:, None]

    def _times(self, given: int, planned: int, what: str) -> int:
        if planned == 0 or given % planned:
            raise ImageError(f"{given} {what} where the call was planned for {planned}: start a new call")
        return given // planned
