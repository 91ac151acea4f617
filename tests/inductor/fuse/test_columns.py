"""Column sums in the kernel that walks the rows: when, how often a tensor is read, and that the values are right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from programs import check, fused, graphs, kernels, sample

from braze.config import Config
from braze.inductor.codegen import compile_program
from braze.inductor.fuse import CPU
from braze.inductor.loops import Program, Store
from braze.ir import interpret

OFF = replace(CPU, fold_rows=0)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def bias_gelu(x: Any, b: Any) -> Any:
    return F.gelu(x + b)


def residual(x: Any, y: Any, w: Any, b: Any) -> Any:
    return layer_norm(x + y, w, b) * 2


def shapes(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.rand(s) for s in sizes]


def sums(program: Program) -> int:
    return sum(isinstance(i, Store) and i.mode == "sum" for k in kernels(program) for i in k.body)


CASES = {
    "layer norm": (layer_norm, ((8, 96, 80), (80,), (80,)), 2),
    "layer norm, one row axis": (layer_norm, ((1000, 48), (48,), (48,)), 2),
    "layer norm, prime rows": (layer_norm, ((8, 197, 64), (64,), (64,)), 2),
    "residual": (residual, ((4, 64, 64), (4, 64, 64), (64,), (64,)), 2),
    "bias and gelu": (bias_gelu, ((4, 64, 640), (640,)), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_values(case: str) -> None:
    """Interpreted and compiled: the same as without the pass."""
    fn, sizes, parts = CASES[case]
    _, graph = graphs(fn, shapes(*sizes))
    program = fused(graph, CPU)
    assert sums(program) == parts
    inputs = sample(graph)
    check(graph, program, inputs, rtol=2e-5)
    want = interpret(graph, [t.double() if t.is_floating_point() else t for t in inputs])
    got = compile_program(program, Config(threads=2))(inputs)
    for w, g in zip(want, got):
        torch.testing.assert_close(g.double(), w, rtol=1e-5, atol=1e-4)


def test_each_tensor_is_read_by_one_kernel() -> None:
    _, graph = graphs(layer_norm, shapes((8, 96, 80), (80,), (80,)))
    big = [b for k in kernels(fused(graph, CPU)) for b in k.reads if b.type.numel == 8 * 96 * 80]
    assert len(big) == len(set(big)) == 2
    again = [b for k in kernels(fused(graph, OFF)) for b in k.reads if b.type.numel == 8 * 96 * 80]
    assert len(again) > 2


@pytest.mark.parametrize("sizes", [((1009, 64), (64,), (64,)), ((16, 64), (64,), (64,)), ((256, 8), (8,), (8,))])
def test_not_where_rows_do_not_divide_or_are_few_or_short(sizes: Any) -> None:
    _, graph = graphs(layer_norm, shapes(*sizes))
    program = fused(graph, CPU)
    assert sums(program) == 0
    check(graph, program, sample(graph))


def test_a_sum_that_feeds_the_rows_stays_apart() -> None:
    """Batch norm over rows: the sums are needed before the rows' kernel can run."""

    def fn(x: Any, w: Any, b: Any) -> Any:
        return F.batch_norm(x, None, None, w, b, training=True)

    _, graph = graphs(fn, shapes((512, 64), (64,), (64,)))
    check(graph, fused(graph, CPU), sample(graph), rtol=1e-4)


def test_accuracy_on_many_rows() -> None:
    """As accurate as eager's sums, against float64."""
    torch.manual_seed(0)
    _, graph = graphs(bias_gelu, shapes((1 << 13, 640), (640,)))
    inputs = [torch.randn(n.val.sizes) + 3 for n in graph.inputs]
    want = interpret(graph, [t.double() for t in inputs])
    eager = interpret(graph, inputs)
    got = compile_program(fused(graph, CPU), Config())(inputs)
    for w, e, g in zip(want, eager, got):
        scale = w.abs().max()
        assert (g - w).abs().max() / scale <= 2 * (e - w).abs().max() / scale + 1e-7
