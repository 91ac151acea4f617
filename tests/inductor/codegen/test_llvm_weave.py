"""Lanes that lie apart in memory: woven stores and strided loads, with every kind of rest, and nothing read or written
beyond the elements."""

from __future__ import annotations

import pytest
import torch
from llvm_case import axis, buffer, compare, kernel, restricted, same

from braze.inductor.codegen.llvm_plan import make_plan
from braze.inductor.loops import Compute, Const, Index, Load, Reduce, Store, canonical
from braze.ir import IntLike
from braze.runtime.cpu import Target, host_target

DTYPES = [torch.float32, torch.bfloat16, torch.bool, torch.int8, torch.int64]


@pytest.fixture(params=["host", "avx2", "plain"])
def target(request: pytest.FixtureRequest) -> Target:
    return host_target() if request.param == "host" else restricted(request.param)


def data(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(sizes) * 50).to(dtype)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("length", [5, 16, 28, 47, 1000])
def test_rows_are_stacked(count: int, length: int, target: Target) -> None:
    """out[i, k] = x[k, i] + k, in memory that goes on after it."""
    x, out = data(count, length), torch.zeros(length * count + 64)
    (i, ai), (k, ak) = axis("i0", length), axis("i1", count)
    bx, bo = buffer("x", x), buffer("out", out)
    v, at = Load(bx, (k, i)), Index(k)
    f = Compute("convert", (at,), torch.float32)
    w = Compute("add", (v, f), torch.float32)
    built = kernel([ai, ak], [], [v, at, f, w, Store(bo, (i * count + k,), w)])
    if length >= 16:
        assert make_plan(canonical(built).kernel, target).woven is not None
    same(compare(built, {bx: x, bo: out}, target=target))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_element_types(dtype: torch.dtype, target: Target) -> None:
    x, y = data(60, dtype=dtype), data(60, dtype=dtype)
    out = torch.zeros(120, dtype=dtype)
    (i, ai), (k, ak) = axis("i0", 60), axis("i1", 2)
    bx, by, bo = buffer("x", x), buffer("y", y), buffer("out", out)
    at, one = Index(k), Const(1, torch.int64)
    first, v, w = Compute("lt", (at, one), torch.bool), Load(bx, (i,)), Load(by, (i,))
    chosen = Compute("where", (first, v, w), dtype)
    same(
        compare(
            kernel([ai, ak], [], [at, one, first, v, w, chosen, Store(bo, (2 * i + k,), chosen)]),
            {bx: x, by: y, bo: out},
            target=target,
        )
    )


def test_symbolic_lengths(target: Target) -> None:
    n, _ = axis("n", 1000)
    (i, ai), (k, ak) = axis("i0", n), axis("i1", 3)
    for length in (1, 15, 16, 100):
        x, out = data(length), torch.zeros(3 * length)
        bx, bo = (type(buffer("x", x))(b, _sized(t, m)) for b, t, m in (("x", x, n), ("out", out, 3 * n)))
        v = Load(bx, (i,))
        same(
            compare(
                kernel([ai, ak], [], [v, Store(bo, (3 * i + k,), v)]), {bx: x, bo: out}, {"n": length}, target=target
            )
        )


def _sized(t: torch.Tensor, size: IntLike) -> object:
    return buffer("t", t).type.with_(sizes=(size,))


@pytest.mark.parametrize("step", [2, 3, 5, 8, 9])
@pytest.mark.parametrize("length", [4, 16, 31, 200])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_nth_element(step: int, length: int, dtype: torch.dtype, target: Target) -> None:
    """The last element read is the last of the memory."""
    x, out = data((length - 1) * step + 1, dtype=dtype), torch.zeros(length, dtype=dtype)
    i, ai = axis("i0", length)
    bx, bo = buffer("x", x), buffer("out", out)
    v = Load(bx, (i * step,))
    same(compare(kernel([ai], [], [v, Store(bo, (i,), v)]), {bx: x, bo: out}, target=target))


@pytest.mark.parametrize("columns", [2, 5, 8])
@pytest.mark.parametrize("rows", [16, 21, 300])
def test_sums_of_tiny_rows(rows: int, columns: int, target: Target) -> None:
    x, out = data(rows, columns), torch.zeros(rows)
    (i, ai), (r, ar) = axis("i0", rows), axis("r0", columns)
    bx, bo = buffer("x", x), buffer("out", out)
    v = Load(bx, (i, r))
    total = Reduce("sum", v, torch.float32)
    same(compare(kernel([ai], [ar], [v, total, Store(bo, (i,), total)]), {bx: x, bo: out}, target=target), 1e-6, 1e-4)
