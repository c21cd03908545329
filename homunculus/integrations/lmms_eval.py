"""Qwen-VL on a budget as a model of lmms-eval, found by its entry point once both packages are installed:

    python -m lmms_eval --model homunculus_qwen_vl --tasks docvqa_val --batch_size 8 \\
        --model_args pretrained=Qwen/Qwen3-VL-8B-Instruct,budget=273,stage=views

A published reducer of tokens (docs/peers.md) takes the place of our choice of cells, for a row beside it:

    python -m lmms_eval --model homunculus_qwen_vl --tasks docvqa_val --batch_size 8 \\
        --model_args pretrained=Qwen/Qwen3-VL-8B-Instruct,budget=273,stage=post,peer=visionzip

Only lmms-eval imports this module. Every image of a task gets `budget` tokens; how many they got on average is in the
results, as `avg_visual_tokens_per_image` under `throughput`. Prompts are those of lmms-eval's own Qwen3-VL; unlike
there, an answer ends at the first of the task's `until` strings.
"""

import os
import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from loguru import logger
from tqdm import tqdm

from homunculus.allocation import DEFAULT
from homunculus.errors import HomunculusError
from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl.checking import check_arguments
from homunculus.integrations.qwen_vl.loading import load

NAME = "homunculus_qwen_vl"
MAX_NEW_TOKENS = 128  # of a task that does not say, as in lmms-eval's own Qwen models


def manifest() -> Any:
    """What the entry point names. `lmms_eval.models` loads us while it is itself being imported: hence not above."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(model_id=NAME, chat_class_path=f"{__name__}.HomunculusQwenVL")


class EvalError(HomunculusError):
    """An argument of the command line that means nothing, or a task that asks for more than answers about images."""


class HomunculusQwenVL(lmms):
    """`budget`, `stage`, `relevance`, `allocator`, `peer`, `positions` and `max_pixels` are those of `qwen_vl.patch`.

    No allocator can be named beside a `peer`. `pretrained` is a name on the hub or a folder. `device` is by default
    CUDA where there is one, for each process of a launcher its own, and `dtype` bfloat16 there and float32 on a CPU.
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str,
        budget: int = 273,
        stage: str = "pre",
        relevance: str | None = None,
        allocator: str | None = None,
        peer: str | None = None,
        positions: str | bool | None = None,
        max_pixels: int | None = None,
        batch_size: int | str = 1,
        device: str | None = None,
        dtype: str | None = None,
        attn_implementation: str | None = None,
        system_prompt: str = "You are a helpful assistant.",
    ) -> None:
        super().__init__()
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise EvalError(f"batch_size is a whole number from 1 on, got {batch_size!r}: try 8")
        kind = None if dtype is None else getattr(torch, dtype, None)
        if dtype is not None and not isinstance(kind, torch.dtype):
            raise EvalError(f"dtype is the name of a type of torch, got {dtype!r}: try bfloat16")
        if peer is not None and allocator is not None:  # not even the default: results would be filed under both
            raise EvalError(f"peer={peer} and allocator={allocator} both choose what is left: leave one of them out")
        # lmms-eval reads `positions=true` as a boolean
        where = str(positions).lower() if isinstance(positions, bool) else positions
        cells = DEFAULT if allocator is None else allocator
        check_arguments(budget, stage, where, qwen_vl.Looking(relevance, cells, peer=peer))  # before gigabytes are read
        self.batch_size, self.device = int(batch_size), torch.device(device or own_device())
        self.system_prompt = self._resolve_system_prompt(system_prompt)
        self.model, self.processor = load(pretrained, self.device, kind)
        if attn_implementation is not None:
            self.model.set_attn_implementation(attn_implementation)
        qwen_vl.patch(
            self.model, self.processor, budget, stage, relevance, cells, where, peer=peer, max_pixels=max_pixels
        )

    def clean(self) -> None:
        """Let go of the model, which the patched processor knows too."""
        qwen_vl.unpatch(self.model)
        super().clean()

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """An answer to every request, in their order."""
        answers: dict[int, GenerationResult] = {}
        images, visual_tokens, seconds = 0, 0, 0.0
        bar = tqdm(total=len(requests), disable=self.rank != 0, desc=NAME)
        for chunk in batches(requests, self.batch_size):
            inputs, shown = self._inputs([requests[i] for i in chunk])
            images += shown
            visual_tokens += int((inputs["input_ids"] == self.model.config.image_token_id).sum())
            start = time.perf_counter()
            answers |= zip(chunk, self._answer(inputs, requests[chunk[0]].args[2]), strict=True)
            seconds += time.perf_counter() - start
            bar.update(len(chunk))
        bar.close()
        ordered = [answers[i] for i in range(len(requests))]
        self._report(ordered, seconds, {"visual_tokens_per_image": visual_tokens / images} if images else {})
        return ordered

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        raise EvalError(f"{NAME} answers tasks of one round: choose another task, or --model qwen3_vl")

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise EvalError(f"{NAME} writes answers and does not score given ones: choose a task of type generate_until")

    def _inputs(self, requests: Sequence[Instance]) -> tuple[dict[str, Any], int]:
        """What the model is given for a batch, and how many images are in it."""
        from lmms_eval.protocol import ChatMessages

        chats, images = [], []
        for request in requests:
            _, doc_to_messages, _, doc_id, task, split = request.args
            messages = doc_to_messages(self.task_dict[task][split][doc_id])
            chat = ChatMessages(messages=self._apply_system_prompt(messages, self.system_prompt))
            own, videos, audios = chat.extract_media()
            if videos or audios:
                raise EvalError(f"{task} has video or audio, and {NAME} takes images only: choose a task with images")
            chats.append(chat.to_hf_messages())
            images += own
        texts = self.processor.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
        inputs = self.processor(text=texts, images=images or None, padding=True, return_tensors="pt")
        return inputs.to(self.device), len(images)

    def _answer(self, inputs: dict[str, Any], wanted: dict[str, Any]) -> list[GenerationResult]:
        until, how = generation_options(wanted)
        tokenizer = self.processor.tokenizer
        stop = {"stop_strings": until, "tokenizer": tokenizer} if until else {}
        with torch.inference_mode():
            written = self.model.generate(**inputs, **how, **stop)[:, inputs["input_ids"].shape[1] :]
        texts = tokenizer.batch_decode(written, skip_special_tokens=True)
        read = inputs["attention_mask"].sum(1).tolist()
        wrote = (written != tokenizer.pad_token_id).sum(1).tolist()
        return [
            GenerationResult(cut(text, until), TokenCounts(input_tokens=read[i], output_tokens=wrote[i]))
            for i, text in enumerate(texts)
        ]

    def _report(self, answers: Sequence[GenerationResult], seconds: float, seen: dict[str, float]) -> None:
        from lmms_eval.models.model_utils.gen_metrics import log_metrics

        tokens = sum(answer.token_counts.output_tokens for answer in answers)
        log_metrics(seconds, tokens, tokens / max(seconds, 1e-9), {"rank": self.rank} | seen)


