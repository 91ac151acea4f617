"""Reductions over long rows and columns are as accurate as eager's, measured against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze

CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "sum, long row": (lambda x: x.sum(-1), (2, 1 << 20)),
    "sum, everything": (lambda x: x.sum(), (1000, 1003)),
    "sum, long columns": (lambda x: x.sum(0), (1 << 18, 5)),
    "sum, wide columns": (lambda x: x.sum(0), (1 << 14, 96)),
    "sum, mixed": (lambda x: x.sum((0, 2)), (64, 16, 1024)),
    "mean": (lambda x: x.mean(-1), (3, 1 << 19)),
    "variance": (lambda x: x.var(-1), (3, 1 << 18)),
    "batch statistics": (lambda x: torch.var_mean(x, (0, 2)), (16, 8, 4096)),
    "norm": (lambda x: x.norm(), (1 << 20,)),
    "layer norm": (lambda x: F.layer_norm(x, (x.shape[-1],)), (4, 1 << 16)),
    "softmax": (lambda x: torch.softmax(x, -1), (4, 1 << 16)),
    "logsumexp": (lambda x: x.logsumexp(-1), (4, 1 << 18)),
    "mse": (lambda x: F.mse_loss(x, x.flip(0)), (4, 1 << 18)),
    "dot": (lambda x: (x * x.roll(1)).sum(), (1 << 20,)),
}


@pytest.mark.parametrize("offset", [0.0, 10.0])
@pytest.mark.parametrize("case", CASES)
def test_as_accurate_as_eager(case: str, offset: float) -> None:
    fn, sizes = CASES[case]
    torch.manual_seed(0)
    x = torch.randn(sizes) + offset
    compiled = braze.compile(fn, dynamic=False, options={"strict": True})
    outs = [fn(x.double()), fn(x), compiled(x)]
    wants, eager, mine = (o if isinstance(o, tuple) else (o,) for o in outs)
    for w, e, m in zip(wants, eager, mine):
        scale = w.abs().max()
        limit = 2 * float((e - w).abs().max() / scale) + 2.4e-7
        assert float((m - w).abs().max() / scale) <= limit
