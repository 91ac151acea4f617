"""torch.cond, scans and flex_attention inside compiled code, without PyTorch's own compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import flex_attention as flex

import braze
from braze.api import log_of


def compiled(fn: Any, *args: Any, breaks: int = 0) -> Any:
    fast = braze.compile(fn)
    out = fast(*args)
    log = log_of(fast)
    assert len(log.breaks) == breaks and log.graphs and not any(g.fallback for g in log.graphs)
    return out


@pytest.mark.parametrize("flag", [True, False])
def test_cond_on_a_known_predicate(flag: bool) -> None:
    x = torch.randn(4)
    got = compiled(lambda x, flag: torch.cond(flag, lambda t: t.sin(), lambda t: t.cos(), (x,)), x, flag)
    torch.testing.assert_close(got, x.sin() if flag else x.cos())


def test_cond_on_a_tensor_breaks_there() -> None:
    def fn(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x * 2,)) + 1

    fast = braze.compile(fn)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        torch.testing.assert_close(fast(x), ((x * 2).sin() if x.sum() > 0 else (x * 2).cos()) + 1)


def test_while_loop() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def fn(x: Any) -> Any:
        return while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t * 2), (0, x))[1]

    x = torch.randn(5)
    torch.testing.assert_close(compiled(fn, x), x * 8)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "n, mode", [(1, "pointwise"), (2, "pointwise"), (7, "pointwise"), (16, "pointwise"), (5, "generic")]
)
def test_associative_scan(n: int, mode: str, reverse: bool) -> None:
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def fn(a: Any, b: Any) -> Any:
        return associative_scan(combine, (a, b * 1), dim=1, reverse=reverse, combine_mode=mode)[1]

    a, b = (torch.randn(2, n, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    state, states = torch.zeros(2, 3, dtype=torch.float64), []
    for i in reversed(range(n)) if reverse else range(n):
        state = a[:, i] * state + b[:, i]
        states.append(state)
    want = torch.stack(states[::-1] if reverse else states, 1)
    got = compiled(fn, a, b)
    torch.testing.assert_close(got, want)
    ours, theirs = (torch.autograd.grad(t.square().sum(), (a, b), allow_unused=True) for t in (got, want))
    for x, y in zip(ours, theirs):
        torch.testing.assert_close(*(torch.zeros_like(a) if t is None else t for t in (x, y)))


def test_scan() -> None:
    from torch._higher_order_ops.scan import scan

    def fn(init: Any, xs: Any) -> Any:
        return scan(lambda c, x: (c + x, c * x), init, xs, dim=0)

    init, xs = torch.randn(3), torch.randn(5, 3)
    carry, ys = compiled(fn, init, xs)
    torch.testing.assert_close(carry, init + xs.sum(0))
    torch.testing.assert_close(ys, torch.cat([init[None], init + xs.cumsum(0)[:-1]]) * xs)


@pytest.mark.parametrize("heads", [4, 2])
def test_flex_attention(heads: int) -> None:
    q = torch.randn(2, 4, 10, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, heads, 10, 8, dtype=torch.float64) for _ in range(2))
    bias = torch.randn(4, dtype=torch.float64)
    mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 10, 10, device="cpu")

    def fn(q: Any, k: Any, v: Any) -> Any:
        mod = lambda s, b, h, i, j: s + bias[h] * (i - j)  # noqa: E731
        return flex.flex_attention(q, k, v, score_mod=mod, block_mask=mask, enable_gqa=heads != 4)

    i = torch.arange(10)
    full = bias.view(1, 4, 1, 1) * (i[:, None] - i[None, :])
    full = full.masked_fill(i[:, None] < i[None, :], -torch.inf)
    want = F.scaled_dot_product_attention(q, k, v, full, enable_gqa=heads != 4)
    got = compiled(fn, q, k, v)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(t.sin().sum(), q)[0] for t in (got, want)))
