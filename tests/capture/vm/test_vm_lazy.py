"""Lazily conjugated and negated inputs: one graph over the plain memory, eager's values, flags and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.api import log_of

X = torch.complex(torch.randn(3, 4), torch.randn(3, 4))
MAKE: dict[str, Callable[[], torch.Tensor]] = {
    "conjugate": lambda: X.clone().conj(),
    "adjoint": lambda: X.clone().mH,
    "negative": lambda: X.clone().conj().imag,
    "plain": lambda: X.clone(),
}
FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "value": lambda x: x * 2 + 1,
    "product": lambda x: x @ x.T,
    "view": lambda x: x[1:],
    "itself": lambda x: (x, x + 1),
    "conj": lambda x: x.conj() * 3,
    "in place": lambda x: x.add_(2),
    "view in place": lambda x: x[0].mul_(3) + 1,
    "flags": lambda x: (x.is_conj(), x.is_neg(), x * 2),
}


def breaks(fast: Any) -> list[str]:
    log = log_of(fast)
    assert log is not None
    return [g.fallback for g in log.graphs if g.fallback] + [b.reason for b in log.breaks]


def same(got: Any, want: Any) -> None:
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w)
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, check_stride=True)
        assert (got.is_conj(), got.is_neg()) == (want.is_conj(), want.is_neg())
    else:
        assert got == want


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    fn = FUNCTIONS[name]
    fast = braze.compile(lambda x: fn(x))
    for make in (*MAKE.values(), MAKE["conjugate"]):
        mine, theirs = make(), make()
        same(fast(mine), fn(theirs))
        same(mine, theirs)
    assert not breaks(fast) or name == "flags"


def test_results_that_stay_lazy() -> None:
    x = X[0].clone().conj()
    for fn in (lambda x: torch.dot(x, x), lambda x: torch.vdot(x, x) + 1):
        same(braze.compile(lambda x: fn(x))(x), fn(x))  # noqa: B023


@pytest.mark.parametrize("leaf", [False, True])
def test_gradients(leaf: bool) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x + 1
        return (x * y).abs().sum()

    fast = braze.compile(lambda x: fn(x))
    grads = []
    for f in (fast, fn):
        x = (X.clone().conj() if leaf else X.clone()).requires_grad_()
        f(x if leaf else x.conj()).backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1])
    assert not breaks(fast)


def test_a_backward_inside() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = (x * x).abs().sum()
        y.backward()
        return y.detach()

    mine, theirs = (X.clone().conj().requires_grad_() for _ in range(2))
    same(braze.compile(lambda x: fn(x))(mine), fn(theirs))
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_whether_a_tensor_is_a_leaf() -> None:
    fast = braze.compile(lambda x: (x * 2, x.is_leaf))
    leaf = torch.ones(3, requires_grad=True)
    for x in (leaf, leaf * 2, leaf.detach()):
        assert fast(x)[1] is x.is_leaf
