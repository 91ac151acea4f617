"""The loop IR: what kernels are made of, for both code generators. Data only.

A :class:`Kernel` is a straight-line SSA program run for every point of an iteration domain: parallel axes ``x`` (outer)
times reduction axes ``r`` (inner).  A value is *row-level* when it depends on no r axis (reductions' results, loads
indexed by x only) and *point-level* otherwise.  A ``Reduce`` folds a point-level value over all r axes into a row-level
one, so softmax is one kernel::

    x: i0 < 64          r: r0 < 256
    v0 = load h[i0, r0]            # point
    v1 = reduce max v0             # row
    v2 = sub v0, v1                # point again: a second pass over r
    v3 = exp v2
    v4 = reduce sum v3             # row
    v5 = div v3, v4
    store out[i0, r0] = v5

A kernel without r axes is pointwise.  All axes are ``Symbol``s with range [0, size).

Loads and stores index the buffer's *logical* dimensions (one expression a dimension); the element offset from the
buffer's ``data_ptr()`` (storage offset applied) is ``sum(index[d] * strides[d])`` of the buffer's ``TensorType``.
Indirect indices are symbols bound to integer values by ``indirect``.  Types are explicit: a load gives the buffer's
dtype, bf16/f16 values only ever meet ``convert`` (arithmetic is f32, f64, integers, bool), a store takes the buffer's
dtype.

Everything in a body runs in order with respect to one point; a buffer that is both read and written by a kernel is
read and written at the same index by the same point (the fusion pass proves it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from braze.ir import IntLike, Loc, Symbol, TensorType

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory with a layout. Identity is equality; ``name`` is unique in a program.

    A kernel gets the address of element 0, with the storage offset applied (a tensor's ``data_ptr()``)."""

    name: str
    type: TensorType

    def __repr__(self) -> str:
        return self.name


class Value:
    """Base of the instructions that give a value. ``dtype`` is the value's type."""

    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Const(Value):
    """A scalar literal of the given dtype."""

    value: int | float | bool
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Index(Value):
    """An index expression over the axes, as an integer value (int64, or int32 where a pass proves that it fits)."""

    expr: IntLike
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True, eq=False)
class Load(Value):
    """buffer[index]; where ``mask`` is given and False, memory is not touched and the value is ``other``."""

    buffer: Buffer
    index: tuple[IntLike, ...]
    indirect: tuple[tuple[Symbol, Value], ...] = ()
    mask: Value | None = None
    other: int | float | bool = 0

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.buffer.type.dtype


@dataclass(frozen=True, eq=False)
class Compute(Value):
    """An elementwise primitive by name (the rows of ``braze.prims`` with family "elementwise"), or one of:

    ``convert`` (to ``dtype``), ``philox`` (args: seed i64, offset i64, index i64 -> f32 uniform in [0, 1)),
    ``check_index`` (args: index i64; ``attrs["size"]``: IntLike) which wraps a negative index and traps out of bounds.
    """

    fn: str
    args: tuple[Value, ...]
    dtype: torch.dtype
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class Reduce(Value):
    """Fold over all r axes. kind is one of REDUCTIONS; argmax/argmin give the flat int64 r position of the first best
    (NaN wins, as in ATen). Sums of f32 must be as accurate as a cascaded sum."""

    kind: str
    value: Value
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Store:
    """buffer[index] = value, or += with mode "atomic_add" (several points may hit one element). With mode "sum" the
    element becomes the sum of the values of all points that hit it, whatever it was before; every element is hit."""

    buffer: Buffer
    index: tuple[IntLike, ...]
    value: Value
    mode: str = "set"  # "set" | "atomic_add" | "sum"
    indirect: tuple[tuple[Symbol, Value], ...] = ()
    mask: Value | None = None


Instr: TypeAlias = Const | Index | Load | Compute | Reduce | Store


@dataclass(frozen=True)
class Axis:
    """A loop: ``index`` runs over [0, size)."""

    index: Symbol
    size: IntLike


@dataclass(eq=False)
class Kernel:
    """One generated kernel. ``body`` is in definition-before-use order; ``origin`` names the user's lines and ops."""

    name: str
    x: tuple[Axis, ...]
    r: tuple[Axis, ...]
    body: list[Instr]
    device: torch.device
    origin: tuple[tuple[str, Loc | None], ...] = ()

    @property
    def reads(self) -> list[Buffer]:
        """Buffers loaded, in order of first use, each once."""
        return list(dict.fromkeys(i.buffer for i in self.body if isinstance(i, Load)))

    @property
    def writes(self) -> list[Buffer]:
        """Buffers stored, in order of first use, each once."""
        return list(dict.fromkeys(i.buffer for i in self.body if isinstance(i, Store)))


@dataclass(frozen=True, eq=False)
class Strided:
    """An as_strided view of a buffer: how opaque calls and outputs see a (viewed) buffer. ``offset`` in elements from
    the buffer's storage start."""

    buffer: Buffer
    sizes: tuple[IntLike, ...]
    strides: tuple[IntLike, ...]
    offset: IntLike

    @property
    def is_whole(self) -> bool:
        """True when this is the buffer itself."""
        t = self.buffer.type
        return (self.sizes, self.strides, self.offset) == (t.sizes, t.strides, t.offset)


@dataclass(eq=False)
class Extern:
    """A call of an ATen op (or any callable). Args are nested structures with ``Strided`` leaves; ``outputs`` are the
    buffers that its results define, one a tensor result (None: an unused or absent result)."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Buffer | None, ...]
    origin: tuple[tuple[str, Loc | None], ...] = ()


Step: TypeAlias = Kernel | Extern


@dataclass(eq=False)
class Program:
    """What the host runs: steps in order. ``inputs`` are buffers or symbols (sizes) or scalar inputs by name, in the
    graph's input order; ``outputs`` is the graph's nested outputs with ``Strided`` leaves. ``reuse`` maps a buffer to
    the dead buffer whose memory it takes over (the buffer plan)."""

    name: str
    inputs: tuple[Any, ...]
    steps: list[Step]
    outputs: Any
    buffers: list[Buffer] = field(default_factory=list)  # allocated by the host, in order of first write
    reuse: dict[Buffer, Buffer] = field(default_factory=dict)
    constants: dict[Buffer, torch.Tensor] = field(default_factory=dict)  # read-only, held by the program
    overwrites: tuple[tuple[int, int], ...] = ()  # (output, input): the output is the input's new value
    groups: tuple[tuple[int, int], ...] = ()  # half-open ranges of kernels that one launch runs, in any order


def operands(i: Instr) -> Iterator[Value]:
    """The values that an instruction reads."""
    if isinstance(i, Compute):
        yield from i.args
    elif isinstance(i, Reduce):
        yield i.value
    elif isinstance(i, (Load, Store)):
        yield from (v for _, v in i.indirect)
        if i.mask is not None:
            yield i.mask
        if isinstance(i, Store):
            yield i.value
