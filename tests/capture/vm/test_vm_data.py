"""``p.data = value`` of existing tensors: one graph, and afterwards the memory that eager shares is shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of

Make = Callable[[], tuple[Any, ...]]


def tensors(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(sizes).numel()).reshape(sizes)


def p(*sizes: int) -> nn.Parameter:
    return nn.Parameter(tensors(*sizes) / 2)


def unrelated(q: Any, x: Any) -> Any:
    q.data = x * 2
    return x + 1


def after_a_use(q: Any, x: Any) -> Any:
    y = (x * q).sum()
    q.data = x
    return y


def averaged(m: Any, n: Any) -> Any:
    with torch.no_grad():
        for a, b in zip(m.parameters(), n.parameters()):
            a.data = a.data * 0.9 + b.data * 0.1
    return sum(b.sum() for b in n.parameters())


def written_later(q: Any, x: Any) -> Any:
    z = x * 2
    q.data = z
    z.add_(1)
    return z


def input_written_later(q: Any, x: Any) -> Any:
    q.data = x
    x.add_(1)
    return x.sum()


def with_history(q: Any, w: Any, x: Any) -> Any:
    z = x * w
    q.data = z
    return z.sum()


def of_another(q: Any, w: Any, x: Any) -> Any:
    w.data.mul_(3)
    q.data = w.data
    w.data.add_(1)
    return x * 2


def old_memory(q: Any, x: Any) -> Any:
    d = q.data
    q.data = x * 3
    d.add_(1)
    return d * 2


def transposed(q: Any, x: Any) -> Any:
    q.data = x.t()
    return x * 2


def a_step(q: Any, x: Any) -> Any:
    (x * q).sum().backward()
    q.data = q.data - 0.1 * q.grad
    q.grad = None
    return x.sum()


def swapped(q: Any, x: Any) -> Any:
    b = x * 2
    q.data, b = b, q.data
    return b


WHOLE: dict[Callable[..., Any], Make] = {
    unrelated: lambda: (p(3), tensors(3)),
    after_a_use: lambda: (p(3), tensors(3)),
    averaged: lambda: (linear(1), linear(2)),
    written_later: lambda: (p(3), tensors(3)),
    input_written_later: lambda: (p(3), tensors(3)),
    with_history: lambda: (p(3), p(3), tensors(3)),
    of_another: lambda: (p(3), p(3), tensors(3)),
    old_memory: lambda: (p(3), tensors(3)),
    transposed: lambda: (p(3, 2), tensors(2, 3)),
    a_step: lambda: (p(3), tensors(3)),
    swapped: lambda: (p(3), tensors(3)),
}


def linear(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def state(args: tuple[Any, ...], out: Any) -> tuple[list[torch.Tensor], list[list[bool]]]:
    """All tensors, and which of them share memory."""
    found: list[torch.Tensor] = []
    for a in (*args, out):
        found += a.parameters() if isinstance(a, nn.Module) else [a] if isinstance(a, torch.Tensor) else []
    where = [t.untyped_storage().data_ptr() for t in found]
    return found, [[a == b for a in where] for b in where]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f", WHOLE, ids=lambda f: f.__name__)
def test_one_graph(f: Callable[..., Any], backend: str) -> None:
    compiled = braze.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):
        mine, theirs = WHOLE[f](), WHOLE[f]()
        want, got = state(mine, f(*mine)), state(theirs, compiled(*theirs))
        assert want[1] == got[1]
        for a, b in zip(want[0], got[0]):
            assert a.requires_grad == b.requires_grad and a.is_leaf == b.is_leaf and a.stride() == b.stride()
            torch.testing.assert_close(a, b)


def used_again(q: Any, x: Any) -> Any:
    q.data = x * 2
    return q + 1


def read_again(q: Any, x: Any) -> Any:
    q.data = x[:2]
    return q.shape, q.data_ptr() == x.data_ptr()


def twice(q: Any, x: Any) -> Any:
    q.data = x * 3
    q.data = x * 4
    q.grad = x * 2
    q.requires_grad_(False)
    return q.requires_grad, q.grad


def another_dtype(q: Any, x: Any) -> Any:
    q.data = q.data.half()
    return x * 2


@pytest.mark.parametrize("f", [used_again, read_again, twice, another_dtype], ids=lambda f: f.__name__)
def test_breaks(f: Callable[..., Any]) -> None:
    compiled = braze.compile(f, backend="eager")
    for _ in range(2):
        mine, theirs = (p(3), tensors(3)), (p(3), tensors(3))
        want, got = f(*mine), compiled(*theirs)
        assert str(want) == str(got) and mine[0].dtype == theirs[0].dtype
        torch.testing.assert_close(mine[0], theirs[0])
    log = log_of(compiled)
    assert log is not None and any(".data" in b.reason or "'data'" in b.reason for b in log.breaks)
