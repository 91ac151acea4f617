"""How a canonical kernel walks memory: element offsets, and strides along the axes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from braze.ir import Expr, IntLike, bounds, coefficient, evaluate, product, symbols
from braze.ir.expr import Call

from ..loops.ir import Axis, Buffer, Index, Instr, Kernel, Load, Store

Access = Load | Store
DEFAULT_HINT = 4096
INT32 = 2**31 - 1


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
    """The kernel's axes, and the element offset of every access (or the value of every Index) over them."""

    x: tuple[Axis, ...]
    r: tuple[Axis, ...]
    offsets: dict[Instr, IntLike]

    @property
    def xnumel(self) -> IntLike:
        return product([a.size for a in self.x])

    @property
    def rnumel(self) -> IntLike:
        return product([a.size for a in self.r])

    @property
    def accesses(self) -> list[Access]:
        return [i for i in self.offsets if isinstance(i, (Load, Store))]

    def stride(self, access: Instr, axis: Axis) -> IntLike | None:
        """Elements between neighbours along the axis; None when not linear in it."""
        return coefficient(self.offsets[access], axis.index)

    def elements(self, access: Instr) -> int:
        """About how many elements the access touches: the product of the axes that move it."""
        used = symbols(self.offsets[access])
        if isinstance(access, (Load, Store)) and access.indirect:
            used = used | {a.index for a in self.x}  # what picks the element is at least a matter of the row
        return max(1, hint(product([a.size for a in self.x + self.r if a.index in used])))


def nbytes(buffer: Buffer) -> int:
    """Bytes an element."""
    return buffer.type.dtype.itemsize


def analyse(kernel: Kernel) -> Layout:
    """The layout of a canonical kernel (one-dimensional buffers: the index is the element offset)."""
    offsets: dict[Instr, IntLike] = {}
    for i in kernel.body:
        if isinstance(i, (Load, Store)):
            (offsets[i],) = i.index
        elif isinstance(i, Index):
            offsets[i] = i.expr
    return Layout(kernel.x, kernel.r, offsets)


def _dividends(e: IntLike) -> Iterator[IntLike]:
    """Every operand of a quotient, remainder or comparison in the expression."""
    for mono in e.terms if isinstance(e, Expr) else ():
        for atom in mono:
            if isinstance(atom, Call):
                for x in atom.args:
                    yield x
                    yield from _dividends(x)


def fits_int32(layout: Layout) -> bool:
    """True when every index and offset provably stays below 2**31. Sums and products may wrap on the way, for what
    fits in the end is right; operands of a division may not."""
    if max(bounds(layout.xnumel)[1], bounds(layout.rnumel)[1]) > INT32:
        return False
    for i, e in layout.offsets.items():
        if any(bounds(x)[0] < -INT32 or bounds(x)[1] > INT32 for x in _dividends(e)):
            return False
        low, high = bounds(e) if isinstance(i, Index) else (0, bounds(i.buffer.type.numel)[1])  # type: ignore[union-attr]
        if low < -INT32 or high > INT32:
            return False
    return True
