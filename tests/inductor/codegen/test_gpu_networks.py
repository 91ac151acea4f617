"""Every kernel of whole networks compiles for cards that are not there, and could be launched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("transformers")
pytest.importorskip("torchvision")
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "gpu"))

import compiles
from networks import NETWORKS

from braze.ir import tensor_type

SMALL = [("resnet50", "training"), ("bert", "dynamic"), ("hybrid", "step")]
FULL = [(n, k) for n in NETWORKS for k in compiles.KINDS if (n, k) != ("llama-decode", "step")]


@pytest.mark.parametrize("name, kind", SMALL)
def test_small_networks(name: str, kind: str) -> None:
    """All kernels through Triton's front end and its GPU passes, where it refuses what it refuses; a few to the end."""
    kernels = compiles.kernels_of(compiles.KINDS[kind](name, True))
    assert len(kernels) > 30
    assert any(len(k.signature) > k.pointers for k in kernels) == (kind == "dynamic")
    assert not compiles.refusals(kernels, "cuda:90", "ttgir")
    found = compiles.audit(kernels[::12], "cuda:90")
    assert not found.bad
    assert 0 < found.registers <= 255 and found.shared <= 32768


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", compiles.MOST_SHARED)
@pytest.mark.parametrize("name, kind", FULL)
def test_networks(name: str, kind: str, target: str) -> None:
    assert not compiles.audit(compiles.kernels_of(compiles.KINDS[kind](name)), target).bad


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["resnet50", "bert", "hybrid"])
def test_every_launch_that_tuning_may_choose(name: str) -> None:
    kernels = compiles.kernels_of(compiles.KINDS["training"](name), candidates=True)
    assert not compiles.audit(kernels, "cuda:90").bad


def test_offsets_beyond_31_bits() -> None:
    """A tensor of more than 2**31 elements is walked in 64 bits, in every kind of kernel."""
    from braze.autograd import trace_joint

    def big(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, -1), x.t().contiguous(), x.sum(0), x.relu()

    types = [tensor_type((1 << 20, 4096), torch.bfloat16, torch.device("cuda", 0))]
    graph = trace_joint(big, types).graph
    program = compiles.program_of(graph)
    large = [s for s in program.steps if any(int(b.type.numel) > 2**31 for b in (*s.reads, *s.writes))]
    kernels = [compiles.emit_triton(s).code for s in large]
    assert len(kernels) > 1 and all("tl.int64" in k.source for k in kernels)
    assert not compiles.refusals(kernels, "cuda:90", "ttgir")
