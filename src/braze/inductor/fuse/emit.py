"""Kernel bodies from clusters: every stored value is evaluated on demand, down to what lies in memory.

``Emitter.value(buffer, index)`` is the value of a virtual buffer at an index over the cluster's axes: an existing
instruction, the buffer's definition evaluated there, or a load.  Instructions are shared by structure.  Inside a kernel
16-bit floats stay f32: a rounding that is undone at once is dropped.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.inductor.loops import Buffer, Compute, Const, Index, Instr, Load, Reduce, Store, Value
from braze.inductor.loops.ref import remap
from braze.ir import Expr, IntLike, Symbol, bounds, substitute, symbols

from .ops import Analysis, Op

Env = dict[Symbol, IntLike]
Place = tuple[IntLike, ...]
Bindings = tuple[tuple[Symbol, Value], ...]
NARROW = (torch.float16, torch.bfloat16)


class Emitter:
    """One kernel body. ``inline`` holds the buffers that are evaluated here instead of loaded."""

    def __init__(self, analysis: Analysis, inline: set[Buffer], env: dict[int, Env | None]) -> None:
        self.owner = analysis.owner
        self.inline = inline
        self.env = env
        self.body: list[Instr] = []
        self._seen: dict[Any, Value] = {}
        self._values: dict[Any, Value] = {}
        self.origin: dict[tuple[str, Any], None] = {}

    def _shared(self, key: Any, make: Any) -> Any:
        got = self._seen.get(key)
        if got is None:
            got = self._seen[key] = make()
            self.body.append(got)
        return got

    def const(self, value: Any, dtype: torch.dtype) -> Value:
        """A literal; 16-bit ones are converted f32."""
        if dtype in NARROW:
            return self.compute("convert", (self.const(value, torch.float32),), dtype, ())
        if dtype.is_floating_point:
            value = float(value)
        return self._shared(("const", repr(value), dtype), lambda: Const(value, dtype))  # type: ignore[no-any-return]

    def op_value(self, op: Op) -> Value:
        """The op's result at its own place in the cluster."""
        env = self.env.get(op.id)
        place = remap(op.place, env) if env else op.place
        assert op.out is not None
        return self.value(op.out, place, (), None, 0)

    def value(self, b: Buffer, place: Place, bound: Bindings, mask: Value | None, other: Any) -> Value:
        """``b[place]``, or ``other`` where the mask is False."""
        if isinstance(mask, Const):
            if not mask.value:
                return self.const(other, b.type.dtype)
            mask = None
        if b not in self.inline:
            load = (b, place, bound, mask, repr(other))
            return self._shared(load, lambda: Load(b, place, bound, mask, other))  # type: ignore[no-any-return]
        key = (b, place, bound, mask)
        got = self._values.get(key)
        if got is None:
            got = self._values[key] = self._evaluate(self.owner[b], place, bound, mask)
        if mask is not None:
            got = self._select(mask, got, other)
        return got

    def _select(self, mask: Value, value: Value, other: Any) -> Value:
        dtype = value.dtype
        wide = torch.float32 if dtype in NARROW else dtype
        value = self.compute("convert", (value,), wide, ())
        value = self.compute("where", (mask, value, self.const(other, wide)), wide, ())
        return self.compute("convert", (value,), dtype, ())

    def _evaluate(self, op: Op, place: Place, bound: Bindings, mask: Value | None) -> Value:
        env: Env | None
        if op.kind == "reduce":
            env = self.env[op.id]
            assert place == (remap(op.place, env) if env else op.place), f"{op} is read away from its row"
        elif place == op.place:
            env = None
        else:
            env = {}
            for p, e in zip(op.place, place):
                if isinstance(p, Expr):
                    ((mono, _),) = p.terms.items()
                    env[mono[0]] = e  # type: ignore[index]
        kernel = op.kernels[0]
        for o in kernel.origin:
            self.origin[o] = None
        new: dict[Any, Value] = {}
        return new[self._run(kernel.body, env or None, bound, mask, new).value]

    def rebuild(self, body: list[Instr]) -> None:
        """A scatter's kernel with its operands evaluated here."""
        new: dict[Any, Value] = {}
        s = self._run(body, None, (), None, new)
        bound = tuple([(t, new[v]) for t, v in s.indirect])
        self.body.append(Store(s.buffer, s.index, new[s.value], s.mode, bound, s.mask and new[s.mask]))

    def _run(
        self, body: list[Instr], env: Env | None, bound: Bindings, mask: Value | None, new: dict[Any, Value]
    ) -> Store:
        """Evaluate a definition's instructions into ``new``, up to its store, which is returned."""
        for i in body:
            if isinstance(i, Load):
                new[i] = self._load(i, env, bound, mask, new)
            elif isinstance(i, Compute):
                new[i] = self.compute(i.fn, tuple([new[a] for a in i.args]), i.dtype, i.attrs)
            elif isinstance(i, Const):
                new[i] = self.const(i.value, i.dtype)
            elif isinstance(i, Index):
                new[i] = self.index(substitute(i.expr, env) if env else i.expr, i.dtype, bound)
            elif isinstance(i, Reduce):
                value = new[i.value]
                key = ("reduce", i.kind, value)
                new[i] = self._shared(key, lambda i=i, value=value: Reduce(i.kind, value, i.dtype))
            else:
                return i
        raise AssertionError("a definition ends in its store")

    def _load(self, i: Load, env: Env | None, bound: Bindings, mask: Value | None, new: dict[Any, Value]) -> Value:
        place = remap(i.index, env) if env else i.index
        inner: Bindings = bound
        if i.indirect:
            inner = bound + tuple([(s, new[v]) for s, v in i.indirect])
        if inner:
            inner = self._used(inner, place)
        both = mask
        if i.mask is not None:
            own = new[i.mask]
            both = own if mask is None else self.compute("bitwise_and", (mask, own), torch.bool, ())
        return self.value(i.buffer, place, inner, both, i.other)

    @staticmethod
    def _used(bound: Bindings, place: Place) -> Bindings:
        here = symbols(*place)
        return tuple([(s, v) for s, v in bound if s in here])

    def index(self, e: IntLike, dtype: torch.dtype, bound: Bindings) -> Value:
        if isinstance(e, int):
            return self.const(e, dtype)
        if bound and self._used(bound, (e,)):
            return self._index_of_values(e, dtype, dict(bound))
        return self._shared(("index", e, dtype), lambda: Index(e, dtype))  # type: ignore[no-any-return]

    def _index_of_values(self, e: Expr, dtype: torch.dtype, bound: dict[Symbol, Value]) -> Value:
        """An index expression over symbols that stand for loaded integers, as arithmetic."""
        total: Value | None = None
        for mono, c in e.terms.items():
            term: Value | None = None
            for a in mono:
                if a in bound:
                    v = bound[a]
                elif isinstance(a, Symbol):
                    v = self.index(Expr({(a,): 1}), torch.int64, ())
                else:
                    fn = {"floordiv": "floor_div", "mod": "remainder", "min": "minimum", "max": "maximum"}[a.op]  # type: ignore[attr-defined]
                    parts = tuple([self.index(x, torch.int64, tuple(bound.items())) for x in a.args])  # type: ignore[attr-defined]
                    v = self.compute(fn, parts, torch.int64, ())
                term = v if term is None else self.compute("mul", (term, v), torch.int64, ())
            if term is None:
                term = self.const(c, torch.int64)
            elif c != 1:
                term = self.compute("mul", (term, self.const(c, torch.int64)), torch.int64, ())
            total = term if total is None else self.compute("add", (total, term), torch.int64, ())
        assert total is not None
        return total

    def compute(
        self, fn: str, args: tuple[Value, ...], dtype: torch.dtype, attrs: tuple[tuple[str, Any], ...]
    ) -> Value:
        fold = FOLDS.get(fn)
        if fold is not None:
            got: Value | None = fold(self, args, dtype)
            if got is not None:
                return got
        return self._shared((fn, args, dtype, attrs), lambda: Compute(fn, args, dtype, attrs))  # type: ignore[no-any-return]

    def store(self, b: Buffer, place: Place, value: Value) -> None:
        self.body.append(Store(b, place, value))


