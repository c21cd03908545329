"""Where figures come from: the device, the versions and the day."""

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
