"""Small models, training loops and comparisons that the ranks run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 20


class Block(nn.Module):
    """A pre-norm MLP block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Blocks between two linear layers. ``branch`` picks one of two heads: the other's parameters are unused."""

    def __init__(self, width: int = 32, depth: int = 2, checkpointed: bool = False, batch_norm: bool = False) -> None:
        super().__init__()
        self.inp = nn.Linear(16, width)
        self.norm = nn.BatchNorm1d(width) if batch_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head, self.other = nn.Linear(width, 4), nn.Linear(width, 4)
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor, branch: bool = False) -> torch.Tensor:
        x = self.norm(self.inp(x))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.other(x) if branch else self.head(x)


class Used(Net):
    """Every parameter is used in every step."""

    def forward(self, x: torch.Tensor, branch: bool = False) -> torch.Tensor:
        x = self.norm(self.inp(x))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.other(x) + self.head(x)


def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's data of one step."""
    g = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(6, 16, generator=g), torch.randn(6, 4, generator=g)


@dataclass
class Run:
    """What a training run gave."""

    losses: list[float]
    grads: dict[str, torch.Tensor | None]
    state: dict[str, torch.Tensor]


def full(x: torch.Tensor | None) -> torch.Tensor | None:
    if x is None:
        return None
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().clone()


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """No gradient reduction inside: DDP's ``no_sync``, FSDP2's ``set_requires_gradient_sync(False)``."""
    if hasattr(model, "no_sync"):
        with model.no_sync():
            yield
    else:
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)


def train(
    model: nn.Module,
    steps: int = STEPS,
    dtype: torch.dtype | None = None,
    accumulate: int = 1,
    branch: Callable[[int], bool] | None = None,
    after: Callable[[nn.Module], None] | None = None,
) -> Run:
    """SGD with momentum. A step: ``accumulate`` micro-batches, all but the last under ``no_sync``."""
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        opt.zero_grad()
        for micro in range(accumulate):
            x, y = batches(step * accumulate + micro)
            with quiet(model) if micro + 1 < accumulate else nullcontext():
                with torch.autocast("cpu", dtype) if dtype else nullcontext():
                    out = model(x, branch(step)) if branch else model(x)
                    loss = (out.float() - y).square().mean()
                loss.backward()
            losses.append(loss.item())
        if after is not None:
            after(model)
        opt.step()
    return Run(
        losses,
        {n: full(p.grad) for n, p in model.named_parameters()},
        {k: full(v) for k, v in model.state_dict().items()},
    )


def same(got: Run, want: Run, exact: bool = True) -> None:
    """Losses of all steps, the last gradients and the final state agree (``exact`` False: up to 16-bit rounding)."""
    kw: dict[str, Any] = dict(rtol=1e-4, atol=1e-5) if exact else dict(rtol=0.06, atol=0.03)
    torch.testing.assert_close(got.losses, want.losses, **kw)
    assert got.grads.keys() == want.grads.keys() and got.state.keys() == want.state.keys()
    for name, g in want.grads.items():
        assert (g is None) == (got.grads[name] is None), f"{name}: gradient {got.grads[name]}, expected {g}"
    for a, b in [*both(got.grads, want.grads), *both(got.state, want.state)]:
        if exact:
            torch.testing.assert_close(a, b, **kw)
        elif a.is_floating_point():
            assert (a - b).norm() <= 0.05 * b.norm() + 0.02, (a, b)


def both(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    return ((a[k], b[k]) for k in b if b[k] is not None)
