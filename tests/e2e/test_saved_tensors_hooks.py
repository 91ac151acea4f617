"""Hooks on saved tensors around a compiled module: activation checkpointing and offloading see what it saves."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import braze


def block() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16), nn.BatchNorm1d(16))


def gradients(model: nn.Module, x: torch.Tensor, how: str) -> list[torch.Tensor]:
    model.zero_grad()
    x.grad = None
    if how == "offload":
        with torch.autograd.graph.save_on_cpu():
            y = model(x)
    else:
        y = checkpoint(model, x, use_reentrant=how == "reentrant")
    y.square().sum().backward()
    return [x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("how", ["reentrant", "recomputed", "offload"])
def test_compiled_inside_a_checkpoint(how: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(5, 16, requires_grad=True)
    want = [g.clone() for g in gradients(block(), x, how)]
    fast = braze.compile(block(), fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(gradients(fast, x, how), want, rtol=1e-3, atol=1e-4)


def test_everything_that_is_saved_goes_through_the_hooks() -> None:
    fast, x = braze.compile(block(), fullgraph=True), torch.randn(5, 16)
    for _ in range(2):  # the first call traces; its own tensors must not reach the hooks
        packed: list[torch.Tensor] = []

        def pack(t: torch.Tensor, packed: list[torch.Tensor] = packed) -> int:
            assert type(t) in (torch.Tensor, nn.Parameter)
            packed.append(t.detach().clone())
            return len(packed) - 1

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda k, packed=packed: packed[k]):
            y = fast(x)
        y.square().sum().backward()
        assert len(packed) >= 6
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None


def test_registries_by_module_know_the_twin() -> None:
    import weakref

    model = block()
    state = weakref.WeakKeyDictionary({model: 1})
    fast = braze.compile(model)
    assert state[fast] == 1 and fast in {model} and model in {fast}
    assert fast != block()
