"""Qwen3-VL and Qwen2.5-VL on a fixed visual budget: `patch(model, processor)` changes one model and one processor."""

from homunculus.integrations.qwen_vl.patching import Session, patch, unpatch
from homunculus.integrations.qwen_vl.plan import Looking, Plan

__all__ = ["Looking", "Plan", "Session", "patch", "unpatch"]
