"""Autograd's hooks registered, or active, inside of a compiled function: eager's numbers, or a stated break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of

calls: list[str] = []


def offloaded(x: Any, w: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        y = (x @ w).sin()
    return y * y


def packed(x: Any, w: Any) -> Any:
    def pack(t: Any) -> Any:
        calls.append("pack")
        return t * 1

    def unpack(t: Any) -> Any:
        calls.append("unpack")
        return t * 2  # eager's gradient shows what went through the hooks

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = (x @ w).sin()
    return y * y


def on_a_result(x: Any, w: Any) -> Any:
    y = x @ w
    y.register_hook(lambda g: g * 3)
    return y.sin()


def on_an_input(x: Any, w: Any) -> Any:
    x.register_hook(lambda g: g * 3)
    return (x @ w).sin()


def on_a_node(x: Any, w: Any) -> Any:
    y = x @ w
    y.grad_fn.register_prehook(lambda grads: (grads[0] * 2,))
    return y.sin()


def after_accumulation(x: Any, w: Any) -> Any:
    def double(p: Any) -> None:
        p.grad.mul_(2)

    w.register_post_accumulate_grad_hook(double)
    return (x @ w).sin()


def over_several(x: Any, w: Any) -> Any:
    torch.autograd.graph.register_multi_grad_hook([x, w], lambda grads: calls.append(f"{len(grads)} gradients"))
    return (x @ w).sin()


def forbidden(x: Any, w: Any) -> Any:
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        return (x @ w).sin()


def retained(x: Any, w: Any) -> Any:
    y = x @ w
    y.retain_grad()
    (y.sin().sum()).backward()
    return y.grad * 1 + (x * w[:3]).sum()


REASONS: dict[Callable[..., Any], str] = {
    offloaded: "hooks on saved tensors",
    packed: "hooks on saved tensors",
    on_a_result: "",
    on_an_input: "",
    on_a_node: "grad_fn",
    after_accumulation: "",
    over_several: "",
    forbidden: "",
    retained: "",
}


def once(f: Any) -> list[Any]:
    calls.clear()
    x, w = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(), torch.linspace(0, 1, 16).view(4, 4).requires_grad_()
    y = f(x, w)
    y.sum().backward()
    return [y.detach(), x.grad, w.grad, list(calls)]


@pytest.mark.parametrize("fn", REASONS, ids=lambda f: f.__name__)
def test_as_in_eager(fn: Callable[..., Any]) -> None:
    want = once(fn)
    fast = braze.compile(fn)
    for _ in range(2):
        got = once(fast)
        torch.testing.assert_close(got[:3], want[:3])
        assert got[3] == want[3]
    log = log_of(fast)
    assert log is not None and not any(g.fallback for g in log.graphs)
    said = " ".join(str(b) for b in log.breaks)
    assert REASONS[fn] in said


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_modules_backward_hooks(kind: str) -> None:
    seen = []
    for wrap in (lambda m: m, braze.compile):
        torch.manual_seed(0)
        m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        getattr(m[0], kind)(lambda module, grads, *rest: (grads[0] * 2,))
        x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        wrap(m)(x).sum().backward()  # type: ignore[no-untyped-call]
        seen.append([x.grad, *(p.grad for p in m.parameters())])
    torch.testing.assert_close(seen[1], seen[0])
