"""Activation checkpoints inside a compiled model: the backward keeps what eager keeps; values and draws agree."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import braze
from braze.api import log_of
from braze.inductor.codegen.host import last_uses
from braze.inductor.fuse.schedule import writes_of
from braze.inductor.loops import Buffer, Program
from braze.ir import evaluate

BACKENDS = ["aot_eager", "inductor"]


class Block(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)
        self.drop = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.b(nn.functional.gelu(self.a(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, how: str = "", p: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*[Block(p) for _ in range(4)])
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "sequential":
            return checkpoint_sequential(self.blocks, 4, x, use_reentrant=False)  # type: ignore[no-any-return]
        if self.how == "nested":
            return checkpoint(self.halves, x, use_reentrant=False)  # type: ignore[no-any-return]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.how == "reentrant") if self.how else block(x)
        return x

    def halves(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def kept(f: Callable[..., Any], x: torch.Tensor, model: nn.Module) -> int:
    """The bytes that a forward keeps for its backward, inputs and parameters apart."""
    own = {t.untyped_storage().data_ptr() for t in [x, *model.parameters()]}
    found: dict[int, int] = {}
    alive = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        s = t.untyped_storage()
        if s.data_ptr() not in own:
            found[s.data_ptr()] = s.nbytes()
        alive.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        f(x)
    return sum(found.values())


def gradients(f: Callable[..., Any], x: torch.Tensor, model: nn.Module) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    torch.manual_seed(1)
    f(x).square().sum().backward()
    out = [x.grad, *(p.grad for p in model.parameters())]
    model.zero_grad()
    return out  # type: ignore[return-value]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["reentrant", "non-reentrant", "sequential", "nested"])
def test_what_is_kept(how: str, backend: str) -> None:
    model, x = Net(how), torch.randn(64, 32, requires_grad=True)
    fast = braze.compile(model, backend=backend, fullgraph=True)
    assert kept(fast, x, model) <= kept(model, x, model)
    plain = Net()
    assert (
        kept(fast, x, model) < kept(braze.compile(plain, backend=backend), x, plain) / 2
    )  # the last part of a sequence is no checkpoint
    exact = copy.deepcopy(model).double()
    want = gradients(exact, x.double(), exact)
    for g, w in zip(gradients(fast, x, model), want):
        assert (g - w).norm() <= 1e-5 * w.norm()
    assert not any(g.fallback for g in log_of(fast).graphs)  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["reentrant", "non-reentrant"])
def test_dropout_is_drawn_once(how: str) -> None:
    """The backward's second computation has the forward's masks: the gradients are those without checkpoints."""
    x = torch.randn(64, 32)
    model, plain = Net(how, 0.3), Net("", 0.3)
    got, want = (gradients(braze.compile(m), x, m) for m in (model, plain))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_drawing_by_torchs_generator_is_kept() -> None:
    model = Net("non-reentrant", 0.3)
    x = torch.randn(64, 32)
    want = gradients(model, x, model)
    got = gradients(braze.compile(model, backend="aot_eager", options={"strict_random": True}), x, model)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def peak(program: Program) -> int:
    """The most bytes that the buffers of a program take at once."""
    held: dict[Buffer, int] = {}
    most, last = 0, last_uses(program)
    for n, step in enumerate(program.steps):
        for b in writes_of(step):
            if b not in program.reuse and not (b in program.inputs or b in held):
                held[b] = int(evaluate(b.type.nbytes))
        most = max(most, sum(held.values()))
        for b in last.get(n, ()):
            held.pop(b, None)
    return most


@pytest.mark.parametrize("how", ["reentrant", "non-reentrant", "sequential", "nested"])
def test_one_graph_of_a_whole_step(how: str) -> None:
    """Losses and parameters as without checkpoints, in far less memory."""
    x = torch.randn(512, 32)
    found = []
    for kind in ("", how):
        model = Net(kind, 0.2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x: torch.Tensor, model: nn.Module = model, optimizer: Any = optimizer) -> torch.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        fast = braze.compile(step, fullgraph=True)
        torch.manual_seed(3)
        values = [fast(x) for _ in range(3)]
        program = log_of(fast).graphs[-1].programs["forward"]  # type: ignore[union-attr]
        found.append(([*values, *model.parameters()], peak(program)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-6)
    assert found[1][1] < 0.7 * found[0][1], [p for _, p in found]


def test_a_value_from_outside_and_several_results() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = (x @ w).sin()

        def part(y: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            z = (y @ w).exp() * h
            return z.tanh(), {"a": z + 1}

        a, b = checkpoint(part, h * 2, use_reentrant=False)
        return (a * b["a"]).sum()

    runs = []
    for g in (f, braze.compile(f, fullgraph=True)):
        torch.manual_seed(0)
        x, w = torch.randn(8, 6, requires_grad=True), (torch.randn(6, 6) * 0.3).requires_grad_()
        g(x, w).backward()
        runs.append([x.grad, w.grad])
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-4, atol=1e-5)
