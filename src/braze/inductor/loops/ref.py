"""References: a value seen through views, as a buffer and an index map.  Views make no loops.

A :class:`Ref` of sizes ``s`` maps the axes of ``s`` (``axes_of(s)``: one symbol a dim, literal 0 where the size is 1)
to one index expression for each dim of its buffer.  A view primitive composes another map in front.

>>> r = whole(Buffer("h", tensor_type((32, 128, 768))))
>>> view("reshape", r, (4096, 768)).index
((i0 // 128), (i0 % 128), i1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from braze.ir import (
    Expr,
    IntLike,
    Symbol,
    TensorType,
    bounds,
    coefficient,
    contiguous_strides,
    known_eq,
    substitute,
    symbol,
)
from braze.ir import product as product_of

from .ir import Buffer, Strided

Sizes = tuple[IntLike, ...]


class Ref:
    """``value[i0, i1, …] = buffer[index(i0, i1, …)]``; ``sizes`` are the value's."""

    __slots__ = ("buffer", "sizes", "index")

    def __init__(self, buffer: Buffer, sizes: Sizes, index: Sizes) -> None:
        self.buffer, self.sizes, self.index = buffer, sizes, index

    def __repr__(self) -> str:
        return f"{self.buffer}[{', '.join(map(str, self.index))}]"


@lru_cache(maxsize=65536)
def axis_of(dim: int, size: IntLike, prefix: str = "i") -> IntLike:
    """The symbol that runs over dim ``dim``; 0 where the size is 1."""
    return 0 if size == 1 else symbol(f"{prefix}{dim}", 0, max(bounds(size)[1] - 1, 0), below=size)


@lru_cache(maxsize=65536)
def axes_of(sizes: Sizes) -> Sizes:
    """The axes of a tensor of these sizes, one a dim."""
    return tuple([axis_of(d, n) for d, n in enumerate(sizes)])


def atom(e: IntLike) -> Symbol:
    """The symbol of an expression that is exactly one (what :func:`axis_of` gives for a size other than 1)."""
    assert isinstance(e, Expr)
    ((mono, _),) = e.terms.items()
    (s,) = mono
    assert isinstance(s, Symbol)
    return s


def whole(buffer: Buffer) -> Ref:
    """The buffer itself."""
    return Ref(buffer, buffer.type.sizes, axes_of(buffer.type.sizes))


def remap(index: Sizes, env: Mapping[Symbol, IntLike]) -> Sizes:
    """Every expression of an index under a substitution."""
    return tuple([substitute(e, env) if isinstance(e, Expr) else e for e in index])


def _compose(ref: Ref, sizes: Sizes, old_axes: Sequence[IntLike]) -> Ref:
    """The view of ``sizes`` whose element at its axes is ``ref``'s element at ``old_axes`` (over the new axes)."""
    env = {}
    for d, (n, e) in enumerate(zip(ref.sizes, old_axes)):
        if n != 1:
            s = atom(axis_of(d, n))
            if not (isinstance(e, Expr) and len(e.terms) == 1 and e.terms.get((s,)) == 1):
                env[s] = e
    return Ref(ref.buffer, sizes, remap(ref.index, env) if env else ref.index)


def _expand(ref: Ref, sizes: Sequence[IntLike]) -> Ref:
    sizes = tuple(sizes)
    lead = len(sizes) - len(ref.sizes)
    new = axes_of(sizes)
    return _compose(ref, sizes, [0 if n == 1 else new[lead + d] for d, n in enumerate(ref.sizes)])


def _permute(ref: Ref, dims: Sequence[int]) -> Ref:
    sizes = tuple([ref.sizes[d] for d in dims])
    new = axes_of(sizes)
    old: list[IntLike] = [0] * len(dims)
    for k, d in enumerate(dims):
        old[d] = new[k]
    return _compose(ref, sizes, old)


def delinearize(linear: IntLike, sizes: Sequence[IntLike]) -> list[IntLike]:
    """The row-major coordinates of a linear index in ``sizes``."""
    out: list[IntLike] = []
    strides = contiguous_strides(sizes)
    for k, (n, s) in enumerate(zip(sizes, strides)):
        q = linear // s if s != 1 else linear
        out.append(0 if n == 1 else q if k == 0 or n == 0 else q % n)
    return out


def linearize(axes: Sequence[IntLike], sizes: Sequence[IntLike]) -> IntLike:
    """The row-major linear index of coordinates."""
    out: IntLike = 0
    for a, s in zip(axes, contiguous_strides(sizes)):
        out = out + a * s
    return out


@lru_cache(maxsize=16384)
def reshape_groups(old: Sizes, new: Sizes) -> tuple[tuple[range, range], ...] | None:
    """Runs of old and new dims with equal element counts, as short as possible; None when they do not pair up.

    >>> reshape_groups((32, 128, 768), (4096, 12, 64))
    ((range(0, 2), range(0, 1)), (range(2, 3), range(1, 3)))
    """
    out: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0 = i, j
        a: IntLike = old[i] if i < len(old) else 1
        b: IntLike = new[j] if j < len(new) else 1
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while not known_eq(a, b):
            if i < len(old) and known_eq(b % a, 0):
                a, i = a * old[i], i + 1
            elif j < len(new) and known_eq(a % b, 0):
                b, j = b * new[j], j + 1
            elif isinstance(a, int) and isinstance(b, int) and a < b and i < len(old):
                a, i = a * old[i], i + 1
            elif isinstance(a, int) and isinstance(b, int) and a > b and j < len(new):
                b, j = b * new[j], j + 1
            else:
                return None
        out.append((range(i0, i), range(j0, j)))
    return tuple(out)


