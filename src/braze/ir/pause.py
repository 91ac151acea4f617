"""What of the caller's surroundings is set aside while a program is traced."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
