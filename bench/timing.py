"""Medians of repeated runs, on the CPU or on a CUDA device, and a line that says where they were taken."""

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console


def median_ms(run: Callable[[], object], device: str = "cpu", repeats: int = 15, warmup: int = 3) -> float:
    """The median time of `run` in milliseconds; on a GPU the device is waited for before and after."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for i in range(warmup + repeats):
        wait()
        start = time.perf_counter()
        run()
        wait()
        if i >= warmup:
            times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def graph_ms(run: Callable[[], object], repeats: int = 50) -> float:
    """The median time of one replay of `run` captured as a CUDA graph: the device's work without launch gaps."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(repeats):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def cold_ms(run: Callable[[], object], repeats: int = 30, graph: bool = True) -> float:
    """The median time on the device alone, with nothing of the last run left in its caches.

    Captured as a CUDA graph, so that launching costs nothing; `graph=False` for what cannot be: the launches then hide
    behind the clearing of the cache, which is done several times over to take longer than they do.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    launch = run
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()
        launch = captured.replay
    other = torch.ones(
        1 << 27, device="cuda"
    )  # half a gigabyte, many times any L2; read, so that nothing is left to write
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, stop in events:
        for _ in range(1 if graph else 8):
            other.sum()
        start.record()
        launch()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in events)


def where(device: str) -> str:
    """Device, versions and date of a measurement."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    today = datetime.date.today().isoformat()
    return f"{name}; torch {torch.__version__}, Python {platform.python_version()}; {today}"


def announce(device: str = "cpu", width: int | None = None) -> Console:
    """A console that has said where the figures are taken, and whether somebody else is using the machine."""
    console = Console(width=width)
    console.print(where(device), highlight=False)
    if (load := os.getloadavg()[0]) > 0.5:
        console.print(f"load average {load:.1f}: something else is running, and times will wander", style="bold")
    return console
