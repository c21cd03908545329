"""Weights in a folder: shards of safetensors small enough for any repository, the model's shape, and its vocabulary.

A folder is replaced whole or not at all: the new one is written beside it, then the old one is renamed away and the new
one into its place. A kill between the two leaves the old one as NAME.old, which is where it is looked for then.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from homunculus.errors import HomunculusError, ModelError, OutputError
from homunculus.model.calibration import Calibration
from homunculus.model.config import Config
from homunculus.model.tokenizer import Tokenizer
from homunculus.model.vlm import CompactVLM

SHIPPED = Path(__file__).parent / "shipped"
SHARD_BYTES = 15 * 2**20
HEADER_BYTES = 160  # of a file of tensors, for each of them beside its name, at most
ABOUT, VOCABULARY = "model.json", "vocabulary.json"


def save_weights(
    model: CompactVLM, folder: Path, about: Mapping[str, Any] | None = None, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write a model's weights, shape and vocabulary; `about` is kept beside them (how it was trained, calibration).

    >>> from tempfile import TemporaryDirectory
    >>> from homunculus.model.config import tiny
    >>> with TemporaryDirectory() as here:
    ...     save_weights(CompactVLM(tiny()), Path(here) / "weights", {"made": "here"})
    ...     read_about(Path(here) / "weights")["about"]
    {'made': 'here'}
    """
    shards = _shards({name: tensor.detach().to("cpu", dtype) for name, tensor in model.state_dict().items()})
    known = {"config": model.config.as_dict(), "shards": len(shards), "about": dict(about or {})}
    beside = folder.with_name(folder.name + ".new")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        for number, shard in enumerate(shards, 1):
            save_file(shard, beside / f"model-{number:05}-of-{len(shards):05}.safetensors")
        model.tokenizer.save(beside / VOCABULARY)
        (beside / ABOUT).write_text(json.dumps(known, indent=1) + "\n")
        for path in (*beside.iterdir(), beside):
            on_disk(path)
        _replace(folder, beside)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"cannot write {folder} ({error}): make room or write elsewhere with --out") from None


def _replace(folder: Path, new: Path) -> None:
    """Put a new folder in the place of another; at every moment the place or its NAME.old holds a whole one."""
    old = _old(folder)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    new.rename(folder)
    on_disk(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _old(folder: Path) -> Path:
    return folder.with_name(folder.name + ".old")


def weights_in(folder: Path) -> Path:
    """Where what was saved as this folder is: there, or where a kill between the two renames left it."""
    return _old(folder) if _old(folder).exists() and not folder.exists() else folder


def load_weights(model: nn.Module, folder: Path) -> None:
    """Put the weights of a folder into a model of their shape."""
    found = _tensors(folder)
    own = model.state_dict()
    shapes = [frozenset((name, tensor.shape) for name, tensor in tensors.items()) for tensors in (found, own)]
    if differs := sorted({name for name, _ in shapes[0] ^ shapes[1]}):
        which = f"{differs[0]} and {len(differs) - 1} more"
        raise ModelError(
            f"the weights in {folder} are of another shape ({which}): train again, or use the version that wrote them"
        )
    model.load_state_dict(found)


def load_model(folder: str | os.PathLike | None = None, device: str | torch.device = "cpu") -> CompactVLM:
    """The model of a folder, or the one that came with the package, ready to answer."""
    if folder is None and not (SHIPPED / ABOUT).exists():
        raise ModelError(
            "this installation has no weights of the compact model: give a folder with --weights, "
            "or a Qwen-VL with --model"
        )
    folder = SHIPPED if folder is None else weights_in(Path(folder))
    about = read_about(folder)
    model = CompactVLM(Config.from_dict(about["config"]), Tokenizer.load(folder / VOCABULARY))
    load_weights(model, folder)
    if "calibration" in about["about"]:
        model.calibration = Calibration(**about["about"]["calibration"])
    return model.to(device).eval().requires_grad_(False)


def read_about(folder: Path) -> dict[str, Any]:
    """What is written beside the weights: config, number of shards, about."""
    folder = weights_in(folder)
    try:
        known = json.loads((folder / ABOUT).read_text())
        known = {key: known[key] for key in ("config", "shards", "about")}
        Config.from_dict(known["config"])
        Calibration(**{name: float(value) for name, value in known["about"].get("calibration", {}).items()})
        range(known["shards"])
        return known
    except OSError:
        raise ModelError(f"{folder} has no {ABOUT}: give a folder written by `homunculus train`") from None
    except HomunculusError:  # settings that there are not, which it names itself
        raise
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
        raise ModelError(f"{folder / ABOUT} is damaged: train again or fetch the folder anew") from None


def add_about(folder: Path, facts: Mapping[str, Any]) -> None:
    """Keep more beside weights that are there, such as a calibration; what is known by the same name is replaced.

    >>> from tempfile import TemporaryDirectory
    >>> from homunculus.model.config import tiny
    >>> with TemporaryDirectory() as here:
    ...     save_weights(CompactVLM(tiny()), Path(here) / "weights", {"made": "here"})
    ...     add_about(Path(here) / "weights", {"calibration": {"slope": 0.5, "offset": -1.0}})
    ...     load_model(Path(here) / "weights").calibration, read_about(Path(here) / "weights")["about"]["made"]
    (Calibration(slope=0.5, offset=-1.0), 'here')
    """
    folder = weights_in(folder)
    known = read_about(folder)
    known["about"] = {**known["about"], **facts}
    beside = folder / (ABOUT + ".new")
    try:
        beside.write_text(json.dumps(known, indent=1) + "\n")
        on_disk(beside)
        beside.replace(folder / ABOUT)  # the old one or the new one, never half of it
        on_disk(folder)
    except OSError as error:
        raise OutputError(f"cannot write into {folder} ({error}): make room or copy it to where you may") from None


def _tensors(folder: Path) -> dict[str, Tensor]:
    folder = weights_in(folder)
    count = read_about(folder)["shards"]
    tensors: dict[str, Tensor] = {}
    for number in range(1, count + 1):
        shard = folder / f"model-{number:05}-of-{count:05}.safetensors"
        try:
            with safe_open(shard, "pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        except (OSError, SafetensorError):
            raise ModelError(f"{shard} is missing or damaged: fetch the folder anew") from None
    return tensors


def _shards(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """In the order they come, as many to a shard as fit with their names and places; a larger one has its own."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        more = tensor.nbytes + len(name) + HEADER_BYTES
        if shards[-1] and size + more > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.contiguous()
        size += more
    return shards


def on_disk(path: Path) -> None:
    """What was written to a file, or into a folder, is on the disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
