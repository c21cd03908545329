"""Shards written by several processes of this machine, which all end with the one that started them."""

import os
import threading
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from homunculus.data.files import Advance, Plan, write_shard
from homunculus.errors import DataError

_done: Any = None  # in a worker: the count of records, shared by all of them


def write_shards(plan: Plan, out: Path, numbers: list[int], workers: int | None, advance: Advance) -> None:
    """Write the shards with these numbers, in processes of their own unless one is enough."""
    workers = min(workers or _cores(), len(numbers))
    if workers <= 1:
        for number in numbers:
            write_shard(plan, out, number, advance)
        return
    context = get_context("spawn")  # forked threads may deadlock
    done = context.Value("q", 0)
    told = 0
    try:
        with ProcessPoolExecutor(workers, context, _begin, (done,)) as pool:
            pending = {pool.submit(_write, plan, out, number) for number in numbers}
            try:
                while pending:
                    finished, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    for future in finished:
                        future.result()
                    now = done.value
                    advance(now - told)
                    told = now
            except BaseException:  # do not begin what is still waiting
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except BrokenProcessPool:
        raise DataError("a worker died, perhaps of too little memory: repeat with fewer workers") from None


def _cores() -> int:
    """Those we may use, where the system says."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(done: Any) -> None:
    global _done
    _done = done
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _write(plan: Plan, out: Path, number: int) -> None:
    write_shard(plan, out, number, _count)


def _count(records: int) -> None:
    with _done.get_lock():
        _done.value += records
