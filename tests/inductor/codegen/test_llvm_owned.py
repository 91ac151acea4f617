"""Stores at repeated indices: each destination row is one thread's, in the order of the points; indices are checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from llvm_case import axis, buffer, built, kernel

from braze.inductor.codegen.llvm_plan import make_plan
from braze.inductor.loops import Compute, Instr, Kernel, Load, Store, canonical
from braze.ir import Symbol, symbol, symbol_of
from braze.runtime.cpu import host_target

POINTS = 700


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def rows(ids: torch.Tensor, y: torch.Tensor, out: torch.Tensor, mode: str) -> tuple[Kernel, dict[Any, torch.Tensor]]:
    """out[ids[i], j] (+)= y[i, j]"""
    (i, ai), (j, aj) = axis("i0", y.shape[0]), axis("i1", y.shape[1])
    bi, by, bo = buffer("ids", ids), buffer("y", y), buffer("out", out)
    at = Load(bi, (i,))
    checked = Compute("check_index", (at,), torch.int64, (("size", out.shape[0]),))
    t = symbol("t", 0, out.shape[0] - 1)
    s = symbol_of(t)
    assert isinstance(s, Symbol)
    v = Load(by, (i, j))
    body: list[Instr] = [at, checked, v, Store(bo, (t, j), v, mode, ((s, checked),))]
    return kernel([ai, aj], [], body), {bi: ids, by: y, bo: out}


@pytest.mark.parametrize("mode", ["set", "atomic_add"])
@pytest.mark.parametrize("count", [2, 5, 300])
@pytest.mark.parametrize("width", [32, 33, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_rows(mode: str, count: int, width: int, dtype: torch.dtype, threads: int) -> None:
    ids = torch.randint(-count, count, (POINTS,))
    y, out = (torch.randn(POINTS, width) * 9).to(dtype), (torch.randn(count, width) * 9).to(dtype)
    k, memory = rows(ids, y, out, mode)
    assert make_plan(canonical(k).kernel, host_target()).owned is not None
    want = out.clone()
    for n, row in zip(ids.tolist(), y):
        want[n] = row if mode == "set" else want[n] + row
    built([k])[0](memory)
    assert torch.equal(list(memory.values())[-1], want)  # the same additions in the same order: the same bits


@pytest.mark.parametrize("bad", [-6, 5, 2**40, -(2**40)])
@pytest.mark.parametrize("width", [3, 64])
def test_an_index_out_of_range_is_an_error(bad: int, width: int, threads: int) -> None:
    ids = torch.randint(-5, 5, (POINTS,))
    ids[POINTS // 2] = bad
    k, memory = rows(ids, torch.randn(POINTS, width), torch.zeros(5, width), "atomic_add")
    with pytest.raises(IndexError):
        built([k])[0](memory)


def test_every_store_must_be_of_the_row() -> None:
    """A second output, by point, has no owner among the rows."""
    k, _ = rows(torch.randint(0, 5, (POINTS,)), torch.randn(POINTS, 64), torch.zeros(5, 64), "atomic_add")
    v = next(i for i in k.body if isinstance(i, Load) and len(i.index) == 2)
    k.body.append(Store(buffer("copy", torch.zeros(POINTS, 64)), v.index, v))
    assert make_plan(canonical(k).kernel, host_target()).owned is None
