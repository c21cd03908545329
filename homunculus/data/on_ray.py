"""The same shards written on Ray Data: on this machine, or on every machine of a cluster that sees the folder.

The rows of the data set are numbers of shards, and writing one is the map. Ray's own parquet writer would name and
order the files by what ran when; ours are the same files as without Ray, and as resumable.
"""

import logging
from pathlib import Path
from typing import Any

from homunculus.data.files import Advance, Plan, write_shard
from homunculus.errors import DataError


def write_shards(plan: Plan, out: Path, numbers: list[int], workers: int | None, advance: Advance) -> None:
    """Write the shards with these numbers, `workers` at a time or as many as the cluster has cores.

    Joins the cluster of RAY_ADDRESS, or the one in use; without either Ray starts on this machine.
    """
    if not numbers:
        return
    try:
        import ray
    except ImportError:
        raise DataError("the engine ray needs Ray Data: pip install 'homunculus[scale]'") from None
    mine = not ray.is_initialized()
    if mine:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        _run(ray, plan, out.absolute(), numbers, workers, advance)
    finally:
        if mine:
            ray.shutdown()


def _run(ray: Any, plan: Plan, out: Path, numbers: list[int], workers: int | None, advance: Advance) -> None:
    def make(batch: dict[str, Any]) -> dict[str, Any]:
        (place,) = batch["id"].tolist()
        write_shard(plan, out, numbers[place], lambda records: None)
        batch["records"] = batch["id"] * 0 + len(plan.indices(numbers[place]))
        return batch

    ray.data.DataContext.get_current().enable_progress_bars = False  # ours shows records
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    places = ray.data.range(len(numbers), override_num_blocks=len(numbers))
    written = places.map_batches(make, batch_size=1, concurrency=workers)
    for row in written.iter_rows():
        advance(row["records"])
