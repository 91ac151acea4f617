"""Locks around captured code: really held wherever the graph breaks inside, never touched where it does not."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

import braze
from braze.api import log_of

LOCK = threading.Lock()
HELD: list[bool] = []


def look(*_: Any) -> None:
    HELD.append(LOCK.locked())


@torch.compiler.disable
def outside() -> None:
    look()


def plain(x: Any) -> Any:
    with LOCK:
        y = x + 1
    return y * 2


def broken(x: Any) -> Any:
    y = x + 1
    with LOCK:
        y = y * 2
        outside()
        y = y - 1
    outside()
    return y * 3


def by_hand(x: Any) -> Any:
    LOCK.acquire()
    try:
        outside()
        return x.sin()
    finally:
        LOCK.release()


def run(fn: Any, *args: Any) -> Any:
    HELD.clear()
    fast = braze.compile(fn, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(fast(*args), fn(*args))
        assert not LOCK.locked()
    return log_of(fast)


def test_released_again() -> None:
    assert not run(plain, torch.ones(3)).breaks


def test_held_at_a_break() -> None:
    run(broken, torch.ones(3))
    assert HELD == [True, False] * 6


def test_acquired_by_hand() -> None:
    run(by_hand, torch.ones(3))
    assert HELD == [True] * 6


class Tree(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Tree(depth - 1) for _ in range(2 if depth else 0))
        self.ready = False

    def prepare(self) -> None:
        if self.ready:
            return
        with LOCK:
            self.visit()
            self.ready = True

    def visit(self) -> None:
        for _, part in self.named_children():
            for p in part.children():
                p.visit()
        self.register_forward_hook(look)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.prepare()
        for p in self.parts:
            p.ready = True
            x = p(x)
        return x + 1


def test_many_breaks_below_a_lock() -> None:
    """More than one frame may be compiled for: what is left runs in Python, with the lock as it should be."""
    model, twin = Tree(4), Tree(4)
    x = torch.ones(2)
    fast = braze.compile(model, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(fast(x), twin(x))
    assert not LOCK.locked()
