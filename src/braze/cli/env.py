"""``braze env``: versions and hardware, for a bug report."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import Any

import torch
from rich.console import Console


def about() -> dict[str, Any]:
    """Versions, processor and device as data."""
    versions = {}
    for name in ("braze", "torch", "triton", "llvmlite", "torchvision", "transformers", "timm"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "python": sys.version.split()[0],
        **versions,
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


def env() -> None:
    """Print versions and hardware."""
    console = Console()
    for key, value in about().items():
        console.print(f"{key:13} {value}")
