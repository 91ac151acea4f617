"""Stores whose lanes lie apart in memory, but fill it together with their neighbours along a short axis.

A stack of three rows, pixels of three channels, an image enlarged by two::

    for i in lanes: for k in 0, 1, 2:  out[3 * i + k] = f(i, k)

The short axis is written out, and its vectors of lanes are woven into whole vectors of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from braze.inductor.loops.ir import Axis, Store

from . import llvm_index as ix
from .llvm_builder import V
from .llvm_cuts import known_in_piece
from .llvm_shuffle import weave

if TYPE_CHECKING:
    from .llvm_kernel import Writer


def write_woven(w: Writer, axis: Axis, body: Callable[[V], None]) -> None:
    """``body`` for every point of the short axis; its stores, woven."""
    assert isinstance(axis.size, int)
    known = w.known
    whole = w.lanes.count > 1 and w.lanes.mask is None
    w.woven = {} if whole else None
    for k in range(axis.size):
        w.known = {**known, **known_in_piece(w.nest.body, axis, k)}
        body(w.b.const("i64", k))
    w.known = known
    found, w.woven = w.woven, None
    for i, (base, values) in (found or {}).items():
        _store(w, i, base, [w.b.splat(v, w.lanes.count) for v in values])


def _store(w: Writer, i: Store, base: V, parts: list[V]) -> None:
    b = w.b
    elem, align = ix.memory_elem(i.buffer.type.dtype), i.buffer.type.dtype.itemsize
    if parts[0].elem == "i1":
        parts = [b.cast("zext", v, "i8") for v in parts]
    for j, v in enumerate(weave(b, parts)):
        at = base
        if j:
            at = b.let("ptr", 1, f"getelementptr inbounds {elem}, {base.typed}, i64 {j * v.lanes}")
        b.emit(f"store {v.typed}, {at.typed}, align {align}")
