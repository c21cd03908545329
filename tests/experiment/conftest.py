"""What tests of evaluations share: a tiny model, and questions about three small scenes."""

import pytest
import torch

from homunculus.eval import drawing
from homunculus.eval.drawing import EACH, to_ask
from homunculus.eval.plans import Plan
from homunculus.model.config import tiny
from homunculus.model.vlm import CompactVLM

SMALL = {"size": (256, 256), "how": {"longest": 4}}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return CompactVLM(tiny()).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def asked():
    plan = Plan("scenes", **SMALL)
    return [one for i in range(3) for one in to_ask(plan.keys(i, EACH), drawing._draw(plan.pictures, i, True))]
