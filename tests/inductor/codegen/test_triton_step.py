"""A whole training step typed for CUDA: its kernels are of one device each, and compile for an NVIDIA card."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[2] / "fake"))

import cuda_typed  # noqa: E402

import braze  # noqa: E402
from braze.api import log_of  # noqa: E402
from braze.autograd import partition, trace_joint  # noqa: E402
from braze.autograd.hostside import split_host  # noqa: E402
from braze.inductor.codegen.triton_emit import emit_triton  # noqa: E402
from braze.inductor.fuse import fuse, plan  # noqa: E402
from braze.inductor.loops import Kernel, Program, Strided, canonical, lower, verify_program  # noqa: E402
from braze.inductor.loops.interpret import buffers_in  # noqa: E402
from braze.ir import Graph, verify  # noqa: E402
from braze.prims.decompose import decompose  # noqa: E402
from braze.runtime.cuda_compile import Pool, request  # noqa: E402


def program_of(graph: Graph) -> Program:
    verify(graph)
    return verify_program(plan(fuse(lower(decompose(graph)))))


def step_parts(make: Any) -> tuple[Program, Program]:
    """(host program, device program) of a step captured here and typed for CUDA."""
    cuda_typed.enable()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
    opt = make(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    fast = braze.compile(step, backend="eager", fullgraph=True)
    fast(torch.randn(16, 32), torch.randint(0, 8, (16,)))
    log = log_of(fast)
    assert log is not None
    graph = log.graphs[0].graph
    there = torch.device("cuda:0")
    types = [n.val.with_(device=there) if n.val.rank else n.val for n in graph.inputs]
    split = split_host(partition(trace_joint(graph, types)).forward)
    assert split is not None
    return program_of(split.host), program_of(split.device)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.RAdam(p),
    ],
    ids=["adamw", "adamw_foreach", "sgd", "radam"],
)
def test_kernels_stay_on_one_device(make: Any) -> None:
    host, device = step_parts(make)
    for program, kind in ((host, "cpu"), (device, "cuda")):
        for s in program.steps:
            buffers = [*s.reads, *s.writes] if isinstance(s, Kernel) else buffers_in((s.args, s.kwargs))
            assert {b.type.device.type for b in buffers} <= {kind}, (program.name, s)
    updated = [o for o, _ in device.overwrites if device.outputs[o] is not None]
    assert device.overwrites and not updated  # all in place
    left = [host.outputs[o] for o, _ in host.overwrites if host.outputs[o] is not None]
    assert all(isinstance(x, Strided) and x.buffer in host.inputs for x in left)  # a rate that goes over as it is


def test_the_step_compiles_for_a_card() -> None:
    _, device = step_parts(lambda p: torch.optim.AdamW(p, lr=0.01))
    kernels = {canonical(s).key: emit_triton(s).code for s in device.steps if isinstance(s, Kernel)}
    pool = Pool(2)
    try:
        for job, code in [(pool.submit(request(k, "cuda:90")), k) for k in kernels.values()]:
            answer, image = job.result(timeout=240)
            assert "error" not in answer, f"{answer['error']}\n{code.source}"
            assert image[:4] == b"\x7fELF"
    finally:
        pool.close()
