"""A kernel up to renaming: two isomorphic kernels (twelve identical layers) have one canonical form and one key.

The canonical kernel is what the code generators take: its buffers are named by position (``b0``, ``b1``, …, in order of
first use), one-dimensional, and every access has one index expression, the element offset from the buffer's data
pointer (the storage offset is already in that pointer).  Axes are simplified (``axes``) and named ``x0``, ``x1``, …
outside to inside, then ``r0``, …; an indirect symbol ``t0``, … names one value in the whole kernel.

Different buffers of one kernel may share memory where the buffer plan lets an output take over a dying input; then both
are accessed at the same offsets by the same points.  Generators must not assume that they never alias.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from braze.ir import IntLike, Symbol, TensorType, bounds, substitute, symbol, symbol_of, symbols

from .axes import Access, estimated, simplify
from .ir import Buffer, Compute, Const, Index, Instr, Kernel, Load, Reduce, Store, Value
from .ref import offset_of


@dataclass(frozen=True)
class Canonical:
    """``kernel`` with buffers by position, its content hash, and the program's buffers in that order."""

    key: str
    kernel: Kernel
    buffers: tuple[Buffer, ...]


_CACHE: dict[Any, tuple[str, Kernel]] = {}
_SEEN: WeakKeyDictionary[Kernel, Canonical] = WeakKeyDictionary()


def canonical(kernel: Kernel) -> Canonical:
    """The canonical form. Cheap for a kernel whose like was seen before. Bodies must not change afterwards."""
    seen = _SEEN.get(kernel)
    if seen is None:
        seen = _SEEN[kernel] = _look_up(kernel)
    return seen


def _look_up(kernel: Kernel) -> Canonical:
    raw, buffers = _structure(kernel)
    hit = _CACHE.get(raw)
    if hit is None:
        made = _canonicalise(kernel, buffers)
        hit = _CACHE[raw] = (_digest(made), made)
    return Canonical(hit[0], hit[1], tuple(buffers))


def _structure(kernel: Kernel) -> tuple[Any, list[Buffer]]:
    """A hashable description of the kernel with values and buffers by number."""
    values: dict[Any, int] = {}
    buffers: dict[Buffer, int] = {}
    renames: dict[Symbol, IntLike] = {}
    out: list[Any] = [tuple([(a.index, a.size) for a in kernel.x]), tuple([(a.index, a.size) for a in kernel.r])]
    for i in kernel.body:
        out.append(_row(i, values, buffers, renames))
        values[i] = len(values)
    types = tuple([(b.type.sizes, b.type.strides, b.type.dtype) for b in buffers])
    return (kernel.device.type, types, tuple(out)), list(buffers)


def _row(i: Instr, values: dict[Any, int], buffers: dict[Buffer, int], renames: dict[Symbol, IntLike]) -> Any:
    if isinstance(i, Compute):
        return (i.fn, tuple([values[a] for a in i.args]), i.dtype, i.attrs)
    if isinstance(i, (Load, Store)):
        b = buffers.setdefault(i.buffer, len(buffers))
        mask = None if i.mask is None else values[i.mask]
        index = i.index
        bound: Any = ()
        if i.indirect:
            for s, _ in i.indirect:
                if s not in renames:
                    renames[s] = symbol(f"t{len(renames)}", s.lo, s.hi, below=s.below)
            index = tuple([substitute(e, renames) for e in index])
            bound = tuple([(renames[s], values[v]) for s, v in i.indirect])
        if isinstance(i, Load):
            return ("load", b, index, bound, mask, _scalar_key(i.other))
        return ("store", b, index, bound, mask, values[i.value], i.mode)
    if isinstance(i, Const):
        return ("const", _scalar_key(i.value), i.dtype)
    if isinstance(i, Index):
        return ("index", i.expr, i.dtype)
    return ("reduce", i.kind, values[i.value], i.dtype)


def _scalar_key(x: Any) -> Any:
    """Tells 0.0 from -0.0, 1 from True, and NaN equal to itself."""
    return (type(x).__name__, repr(x))


def _flat(b: Buffer, name: str) -> Buffer:
    """A one-dimensional stand-in that covers the buffer's elements."""
    extent: IntLike = 1
    if any(n == 0 for n in b.type.sizes):
        extent = 0
    else:
        for n, s in zip(b.type.sizes, b.type.strides):
            extent = extent + (n - 1) * s
    return Buffer(name, TensorType((extent,), (1,), b.type.dtype, b.type.device))


