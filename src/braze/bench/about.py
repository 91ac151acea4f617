"""Versions and hardware, for results and bug reports."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import Any

import torch


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
