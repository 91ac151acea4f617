"""Functions that refuse some values: one graph, and eager's error where the values are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.api import log_of


def whole(fast: Any) -> bool:
    log = log_of(fast)
    assert log is not None
    return len(log.graphs) == 1 and not log.breaks and not log.graphs[0].fallback


@pytest.mark.parametrize("shape", [(5, 3), (5, 1), (5,)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("full", [False, True])
def test_gaussian_nll_loss(shape: tuple[int, ...], reduction: str, full: bool) -> None:
    def fn(x: torch.Tensor, target: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return F.gaussian_nll_loss(x, target, var, full, reduction=reduction) * 2

    fast = braze.compile(lambda x, t, v: fn(x, t, v))
    target = torch.randn(5, 3)
    mine, theirs = ([torch.randn(5, 3).requires_grad_(), torch.rand(shape).requires_grad_()] for _ in range(2))
    for m, t in zip(mine, theirs):
        m.data.copy_(t.data)
    got, want = fast(mine[0], target, mine[1]), fn(theirs[0], target, theirs[1])
    torch.testing.assert_close(got, want)
    got.sum().backward(), want.sum().backward()
    for m, t in zip(mine, theirs):
        torch.testing.assert_close(m.grad, t.grad)
    assert whole(fast)


def test_a_negative_variance_raises() -> None:
    fast = braze.compile(lambda x, t, v: F.gaussian_nll_loss(x, t, v))
    x, var = torch.ones(4), torch.tensor([1.0, 2.0, float("nan"), 0.0])
    assert fast(x, x, var).isnan()
    var[1] = -1
    with pytest.raises(ValueError, match="var has negative"):
        fast(x, x, var)
    with pytest.raises(ValueError, match="incorrect size"):
        fast(torch.ones(2, 3), torch.ones(2, 3), torch.ones(4))


def test_gaussian_nll_loss_of_a_number() -> None:
    x, t = torch.randn(4), torch.randn(4)
    torch.testing.assert_close(braze.compile(lambda: F.gaussian_nll_loss(x, t, 0.5))(), F.gaussian_nll_loss(x, t, 0.5))


def test_one_hot() -> None:
    fast = braze.compile(lambda x: F.one_hot(x, num_classes=5).float() * 2)
    x = torch.tensor([[0, 4], [2, 3]])
    assert torch.equal(fast(x), F.one_hot(x, 5).float() * 2)
    for bad in (-1, 5):
        x[1, 0] = bad
        with pytest.raises(RuntimeError, match="Class values must be"):
            fast(x)
    assert whole(fast)
    assert fast(x[:0]).shape == (0, 2, 5)


def test_one_hot_of_unknown_classes() -> None:
    x = torch.tensor([0, 3])
    assert torch.equal(braze.compile(lambda x: F.one_hot(x))(x), F.one_hot(x))
