"""Versions and hardware, for results and bug reports."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from braze.report.machine import processor


def clock(device: str) -> float:
    """The clock in MHz now: the GPU's, or the mean of the cores'; 0 where the machine does not tell."""
    try:
        if device == "cuda":
            return float(torch.cuda.clock_rate())
        found = [float(line.split(":")[1]) for line in _cpuinfo() if line.startswith("cpu MHz")]
        return sum(found) / len(found) if found else 0.0
    except (RuntimeError, ImportError, ValueError):  # no NVML here
        return 0.0


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


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
        "processor": processor(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }
