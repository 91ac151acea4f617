"""How the host calls vendor operators: the fastest binding of each, and whether its result's layout can be trusted.

``torch.mm(a, b)`` costs 0.7 us less than ``torch.ops.aten.mm.default(a, b)``: the generated Python binding parses its
arguments directly.  The operators below have such a binding with the operator's own schema.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.inductor.loops import Extern, Strided
from braze.ir import spell_operator
from braze.runtime import host
from braze.runtime.cpu import host_target
from braze.runtime.packed import available

CONTIGUOUS_RESULT = frozenset(("mm", "bmm", "addmm", "baddbmm"))
"""Operators whose result is always contiguous: its strides need no check."""

DIRECT = CONTIGUOUS_RESULT | {
    "convolution",
    "embedding",
    "index_select",
    "sort",
    "topk",
    "cumsum",
    "cumprod",
    "native_dropout",
    "grid_sampler",
}
"""Operators called by their Python binding ``torch.<name>``."""

GUARDED = {"_scaled_dot_product_efficient_attention_backward": host.efficient_attention_backward}
"""Operators called by a function of ``braze.runtime.host`` that knows where they may not be called as they are."""


PRODUCTS = {torch.ops.aten.mm.default: host.onednn_mm, torch.ops.aten.addmm.default: host.onednn_addmm}
"""Products that have a second vendor routine, which :func:`_second_routine` chooses by their sizes."""
WORK = 40e6
"""Floating-point operations from which oneDNN's products are faster than MKL's on the CPUs of ``_SECOND``."""
THIN = 16
HEAVY = 1 << 20
"""Few rows by a matrix of this many elements, or so many results of few terms each: up to 3x faster by oneDNN."""
_SECOND = ("znver",)
"""CPUs, by the beginnings of LLVM's names, whose maker is not MKL's."""


def binding_of(e: Extern) -> tuple[Any, str | None, bool]:
    """:func:`binding` for one call, whose sizes may ask for another routine."""
    if _second_routine(e):
        routine = PRODUCTS[e.target]
        return routine, routine.__name__, True
    return binding(e.target)


def binding(target: Any) -> tuple[Any, str | None, bool]:
    """(callable, its spelling in the host program or None, can the result's strides be trusted)."""
    if not isinstance(target, torch._ops.OpOverload):
        return target, None, getattr(target, "pending", False)  # what is not complete may not be copied
    name, overload = target._schema.name.partition("::")[2], target._overloadname
    trusted = name in CONTIGUOUS_RESULT and overload in ("default", "dtype")
    if name in DIRECT and overload == "default" and hasattr(torch, name):
        return getattr(torch, name), f"torch.{name}", trusted
    if name in GUARDED and overload == "default":
        return GUARDED[name], GUARDED[name].__name__, trusted
    return target, spell_operator(target), trusted


def _second_routine(e: Extern) -> bool:
    """Whether a product of float32 matrices of known sizes is worth oneDNN's routine: for large ones whose left operand
    lies in rows (6 to 20%), and for thin ones."""
    if e.target not in PRODUCTS or e.kwargs or not host_target().cpu.startswith(_SECOND) or not available():
        return False
    *bias, a, b = e.args
    if not all(isinstance(t, Strided) and _plain(t) for t in e.args):
        return False
    (m, k), n = a.sizes, b.sizes[1]
    if bias and bias[0].sizes != (n,):
        return False
    if a.strides[1] != 1:
        return bool(k <= THIN and m * n >= HEAVY)
    return bool(2 * m * k * n >= WORK or (m <= THIN and k * n >= HEAVY))


def _plain(t: Strided) -> bool:
    u = t.buffer.type
    known = all(isinstance(n, int) and n > 0 for n in (*t.sizes, *t.strides))
    return u.dtype is torch.float32 and u.device.type == "cpu" and known