def own_device() -> str:
    """The device of this process among those of a launcher, else the first."""
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"


def batches(requests: Sequence[Instance], size: int) -> Iterator[list[int]]:
    """Numbers of requests that may be answered together: the same options, and contexts of similar length, since images
    are of one length anyway; the longest first, so that memory runs out early or never."""
    groups: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(repr(sorted(request.args[2].items())), []).append(number)
    for group in groups.values():
        group.sort(key=lambda number: -len(requests[number].args[0]))
        yield from (group[i : i + size] for i in range(0, len(group), size))


def generation_options(wanted: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Where to stop, and the arguments for `generate`, from the options of a task. A temperature of 0 means greedy."""
    from transformers import GenerationConfig

    given = {name: value for name, value in wanted.items() if value is not None}
    until = given.pop("until", [])
    temperature, sampling = given.get("temperature"), given.pop("do_sample", "temperature" in given)
    if not sampling or temperature == 0:  # None, else what the checkpoint samples with is warned about
        given |= {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    else:
        given["do_sample"] = True
    foreign = sorted(name for name in given if not hasattr(GenerationConfig(), name))
    if foreign:  # tasks carry options for particular models, such as image_aspect_ratio
        say_left_out(", ".join(foreign))
    how = {name: value for name, value in given.items() if name not in foreign}
    stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
    return stops, {"max_new_tokens": MAX_NEW_TOKENS} | how


@cache  # said once, not for every batch
def say_left_out(names: str) -> None:
    logger.warning(f"{NAME} leaves out what `generate` does not know: {names}")


def cut(text: str, until: Sequence[str]) -> str:
    """The text before the first of these strings."""
    ends = [text.index(stop) for stop in until if stop in text]
    return text[: min(ends, default=len(text))]
