"""Clusters: sets of ops that will be one kernel, over one iteration domain, and the order relation between them.

A cluster's domain is a dict of axes, of which ``r`` are reduced.  Each op has a map from its own axes to the cluster's
(None: the same axes); ``pos`` gives the place of every value that the cluster makes, ``loads`` the places that it reads
from elsewhere (None: masked or indirect).  ``stage`` counts the reductions that must be finished before a value exists.

The order relation is kept as bit sets of ancestors, so "does a path lead from a to b?" costs one operation.
"""

from __future__ import annotations

from collections.abc import Iterator

from braze.autograd.schema import draws
from braze.inductor.loops import Buffer, Load
from braze.inductor.loops.ref import remap
from braze.ir import Expr, IntLike, Symbol, substitute, symbols

from .ops import Analysis, Op, hint

Env = dict[Symbol, IntLike]
Index = tuple[IntLike, ...]


class Cluster:
    """One kernel in the making. ``bits``: the ids of its ops; ``anc``: those of the clusters that it depends on;
    ``step``: for a reduction across the rows of memory, the bytes between two elements that it adds; else 0."""

    __slots__ = (
        "id",
        "ops",
        "axes",
        "r",
        "points",
        "rows",
        "env",
        "pos",
        "loads",
        "stage",
        "preds",
        "succs",
        "anc",
        "bits",
        "step",
        "closed",
    )

    def __init__(self, op: Op) -> None:
        self.id = op.id
        self.ops = [op]
        self.axes = op.axes
        self.r = op.r
        self.points = op.points
        self.rows = op.points
        self.env: dict[int, Env | None] = {op.id: None}
        self.pos: dict[Buffer, Index] = {}
        self.loads: dict[Buffer, list[Index | None]] = {}
        self.stage: dict[Buffer, int] = {}
        self.preds: set[int] = set()
        self.succs: set[int] = set()
        self.anc = 0
        self.bits = 1 << op.id
        self.step = 0
        self.closed = op.kind in ("extern", "fixed")
        if self.closed:
            return
        assert op.out is not None
        self.pos[op.out] = op.place
        for i in op.loads:
            index = None if i.indirect or i.mask is not None else i.index
            self.loads.setdefault(i.buffer, []).append(index)
        if op.r:
            self.stage[op.out] = 1
            for s in op.r:
                n = op.axes[s]
                self.rows //= max(n if isinstance(n, int) else hint(n), 1)
            self.step = _column_step(op)

    @property
    def column(self) -> bool:
        """True when the cluster reduces across the rows of memory."""
        return self.step > 0

    def __repr__(self) -> str:
        return f"cluster {self.id} of {self.ops}"


def _column_step(op: Op) -> int:
    """Bytes between neighbours along the reduced axes when the rows, not they, are neighbours in memory; else 0."""
    for i in op.loads:
        if i.mask is not None or i.indirect:
            continue
        inner: dict[bool, int] = {}
        for s in op.axes:
            step = _stride(i, s)
            if step:
                reduced = s in op.r
                inner[reduced] = min(inner.get(reduced, step), step)
        if inner:
            across = inner.get(True, 0) > inner.get(False, 1 << 62)
            return inner[True] * i.buffer.type.dtype.itemsize if across else 0
    return 0


def _stride(i: Load, s: Symbol) -> int:
    """Elements between the first two points of an axis; symbolic sizes count by their hints."""
    origin: dict[Symbol, IntLike] = {t: t.hint or 0 for t in symbols(*i.index)}
    if s not in origin:
        return 0
    step: IntLike = 0
    for e, stride in zip(i.index, i.buffer.type.strides):
        if isinstance(e, Expr) and s in symbols(e):
            step = step + (substitute(e, {**origin, s: 1}) - substitute(e, origin)) * stride
    return abs(step if isinstance(step, int) else hint(step))


