"""Each test runs for both families of models."""

from typing import Any

import pytest

from tests.qwen.tiny import make_model, make_processor


@pytest.fixture(params=["qwen3", "qwen2.5"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pair(family: str) -> tuple[Any, Any]:
    """A model and its processor, unpatched."""
    processor = make_processor(family)
    return make_model(processor), processor
