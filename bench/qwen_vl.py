"""What a Qwen3-VL costs with and without us: published shapes, random weights, everything but the answers' sense.

    python -m bench.qwen_vl --requests 0                  8B on a CUDA device: squares at batch 1, 8, 32
    python -m bench.qwen_vl --sides --requests 100        8B, mixed sizes: as batches, and one by one (p50, p99)
    python -m bench.qwen_vl --models 4B 2B --batches 8    other shapes
    python -m bench.qwen_vl --modes graph --batches 1 8   each pass as one CUDA graph; or compiled
    python -m bench.qwen_vl --tiny --results FILE         seconds on a CPU: tries the benchmark, measures nothing
    python -m bench.qwen_vl --plot                        draws docs/qwen.png from the results file, anywhere

Results are appended to bench/results/qwen_vl.csv, or `--results`, case by case. `stock` is the model as it comes.
`max_pixels` is the same with images scaled down to the budget: about our cost, and no library. `pre` and `post` are
ours, with each of `--relevance`: `uniform` looks nowhere in particular and costs next to nothing, `coarse-pass` asks
the model where to look. Time to first token is a forward pass with a cache and `logits_to_keep=1`, from pixel_values on
the device to a token, planning included. Its parts are those of the same passes, by CUDA events, so gaps in which the
device waits for the host count. Decoding is `generate`, token by token. Peak memory includes the weights.
In the modes `graph` and `compiled` (norms and MLPs fused) a pass is replayed whole, so it has no parts; stock and
max_pixels are then our own pass with every leaf kept, since the stock tower waits for the host and cannot be captured.
"""

import argparse
import csv
import datetime
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.qwen_shapes import LEAF, make_inputs, make_model, make_processor, within
from bench.spans import Spans
from bench.timing import announce
from homunculus.geometry import Size
from homunculus.integrations import qwen_vl
from homunculus.integrations.qwen_vl import features, patching, plan

RESULTS = Path(__file__).parent / "results" / "qwen_vl.csv"
FIGURE = Path(__file__).parent.parent / "docs" / "qwen.png"
PARTS = ("scoring", "allocation", "sampling", "tower", "prefill")
OURS = ("pre", "post")