@lru_cache(maxsize=16384)
def _reshape_map(old: Sizes, new: Sizes) -> tuple[IntLike, ...]:
    """For each old dim, its index over the new axes."""
    axes = axes_of(new)
    groups = None if 0 in old else reshape_groups(old, new)
    if groups is None:
        return tuple(delinearize(linearize(axes, new), old))
    out: list[IntLike] = []
    for o, n in groups:
        real = [d for d in n if new[d] != 1]
        olds = [old[d] for d in o]
        if len(real) == 1 and sum(x != 1 for x in olds) == 1:
            out += [0 if x == 1 else axes[real[0]] for x in olds]
        else:
            linear = linearize([axes[d] for d in n], [new[d] for d in n])
            out += delinearize(linear, olds)
    return tuple(out)


def _reshape(ref: Ref, sizes: Sequence[IntLike]) -> Ref:
    sizes = tuple(sizes)
    return ref if sizes == ref.sizes else _compose(ref, sizes, _reshape_map(ref.sizes, sizes))


def _slice(ref: Ref, starts: Sequence[IntLike], stops: Sequence[IntLike], steps: Sequence[IntLike]) -> Ref:
    sizes = tuple([(b - a + s - 1) // s for a, b, s in zip(starts, stops, steps)])
    return _compose(ref, sizes, [a + s * i for a, s, i in zip(starts, steps, axes_of(sizes))])


def _flip(ref: Ref, dims: Sequence[int]) -> Ref:
    new = list(axes_of(ref.sizes))
    for d in dims:
        new[d] = ref.sizes[d] - 1 - new[d]
    return _compose(ref, ref.sizes, new)


def _as_strided(ref: Ref, sizes: Sequence[IntLike], strides: Sequence[IntLike], offset: IntLike) -> Ref:
    sizes = tuple(sizes)
    linear = offset
    for i, s in zip(axes_of(sizes), strides):
        linear = linear + i * s
    return _compose(ref, sizes, delinearize(linear, ref.sizes))


_VIEWS: dict[str, Callable[..., Ref]] = {
    "expand": _expand,
    "permute": _permute,
    "reshape": _reshape,
    "slice": _slice,
    "flip": _flip,
    "as_strided": _as_strided,
}


_SEEN: dict[Any, tuple[Sizes, Sizes]] = {}


def view(name: str, ref: Ref, *args: Any) -> Ref:
    """A view primitive applied to a reference. Repeated layers ask for the same maps again: they are kept."""
    key = (name, ref.sizes, ref.index, tuple([tuple(a) if isinstance(a, list) else a for a in args]))
    got = _SEEN.get(key)
    if got is None:
        if len(_SEEN) > 1 << 15:
            _SEEN.clear()
        made = _VIEWS[name](ref, *args)
        got = _SEEN[key] = (made.sizes, made.index)
    return Ref(ref.buffer, *got)


def offset_of(type: TensorType, index: Sizes) -> IntLike:
    """The element offset of ``buffer[index]`` from the storage start."""
    out = type.offset
    for e, s in zip(index, type.strides):
        out = out + e * s
    return out


def as_strided(ref: Ref) -> Strided | None:
    """The reference as an as_strided view of its buffer, or None where its offset is not affine in its axes."""
    t = ref.buffer.type
    if ref.index == axes_of(ref.sizes) and t.sizes == ref.sizes:
        return Strided(ref.buffer, t.sizes, t.strides, t.offset)
    layout = _layout(t.strides, t.offset, ref.sizes, ref.index)
    return None if layout is None else Strided(ref.buffer, ref.sizes, *layout)


@lru_cache(maxsize=1 << 14)
def _layout(of: Sizes, offset: IntLike, sizes: Sizes, index: Sizes) -> tuple[Sizes, IntLike] | None:
    """Strides and offset of ``buffer[index]`` over the axes of ``sizes``; ``of``: the buffer's strides."""
    rest = offset
    for e, s in zip(index, of):
        rest = rest + e * s
    strides: list[IntLike] = []
    for d, n in enumerate(sizes):
        if n == 1:
            strides.append(0)
            continue
        axis = axis_of(d, n)
        step = coefficient(rest, atom(axis))
        if step is None or bounds(step)[0] < 0:
            return None
        strides.append(step)
        rest = rest - step * axis
    return tuple(strides), rest


def same_layout(sizes: Sizes, a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Equal strides where they matter: dims of size 1 and empty tensors do not count."""
    return any(n == 0 for n in sizes) or all(n == 1 or x == y for n, x, y in zip(sizes, a, b))


def numel(sizes: Sizes) -> IntLike:
    """The number of elements."""
    return product_of(sizes)
