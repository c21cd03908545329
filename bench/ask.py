"""How long `homunculus ask` takes from a fresh process: until the model is loaded, and for an answer after that.

    python -m bench.ask
    python -m bench.ask --side 4096 --weights DIR --threads 2

Each round is a new process: loading is everything from its start, Python and its imports included, until the model can
be asked; the answer is the first one, from pixels to text. The page is drawn by us and in memory by then.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

from rich.table import Table

from bench.timing import announce

QUESTION = "What is the total?"
ROUND = """
import sys, time
started, side, weights = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None
from pathlib import Path
from homunculus.cli.ask import load
from homunculus.model.answer import answer
model = load(weights and Path(weights))
loaded = time.time()
import torch
from homunculus.data import make
page = torch.from_numpy(make("documents", "test-iid", 1, size=(side, side)).image).permute(2, 0, 1)
began = time.perf_counter()
answer(model, page, sys.argv[4])
print(loaded - started, time.perf_counter() - began, torch.get_num_threads())
"""


def one_round(side: int, weights: str, threads: int | None) -> tuple[float, float, int]:
    """Seconds to load, seconds to answer, and the threads that answered, of one new process."""
    environment = os.environ | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    command = [sys.executable, "-c", ROUND, str(time.time()), str(side), weights, QUESTION]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1]
        sys.exit(f"error: {said.split('Error: ', 1)[-1]}")  # what it says, without where it was
    loaded, answered, used = done.stdout.split()
    return float(loaded), float(answered), int(used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=1024, help="of the page, in pixels")
    parser.add_argument("--weights", default="", help="a folder; the shipped ones by default")
    parser.add_argument("--threads", type=int, help="half of the cores by default, as `homunculus ask` does")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    console = announce()
    one_round(asked.side, asked.weights, asked.threads)  # files come from the disk once
    rounds = [one_round(asked.side, asked.weights, asked.threads) for _ in range(asked.rounds)]
    loads, answers, threads = zip(*rounds, strict=True)
    table = Table("seconds", "median", "least", "most", box=None)
    table.title = f"a page of {asked.side} x {asked.side}, {threads[0]} threads, {asked.rounds} rounds"
    for name, seconds in (("load, from the start of Python", loads), ("answer", answers)):
        table.add_row(name, *(f"{of(seconds):.2f}" for of in (statistics.median, min, max)))
    console.print(table)


if __name__ == "__main__":
    main()
