"""Torch's operator samples through the loops: lowered, fused and planned programs mean what the primitives mean."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

sys.path.insert(0, str(Path(__file__).parents[2] / "prims"))
from opinfo import TABLE, Case, samples  # noqa: E402

from braze.errors import Unsupported  # noqa: E402
from braze.inductor.fuse import CPU, CUDA, fuse, plan  # noqa: E402
from braze.inductor.loops import (  # noqa: E402
    Kernel,
    Program,
    canonical,
    interpret_program,
    lower,
    verify_kernel,
    verify_program,
)
from braze.ir import Graph, interpret  # noqa: E402
from braze.prims import decompose  # noqa: E402

NAMES = sorted(TABLE)
# float32 -> 16 bits -> float32 is not rounded inside a kernel: closer to the truth than eager, not equal to it.
ROUNDS = ("bfloat16", "half")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


def agree(graph: Graph, program: Program, inputs: list[torch.Tensor], tolerance: float) -> None:
    want = tree_flatten(interpret(graph, inputs))[0]
    got = tree_flatten(interpret_program(program, inputs))[0]
    for w, g, node in zip(want, got, tree_flatten(graph.outputs)[0]):
        if not isinstance(w, torch.Tensor):
            continue
        torch.testing.assert_close(g, w, rtol=10 * tolerance, atol=tolerance, equal_nan=True)
        if w.numel() > 1 and hasattr(node, "val"):
            strides = zip(g.shape, g.stride(), node.val.strides)
            assert all(n == 1 or a == b for n, a, b in strides), (g.stride(), node.val)


def run(name: str, dtype: torch.dtype, limit: int, backward: bool) -> None:
    op: Any = TABLE[name]
    if dtype not in (op.backward_dtypes if backward else op.dtypes) or (backward and not op.supports_autograd):
        return
    for sample in samples(op, dtype, limit):
        case = Case(op, sample, backward)
        if any(x.layout != torch.strided or x.is_quantized for x in case.inputs):
            continue
        found = case.traced()
        if isinstance(found, str):
            continue
        try:
            graph = decompose(found[0])
        except Unsupported:
            continue
        lowered = verify_program(lower(graph))
        for traits in (CPU, CUDA):
            program = verify_program(plan(verify_program(fuse(lowered, traits))))
            for k in program.steps:
                if isinstance(k, Kernel):
                    verify_kernel(canonical(k).kernel)
            agree(graph, program, case.inputs, TOLERANCE[dtype])


@pytest.mark.parametrize("name", NAMES[::12])
def test_some_operators(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(name, torch.float32, 2, False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, backward", [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)])
def test_all_operators(dtype: torch.dtype, backward: bool) -> None:
    failed = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            try:
                run(name, dtype, 4, backward and name not in ROUNDS)
            except AssertionError as e:
                failed.append(f"{name}: {e}")
    assert not failed, "\n".join(failed)
