"""The kernels of well-known patterns: how many there are, what they read and write, and that they are right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from programs import check, fused, graphs, kernels, sample

sys.path.insert(0, str(Path(__file__).parent.parent / "loops"))
from prim_graphs import G  # noqa: E402

from braze.inductor.fuse import CPU, CUDA  # noqa: E402
from braze.inductor.loops import Program, to_text  # noqa: E402
from braze.ir import Graph  # noqa: E402


def r(*shape: int) -> torch.Tensor:
    return torch.rand(shape)


def example(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.relu(x @ w), -1).sum()


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def batch_norm_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.batch_norm(x, None, None, w, b, training=True))


def bias_gelu(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + b)


def dropout_residual(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.1) + y


def embedding(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.embedding(i, w)


def cat_slice_pad(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.cat([torch.exp(x), y * 2], 1)
    return F.pad(z[:, 1:-1], (1, 2), value=3.0)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


IDS = torch.randint(0, 50, (4, 32))
CLASSES = torch.randint(0, 40, (64,))

# name: (function, inputs, kernels in forward, kernels in backward; on a CPU with two threads)
PATTERNS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], int, int]] = {
    "example": (example, (r(64, 256), r(256, 256)), 2, 1),
    "softmax": (lambda x: torch.softmax(x, -1), (r(32, 100),), 1, 1),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), (r(32, 100),), 1, 1),
    "layer_norm": (layer_norm, (r(4, 32, 96), r(96), r(96)), 1, 2),
    "cross_entropy": (F.cross_entropy, (r(64, 40), CLASSES), 2, 1),
    "batch_norm_relu": (batch_norm_relu, (r(4, 8, 10, 10), r(8), r(8)), 1, 1),
    "bias_gelu": (bias_gelu, (r(64, 96), r(96)), 1, 1),
    "dropout": (dropout_residual, (r(64, 96), r(64, 96)), 1, 1),
    "embedding": (embedding, (r(50, 16), IDS), 1, 2),
    "cat_slice_pad": (cat_slice_pad, (r(64, 50), r(64, 30)), 1, 2),
    "rotary": (rotary, (r(2, 64, 32), r(64, 32), r(64, 32)), 1, 2),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_kernel_counts_and_values(name: str) -> None:
    fn, inputs, *counts = PATTERNS[name]
    for graph, count in zip(graphs(fn, inputs), counts):
        program = fused(graph, CPU)
        check(graph, program, sample(graph))
        assert len(kernels(program)) <= count, to_text(program)
        check(graph, fused(graph, CUDA), sample(graph))


def traffic(program: Program) -> tuple[list[str], list[str]]:
    """The big buffers that the kernels read and write, with repeats."""
    ks = kernels(program)
    big = [max(b.type.numel for k in ks for b in k.reads + k.writes)]
    reads = [b.name for k in ks for b in k.reads if b.type.numel == big[0]]
    return reads, [b.name for k in ks for b in k.writes if b.type.numel == big[0]]


def test_layer_norm_reads_its_input_once() -> None:
    forward, _ = graphs(layer_norm, PATTERNS["layer_norm"][1])
    reads, writes = traffic(fused(forward))
    assert len(reads) == 1 and len(writes) == 1


def test_layer_norm_backward_is_a_row_kernel_and_a_column_kernel() -> None:
    _, backward = graphs(layer_norm, PATTERNS["layer_norm"][1])
    rows, columns = kernels(fused(backward))
    assert len(rows.writes) == 3 and len(columns.writes) == 2  # two are partial column sums
    assert [a.size for a in rows.r] == [96] and [a.size for a in columns.r] == [4]


def test_a_stored_gradient_and_its_column_sum_are_two_kernels() -> None:
    _, backward = graphs(bias_gelu, (r(64, 1024), r(1024)))  # columns with a step of 4 KiB
    gradient, total = kernels(fused(backward))
    assert not gradient.r and total.reads == gradient.writes


def test_a_column_sum_computes_what_it_alone_needs() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.sin(x * y) + torch.cos(x)  # more arithmetic than is recomputed freely
        return x.sum(0)

    forward, _ = graphs(fn, (r(64, 96), r(64, 96)))
    program = fused(forward)
    assert len(kernels(program)) == 1
    check(forward, program, sample(forward), rtol=1e-4)


def test_a_long_row_is_not_kept_for_a_second_pass() -> None:
    fn, inputs = batch_norm_relu, (r(8, 4, 200, 200), r(4), r(4))
    forward, _ = graphs(fn, inputs)
    assert len(kernels(fused(forward, CPU))) == 3  # mean; variance; normalise and relu
    assert len(kernels(fused(graphs(fn, PATTERNS["batch_norm_relu"][1])[0], CPU))) == 1


def test_few_long_rows_are_split_on_a_wide_machine() -> None:
    forward, _ = graphs(lambda x: (x * x).sum(), (r(1 << 17),))
    first, second = kernels(fused(forward, CUDA))
    assert len(first.x) == 1 and [a.size for a in second.r] == [a.size for a in first.x]
    check(forward, fused(forward, CUDA), sample(forward))


def test_few_pixels_are_summed_after_the_images() -> None:
    """Bias gradients of small images: the first kernel reads memory in order."""
    cases: list[tuple[Any, tuple[int, ...], int]] = [
        (lambda x: x.sum((0, 2)), (130, 40, 9), 2),
        (lambda x: (x * 2).amax((0, 2, 3)), (256, 20, 3, 3), 2),
        (lambda x: (x.sum((0, 2)), (x * x).mean((0, 2)) + 1), (130, 40, 9), 2),
        (lambda x: x.sum((0, 2)), (100, 40, 9), 1),  # few images
        (lambda x: x.sum((0, 2)), (130, 4, 100), 1),  # many pixels
    ]
    for fn, sizes, count in cases:
        forward, _ = graphs(fn, (r(*sizes),))
        program = fused(forward, CPU)
        assert len(kernels(program)) == count, sizes
        check(forward, program, sample(forward))


def test_gelu_after_a_matrix_product_is_one_kernel() -> None:
    forward, _ = graphs(lambda x, w, b: F.gelu(F.linear(x, w, b)), (r(4, 16, 32), r(64, 32), r(64)))
    assert len(kernels(fused(forward))) == 1


def test_residual_dropout_norm_is_one_kernel() -> None:
    def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.dropout(F.linear(x, w, b), 0.1) + y, (32,), g)

    inputs = (r(4, 16, 32), r(32, 32), r(32), r(4, 16, 32), r(32))
    forward, backward = graphs(block, inputs)
    assert len(kernels(fused(forward))) == 1
    check(forward, fused(forward), sample(forward))
    check(backward, fused(backward), sample(backward))


def test_16_bit_values_stay_wide_inside_a_kernel() -> None:
    x = r(64, 64).bfloat16()
    forward, _ = graphs(lambda x: (x * 1.1 + 0.3) * x, (x,))
    (k,) = kernels(fused(forward))
    assert sum(getattr(i, "fn", "") == "convert" for i in k.body) == 2
    check(forward, fused(forward), sample(forward), rtol=2e-2)


@pytest.mark.parametrize("shape", [(6, 10), (1, 10), (10,), (3, 1, 4)])
def test_small_and_odd_shapes(shape: tuple[int, ...]) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.softmax(x * y, -1)
        return (z - z.mean()).std() + z.t().reshape(-1).cumsum(0)[-1] if z.dim() == 2 else z.sum(-1)

    for graph in graphs(fn, (r(*shape), r(*shape))):
        for traits in (CPU, CUDA):
            check(graph, fused(graph, traits), sample(graph), rtol=1e-4)


def test_a_chain_of_a_thousand_operations() -> None:
    g = G()
    x = y = g.input("x", (4, 8))
    for k in range(1000):
        y = g.mul(g.sub(y, x), 0.5) if k % 3 else g.add(y, 1.0)
    graph = g.out(y)
    program = fused(graph, CPU)
    assert len(kernels(program)) < 20  # a kernel has a limited size
    check(graph, program, [r(4, 8)])


def casts() -> Graph:
    g = G()
    x = g.input("x", (64, 64), torch.bfloat16)
    for k in range(6):
        w = g.convert(g.input(f"w{k}", (64, 64)), torch.bfloat16)
        x = g.aten(torch.ops.aten.mm.default, x, w)
    return g.out(x)


def test_casts_of_weights_are_grouped_where_kernels_cost_much() -> None:
    graph = casts()
    assert [len(k.writes) for k in kernels(fused(graph, CUDA))] == [6]
    assert [len(k.writes) for k in kernels(fused(graph, CPU))] == [1] * 6
    check(graph, fused(graph, CUDA), sample(graph), rtol=2e-2)


def test_step_counters_are_one_kernel() -> None:
    g = G()
    graph = g.out(*(g.add(g.input(f"n{k}", (), torch.int64), 1) for k in range(20)))
    assert len(kernels(fused(graph, CUDA))) == 1
    assert fused(graph, CPU).groups == ((0, 20),)
    check(graph, fused(graph, CPU), sample(graph))


def test_tensors_without_elements() -> None:
    g = G()
    x, y = g.input("x", (0, 4)), g.input("y", (3, 0))
    graph = g.out(g.exp(x), g.sum(y, (1,)), g.cat([g.neg(x), x], 0), g.full((0, 2), 1.0, torch.float32, x.val.device))
    for traits in (CPU, CUDA):
        program = fused(graph, traits)
        assert all(n.size != 0 for k in kernels(program) for n in k.x + k.r)
        check(graph, program, [torch.zeros(0, 4), torch.zeros(3, 0)])
