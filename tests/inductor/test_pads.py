"""Padding and concatenation keep the value that is put in, whatever the type of the elements."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.api import log_of

DTYPES = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool]


@pytest.mark.parametrize("value", [0, 1, 2, 7])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
def test_fill_values(dtype: torch.dtype, value: int) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = F.pad(x, (35, 3), value=value)
        return (
            wide,
            F.pad(x.t(), (2, 35, 1, 0), value=value),
            torch.cat([wide, torch.full_like(x, value), x], 1).float(),
        )

    x = torch.randint(0, 100, (5, 70)).to(dtype)
    fast = braze.compile(fn, fullgraph=True)
    for got, want in zip(fast(x), fn(x)):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert not log_of(fast).graphs[0].fallback
