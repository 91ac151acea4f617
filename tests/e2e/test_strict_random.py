"""``options={"strict_random": True}``: the numbers that eager draws from the same seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.api import log_of

X = torch.randn(16, 8)


def several(x: Any) -> Any:
    a = F.dropout(x, 0.3)
    b = torch.rand_like(x) + a
    c = torch.randn(8) * F.dropout(b.sin(), 0.5)
    d = torch.empty_like(x).uniform_(-1, 1) + torch.bernoulli(torch.full_like(x, 0.2))
    e = torch.randint(0, 10, (8,)) + torch.randperm(8) + torch.empty(8).exponential_()
    return a + b, c * d + e, F.rrelu(x, training=True), torch.multinomial(x.abs() + 1, 2)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_eager_draws(backend: str) -> None:
    fast = braze.compile(several, backend=backend, options={"strict_random": True}, fullgraph=True)
    for seed in (0, 7):
        torch.manual_seed(seed)
        want = several(X), torch.rand(1)
        torch.manual_seed(seed)
        got = fast(X), torch.rand(1)
        torch.testing.assert_close(got, want)
    log = log_of(fast)
    assert log is not None and not log.graphs[0].fallback


def test_dropout_and_its_gradient() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Dropout(0.2))
    fast = braze.compile(model, options={"strict_random": True})
    grads = []
    for f in (model, fast):
        torch.manual_seed(3)
        x = X.clone().requires_grad_()
        f(x).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_a_draw_that_nobody_reads_is_drawn() -> None:
    def f(x: Any) -> Any:
        torch.rand(5)
        return x + torch.rand(3)

    fast = braze.compile(f, options={"strict_random": True})
    torch.manual_seed(1)
    want = f(torch.zeros(3))
    torch.manual_seed(1)
    torch.testing.assert_close(fast(torch.zeros(3)), want)


@pytest.mark.parametrize("strict", [False, True])
def test_a_seed_set_inside(strict: bool) -> None:
    def f(x: Any) -> Any:
        torch.manual_seed(3)
        return x + torch.rand(3)

    fast = braze.compile(f, options={"strict_random": strict})
    first = fast(torch.zeros(3))
    torch.testing.assert_close(fast(torch.zeros(3)), first)
    if strict:
        torch.testing.assert_close(first, f(torch.zeros(3)))
