"""A Qwen-VL model and its processor, from the hub or a folder: for images and text, so torchvision is not needed."""

import os
import re
from pathlib import Path
from typing import Any

import torch

from homunculus.errors import HomunculusError

EXAMPLE = "Qwen/Qwen3-VL-8B-Instruct"
PROCESSORS = {  # by the model_type of a config.json
    "qwen3_vl": "Qwen3VLProcessor",
    "qwen3_vl_moe": "Qwen3VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
}


class LoadError(HomunculusError):
    """A model that cannot be loaded: a library is missing, or its files cannot be had, or it is of another kind."""


def load(
    name: str | Path, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> tuple[Any, Any]:
    """The model and the processor called `name`, a hub id or a folder, ready to `patch` and to generate.

    `device` is by default the first CUDA device if there is one, `dtype` bfloat16 there and float32 on a CPU.
    """
    transformers = import_transformers()
    name = str(name)
    if _is_path(name):
        name = str(Path(name).expanduser())
        if not Path(name).is_dir():
            raise LoadError(f"there is no folder {name}: give one that has a model, or a hub id such as {EXAMPLE}")
    kind = model_type(name)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    try:
        processor = images_only(getattr(transformers, PROCESSORS[kind])).from_pretrained(name)
        model = transformers.AutoModelForImageTextToText.from_pretrained(name, dtype=dtype)
    except OSError as error:
        raise LoadError(cannot_fetch(name, error)) from None
    processor.tokenizer.padding_side = "left"  # answers continue the prompts of a batch
    return model.to(device).eval(), processor


def import_transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise LoadError("Qwen-VL models come through transformers: pip install 'homunculus[hf]'") from None
    if tuple(map(int, re.findall(r"\d+", transformers.__version__)[:2])) < (5, 17):
        raise LoadError(f"transformers {transformers.__version__} is too old: pip install 'transformers>=5.17'")
    return transformers


def model_type(name: str) -> str:
    """What the config says the model is, if it is one that can be patched."""
    from transformers import AutoConfig

    supported = f"give a Qwen3-VL or Qwen2.5-VL, such as {EXAMPLE}"
    try:
        kind = AutoConfig.from_pretrained(name, trust_remote_code=False).model_type
    except OSError as error:
        raise LoadError(cannot_fetch(name, error)) from None
    except ValueError as error:  # no config, one of no known model, or one that wants code of its own
        raise LoadError(f"{name} has no config.json of a known model ({_first_sentence(error)}): {supported}") from None
    if kind not in PROCESSORS:
        raise LoadError(f"{name} is a model of type '{kind}': {supported}")
    return kind


def images_only(kind: Any) -> Any:
    """The processor class without its video processor, which wants torchvision and files that not every folder has."""

    def get_attributes(cls: type) -> list[str]:
        return [name for name in kind.get_attributes.__func__(cls) if name != "video_processor"]

    return type(kind.__name__, (kind,), {"get_attributes": classmethod(get_attributes)})


def cannot_fetch(name: str, error: Exception) -> str:
    if Path(name).is_dir():
        return f"the folder {name} is not a whole model ({_first_sentence(error)}): download it again"
    offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
    return (
        f"cannot fetch {name} ({_first_sentence(error)}){offline}: check its name and your connection, "
        "log in for a gated model, or give a local folder that has its weights"
    )


def _is_path(name: str) -> bool:
    """Whether this can only be a folder: a hub id is a name, or two with a slash between."""
    return Path(name).is_dir() or name[:1] in "./~" or name.count("/") > 1 or "\\" in name


def _first_sentence(error: Exception) -> str:
    return " ".join(str(error).split()).split(". ")[0].rstrip(".")
