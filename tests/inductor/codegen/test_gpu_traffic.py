"""Kernels and bytes of the bench models' training steps on a GPU, counted without one, and each kernel compiled."""

from __future__ import annotations

import sys
from pathlib import Path

import cuda_typed
import pytest

pytest.importorskip("triton")
pytest.importorskip("transformers")
pytest.importorskip("torchvision")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "gpu"))
import traffic

from braze.inductor.codegen.triton_emit import emit_triton
from braze.inductor.loops import Kernel

# batch, most kernels, most GB that kernels move, most GB that the backward keeps
LIMITS = {"resnet50": (64, 430, 15.8, 2.1), "bert": (32, 305, 11.1, 1.95), "hybrid": (64, 190, 12.8, 2.25)}


@pytest.mark.parametrize("name", LIMITS)
def test_kernels_and_bytes(name: str) -> None:
    cuda_typed.enable()
    batch, most, gigabytes, kept = LIMITS[name]
    programs, saved = traffic.programs(name, "full", batch, "bf16")
    kernels = [s for p in programs for s in p.steps if isinstance(s, Kernel)]
    assert len(kernels) <= most
    assert sum(map(traffic.nbytes, kernels)) <= gigabytes * 1e9
    assert saved <= kept * 1e9


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LIMITS)
def test_every_kernel_compiles(name: str) -> None:
    cuda_typed.enable()
    programs, _ = traffic.programs(name, "full", LIMITS[name][0], "bf16")
    codes = {emit_triton(s).code: None for p in programs for s in p.steps if isinstance(s, Kernel)}
    assert traffic.failures(list(codes), "cuda:90") == []