def _fold_convert(e: Emitter, args: tuple[Value, ...], dtype: torch.dtype) -> Value | None:
    (a,) = args
    if a.dtype == dtype:
        return a
    if isinstance(a, Compute) and a.fn == "convert":
        inner = a.args[0]
        # A cast that the user wrote rounds ("round"); one that only stores a 16-bit result need not be seen again.
        if a.dtype in NARROW and inner.dtype == torch.float32 and dtype == torch.float32 and not a.attrs:
            return inner
    if isinstance(a, Const) and a.dtype not in NARROW and dtype not in NARROW:
        if dtype.is_floating_point:
            value: Any = torch.tensor(a.value, dtype=a.dtype).to(dtype).item()
            return e.const(value, dtype)
        if not a.dtype.is_floating_point:
            return e.const(torch.tensor(a.value, dtype=a.dtype).to(dtype).item(), dtype)
    return None


def _fold_where(e: Emitter, args: tuple[Value, ...], dtype: torch.dtype) -> Value | None:
    c, a, b = args
    if isinstance(c, Const):
        return a if c.value else b
    if a is b:
        return a
    if isinstance(a, Compute) and a.fn == "where" and a.args[0] is c:
        return e.compute("where", (c, a.args[1], b), dtype, ())
    if isinstance(b, Compute) and b.fn == "where" and b.args[0] is c:
        return e.compute("where", (c, a, b.args[2]), dtype, ())
    return _fold_masked_load(e, c, a, b)


def _fold_masked_load(e: Emitter, c: Value, a: Value, b: Value) -> Value | None:
    """``where(m, load if m else 0, k)`` is ``load if m else k``."""
    if not isinstance(b, Const):
        return None
    if isinstance(a, Load) and a.mask is c:
        return e.value(a.buffer, a.index, a.indirect, c, b.value)
    if isinstance(a, Compute) and a.fn == "convert" and b.value == 0 and a.dtype == b.dtype:
        inner = a.args[0]
        if isinstance(inner, Load) and inner.mask is c and inner.other == 0:
            return a
    return None


def _fold_and(e: Emitter, args: tuple[Value, ...], dtype: torch.dtype) -> Value | None:
    a, b = args
    if dtype != torch.bool:
        return None
    if isinstance(a, Const):
        return b if a.value else a
    if isinstance(b, Const):
        return a if b.value else b
    return a if a is b else None


def _compare(decide: Any) -> Any:
    """Comparisons of an index with a constant, decided by the index's range."""

    def fold(e: Emitter, args: tuple[Value, ...], dtype: torch.dtype) -> Value | None:
        a, b = args
        if a.dtype != torch.int64 or not isinstance(b, Const) or not isinstance(a, (Index, Const)):
            return None
        lo, hi = bounds(a.expr) if isinstance(a, Index) else (int(a.value), int(a.value))
        known = decide(lo, hi, b.value)
        return None if known is None else e.const(known, torch.bool)

    return fold


FOLDS: dict[str, Any] = {
    "convert": _fold_convert,
    "where": _fold_where,
    "bitwise_and": _fold_and,
    "lt": _compare(lambda lo, hi, k: True if hi < k else False if lo >= k else None),
    "ge": _compare(lambda lo, hi, k: True if lo >= k else False if hi < k else None),
}
