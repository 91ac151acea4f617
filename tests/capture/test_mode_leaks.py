"""Modes and memory after errors: what a graph switched is switched back; inputs that a graph writes are told apart."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.autograd import trace_joint
from braze.ir import tensor_type


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inputs_written_by_a_list_operator_may_not_be_one_tensor(backend: str) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([a], 1.0)
        return a + b

    fast, x = braze.compile(f, backend=backend), torch.zeros(3)
    assert fast(torch.zeros(3), torch.zeros(3)).tolist() == [1.0] * 3
    assert fast(x, x).tolist() == [2.0] * 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_an_error_inside_the_graph_leaves_no_mode_switched(backend: str) -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            y = x[i]
        return y * 2

    fast = braze.compile(f, backend=backend)
    fast(torch.zeros(3), torch.tensor(1))
    with pytest.raises(IndexError):
        fast(torch.zeros(3), torch.tensor(7))
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1 and torch.autocast_decrement_nesting() == 0


def test_a_trace_that_fails_leaves_no_mode_switched() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._C._set_grad_enabled(False)
        torch.autocast_increment_nesting()
        torch.set_autocast_enabled("cpu", True)
        raise ValueError

    with pytest.raises(ValueError):
        trace_joint(f, [tensor_type((2,))])
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1 and torch.autocast_decrement_nesting() == 0


def breaks_without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.sin()
        print(end="")
    return y + x * 2


def enables_gradients(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.enable_grad():
        y = x * 2
    return y, x * 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_gradients_switched_on_inside_a_graph(backend: str) -> None:
    """The graph starts with gradients off: after a break in a no_grad block, or where the caller switched them off."""
    x = torch.ones(3, requires_grad=True)
    braze.compile(breaks_without_gradients, backend=backend)(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3
    with torch.no_grad():
        y, z = braze.compile(enables_gradients, backend=backend)(x)
        assert not torch.is_grad_enabled()
    assert y.requires_grad and not z.requires_grad
    x.grad = None
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3
    with torch.inference_mode():
        want = enables_gradients(torch.ones(3))
        got = braze.compile(enables_gradients, backend=backend)(torch.ones(3))
    assert [t.requires_grad for t in got] == [t.requires_grad for t in want]
