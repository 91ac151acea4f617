"""Transposes by blocks: every way that a block can end, element types, long and short bodies."""

from __future__ import annotations

import re

import pytest
import torch
from llvm_case import axis, buffer, compare, kernel, restricted, same

from braze.inductor.codegen.llvm_module import emit_llvm
from braze.inductor.codegen.llvm_plan import make_plan
from braze.inductor.loops import Compute, Instr, Load, Store, canonical
from braze.runtime.cpu import Target, host_target

SHAPES = [(16, 16), (17, 16), (16, 47), (64, 64), (70, 50), (129, 200), (33, 1000)]


@pytest.fixture(params=["host", "avx2", "plain"])
def target(request: pytest.FixtureRequest) -> Target:
    return host_target() if request.param == "host" else restricted(request.param)


def _check(x: torch.Tensor, fns: list[str], target: Target, lead: int = 1) -> None:
    """out[n, i, j] = fns(x[n, i, j]) with x stored the other way round."""
    rows, columns = x.shape[-2:]
    out = torch.zeros(lead, rows, columns, dtype=x.dtype)
    (n, an), (i, ai), (j, aj) = axis("i0", lead), axis("i1", rows), axis("i2", columns)
    bx, bo = buffer("x", x), buffer("out", out)
    body: list[Instr] = [Load(bx, (n, i, j))]
    for f in fns:
        body.append(Compute(f, (body[-1],), x.dtype))  # type: ignore[arg-type]
    body.append(Store(bo, (n, i, j), body[-1]))  # type: ignore[arg-type]
    k = kernel([an, ai, aj], [], body)
    assert make_plan(canonical(k).kernel, target).tile is not None
    same(compare(k, {bx: x, bo: out}, target=target), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fns", [[], ["neg"], ["exp"]], ids=["copy", "short", "long"])
def test_blocks_end_anywhere(shape: tuple[int, int], fns: list[str], target: Target) -> None:
    _check(torch.randn(1, shape[1], shape[0]).transpose(1, 2), fns, target)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int8, torch.int64], ids=str
)
def test_element_types(dtype: torch.dtype, target: Target) -> None:
    x = torch.randint(0, 2, (1, 37, 50)) if dtype == torch.bool else torch.randint(-90, 90, (1, 37, 50))
    _check(x.to(dtype).transpose(1, 2), [], target)


@pytest.mark.parametrize("sizes", [(8, 64, 784), (4, 48, 800), (3, 20, 1000)], ids=str)
def test_a_short_axis_is_walked_inside_of_several_blocks(sizes: tuple[int, int, int], target: Target) -> None:
    """Images to channels last: the lanes are channels."""
    _check(torch.randn(sizes).transpose(1, 2), ["neg"], target, sizes[0])


def test_lines_are_asked_for_two_blocks_ahead_into_the_second_level_cache(target: Target) -> None:
    """A whole block without a mask: one prefetch a row, 2 * 16 rows of 2048 elements on, locality 2."""
    (i, ai), (j, aj) = axis("i0", 1024), axis("i1", 2048)
    bx, bo = buffer("x", torch.empty(2048, 1024).t()), buffer("out", torch.empty(1024, 2048))
    load = Load(bx, (i, j))
    text = emit_llvm(kernel([ai, aj], [], [load, Store(bo, (i, j), load)]), target)
    asked = [line for line in text.splitlines() if "call void @llvm.prefetch" in line]
    assert len(asked) == 16 and all("i32 0, i32 2, i32 1" in line for line in asked)
    found = re.search(r"i64 (\w+)\n.*call void @llvm.prefetch", text)
    assert found is not None and f"i64 {32 * 1024}" in text
