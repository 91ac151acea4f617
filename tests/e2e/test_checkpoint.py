"""``torch.utils.checkpoint`` inside of a compiled function: its region is computed again by the backward, not saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import braze
from braze.api import log_of
from braze.ir import Graph


class Block(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.norm, self.a, self.b, self.p = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16), p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.dropout(self.b(nn.functional.gelu(self.a(self.norm(x)))), self.p, self.training)


class Net(nn.Module):
    def __init__(self, how: str, p: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.how = nn.ModuleList([Block(p) for _ in range(3)]), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            x = b(x) if self.how == "none" else checkpoint(b, x, use_reentrant=self.how == "reentrant")
        return x.square().mean()


def step(net: nn.Module, x: torch.Tensor) -> tuple[list[Any], Graph, list[Any]]:
    """Gradients, the backward graph, and the types that it is given beside inputs and tangents."""
    fast = braze.compile(net, fullgraph=True)
    torch.manual_seed(5)
    y = fast(x)
    kept = [t for t in y.grad_fn.extras]
    y.backward()
    log = log_of(fast)
    assert log is not None and len(log.graphs) == 1
    return [x.grad, *(p.grad for p in net.parameters())], log.graphs[0].levels["backward"], kept


def count(graph: Graph, *names: str) -> int:
    return sum(getattr(n.target, "_opname", "") in names for n in graph.calls)


@pytest.mark.parametrize("how", ["recomputed", "reentrant"])
def test_saved_are_the_inputs_of_the_regions(how: str) -> None:
    x, x0, x1 = (torch.linspace(-1, 1, 160).view(10, 16).requires_grad_() for _ in range(3))
    grads, backward, kept = step(Net(how), x)
    plain, usual, more = step(Net("none"), x0)
    eager = Net(how)
    eager(x1).backward()
    for a, b, c in zip(grads, plain, [x1.grad, *(p.grad for p in eager.parameters())]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-6)
    assert all(t.shape == x.shape for t in kept) and len(kept) <= 3  # what goes from block to block
    assert sum(t.nbytes for t in kept) < sum(t.nbytes for t in more) / 3
    assert count(usual, "addmm", "mm") == 12
    assert count(backward, "addmm") >= 3  # the first layer of each block, once more


def test_random_numbers_are_the_same_when_drawn_again() -> None:
    x, x0 = (torch.linspace(-1, 1, 160).view(10, 16).requires_grad_() for _ in range(2))
    for a, b in zip(step(Net("recomputed", 0.3), x)[0], step(Net("none", 0.3), x0)[0]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_statistics_are_updated_once() -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))

    seen = []
    for wrap in (lambda f: f, lambda f: braze.compile(f, fullgraph=True)):
        m = make()
        f = wrap(lambda x, m=m: checkpoint(m, x, use_reentrant=False).square().sum())
        x = torch.linspace(-1, 1, 48).view(6, 8).requires_grad_()
        for _ in range(2):
            f(x).backward()
        seen.append([x.grad, *(p.grad for p in m.parameters()), m[1].num_batches_tracked])
    # eager's recomputation updates the statistics once more; they count forwards here
    for a, b in zip(seen[0][:-1], seen[1][:-1]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert seen[1][-1] == 2


def test_a_draw_of_the_library_is_saved() -> None:
    """``strict_random``: the generator cannot be asked twice."""
    x, x0 = (torch.linspace(-1, 1, 160).view(10, 16).requires_grad_() for _ in range(2))
    net, eager = Net("recomputed", 0.3), Net("recomputed", 0.3)
    fast = braze.compile(net, fullgraph=True, options={"strict_random": True})
    torch.manual_seed(5)
    fast(x).backward()
    torch.manual_seed(5)
    eager(x0).backward()
    torch.testing.assert_close(x.grad, x0.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("whole", [False, True])
def test_a_whole_step(whole: bool) -> None:
    """A break before ``backward()`` gives it a graph of its own; one graph of all (``fullgraph``) works, too."""

    def run(wrap: Any) -> list[Any]:
        net = Net("recomputed")
        opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            opt.zero_grad()
            loss = net(x)
            loss.backward()
            opt.step()
            return loss.detach()

        fast = wrap(step)
        losses = [fast(torch.linspace(-1, 1, 160).view(10, 16)) for _ in range(3)]
        if fast is not step:
            log = log_of(fast)
            assert log is not None and not any(g.fallback for g in log.graphs)
            forward = log.graphs[0]
            assert ("backward" in forward.levels) is not whole
            if not whole:
                assert count(forward.levels["backward"], "addmm") >= 3
                assert any("activation checkpoints" in str(b) for b in log.breaks)
        return [*losses, *net.parameters()]

    want = run(lambda f: f)
    torch.testing.assert_close(run(lambda f: braze.compile(f, fullgraph=whole)), want, rtol=1e-4, atol=1e-5)
