"""Kernels and bytes of the bench models' training steps on a GPU, counted without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("transformers")
pytest.importorskip("torchvision")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "gpu"))
import traffic

from braze.inductor.loops import Kernel

# most kernels, most GB that kernels move, most GB that the backward keeps
LIMITS = {
    "resnet50": (430, 15.8, 2.1),
    "bert": (200, 7.1, 1.2),
    "hybrid": (162, 8.7, 1.43),
    "unet": (245, 7.2, 0.5),
}


@pytest.mark.parametrize("name", LIMITS)
def test_kernels_and_bytes(name: str) -> None:
    most, gigabytes, kept = LIMITS[name]
    programs, saved = traffic.programs(name, "bf16")
    kernels = [s for p in programs for s in p.steps if isinstance(s, Kernel)]
    moved = sum(map(traffic.nbytes, kernels))
    assert len(kernels) <= most
    assert moved <= gigabytes * 1e9
    assert saved <= kept * 1e9
