"""A cast that the user wrote rounds, also inside a fused kernel."""

from __future__ import annotations

import pytest
import torch

import braze


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_a_round_trip_rounds(narrow: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x * 3).to(narrow)
        return y, y.float() + 1

    x = torch.randn(200) * 100
    got, want = braze.compile(f, fullgraph=True)(x), f(x)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_half_overflows_as_in_eager() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.half().float() * 0.5

    x = torch.tensor([1.0, 65519.0, 65520.0, 1e6, -1e6])
    assert torch.equal(braze.compile(f, fullgraph=True)(x), f(x))


def test_gradient_goes_through_the_cast() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.bfloat16().float() * x).sum()

    x = torch.randn(100)
    grads = []
    for g in (f, braze.compile(f, fullgraph=True)):
        t = x.clone().requires_grad_()
        g(t).backward()
        grads.append(t.grad)
    assert torch.equal(*grads)
