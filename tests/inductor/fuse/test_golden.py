"""What well-known patterns become, as text: primitive graphs built by hand, fused for a CPU, printed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from programs import fused

sys.path.insert(0, str(Path(__file__).parent.parent / "loops"))
from prim_graphs import G  # noqa: E402

from braze.inductor.fuse import CPU, CUDA, DeviceTraits  # noqa: E402
from braze.inductor.loops import to_text  # noqa: E402
from braze.ir import Graph, Node, symbol  # noqa: E402

DEVICE = torch.device("cpu")


def over_rows(g: G, row: Node, like: Node) -> Node:
    """A value per row, at every point."""
    return g.expand(g.reshape(row, (*row.val.sizes, 1)), like.val.sizes)


def softmax_of(g: G, x: Node) -> Node:
    last = (x.val.rank - 1,)
    e = g.exp(g.sub(x, over_rows(g, g.amax(x, last), x)))
    return g.div(e, over_rows(g, g.sum(e, last), x))


def example() -> Graph:
    g = G()
    x, w = g.input("x", (64, 256)), g.input("w", (256, 256))
    h = g.maximum(g.aten(torch.ops.aten.mm.default, x, w), 0)
    return g.out(g.sum(softmax_of(g, h), (0, 1)))


def softmax_any_batch() -> Graph:
    g = G()
    b = symbol("b", 2, 1 << 20, hint=8)
    g.graph.input("b", b)
    x = g.input("x", (b, 12, 128))
    return g.out(g.reshape(softmax_of(g, x), (b * 12, 128)))


def layer_norm() -> Graph:
    g = G()
    x, w, b = g.input("x", (32, 128, 768)), g.input("w", (768,)), g.input("b", (768,))
    mean = g.mul(g.sum(x, (2,)), 1 / 768)
    c = g.sub(x, over_rows(g, mean, x))
    rstd = g.rsqrt(g.add(g.mul(g.sum(g.mul(c, c), (2,)), 1 / 768), 1e-5))
    y = g.mul(g.mul(c, over_rows(g, rstd, x)), g.expand_to(w, x.val.sizes))
    return g.out(g.add(y, g.expand_to(b, x.val.sizes)), mean, rstd)


def layer_norm_backward() -> Graph:
    g = G()
    dy, x, w = g.input("dy", (32, 128, 768)), g.input("x", (32, 128, 768)), g.input("w", (768,))
    mean, rstd = g.input("mean", (32, 128)), g.input("rstd", (32, 128))
    h = g.mul(g.sub(x, over_rows(g, mean, x)), over_rows(g, rstd, x))
    d = g.mul(dy, g.expand_to(w, x.val.sizes))
    a = over_rows(g, g.mul(g.sum(d, (2,)), 1 / 768), x)
    b = over_rows(g, g.mul(g.sum(g.mul(d, h), (2,)), 1 / 768), x)
    dx = g.mul(g.sub(g.sub(d, a), g.mul(h, b)), over_rows(g, rstd, x))
    return g.out(dx, g.sum(g.mul(dy, h), (0, 1)), g.sum(dy, (0, 1)))


def cross_entropy() -> Graph:
    g = G()
    x, labels = g.input("x", (64, 1000)), g.input("labels", (64,), torch.int64)
    z = g.sub(x, over_rows(g, g.amax(x, (1,)), x))
    logp = g.sub(z, over_rows(g, g.log(g.sum(g.exp(z), (1,))), x))
    picked = g.reshape(g.gather(logp, 1, g.reshape(labels, (64, 1))), (64,))
    return g.out(g.mul(g.sum(g.neg(picked), (0,)), 1 / 64), logp)


def batch_norm_relu() -> Graph:
    g = G()
    x, w, b = g.input("x", (8, 64, 14, 14)), g.input("w", (64,)), g.input("b", (64,))
    shape, n = x.val.sizes, 8 * 14 * 14
    mean = g.mul(g.sum(x, (0, 2, 3)), 1 / n)
    c = g.sub(x, g.expand_to(mean, shape, (1,)))
    rstd = g.rsqrt(g.add(g.mul(g.sum(g.mul(c, c), (0, 2, 3)), 1 / n), 1e-5))
    y = g.add(g.mul(c, g.expand_to(g.mul(rstd, w), shape, (1,))), g.expand_to(b, shape, (1,)))
    return g.out(g.maximum(y, 0.0), mean, rstd)


def bias_gelu() -> Graph:
    g = G()
    x, b = g.input("x", (4096, 3072), torch.bfloat16), g.input("b", (3072,), torch.bfloat16)
    h = g.add(x, g.expand_to(b, x.val.sizes))
    return g.out(g.mul(g.mul(h, 0.5), g.add(g.erf(g.mul(h, 0.7071067811865476)), 1.0)))


def dropout_residual() -> Graph:
    g = G()
    x, y, seed = g.input("x", (64, 768)), g.input("y", (64, 768)), g.input("seed", (2,), torch.int64)
    keep = g.lt(g.philox_uniform(seed, 3, (64, 768), DEVICE), 0.9)
    return g.out(g.add(g.mul(g.where(keep, x, 0.0), 1 / 0.9), y))


def embedding_sum() -> Graph:
    g = G()
    ids, w, p = g.input("ids", (4, 16), torch.int64), g.input("w", (1000, 96)), g.input("p", (16, 96))
    return g.out(g.add(g.take(w, 0, ids), g.expand_to(p, (4, 16, 96))))


def embedding_backward() -> Graph:
    g = G()
    ids, dy = g.input("ids", (4, 16), torch.int64), g.input("dy", (4, 16, 96))
    zeros = g.full((1000, 96), 0.0, torch.float32, DEVICE)
    return g.out(g.index_put(zeros, [ids], g.mul(dy, 2.0), True))


def cat_slice_pad() -> Graph:
    g = G()
    x, y = g.input("x", (64, 50)), g.input("y", (64, 30))
    z = g.cat([g.exp(x), g.tanh(g.sin(y))], 1)
    return g.out(g.pad(g.slice(z, (0, 1), (64, 79), (1, 1)), (0, 1), (0, 2), 3.0))


def split_sum() -> Graph:
    g = G()
    x = g.input("x", (1000003,))
    return g.out(g.mul(g.sum(g.mul(x, x), (0,)), 0.5))


def transposed() -> Graph:
    g = G()
    x = g.input("x", (4096, 768))
    return g.out(g.clone(g.permute(g.reshape(g.mul(x, 0.125), (32, 128, 12, 64)), (0, 2, 1, 3))))


MADE: list[tuple[Callable[[], Graph], DeviceTraits]] = [
    *((f, CPU) for f in (example, softmax_any_batch, layer_norm, layer_norm_backward, cross_entropy, batch_norm_relu)),
    *((f, CPU) for f in (bias_gelu, dropout_residual, embedding_sum, embedding_backward, cat_slice_pad, transposed)),
    (split_sum, replace(CUDA, parallel_rows=8)),
]


@pytest.mark.parametrize("make, traits", MADE, ids=lambda v: getattr(v, "__name__", ""))
def test_text(make: Callable[[], Graph], traits: DeviceTraits, golden: Callable[[str, str], None]) -> None:
    golden(f"fuse/{make.__name__}.txt", to_text(fused(make(), traits)) + "\n")
