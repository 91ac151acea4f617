"""A program through ``braze.compile``, against eager: results, effects on arguments, exceptions, and the breaks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

import braze
from braze.api import log_of


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or type(a) is not type(b):
            return False
        if (a.dtype, a.shape, a.requires_grad, a.is_leaf) != (b.dtype, b.shape, b.requires_grad, b.is_leaf):
            return False
        grads = not a.is_leaf or same(a.grad, b.grad)
        return grads and torch.allclose(a, b, 1e-5, 1e-6, equal_nan=True)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (int, float, str, bool, type(None), set, frozenset)):
        return type(a) is type(b) and (a == b or a != a and b != b)
    return type(a) is type(b)


def outcome(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    torch.manual_seed(0)
    try:
        return "gives", f(*args)
    except Exception as e:
        return "raises", type(e).__name__, str(e)


def check(f: Callable[..., Any], *args: Any, rounds: int = 2, **options: Any) -> list[str]:
    """Compare ``rounds`` calls with fresh copies of the arguments; the reasons of the breaks."""
    compiled = braze.compile(f, backend="eager", **options)
    for i in range(rounds):
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        want, got = outcome(f, mine), outcome(compiled, theirs)
        assert same(want, got), f"round {i}: {want} != {got}"
        assert same(mine, theirs), f"round {i}, arguments: {mine} != {theirs}"
    log = log_of(compiled)
    assert log is not None
    return [b.reason for b in log.breaks]
