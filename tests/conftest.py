"""Hypothesis profiles and the GPU marker.

`ci` (the default) is derandomised; `dev` draws anew each time; `deep` is the large run of `make test-deep`.
"""

import pytest
import torch
from hypothesis import HealthCheck, settings

quiet = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("ci", max_examples=100, derandomize=True, database=None, **quiet)
settings.register_profile("dev", max_examples=100, **quiet)
settings.register_profile("deep", max_examples=2_500, database=None, **quiet)
settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
