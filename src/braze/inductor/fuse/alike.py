"""What an update on a GPU shares with its like: its kernel without the memory and, where it walks one axis, the size.

An optimizer's kernels differ in their tensors, in the places of their scalars (``pack[17]``) and in their sizes::

    k7(p, g, m, pack):  x < 768:   p[x] = p[x] - m[x] * pack[17]
    k9(q, h, n, pack):  x < 3072:  q[x] = q[x] - n[x] * pack[18]
                            ->  x < points:  b0[x] = b0[x] - b1[x] * b2[0]     with b2 at pack + 17, at pack + 18

``likeness`` gives that form. A scalar becomes a buffer of its own, that begins at the scalar's place; a kernel with one
axis, walked by every other access, is written for any size.  Everything else (reductions, transposes) keeps its sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from braze.inductor.loops import Axis, Buffer, Index, Instr, Kernel, Load, Reduce, Store, canonical
from braze.ir import IntLike, Symbol, TensorType, symbol, symbol_of

from .split import rebound

MOST = (1 << 31) - 1  # points of a member
DIVISOR = 16  # sizes that are multiples of it have a form of their own: their accesses are wide


@dataclass(frozen=True)
class Likeness:
    """``kernel``: the form. ``places``: for each of its buffers, in order of first use, the number of the canonical
    kernel's buffer and the element where it begins. ``points``: the size of the axis that the form leaves open, 0 where
    it leaves none."""

    kernel: Kernel
    key: str
    places: tuple[tuple[int, int], ...]
    points: int


_FOUND: dict[str, Likeness | None] = {}


def likeness(kernel: Kernel) -> Likeness | None:
    """The form of a kernel that runs on a GPU; None for one with symbolic sizes."""
    found = canonical(kernel)
    if found.key not in _FOUND:
        _FOUND[found.key] = _likeness(found.kernel)
    return _FOUND[found.key]


def _likeness(k: Kernel) -> Likeness | None:
    sizes = [a.size for a in (*k.x, *k.r)]
    if not all(isinstance(n, int) for n in sizes):
        return None
    buffers = list(dict.fromkeys(i.buffer for i in k.body if isinstance(i, (Load, Store))))
    fixed = _scalars(k)
    points = _open(k, fixed)
    size: IntLike = points
    if points:
        size = (
            DIVISOR * symbol("sixteenths", 1, MOST // DIVISOR) if points % DIVISOR == 0 else symbol("points", 2, MOST)
        )
    made: dict[tuple[Buffer, int], Buffer] = {}

    def place(b: Buffer, at: int) -> Buffer:
        if (b, at) not in made:
            extent: IntLike = 1 if b in fixed else size if points else b.type.sizes[0]
            made[b, at] = Buffer(f"b{len(made)}", TensorType((extent,), (1,), b.type.dtype, b.type.device))
        return made[b, at]

    x, env = k.x, dict[Symbol, IntLike]()
    if points:
        walk = symbol("x0", 0, MOST - 1, below=size)
        axis = symbol_of(walk)
        assert axis is not None
        x, env = (Axis(axis, size),), {k.x[0].index: walk}
    body = _rewritten(k, fixed, place, env)
    form = Kernel("kernel", x, k.r, body, k.device, k.origin)
    places = tuple((buffers.index(b), at) for b, at in made)
    return Likeness(form, canonical(form).key, places, points)


def _scalars(k: Kernel) -> set[Buffer]:
    """Buffers of which only elements at known places are read, and none is written."""
    out: set[Buffer] = set()
    other: set[Buffer] = set()
    for i in k.body:
        if isinstance(i, (Load, Store)):
            plain = isinstance(i, Load) and not i.indirect and i.mask is None and isinstance(i.index[0], int)
            (out if plain else other).add(i.buffer)
    return out - other


def _open(k: Kernel, fixed: set[Buffer]) -> int:
    """The size of the only axis, where every access of what is no scalar walks it; else 0."""
    if k.r or len(k.x) != 1 or any(isinstance(i, (Index, Reduce)) for i in k.body):
        return 0
    size, axis = k.x[0].size, k.x[0].index
    for i in k.body:
        if isinstance(i, (Load, Store)) and i.buffer not in fixed:
            if i.indirect or i.mask is not None or symbol_of(i.index[0]) is not axis:
                return 0
    return size if isinstance(size, int) and 2 <= size <= MOST else 0


def _rewritten(k: Kernel, fixed: set[Buffer], place: Any, env: dict[Symbol, IntLike]) -> list[Instr]:
    new: dict[Any, Any] = {}
    for i in k.body:
        made: Any = rebound(i, new, env)
        if isinstance(i, (Load, Store)):
            at, index = (i.index[0], (0,)) if i.buffer in fixed else (0, made.index)
            made = replace(made, buffer=place(i.buffer, at), index=index)
        new[i] = made
    return list(new.values())
