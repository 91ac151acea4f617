"""Element offsets beyond 32 bits: in affine indices, gathers and scatters. Only pages that are touched get memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze
from braze.api import log_of

STEP = (1 << 30) + 64  # elements from row to row


def tall(dtype: torch.dtype) -> torch.Tensor:
    """Three rows of 256 elements, the last beyond 2 ** 31 elements and bytes."""
    try:
        memory = torch.empty(2 * STEP + 256, dtype=dtype)
    except RuntimeError as e:
        pytest.skip(f"no address space: {e}")
    rows = memory.as_strided((3, 256), (STEP, 1))
    rows.copy_(torch.arange(768).reshape(3, 256).remainder(101).to(dtype))
    return rows


def check(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    fast = braze.compile(fn, fullgraph=True)
    torch.testing.assert_close(fast(*inputs), fn(*inputs))
    record = log_of(fast).graphs[0]
    assert record.kernels and not record.fallback


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32])
def test_rows(dtype: torch.dtype) -> None:
    check(lambda x: x * 2 + 1, tall(dtype))
    check(lambda x: x.t().contiguous() + 1, tall(dtype))
    check(lambda x: x.float().sum(0), tall(dtype))
    check(lambda x: x.float().softmax(-1), tall(dtype))


def test_indirect_rows() -> None:
    x = tall(torch.float32)
    rows, columns = torch.tensor([2, 0, 2, 1]), torch.tensor([255, 3, 0, 7])
    check(lambda x, i: x[i] * 2, x, rows)
    check(lambda x, i, j: x[i, j] * 2, x, rows, columns)
    check(lambda x, j: x.gather(1, j) * 2, x, columns.expand(3, 4))


def test_stores() -> None:
    x, got = tall(torch.float32), tall(torch.float32)

    def update(x: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        x[2, 5:9] = 7
        return x.sum()

    fast = braze.compile(update, fullgraph=True)
    torch.testing.assert_close(fast(got), update(x))
    assert torch.equal(got, x) and float(got[2, 5]) == 7
