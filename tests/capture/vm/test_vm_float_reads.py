"""``float(tensor)`` as a float of the graph, and what takes it: batch normalisation by cumulative averages."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("cls, shape", [(nn.BatchNorm1d, (8, 4)), (nn.BatchNorm2d, (4, 4, 3, 3))])
def test_cumulative_batch_norm(cls: Any, shape: tuple[int, ...], affine: bool) -> None:
    eager = cls(4, momentum=None, affine=affine)
    mine = copy.deepcopy(eager)
    fast = braze.compile(mine, fullgraph=True)
    for _ in range(4):
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        want, got = eager(x), fast(y)
        torch.testing.assert_close(got, want)
        want.sin().sum().backward()
        got.sin().sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
        torch.testing.assert_close(mine.state_dict(), eager.state_dict())
    torch.testing.assert_close(fast.eval()(y), eager.eval()(x))
    log = log_of(fast)
    assert log is not None and len(log.graphs) == 2 and not any(g.fallback for g in log.graphs)


def test_too_few_values_are_refused_as_in_eager() -> None:
    fast = braze.compile(nn.BatchNorm1d(4, momentum=None))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        fast(torch.randn(1, 4))


def test_float_of_tensors() -> None:
    fast = braze.compile(lambda x, n, b: x * float(n) + float(x.sum()) / float(b), fullgraph=True)
    for n in (4, 2**40 + 1):
        x = torch.arange(3, dtype=torch.float64)
        torch.testing.assert_close(fast(x, torch.tensor(n), torch.tensor(True)), x * n + 3, rtol=0, atol=0)
    log = log_of(fast)
    assert log is not None and len(log.graphs) == 1