@dataclass(frozen=True)
class Case:
    """Images shown together, one to a prompt, to a model used in one way."""

    variant: str  # stock, max_pixels, pre or post
    relevance: str  # of ours, else "-"
    image: str  # "1024": all of one side; "mixed"
    sizes: tuple[Size, ...]
    budget: int

    @property
    def name(self) -> str:
        return self.variant if self.relevance == "-" else f"{self.variant}, {self.relevance}"

    def inputs(self, tokenizer: Any, device: str) -> dict[str, Tensor]:
        sizes = (
            [within(size, self.budget * LEAF**2) for size in self.sizes] if self.variant == "max_pixels" else self.sizes
        )
        leaves = [width * height // LEAF**2 for width, height in sizes]
        counts = [self.budget] * len(sizes) if self.variant in OURS else leaves
        return make_inputs(sizes, counts, tokenizer, device)


def eager(model: Any, inputs: dict[str, Tensor]) -> Callable[[], Tensor]:
    """The first token, as often as it is called."""
    return lambda: model(**inputs, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)


def graph(model: Any, inputs: dict[str, Tensor], compiled: bool = False) -> Callable[[], Tensor]:
    """The same, replayed: what the host reads of a call and copies into the graph's memory counts."""
    first = qwen_vl.FirstTokens(model, compiled=compiled)
    return lambda: first(**inputs).logits.argmax(-1)


# How a first token is made, by name: what prepares a model and its inputs (warming up, capturing) and returns the run.
MODES: dict[str, Callable[[Any, dict[str, Tensor]], Callable[[], Tensor]]] = {
    "eager": eager,
    "graph": graph,
    "compiled": partial(graph, compiled=True),
}


@contextmanager
def prepared(model: Any, processor: Any, case: Case, mode: str, spans: Spans) -> Iterator[None]:
    """The model patched as the case wants it, with its parts timed where they can be told apart."""
    session = None
    if case.variant in OURS:
        session = qwen_vl.patch(model, processor, case.budget, case.variant, case.relevance)
    elif mode != "eager":
        session = qwen_vl.patch(model, processor, case.budget, "pre", "uniform")
    seams: list[tuple[Any, str, str]] = []
    if mode == "eager":
        seams += [(model.model, "get_image_features", "vision")]
        seams += [(model.model.language_model, "forward", "prefill"), (model.lm_head, "forward", "prefill")]
        if session is not None:
            seams += [(session, "_make_plan", "plan"), (plan, "allocate_view", "allocation")]
            seams += [(features, "cell_rows", "sampling"), (patching, "pool_features", "sampling")]
    try:
        with spans.timing(seams):
            yield
    finally:
        if session is not None:
            qwen_vl.unpatch(model)


def parts_of(spans: Spans) -> dict[str, float]:
    """Milliseconds of each part of one pass. What scoring asks of the model belongs to scoring."""
    allocation, sampling = spans.total("allocation"), spans.total("sampling", outside="plan")
    return {
        "scoring": spans.total("plan") - allocation,
        "allocation": allocation,
        "sampling": sampling,  # for `post`, pooling
        "tower": spans.total("vision", outside="plan") - sampling,
        "prefill": spans.total("prefill", outside="plan"),
    }


def timed(run: Callable[[], Any], wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    run()
    wait()
    return (time.perf_counter() - start) * 1000


def measure(model: Any, processor: Any, case: Case, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """The median of several passes, then one answer of `new_tokens`."""
    wait = torch.cuda.synchronize if options.device == "cuda" else (lambda: None)
    inputs = case.inputs(processor.tokenizer, options.device)
    spans = Spans(options.device)
    if options.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    parts: list[dict[str, float]] = []
    with prepared(model, processor, case, mode, spans), torch.no_grad():
        run = MODES[mode](model, inputs)
        run()
        while len(times) < 20 and sum(times) < options.seconds * (10_000 if len(times) < 3 else 1_000):
            spans.clear()
            times.append(timed(run, wait))
            parts.append(parts_of(spans))
        peak = torch.cuda.max_memory_allocated() / 2**30 if options.device == "cuda" else None
        rate = decode_rate(model, inputs, options.new_tokens, wait) if mode == "eager" else None
    mask = inputs["attention_mask"].float()
    return {
        "tokens": f"{float((inputs['input_ids'] == model.config.image_token_id).sum()) / len(mask):.1f}",
        "length": mask.shape[1],
        "padding": f"{1 - float(mask.mean()):.4f}",
        "ttft_ms": f"{statistics.median(times):.3f}",
        **{f"{n}_ms": f"{statistics.median(p[n] for p in parts):.3f}" for n in PARTS if mode == "eager"},
        "decode_tokens_s": "" if rate is None else f"{rate:.1f}",
        "peak_gib": "" if peak is None else f"{peak:.2f}",
    }


def measure_requests(model: Any, processor: Any, case: Case, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Images of many sizes one by one, as they come: the time to first token of half of them, and of 99 %."""
    wait = torch.cuda.synchronize if options.device == "cuda" else (lambda: None)
    spans = Spans(options.device)
    times, tokens = [], []
    with prepared(model, processor, case, mode, spans), torch.no_grad():
        for number, size in enumerate((case.sizes[0], *case.sizes)):
            inputs = Case(case.variant, case.relevance, case.image, (size,), case.budget).inputs(
                processor.tokenizer, options.device
            )
            ms = timed(MODES[mode](model, inputs), wait)
            if number > 0:  # the first is for warming up
                times.append(ms)
                tokens.append(int((inputs["input_ids"] == model.config.image_token_id).sum()))
    p50, p99 = (
        torch.tensor(times, dtype=torch.float64).quantile(torch.tensor([0.5, 0.99], dtype=torch.float64)).tolist()
    )
    return {
        "requests": len(times),
        "tokens": f"{statistics.mean(tokens):.1f}",
        "ttft_ms": f"{p50:.3f}",
        "ttft_p99_ms": f"{p99:.3f}",
    }


def decode_rate(model: Any, inputs: dict[str, Tensor], new_tokens: int, wait: Callable[[], None]) -> float:
    """Tokens a second after the first one, all rows together."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    moments: list[float] = []

    class Clock(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            wait()
            moments.append(time.perf_counter())
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    clock = StoppingCriteriaList([Clock()])
    model.generate(**inputs, max_new_tokens=new_tokens + 1, do_sample=False, stopping_criteria=clock)
    return len(inputs["input_ids"]) * new_tokens / (moments[-1] - moments[0])


def mixed_sizes(count: int, low: int, high: int) -> tuple[Size, ...]:
    """Sizes of whole leaves between low x low and high x high pixels, evenly over the logarithm of the area, with
    aspects from 1:2 to 2:1; the same ones every time."""
    rng = random.Random(0)
    sizes = []
    for _ in range(count):
        side, aspect = low * (high / low) ** rng.random(), 2 ** rng.uniform(-0.5, 0.5)
        sizes.append((round(side * aspect / LEAF) * LEAF, round(side / aspect / LEAF) * LEAF))
    return tuple(sizes)


# ------------------------------------------------------------------------------------------------------------- the run


def cases(options: argparse.Namespace, image: str, sizes: tuple[Size, ...]) -> list[Case]:
    ways = [(v, r) for v in options.variants for r in (options.relevance if v in OURS else ["-"])]
    return [Case(variant, relevance, image, sizes, options.budget) for variant, relevance in ways]


def measure_all(console: Console, options: argparse.Namespace) -> list[dict[str, Any]]:
    import transformers

    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    processor = make_processor()
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    low, high = (128, 256) if options.tiny else (640, 2048)
    rows: list[dict[str, Any]] = []
    for shape in options.models:
        model = make_model(shape, processor.tokenizer, options.device, dtype)
        shows = [(str(side), ((side, side),) * b) for side, b in product(options.sides, options.batches)]
        if options.requests:
            shows += [("mixed", mixed_sizes(b, low, high)) for b in options.batches if b > 1]
        works = [(image, sizes, measure) for image, sizes in shows]
        if options.requests:
            works.append(("one by one", mixed_sizes(options.requests, low, high), measure_requests))
        for (image, sizes, work), mode in product(works, options.modes):
            batch = 1 if work is measure_requests else len(sizes)
            here: list[dict[str, Any]] = []
            for case in cases(options, image, sizes):
                if mode != "eager" and (case.variant == "post" or len(set(sizes)) > 1):
                    continue  # no one shape known beforehand
                try:
                    found = work(model, processor, case, mode, options)
                except torch.OutOfMemoryError:
                    console.print(f"{shape}, {batch} x {image}, {case.name}: does not fit on this device")
                    continue
                about = {
                    "run": started,
                    "date": started[:10],
                    "gpu": machine,
                    "torch": torch.__version__,
                    "transformers": transformers.__version__,
                    "python": platform.python_version(),
                    "model": shape,
                    "mode": mode,
                    "image": image,
                    "batch": batch,
                    "variant": case.variant,
                    "relevance": case.relevance,
                    "budget": options.budget,
                    "new_tokens": options.new_tokens,
                }
                here.append(about | found)
            if not here:
                continue
            console.print(table_of(f"{shape}, {batch} x {image}, {mode}", here))
            rows += here
            append(here, options.results)  # a run that is cut short has what it measured
        del model
    return rows


COLUMNS = ["run", "date", "gpu", "torch", "transformers", "python", "model", "mode", "image", "batch", "variant"]
COLUMNS += ["relevance", "budget", "new_tokens", "requests", "tokens", "length", "padding", "ttft_ms", "ttft_p99_ms"]
COLUMNS += [f"{name}_ms" for name in PARTS] + ["decode_tokens_s", "peak_gib"]


def table_of(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    shown = [
        "tokens",
        "ttft_ms",
        "ttft_p99_ms",
        *(f"{name}_ms" for name in PARTS),
        "decode_tokens_s",
        "peak_gib",
        "padding",
    ]
    shown = [column for column in shown if any(row.get(column) for row in rows)]
    table = Table("", *(name.removesuffix("_ms") for name in shown), "times faster", title=title, box=None)
    stock = next((float(row["ttft_ms"]) for row in rows if row["variant"] == "stock"), None)
    for row in rows:
        name = row["variant"] if row["relevance"] == "-" else f"{row['variant']}, {row['relevance']}"
        ratio = "" if stock is None else f"{stock / float(row['ttft_ms']):.1f}"
        table.add_row(name, *(str(row.get(column, "")) for column in shown), ratio)
    return table


def append(rows: Sequence[dict[str, Any]], results: Path) -> None:
    results.parent.mkdir(exist_ok=True)
    fresh = not results.exists()
    with results.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["8B"], choices=["8B", "4B", "2B"])
    parser.add_argument("--sides", nargs="*", type=int, default=[1024, 2048], help="sides of square images")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument(
        "--variants", nargs="+", default=["stock", "max_pixels", *OURS], choices=["stock", "max_pixels", *OURS]
    )
    parser.add_argument("--relevance", nargs="+", default=["uniform", "coarse-pass"])
    parser.add_argument("--modes", nargs="+", default=["eager"], choices=list(MODES))
    parser.add_argument("--budget", type=int, default=273)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=100, help="images of mixed sizes, one by one; 0 for none")
    parser.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        help="how long to repeat a pass; thrice, if that takes no ten times as long",
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    parser.add_argument("--tiny", action="store_true", help="a tiny model, on the CPU where there is no GPU")
    parser.add_argument("--plot", action="store_true", help="draw the results file, measure nothing")
    options = parser.parse_args(arguments)
    if options.plot:
        from bench.qwen_figure import draw

        draw(options.results, options.figure, "tiny" if options.tiny else options.models[0])
        return
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.tiny:
        options.models, options.sides, options.batches = ["tiny"], [s // 8 for s in options.sides], [1, 3]
        options.budget, options.new_tokens, options.seconds = 16, 3, 0.1
        options.requests = min(options.requests, 4)
        if options.results == RESULTS:
            parser.error("--tiny measures nothing worth keeping: say where with --results")
    elif options.device == "cpu":
        parser.error("these shapes are measured on a CUDA device, and there is none here (--tiny and --plot need none)")
    measure_all(announce(options.device, width=140), options)


if __name__ == "__main__":
    main()
