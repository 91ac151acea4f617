"""How a kernel walks memory: its accesses as element offsets over as few axes as possible.

``analyse(kernel)`` drops axes of size 1, orders the parallel axes by the memory of the main access, and merges
neighbours that every access sees as one::

    x: i0 < 64, i1 < 256   load a[256*i0 + i1], store o[256*i0 + i1]   ->   x: f < 16384   load a[f], store o[f]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Union

import torch

from braze.ir import IntLike, Symbol, coefficient, evaluate, product, substitute, symbol, symbol_of, symbols

from ..loops.ir import Axis, Buffer, Index, Instr, Kernel, Load, Store

Access = Union[Load, Store]
DEFAULT_HINT = 4096


def hint(e: IntLike) -> int:
    """The size seen at compile time, a guess where there is none."""
    if isinstance(e, int):
        return e
    try:
        return evaluate(e)
    except ValueError:
        return DEFAULT_HINT


@dataclass(eq=False)
class Layout:
    """The kernel's axes after merging, and the offset of every access (and value of every Index) over them."""

    x: tuple[Axis, ...]
    r: tuple[Axis, ...]
    offsets: dict[Instr, IntLike]

    @property
    def xnumel(self) -> IntLike:
        return product([a.size for a in self.x])

    @property
    def rnumel(self) -> IntLike:
        return product([a.size for a in self.r])

    def stride(self, access: Instr, axis: Axis) -> IntLike | None:
        """Elements between neighbours along the axis; None when not linear in it."""
        return coefficient(self.offsets[access], _symbol(axis))

    def elements(self, access: Instr) -> int:
        """About how many elements the access touches: the product of the axes that move it."""
        used = symbols(self.offsets[access])
        return max(1, hint(product([a.size for a in self.x + self.r if _symbol(a) in used])))


def _symbol(axis: Axis) -> Symbol:
    return axis.index


def axis_expr(axis: Axis) -> IntLike:
    """The axis' index as an expression."""
    s = axis.index
    return symbol(s.name, s.lo, s.hi)


def offset_of(access: Access) -> IntLike:
    """The element offset from the tensor's first element (the storage offset is in its data pointer)."""
    out: IntLike = 0
    for i, s in zip(access.index, access.buffer.type.strides):
        out = out + i * s
    return out


def nbytes(buffer: Buffer) -> int:
    """Bytes an element."""
    return buffer.type.dtype.itemsize


def analyse(kernel: Kernel) -> Layout:
    """The kernel's layout."""
    offsets: dict[Instr, IntLike] = {}
    for i in kernel.body:
        if isinstance(i, (Load, Store)):
            offsets[i] = offset_of(i)
        elif isinstance(i, Index):
            offsets[i] = i.expr
    ones: dict[Symbol, IntLike] = {a.index: 0 for a in kernel.x + kernel.r if a.size == 1}
    if ones:
        offsets = {i: substitute(e, ones) for i, e in offsets.items()}
    layout = Layout(_real(kernel.x), _real(kernel.r), offsets)
    layout.x = _memory_order(layout, layout.x)
    if not any(getattr(i, "kind", "") in ("argmax", "argmin") for i in kernel.body):
        layout.r = _memory_order(layout, layout.r)
    layout.x = _merge(layout, layout.x, "fx")
    layout.r = _merge(layout, layout.r, "fr")
    return layout


def _real(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    return tuple(a for a in axes if a.size != 1)


def main_access(layout: Layout) -> Access | None:
    """The access that moves most bytes; a store wins a tie."""
    best, score = None, (-1, False)
    for i in layout.offsets:
        if isinstance(i, (Load, Store)) and not i.indirect:
            now = (layout.elements(i) * nbytes(i.buffer), isinstance(i, Store))
            if now > score:
                best, score = i, now
    return best


def _memory_order(layout: Layout, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes by descending stride of the main access, where that is known."""
    main = main_access(layout)
    if main is None or len(axes) < 2:
        return axes
    strides = [layout.stride(main, a) for a in axes]
    if any(not isinstance(s, int) or s <= 0 for s in strides):
        return axes
    order = sorted(range(len(axes)), key=lambda k: -strides[k])  # type: ignore[operator]
    return tuple(axes[k] for k in order)


def _merge(layout: Layout, axes: tuple[Axis, ...], prefix: str) -> tuple[Axis, ...]:
    """Neighbours (outer, inner) become one axis where every offset moves by ``size of inner`` inner steps for one outer."""
    out: list[Axis] = []
    for axis in axes:
        merged = _fuse_pair(layout, out[-1], axis, f"{prefix}{len(out)}") if out else None
        if merged is None:
            out.append(axis)
        else:
            out[-1] = merged
    return tuple(out)


def _fuse_pair(layout: Layout, outer: Axis, inner: Axis, name: str) -> Axis | None:
    strides: dict[Instr, IntLike] = {}
    for i in layout.offsets:
        a, b = layout.stride(i, outer), layout.stride(i, inner)
        if a is None or b is None or a != b * inner.size:
            return None
        strides[i] = b
    size = outer.size * inner.size
    flat = symbol(name + "_" + inner.index.name, 0, _last(size))
    o, n = axis_expr(outer), axis_expr(inner)
    for i, b in strides.items():
        if b != 0:
            layout.offsets[i] = layout.offsets[i] - b * inner.size * o - b * n + b * flat
    s = symbol_of(flat)
    assert s is not None
    return Axis(s, size)


def _last(size: IntLike) -> int:
    from braze.ir import bounds

    return max(bounds(size)[1] - 1, 0)


def depends(e: IntLike, axes: Iterable[Axis]) -> bool:
    """True when the expression mentions one of the axes."""
    used = symbols(e)
    return any(a.index in used for a in axes)


def fits_int32(layout: Layout) -> bool:
    """True when every index and offset provably stays below 2**31."""
    from braze.ir import bounds

    limit = 2**31 - 1
    if bounds(layout.xnumel)[1] > limit or bounds(layout.rnumel)[1] > limit:
        return False
    for i, e in layout.offsets.items():
        if isinstance(i, Index):
            if not -limit <= bounds(e)[0] <= bounds(e)[1] <= limit:
                return False
        elif _reach(i) > limit:  # type: ignore[arg-type]
            return False
    return True


def _reach(access: Access) -> int:
    """The largest offset that the buffer's type allows, in elements."""
    from braze.ir import bounds

    t = access.buffer.type
    if any(n == 0 for n in t.sizes):
        return 0
    return sum(bounds((n - 1) * abs(s) if isinstance(s, int) else (n - 1) * s)[1] for n, s in zip(t.sizes, t.strides))


def is_wide(dtype: torch.dtype) -> bool:
    """True for 8-byte elements."""
    return dtype.itemsize == 8
