"""How fast each stage of training goes on this machine, and what it waits for.

    python -m bench.train                    the recipe we ship, a few dozen steps of each stage (a GPU)
    python -m bench.train --profile          and the kernels that take longest
    python -m bench.train --preset tiny      seconds on a CPU: tries the benchmark, measures nothing

Nothing is learned: weights are random, so relevance and reading cost what they cost and mean nothing. A stage is shown
what its curriculum shows at the beginning, in the middle and at the end.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch

from bench.timing import announce
from homunculus.model.vlm import CompactVLM
from homunculus.train.compiling import compiled
from homunculus.train.recipe import RECIPES, Stage, make_pool, stage_loss


def measure(stage: Stage, model: CompactVLM, pool: Any, options: argparse.Namespace) -> dict[str, float]:
    """Steps and samples a second, after warming up; how long a step waits for images; the most memory in use."""
    loss, trained = stage_loss(stage, model, [pool], 0)
    wait = torch.cuda.synchronize if model.device.type == "cuda" else (lambda: None)
    optimiser = torch.optim.AdamW(trained, lr=0.0, fused=True)
    last = stage.settings.steps
    spread = [int((i + 0.5) / options.steps * last) for i in range(options.steps)]  # over the whole curriculum

    def run(step: int) -> float:
        with torch.autocast("cuda", torch.bfloat16, enabled=model.device.type == "cuda"):
            value, about = loss(step)
        value.backward()
        optimiser.step()
        optimiser.zero_grad()
        return float(about["samples"])

    with compiled(loss.parts, loss.fixed, model.device):
        for step in spread:  # compiles whatever comes up
            run(step)
        wait()
        before, start = pool.waited, time.perf_counter()
        samples = sum(run(step) for step in spread)
        wait()
        seconds = time.perf_counter() - start
        if options.profile:
            show_kernels(lambda: [run(step) for step in spread])
    peak = torch.cuda.max_memory_allocated() / 2**30 if model.device.type == "cuda" else float("nan")
    return {
        "steps/s": len(spread) / seconds,
        "samples/s": samples / seconds,
        "waiting for images": (pool.waited - before) / seconds,
        "peak, GiB": peak,
    }


def show_kernels(run: Any) -> None:
    with torch.profiler.profile() as profile:
        run()
    by = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    print(profile.key_averages().table(sort_by=by, row_limit=25, max_name_column_width=80))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small", choices=list(RECIPES))
    parser.add_argument("--stages", nargs="+", help="only these")
    parser.add_argument("--steps", type=int, default=24, help="of each stage, spread over its curriculum")
    parser.add_argument("--capacity", type=int, help="images in the pool; the recipe's by default")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw images")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args(arguments)
    recipe = RECIPES[options.preset]()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    console = announce(device, width=120)
    torch.manual_seed(0)
    model = CompactVLM(recipe.config).to(device)
    capacity = options.capacity or recipe.capacity
    start = time.perf_counter()
    with make_pool(recipe, recipe.sizes[0], device, options.workers, capacity=capacity) as pool:
        pool.fill()
        console.print(f"{capacity} images drawn in {time.perf_counter() - start:.1f} s, workers started")
        for stage in recipe.stages:
            if options.stages and stage.name not in options.stages:
                continue
            found = measure(stage, model, pool, options)  # told at once: compiling the next may take a minute
            console.print(f"{stage.name:<10}" + "".join(f"{name} {value:<12.2f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
