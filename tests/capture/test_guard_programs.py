"""Guards under attack: after every change of what a program reads, compiled code still does what eager does."""

from __future__ import annotations

import builtins
import copy
import importlib.util
import math
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze

FILE = Path(__file__).parent / "guard_programs.py"
PATCHED = [
    (F, "relu"),
    (torch, "sin"),
    (math, "sqrt"),
    (builtins, "divmod"),
    (nn.Linear, "forward"),
    (nn.Module, "__call__"),
]


def load() -> Any:
    spec = importlib.util.spec_from_file_location("guard_programs", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["guard_programs"] = module
    spec.loader.exec_module(module)
    return module


NAMES = [f.__name__ for f in load().CASES]


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name in PATCHED]
    threads = torch.get_num_threads()
    yield
    for owner, name, value in before:
        if getattr(owner, name) is not value:
            setattr(owner, name, value)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(False)
    torch.backends.mkldnn.set_flags(True)
    braze.reset()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        alike = isinstance(b, torch.Tensor) and (a.dtype, a.shape, a.requires_grad) == (
            b.dtype,
            b.shape,
            b.requires_grad,
        )
        return alike and torch.allclose(a, b, 1e-5, 1e-6, equal_nan=True)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return type(a) is type(b) and repr(a) == repr(b)
    if isinstance(a, types.FunctionType):
        return a is b
    return type(a) is type(b) and a == b


def outcome(f: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call gives or raises, with tensors of its own; a dict that it changes is put back."""
    torch.manual_seed(0)
    given = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
    before = copy.deepcopy(args[-1]) if isinstance(args[-1], dict) else None
    try:
        return "gives", f(*given)
    except Exception as e:
        return "raises", type(e).__name__, str(e)
    finally:
        if before is not None:
            args[-1].clear()
            args[-1].update(before)


@pytest.mark.parametrize("name", NAMES)
def test_changes_are_seen(name: str) -> None:
    f, args, changes = getattr(load(), name)()
    compiled = braze.compile(f, backend="eager", options={"recompile_limit": 64})
    for i, change in enumerate([lambda: None, *changes]):
        change()
        for _ in range(2):  # compiled, then found again
            want, got = outcome(f, args), outcome(compiled, args)
            assert same(want, got), f"after change {i - 1}: {want} != {got}"
