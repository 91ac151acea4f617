"""``register_hook`` on tensors that the compiled function makes: in the graph where the hook is a function of its
gradient and constants; what it would do to the world, or a handle that is used, breaks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of
from braze.errors import CompileWarning

LIMIT = 0.5


def clip(g: torch.Tensor) -> torch.Tensor:
    return g.clamp(-LIMIT, LIMIT)


def scaled(x: Any, w: Any) -> Any:
    y = x * w
    y.register_hook(lambda g: g * 3)
    return y.sum() + y.pow(2).sum()


def clipped(x: Any, w: Any) -> Any:
    y = x @ w
    y.register_hook(clip)
    return (y.tanh() * 10).sum()


def used_before_and_after(x: Any, w: Any) -> Any:
    y = x * w
    z = y.sin()
    k = 2.0
    y.register_hook(lambda g: g * k)
    return (y + z).sum()


def that_leaves(x: Any, w: Any) -> Any:
    y = x * w
    y.register_hook(lambda g: g * 2)
    return y.sum(), y


def several(x: Any, w: Any) -> Any:
    y = x * w
    y.register_hook(lambda g: None)
    y.register_hook(lambda g, k=3.0: g + k)
    z = y.exp()
    z.register_hook(torch.nn.functional.relu)
    return z.sum()


def whole_step(x: Any, w: Any) -> Any:
    y = x * w
    y.register_hook(clip)
    w.grad = None
    (y * 10).sum().backward()
    return w.grad * 2


def removed(x: Any, w: Any) -> Any:
    y = x * w
    handle = y.register_hook(lambda g: g * 2)
    handle.remove()
    return y.sum()


def of_a_tensor(x: Any, w: Any) -> Any:
    y = x * w
    y.register_hook(lambda g: g * x)
    return y.sum()


LOG: list[Any] = []


def noted(x: Any, w: Any) -> Any:
    y = x * w
    y.register_hook(lambda g: LOG.append(g.sum().item()))
    return y.sum()


def of_a_leaf(x: Any, w: Any) -> Any:
    handle = w.register_hook(lambda g: g * 2)
    loss = (x * w).sum()
    loss.backward()
    handle.remove()
    return w.grad * 1


WHOLE = [scaled, clipped, used_before_and_after, several, whole_step]
BREAKS = [that_leaves, removed, of_a_tensor, noted, of_a_leaf]


def results(f: Callable[..., Any]) -> list[torch.Tensor]:
    """Outputs and the gradient of the weight, from two calls."""
    out: list[torch.Tensor] = []
    for i in range(2):
        x = torch.arange(1.0, 10.0).reshape(3, 3) / 7 - i
        w = nn.Parameter(torch.linspace(-1, 1, 9).reshape(3, 3))
        got = f(x, w)
        got = got if isinstance(got, tuple) else (got,)
        loss = sum((t * t).sum() for t in got if t.requires_grad)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        out += [t.detach() for t in got]
        assert w.grad is not None
        out.append(w.grad)
    return out


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f", WHOLE, ids=lambda f: f.__name__)
def test_in_the_graph(f: Callable[..., Any], backend: str) -> None:
    for a, b in zip(results(f), results(braze.compile(f, backend=backend, fullgraph=True)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("f", BREAKS, ids=lambda f: f.__name__)
def test_breaks(f: Callable[..., Any]) -> None:
    LOG.clear()
    want, told = results(f), list(LOG)
    LOG.clear()
    compiled = braze.compile(f, backend="eager")
    for a, b in zip(want, results(compiled), strict=True):
        torch.testing.assert_close(a, b)
    assert told == pytest.approx(LOG)
    log = log_of(compiled)
    assert log is not None and any("register_hook" in b.reason for b in log.breaks)


def test_what_the_hook_depends_on_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = braze.compile(clipped, backend="eager", fullgraph=True)
    for limit in (0.5, 0.1, 0.5):
        monkeypatch.setitem(globals(), "LIMIT", limit)
        for a, b in zip(results(clipped), results(compiled), strict=True):
            torch.testing.assert_close(a, b)


def _forbidden_view() -> torch.Tensor:
    base = torch.arange(4.0, requires_grad=True) * 1
    with torch.no_grad():
        view = base[:2]
    base.mul_(2)
    return view


@pytest.mark.parametrize("name", ["is_leaf", "grad_fn", "grad", "requires_grad", "T"])
def test_a_view_that_torch_forbids_to_use(name: str) -> None:
    """A view made under no_grad whose base was then written with gradients: most uses raise, and capture must not."""

    def f(x: torch.Tensor) -> Any:
        y = torch.ones(2) * 2
        try:
            getattr(x, name)
            return y, x * 2
        except RuntimeError as e:
            return y, str(e)[:40]

    def outcome(g: Any, x: torch.Tensor) -> str:
        try:
            return str(g(x))
        except RuntimeError as e:
            return str(e)[:40]

    compiled = braze.compile(f, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for make in (_forbidden_view, _forbidden_view, lambda: torch.ones(2), _forbidden_view):
            assert outcome(compiled, make()) == outcome(f, make())
