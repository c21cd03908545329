"""Qwen3-VL and Qwen2.5-VL on a fixed visual budget: `patch(model, processor)` changes one model and one processor."""

from homunculus.integrations.qwen_vl.checking import PatchError
from homunculus.integrations.qwen_vl.graphs import FirstToken, FirstTokens
from homunculus.integrations.qwen_vl.layout import on_image, to_original
from homunculus.integrations.qwen_vl.patching import Session, patch, unpatch
from homunculus.integrations.qwen_vl.plan import Looking, Plan

__all__ = [
    "FirstToken",
    "FirstTokens",
    "Looking",
    "PatchError",
    "Plan",
    "Session",
    "on_image",
    "patch",
    "to_original",
    "unpatch",
]