def _canonicalise(kernel: Kernel, buffers: list[Buffer]) -> Kernel:
    places: list[int] = []
    accesses: list[Access] = []
    bound: dict[tuple[Symbol, Value], IntLike] = {}  # a definition evaluated twice binds its symbol to two values
    own: dict[int, dict[Symbol, IntLike]] = {}
    for k, i in enumerate(kernel.body):
        if isinstance(i, (Load, Store)):
            places.append(k)
            accesses.append(Access(offset_of(i.buffer.type.with_(offset=0), i.index), _weight(i)))
            for s, v in i.indirect:
                name = bound.setdefault((s, v), symbol(f"t{len(bound)}", s.lo, s.hi, below=s.below))
                own.setdefault(k, {})[s] = name
        elif isinstance(i, Index):
            places.append(k)
            accesses.append(Access(i.expr, 0))
    keep_r = any(isinstance(i, Reduce) and i.kind.startswith("arg") for i in kernel.body)
    axes = simplify(kernel.x, kernel.r, accesses, keep_r)
    exprs = {k: substitute(e, own[k]) if k in own else e for k, e in zip(places, axes.exprs)}
    flat = {b: _flat(b, f"b{k}") for k, b in enumerate(buffers)}
    body = _rebuild(kernel, own, flat, exprs)
    return Kernel("kernel", axes.x, axes.r, body, kernel.device, kernel.origin)


def flattened(kernel: Kernel) -> Canonical:
    """Like :func:`canonical`, but every axis stays what it is: for code whose shape is given by the axes."""
    raw, buffers = _structure(kernel)
    flat = {b: _flat(b, f"b{k}") for k, b in enumerate(buffers)}
    own: dict[int, dict[Symbol, IntLike]] = {}
    exprs: dict[int, IntLike] = {}
    bound: dict[tuple[Symbol, Value], IntLike] = {}
    for k, i in enumerate(kernel.body):
        if isinstance(i, (Load, Store)):
            for s, v in i.indirect:
                name = bound.setdefault((s, v), symbol(f"t{len(bound)}", s.lo, s.hi, below=s.below))
                own.setdefault(k, {})[s] = name
            place = offset_of(i.buffer.type.with_(offset=0), i.index)
            exprs[k] = substitute(place, own[k]) if k in own else place
        elif isinstance(i, Index):
            exprs[k] = i.expr
    own = {k: own.get(k, {}) for k in range(len(kernel.body))}
    body = _rebuild(kernel, own, flat, exprs)
    made = Kernel("kernel", kernel.x, kernel.r, body, kernel.device, kernel.origin)
    return Canonical("axes " + _digest(made), made, tuple(buffers))


def _weight(i: Load | Store) -> int:
    """Stores decide the order of axes, then big loads; indirect accesses have no useful stride."""
    if i.indirect:
        return 0
    n = estimated(i.buffer.type.numel) or bounds(i.buffer.type.numel)[1]
    return 4 * n if isinstance(i, Store) else n


def _rebuild(
    kernel: Kernel, own: dict[int, dict[Symbol, IntLike]], flat: dict[Buffer, Buffer], exprs: dict[int, IntLike]
) -> list[Instr]:
    """The body with ``exprs[k]`` as the index of instruction k and ``own[k]`` its indirect symbols' names."""
    new: dict[Value, Any] = {}
    body: list[Instr] = []
    for k, i in enumerate(kernel.body):
        made: Any
        if isinstance(i, Compute):
            made = Compute(i.fn, tuple([new[a] for a in i.args]), i.dtype, i.attrs)
        elif isinstance(i, (Load, Store)):
            bound = tuple([(_sym(own[k][s]), new[v]) for s, v in i.indirect])
            mask = None if i.mask is None else new[i.mask]
            index = (exprs[k],)
            if isinstance(i, Load):
                made = Load(flat[i.buffer], index, bound, mask, i.other)
            else:
                made = Store(flat[i.buffer], index, new[i.value], i.mode, bound, mask)
        elif isinstance(i, Reduce):
            made = Reduce(i.kind, new[i.value], i.dtype)
        elif isinstance(i, Index):
            made = Index(exprs[k], i.dtype)
        else:
            made = i
        body.append(made)
        if not isinstance(i, Store):
            new[i] = made
    return body


def _sym(e: IntLike) -> Symbol:
    s = symbol_of(e)
    assert s is not None
    return s


def _digest(kernel: Kernel) -> str:
    """sha256 over the canonical kernel's printed structure: stable across processes."""
    raw, buffers = _structure(kernel)
    sizes = symbols(
        *(e for b in buffers for e in (*b.type.sizes, *b.type.strides)), *(a.size for a in kernel.x + kernel.r)
    )
    ranges = sorted((s.name, s.lo, s.hi) for s in sizes)  # what code may rely on; never the hints
    text = repr((raw, [str(b.type) for b in buffers], ranges) if ranges else (raw, [str(b.type) for b in buffers]))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def canonical_all(kernels: list[Kernel]) -> dict[str, Canonical]:
    """The distinct kernels of a program by key, in order of first use."""
    out: dict[str, Canonical] = {}
    for k in kernels:
        c = canonical(k)
        out.setdefault(c.key, c)
    return out
