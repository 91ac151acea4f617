"""Selective activation checkpoints (``context_fn``) inside a compiled model: the policy says what is saved."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts, noop_context_fn

import braze
from braze.api import log_of

aten = torch.ops.aten
MATMULS = (aten.mm.default, aten.addmm.default)


def save_matmuls(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in MATMULS else CheckpointPolicy.PREFER_RECOMPUTE


def save_nothing(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_RECOMPUTE


def save_sines(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    return op is aten.sin.default


def every_second() -> Any:
    """A policy that counts, made anew for each call."""
    seen: dict[str, int] = defaultdict(int)

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        mode = "again" if ctx.is_recompute else "forward"
        seen[mode] += op in MATMULS
        save = op in MATMULS and seen[mode] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Net(nn.Module):
    def __init__(self, context_fn: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16)) for _ in range(3))
        self.context_fn = context_fn

    def block(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (x + layer(x).sin()).cos()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = {} if self.context_fn is None else {"context_fn": self.context_fn}
        for layer in self.layers:
            x = checkpoint(self.block, layer, x, use_reentrant=False, **more)  # type: ignore[arg-type]
        return x.square().sum()


CONTEXTS = {
    "plain": None,
    "noop": noop_context_fn,
    "nothing": functools.partial(create_selective_checkpoint_contexts, save_nothing),
    "matmuls": functools.partial(create_selective_checkpoint_contexts, save_matmuls),
    "list": functools.partial(create_selective_checkpoint_contexts, list(MATMULS)),
    "sines": functools.partial(create_selective_checkpoint_contexts, save_sines),
    "half": every_second,
}


def run(name: str) -> tuple[list[Any], int, list[torch.Size]]:
    net = Net(CONTEXTS[name])
    fast = braze.compile(net, fullgraph=True)
    x = torch.linspace(-1, 1, 160).view(10, 16).requires_grad_()
    y = fast(x)
    shapes = [t.shape for t in y.grad_fn.extras]
    y.backward()
    log = log_of(fast)
    assert log is not None and len(log.graphs) == 1 and not log.graphs[0].fallback
    backward = log.graphs[0].levels["backward"]
    products = sum(n.target is aten.addmm.default for n in backward.calls)
    return [x.grad, *(p.grad for p in net.parameters())], products, shapes


@pytest.mark.parametrize("name", CONTEXTS)
def test_the_policy_is_kept(name: str) -> None:
    exact = Net(CONTEXTS["plain"]).double()
    x = torch.linspace(-1, 1, 160, dtype=torch.float64).view(10, 16).requires_grad_()
    exact(x).backward()
    grads, products, shapes = run(name)
    for got, want in zip(grads, [x.grad, *(p.grad for p in exact.parameters())]):
        torch.testing.assert_close(got, want.float(), rtol=1e-4, atol=1e-5)
    wide = sum(tuple(s) == (10, 48) for s in shapes)
    if name in ("matmuls", "list", "half"):
        assert wide == 3 and products <= (3 if name == "half" else 0)
    else:
        assert wide == 0 and products >= 3
    assert len(shapes) == {"sines": 5, "matmuls": 8, "list": 8, "half": 5}.get(name, 2)


def test_what_is_no_policy_breaks() -> None:
    from contextlib import nullcontext

    net = Net(lambda: (nullcontext(), nullcontext()))
    x = torch.linspace(-1, 1, 160).view(10, 16).requires_grad_()
    with pytest.raises(braze.Unsupported, match="context_fn"):
        braze.compile(net, fullgraph=True)(x)
    braze.compile(net)(x).backward()
    y = x.detach().requires_grad_()
    Net()(y).backward()
    torch.testing.assert_close(x.grad, y.grad)