class Clusters:
    """All clusters of a program. ``find(id)`` gives the cluster that now holds an op."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.at: list[Cluster | None] = [None] * len(analysis.ops)
        self.live: dict[int, Cluster] = {}
        self.drawn: Cluster | None = None  # the last that draws from torch's generator

    def add(self, op: Op) -> Cluster:
        """A cluster of one op. Ops come in program order; free ops get none and count as part of their readers."""
        c = Cluster(op)
        owner = self.analysis.owner
        for b in op.reads():
            o = owner.get(b)
            if o is None:
                continue
            self._after(c, self.at[o.id])
        if op.extern is not None and draws(op.extern.target):  # what a draw gives depends on those before it
            self._after(c, self.drawn)
            self.drawn = c
        self.at[op.id] = c
        self.live[c.id] = c
        return c

    @staticmethod
    def _after(c: Cluster, p: Cluster | None) -> None:
        """A new cluster that must run after an earlier one."""
        if p is not None:
            c.preds.add(p.id)
            p.succs.add(c.id)
            c.anc |= p.anc | p.bits

    def find(self, id: int) -> Cluster:
        c = self.at[id]
        assert c is not None
        return c

    def predecessors(self, c: Cluster) -> Iterator[Cluster]:
        """The clusters that ``c`` reads from, each once."""
        seen: set[int] = {c.id}
        for p in c.preds:
            q = self.find(p)
            if q.id not in seen:
                seen.add(q.id)
                yield q

    def cyclic(self, a: Cluster, b: Cluster) -> bool:
        """True when merging would close a cycle: a path between them leads through a third cluster."""
        if b.anc & a.bits and any(p is not a and p.anc & a.bits for p in self.predecessors(b)):
            return True
        return bool(a.anc & b.bits) and any(p is not b and p.anc & b.bits for p in self.predecessors(a))

    def absorb(self, base: Cluster, other: Cluster, env: Env) -> None:
        """Move ``other``'s ops into ``base``; ``env``: other's axes over base's (empty: the same)."""
        _move_values(base, other, env)
        bits = base.bits | other.bits
        anc = (base.anc | other.anc) & ~bits
        base.preds |= other.preds
        base.succs |= other.succs
        base.bits, base.anc = bits, anc
        for op in other.ops:
            self.at[op.id] = base
        base.ops += other.ops
        del self.live[other.id]
        if base.succs:
            self._spread(base)

    def _spread(self, base: Cluster) -> None:
        """Tell the descendants of a grown cluster about its new ancestors."""
        new = base.bits | base.anc
        stack = [base]
        seen = {base.id}
        while stack:
            for id in stack.pop().succs:
                c = self.find(id)
                if c.id not in seen:
                    seen.add(c.id)
                    if new & ~(c.anc | c.bits):
                        c.anc |= new & ~c.bits
                        stack.append(c)


def awaits(first: Cluster, second: Cluster) -> dict[Op, int]:
    """The ops of ``second`` that need finished reductions of ``first``, and how many, one after the other."""
    if not any(first.stage.get(b, 0) for b in second.loads):
        return {}
    late: dict[Buffer, int] = {}
    out: dict[Op, int] = {}
    for op in sorted(second.ops, key=lambda o: o.id):
        stage = max((first.stage.get(i.buffer, 0) or late.get(i.buffer, 0) for i in op.loads), default=0)
        if stage:
            out[op] = late[op.out] = stage  # type: ignore[index]
    return out


def _move_values(base: Cluster, other: Cluster, env: Env) -> None:
    lifts = awaits(base, other)
    raised = max((other.stage.get(b, 0) for b in base.loads if b in other.pos), default=0)
    if raised:
        base.stage = {b: base.stage.get(b, 0) + raised for b in base.pos}
    for b, place in other.pos.items():
        base.pos[b] = remap(place, env) if env else place
    for op in other.ops:
        stage = other.stage.get(op.out, 0) + lifts.get(op, 0)  # type: ignore[arg-type]
        if stage:
            base.stage[op.out] = stage  # type: ignore[index]
    for b, places in other.loads.items():
        if b not in base.pos:
            moved = [None if p is None else remap(p, env) for p in places] if env else places
            base.loads.setdefault(b, []).extend(moved)
    for b in other.pos:
        base.loads.pop(b, None)
    for op in other.ops:
        old = other.env[op.id]
        if not env:
            base.env[op.id] = old
        elif old is None:
            base.env[op.id] = {s: env[s] for s in op.axes}
        else:
            base.env[op.id] = {s: substitute(e, env) for s, e in old.items()}
