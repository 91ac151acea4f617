"""Column sums in the kernel that walks the rows: when, how often a tensor is read, and that the values are right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from programs import check, fused, graphs, kernels, sample
from random_graphs import RandomGraph

from braze.config import Config
from braze.inductor.codegen import compile_program
from braze.inductor.fuse import CPU, columns
from braze.inductor.loops import Program, Store, interpret_program
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


class Rows(RandomGraph):
    """Chains over the rows of a few tensors, with sums down their columns in between."""

    def add_input(self) -> None:
        self.inputs.append(torch.randn(12, 4, 6, dtype=self.dtype))
        self.values.append(self.g.input(f"in{len(self.inputs)}", (12, 4, 6), self.dtype))

    def columns(self) -> Any:
        x = self.pick()
        return self.g.sum(x, tuple(range(x.val.rank - 1))) if x.val.rank > 1 else x

    def rows(self) -> Any:
        x, g = self.pick(), self.g
        s = g.sum(g.mul(x, self.like(x)), (x.val.rank - 1,))
        return g.sub(x, g.expand(g.reshape(s, (*x.val.sizes[:-1], 1)), x.val.sizes))

    def make(self, n: int) -> tuple[Any, list[Any]]:
        for _ in range(3):
            self.add_input()
        kinds = [self.unary, self.binary, self.where, self.columns, self.columns, self.rows]
        for _ in range(n):
            self.values.append(self.rng.choice(kinds)())
        return self.g.out(*self.rng.sample(self.values, 4), *self.values[-3:]), self.inputs


def test_random_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LINE", "MIN_ROWS", "MIN_PART"):
        monkeypatch.setattr(columns, name, 2)
    traits = replace(CPU, fold_rows=4, far_step=0, split_points=1 << 20, launch_bytes=0)
    met = 0
    for seed in range(60):
        graph, inputs = Rows(seed).make(14)
        program = fused(graph, traits)
        met += sums(program)
        want, got = interpret(graph, inputs), compile_program(program, Config())(inputs)
        for w, g, h in zip(want, got, interpret_program(program, inputs)):
            torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-9, equal_nan=True)
            torch.testing.assert_close(h, w, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert met > 50
