"""Where figures come from: the device, the versions and the day, and how many share it."""

import os
import platform
from datetime import date

import torch


def surroundings(device: torch.device) -> dict[str, str]:
    """What a figure must come with.

    >>> list(surroundings(torch.device("cpu")))
    ['device', 'torch', 'python', 'date']
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return {
        "device": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": date.today().isoformat(),
    }


def sharing(device: torch.device) -> int:
    """How many processes of this machine compute where this one does.

    >>> sharing(torch.device("cpu"))
    1
    """
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return -(-here // max(1, torch.cuda.device_count())) if device.type == "cuda" else here
