"""What of the caller's surroundings is set aside while a program is traced."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .graph import Graph


@contextmanager
def paused_gc() -> Iterator[None]:
    """No automatic garbage collection inside (it took three quarters of a trace's time); as before afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_DEVICES = ("cpu", "cuda")
_SWITCHES = frozenset((torch._C._set_grad_enabled, torch.set_autocast_enabled, torch.autocast_increment_nesting))


def switches_modes(graph: Graph) -> bool:
    """Whether a graph of torch calls switches grad mode or autocast."""
    return any(n.op == "call" and n.target in _SWITCHES for n in graph.nodes)


@contextmanager
def modes_kept(always: bool = False) -> Iterator[None]:
    """When an exception leaves a program in the middle, grad mode and autocast are as they were before it; ``always``:
    also when it ends, as a program that was only traced."""
    grad, cached = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
    depth = _autocast_depth()
    done = False
    try:
        yield
        done = True
    finally:
        if always or not done:
            torch._C._set_grad_enabled(grad)
            torch.set_autocast_cache_enabled(cached)
            for device, on, dtype in casts:
                torch.set_autocast_enabled(device, on)
                torch.set_autocast_dtype(device, dtype)
            while _autocast_depth() > depth:
                torch.autocast_decrement_nesting()
            while _autocast_depth() < depth:
                torch.autocast_increment_nesting()


def _autocast_depth() -> int:
    """How many autocast contexts are entered."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def grad_without_hooks(outputs: Any, inputs: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    """``torch.autograd.grad`` that does not run the inputs' hooks: the calls that they make follow in the graph."""
    aside = [(x, x._backward_hooks) for x in inputs if x._backward_hooks is not None]
    for x, _ in aside:
        x._backward_hooks = None
    try:
        return torch.autograd.grad(outputs, inputs, *args, **kwargs)
    finally:
        for x, hooks in aside:
            x._backward_hooks = hooks


@contextmanager
def no_saved_tensors_hooks() -> Iterator[None]:
    """Lift the caller's hooks on saved tensors (a surrounding activation checkpoint's, say): what a trace saves is not
    the program's."""
    top = torch._C._autograd._top_saved_tensors_default_hooks
    lifted = []
    while (hooks := top(False)) is not None:
        lifted.append(hooks)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(lifted):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
