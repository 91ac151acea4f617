"""disable, allow_in_graph, assume_constant, graph_break, is_compiling, reset; and the peer's marks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of

X = torch.arange(4.0)


def run(f: Any, *args: Any, **options: Any) -> tuple[Any, Any]:
    fast = braze.compile(f, backend="eager", **options)
    return fast(*args), log_of(fast)


def calls(log: Any) -> list[str]:
    return [n.target.__name__ for g in log.graphs for n in g.graph.calls]


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


@braze.disable
def left_alone(x: torch.Tensor) -> torch.Tensor:
    return helper(x).sin()


@braze.disable(recursive=False)
def only_this(x: torch.Tensor) -> torch.Tensor:
    return helper(x).sin()


def test_disable_covers_what_is_called() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return left_alone(x + 1) * 2

    out, log = run(f, X)
    torch.testing.assert_close(out, (X + 1).cos().sin() * 2)
    assert sorted(calls(log)) == ["add", "mul"] and "left_alone" in log.breaks[0].reason
    with pytest.raises(braze.Unsupported, match="left_alone"):
        run(f, X, fullgraph=True)


def test_disable_of_one_function_compiles_what_it_calls() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return only_this(x + 1) * 2

    out, log = run(f, X)
    torch.testing.assert_close(out, (X + 1).cos().sin() * 2)
    assert sorted(calls(log)) == ["add", "cos", "mul"]


def test_disabled_module_and_method() -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = braze.disable(Inner())

        @braze.disable
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x.tan()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.method(self.inner(x + 1) * 2) - 1

    out, log = run(Outer(), X)
    torch.testing.assert_close(out, ((X + 1).exp() * 2).tan() - 1)
    assert not {"exp", "tan"} & set(calls(log))
    with pytest.raises(TypeError, match="takes a function"):
        braze.disable(3)


def test_the_peers_disable_is_honoured_below_it() -> None:
    @torch.compiler.disable
    def g(x: torch.Tensor) -> torch.Tensor:
        return helper(x).sin()

    out, log = run(lambda x: g(x + 1) * 2, X)
    torch.testing.assert_close(out, (X + 1).cos().sin() * 2)
    assert sorted(calls(log)) == ["add", "mul"]


def test_graph_break_splits() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        braze.graph_break()
        return y * 2

    out, log = run(f, X)
    torch.testing.assert_close(out, (X + 1) * 2)
    assert len(log.graphs) == 2 and "graph_break" in log.breaks[0].reason
    with pytest.raises(braze.Unsupported, match=r"graph_break(.|\n)*remove the call"):
        run(f, X, fullgraph=True)


def test_is_compiling() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + (1 if braze.is_compiling() else 2)

    assert not braze.is_compiling() and torch.equal(f(X), X + 2)
    assert torch.equal(run(f, X)[0], X + 1)


@braze.allow_in_graph
def opaque(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    state: dict[str, Any] = {}
    exec("y = x * scale", {"x": x, "scale": scale}, state)  # which the interpreter does not follow
    return state["y"], x - 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_allowed_functions_are_calls_of_the_graph(backend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        a, b = opaque(x + 1, 3.0)
        return a * b

    fast = braze.compile(f, backend=backend, fullgraph=True)
    x = X.clone().requires_grad_()
    fast(x).sum().backward()
    torch.testing.assert_close(fast(X), (X + 1) * 3 * X)
    torch.testing.assert_close(x.grad, 6 * X + 3)
    assert "opaque" in calls(log_of(fast))


def test_assumed_constants_are_computed_once() -> None:
    seen = []

    @braze.assume_constant
    def table(n: int) -> torch.Tensor:
        seen.append(n)
        return torch.tensor([float(v) for v in range(n)])

    @braze.assume_constant
    def scale(name: str) -> float:
        seen.append(name)
        return {"a": 2.0}[name]

    fast = braze.compile(lambda x: x * table(4) + scale("a"), backend="aot_eager", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(fast(X), X * X + 2)
    assert seen == [4, "a"]


def test_reset_forgets() -> None:
    fast = braze.compile(lambda x: x + 1, backend="eager")
    fast(X)
    fast(X)
    log = log_of(fast)
    assert log is not None and len(log.graphs) == 1
    braze.reset()
    torch.testing.assert_close(fast(X), X + 1)
    assert len(log.graphs) == 2
    out, after = run(lambda x: left_alone(x + 1), X)  # what the program has disabled stays so
    assert "cos" not in calls(after)
