"""What a second question about the same image costs: on the first one's keys and values, or looking anew.

    python -m bench.qwen_chat                      8B on a CUDA device
    python -m bench.qwen_chat --tiny               seconds on a CPU: tries the benchmark, measures nothing

Time to the first token of a second turn of some 30 tokens, the image of 2048 x 2048 shown in the first:
`kept` goes on from the first turn's cache, which is valid as long as the image keeps its cells (`keep=True`; the stock
model always); `anew` chooses cells for the new question and prefills the whole prompt again; `anew, features kept`
is stage `post` with `cache_bytes`, which only pools again.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.nn.functional import pad

from bench.qwen_shapes import LEAF, make_inputs, make_model, make_processor
from bench.qwen_vl import timed
from bench.timing import announce
from homunculus.integrations import qwen_vl

SECOND = "It is J. R., and 1 204.50.<|im_end|>\n<|im_start|>user\nAnd what is the date in the footer?<|im_end|>\n"
WAYS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("stock", "kept", None),
    ("stock", "anew", None),
    ("pre", "kept", {"keep": True, "relevance": "coarse-pass"}),
    ("pre", "anew", {"relevance": "coarse-pass"}),
    ("post", "anew", {"stage": "post", "relevance": "coarse-pass"}),
    ("post", "anew, features kept", {"stage": "post", "relevance": "coarse-pass", "cache_bytes": 2**31}),
]


@contextmanager
def patched(model: Any, processor: Any, budget: int, how: dict[str, Any] | None) -> Iterator[None]:
    if how is not None:
        qwen_vl.patch(model, processor, budget, **how)
    try:
        yield
    finally:
        if how is not None:
            qwen_vl.unpatch(model)


def second_turn(model: Any, first: dict[str, Tensor], more: Tensor, kept: bool) -> Callable[[], Tensor]:
    """What makes the first token of the second turn, as often as it is called."""
    turn = more.expand(len(first["input_ids"]), -1)
    whole = dict(first)
    whole["input_ids"] = torch.cat((first["input_ids"], turn), dim=1)
    for name, value in (("attention_mask", 1), ("mm_token_type_ids", 0)):
        whole[name] = pad(first[name], (0, turn.shape[1]), value=value)
    if not kept:
        return lambda: model(**whole, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)
    cache = model(**first, use_cache=True, logits_to_keep=1).past_key_values
    length = first["input_ids"].shape[1]
    places = length + torch.arange(turn.shape[1], device=turn.device) + model.model.rope_deltas  # [B, tokens]

    def go_on() -> Tensor:
        output = model(input_ids=turn, position_ids=places.expand(3, -1, -1), past_key_values=cache, logits_to_keep=1)
        cache.crop(-turn.shape[1])  # back to the first turn, for the next time
        return output.logits[:, -1].argmax(-1)

    return go_on


def measure(shape: str, device: str, side: int, budget: int, repeats: int) -> list[tuple[str, str, int, float, float]]:
    """(variant, way, visual tokens, ms of the first turn, ms of the second) of every way."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    processor = make_processor()
    model = make_model(shape, processor.tokenizer, device, torch.bfloat16 if device == "cuda" else torch.float32)
    more = torch.tensor(processor.tokenizer(SECOND, add_special_tokens=False)["input_ids"]).to(device)[None]
    rows = []
    for variant, way, how in WAYS:
        count = (side // LEAF) ** 2 if variant == "stock" else budget
        inputs = make_inputs([(side, side)], [count], processor.tokenizer, device)
        with patched(model, processor, budget, how), torch.no_grad():
            first = lambda given=inputs: model(**given, use_cache=True, logits_to_keep=1)  # noqa: E731
            first()
            before = statistics.median(timed(first, wait) for _ in range(repeats))
            run = second_turn(model, inputs, more, way == "kept")
            run()
            rows.append((variant, way, count, before, statistics.median(timed(run, wait) for _ in range(repeats))))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="8B", choices=["8B", "4B", "2B"])
    parser.add_argument("--side", type=int, default=2048)
    parser.add_argument("--budget", type=int, default=273)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--tiny", action="store_true", help="a tiny model, on the CPU where there is no GPU")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.tiny:
        options.model, options.side, options.budget, options.repeats = "tiny", 256, 16, 2
    elif device == "cpu":
        parser.error("these shapes are measured on a CUDA device, and there is none here (--tiny needs none)")
    console = announce(device, width=120)
    table = Table("", "second question", "visual tokens", "first turn, ms", "second turn, ms", box=None)
    for variant, way, count, before, after in measure(
        options.model, device, options.side, options.budget, options.repeats
    ):
        table.add_row(variant, way, str(count), f"{before:.1f}", f"{after:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
