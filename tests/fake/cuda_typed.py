"""Tracing of tensors typed "cuda" on a machine without a GPU, for tests.

With a CUDA build of torch the autograd engine asks the driver for CUDA's contexts at the start of each backward pass,
and fails without one. Here that question is answered "no". Needed only in tests: a CPU build of torch does not ask, and
with a GPU there is an answer.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
from pathlib import Path
from typing import Any

import torch

_keep: list[Any] = []


def _virtuals(header: str, upto: str) -> int:
    """The vtable slot of the virtual function ``upto``, by its place in the interface's header (a destructor has 2)."""
    text = (Path(torch.__file__).parent / "include" / header).read_text()
    slot = 0
    for line in text.splitlines():
        if line.strip().startswith("virtual "):
            if f" {upto}(" in line:
                return slot
            slot += 2 if "~" in line else 1
    raise LookupError(upto)


@functools.cache
def enable() -> None:
    """Once a process; does nothing where CUDA works or torch is built without it."""
    if torch.cuda.is_available():
        return
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False  # else autocast("cuda") turns itself off
    torch.cuda.is_bf16_supported = lambda *args: True
    torch.cuda._lazy_init = lambda: None  # asked by torch.arange(…, device="cuda") before the trace sees the call
    if torch.version.cuda is None:
        return
    slot = _virtuals("ATen/detail/AcceleratorHooksInterface.h", "hasPrimaryContext")
    lib = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    get_hooks = lib._ZN2at6detail12getCUDAHooksEv
    get_hooks.restype = ctypes.c_void_p
    hooks = ctypes.cast(get_hooks(), ctypes.POINTER(ctypes.c_void_p))
    old = ctypes.cast(hooks[0], ctypes.POINTER(ctypes.c_void_p))
    table = (ctypes.c_void_p * 130)(*[old[i - 2] for i in range(130)])  # two words before it: offset and type info
    answer = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)(lambda this, device: False)
    table[slot + 2] = ctypes.cast(answer, ctypes.c_void_p)
    _keep.extend((table, answer))
    atexit.register(hooks.__setitem__, 0, hooks[0])  # the table goes before the hooks are destroyed
    hooks[0] = ctypes.addressof(table) + 2 * ctypes.sizeof(ctypes.c_void_p)
