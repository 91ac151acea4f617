"""User operators: what the documentation's examples leave out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from braze.api import log_of


@braze.primitive(
    "test_custom::axpy(Tensor x, Tensor y, float a) -> Tensor",
    derivative=lambda grad, x, y, a: (grad * a, grad, None),
    lowering=lambda p, x, y, a: p.add(p.mul(x, a), y),
)
def axpy(x: Any, y: Any, a: Any) -> Any:
    return x * a + y


@torch.library.custom_op("test_custom::two", mutates_args=("y",))
def two(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y.add_(x)
    return x.sin(), x.cos()


@two.register_fake
def _(x: Any, y: Any) -> Any:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("test_custom::plain", mutates_args=())
def plain(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)


def graphs(fast: Any) -> list[str]:
    log = log_of(fast)
    assert log is not None
    assert not [g.fallback for g in log.graphs if g.fallback]
    return [str(g.levels["forward: prims"]) for g in log.graphs]


def test_a_lowering_fuses() -> None:
    fast = braze.compile(lambda x, y: axpy(x.sin(), y, 2.0).exp(), fullgraph=True)
    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(4, 5)
    want = (x.sin() * 2 + y).exp()
    torch.testing.assert_close(fast(x, y), want)
    grads = [torch.autograd.grad(out.sum(), x)[0] for out in (fast(x, y), want)]
    torch.testing.assert_close(*grads)
    (text,) = graphs(fast)
    assert "prims.mul" in text and "axpy" not in text.replace("axpy(x.sin()", "")
    log = log_of(fast)
    assert log is not None and len(log.graphs[0].kernels) <= 2  # forward and backward


def test_an_operator_that_overwrites() -> None:
    def f(x: Any, y: Any) -> Any:
        z = y * 1
        a, b = two(x, z)
        two(a, y)
        return a + z, b

    x, y = torch.randn(4), torch.randn(4)
    fast = braze.compile(f, fullgraph=True)
    mine, theirs = y.clone(), y.clone()
    torch.testing.assert_close(fast(x, mine), f(x, theirs))
    torch.testing.assert_close(mine, theirs)
    graphs(fast)
    shared = braze.compile(lambda x: two(x, x.view(-1))[0] + x)
    mine, theirs = x.clone(), x.clone()
    torch.testing.assert_close(shared(mine), (two(theirs, theirs.view(-1))[0] + theirs))
    torch.testing.assert_close(mine, theirs)


def test_without_a_fake() -> None:
    x = torch.randn(4)
    torch.testing.assert_close(braze.compile(lambda x: plain(x + 1) * 2)(x), (x + 1) * 4)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="overwrites an argument"):
        braze.primitive("test_custom::bad_(Tensor(a!) x) -> Tensor(a!)")(lambda x: x)
    with pytest.raises(ValueError, match="namespace"):
        braze.primitive("name(Tensor x) -> Tensor")
