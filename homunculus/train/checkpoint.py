"""What a run goes on from: checkpoints, each one file of safetensors, so that one rename makes it.

It is written beside its place, flushed to the disk, renamed, and the folder flushed. Its header carries a checksum of
everything in it. Two are kept: if the newer is damaged, the one before is used, and says so.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from homunculus.cache.keys import content_key
from homunculus.errors import HomunculusError, ModelError, OutputError
from homunculus.model.weights import on_disk
from homunculus.train.processes import like, whole

KEPT = 2


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state to go on from, on the CPU."""

    model: dict[str, Tensor]
    optimiser: dict[str, Tensor]
    meta: dict[str, Any]


def save(folder: Path, model: Mapping[str, Tensor], optimiser: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Path:
    """Write the checkpoint of step meta["step"], whole or not at all, and remove all but the last two.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = save(Path(folder), {"weight": torch.ones(2)}, {"weight/step": torch.tensor(7.0)}, {"step": 7})
    ...     again = load(Path(folder))
    >>> path.name, again.meta, again.model, again.optimiser
    ('step-00000007.safetensors', {'step': 7}, {'weight': tensor([1., 1.])}, {'weight/step': tensor(7.)})
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{meta['step']:08d}.safetensors"
    tensors = {f"model.{name}": _apart(value) for name, value in model.items()}
    tensors |= {f"optimiser.{name}": _apart(value) for name, value in optimiser.items()}
    _write(path, tensors, json.dumps(meta, sort_keys=True))
    newest = _checkpoints(folder)
    for old in [*newest[KEPT:], *folder.glob("*.part")]:
        old.unlink(missing_ok=True)
    return path


def load(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None where there is none yet. Each damaged one is named on stderr."""
    found = _checkpoints(folder)
    for path in found:
        try:
            tensors, meta = _read(path)
        except (SafetensorError, OSError) as error:
            print(f"{path} is damaged ({error}): the checkpoint before it is used", file=sys.stderr, flush=True)
            continue
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimiser": {}}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        return Checkpoint(parts["model"], parts["optimiser"], json.loads(meta))
    if found:
        raise HomunculusError(f"every checkpoint in {folder} is damaged: remove the folder to start anew")
    return None


def named_state(module: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers of a module by name, each whole; whether it was compiled does not show.

    >>> sorted(named_state(nn.Linear(2, 1)))
    ['bias', 'weight']
    """
    return {plain(name): whole(value).detach() for name, value in module.state_dict().items()}


def plain(name: str) -> str:
    """The name of a parameter without what torch.compile puts in."""
    return name.replace("_orig_mod.", "")


def put_weights(module: nn.Module, tensors: Mapping[str, Tensor], source: str | os.PathLike) -> None:
    """Give a module the weights that were read from `source`, all of them or an error that says what does not fit.

    >>> layer = nn.Linear(2, 1)
    >>> put_weights(layer, {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, "example")
    >>> layer(torch.ones(1, 2)).item()
    2.0
    """
    targets = {plain(name): value for name, value in module.state_dict().items()}
    for name in sorted(set(targets) ^ set(tensors)):
        what = "lacks" if name in targets else "has"
        raise ModelError(f"{source} {what} '{name}' and the model does not fit it: build it from the same config")
    for name, target in targets.items():
        if target.shape != tensors[name].shape:
            shapes = f"{list(tensors[name].shape)} in {source} and {list(target.shape)} in the model"
            raise ModelError(f"'{name}' is {shapes}: build the model from the same config")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(like(target, tensors[name]))


def _checkpoints(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((p for p in folder.glob("step-*.safetensors") if re.fullmatch(r"step-\d+", p.stem)), reverse=True)


def _apart(value: Tensor) -> Tensor:
    """On the CPU and sharing memory with no other, as a file of tensors wants it."""
    return value.detach().to("cpu", copy=True).contiguous()


def _checksum(tensors: Mapping[str, Tensor], meta: str) -> str:
    return content_key(meta, *(part for name in sorted(tensors) for part in (name, tensors[name])))


def _write(path: Path, tensors: dict[str, Tensor], meta: str) -> None:
    header = {"meta": meta, "checksum": _checksum(tensors, meta)}
    replace_file(path, lambda beside: save_file(tensors, beside, metadata=header))


def _read(path: Path) -> tuple[dict[str, Tensor], str]:
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    meta = header.get("meta", "")
    if _checksum(tensors, meta) != header.get("checksum"):
        raise SafetensorError("its contents do not match its checksum")
    return tensors, meta


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Write beside the place, to the disk, then rename: at every moment the old file is there or the new one."""
    beside = path.with_name(f"{path.name}.part")
    try:
        write(beside)
        on_disk(beside)
        os.replace(beside, path)
        on_disk(path.parent)
    except (SafetensorError, OSError) as error:
        beside.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path} ({error}): make room or write elsewhere with --out") from None
