"""The steps of a lowered program as fusion sees them: one :class:`Op` a virtual buffer or vendor call.

kinds: ``point`` (elementwise), ``reduce``, ``free`` (no loads: constants and ranges, recomputed wherever read),
``fixed`` (several kernels that fill one buffer: scatters; kept apart, their inputs may be inlined), ``extern``.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch

from braze.inductor.loops import Buffer, Compute, Extern, Kernel, Load, Program, Store
from braze.inductor.loops.interpret import buffers_in
from braze.ir import IntLike, Symbol, bounds, evaluate, symbols

COSTS = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "sigmoid", "expm1", "log1p", "log10"), 12),
    **dict.fromkeys(("erf", "tanh", "sin", "cos", "erfc"), 16),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "reciprocal"), 3),
    **dict.fromkeys(("pow", "atan2", "tan", "asin", "acos", "atan", "sinh", "cosh"), 30),
    **dict.fromkeys(("asinh", "acosh", "atanh", "erfinv", "lgamma", "digamma", "fmod", "remainder"), 40),
    "philox": 25,
    "check_index": 3,
}

MAX_LEAVES, MAX_TREE = 8, 100  # buffers and instructions of an expression that may be recomputed elsewhere


def hint(e: IntLike) -> int:
    """A size as a number: itself, or its hint, or the least it can be."""
    if isinstance(e, int):
        return e
    return evaluate(e) if all(s.hint is not None for s in symbols(e)) else max(bounds(e)[0], 2)


class Op:
    """One step. ``place``: where in its buffer the kernel stores (its axes, 0 for unit dims)."""

    __slots__ = (
        "id",
        "kind",
        "kernels",
        "extern",
        "out",
        "place",
        "axes",
        "r",
        "points",
        "loads",
        "flops",
        "writes",
        "leaves",
        "tree_flops",
        "step",
        "stored",
    )

    def __init__(self, id: int, step: Any) -> None:
        self.id = id
        self.step = step
        self.kernels: list[Kernel] = []
        self.extern: Extern | None = None
        self.out: Buffer | None = None
        self.place: tuple[IntLike, ...] = ()
        self.axes: dict[Symbol, IntLike] = {}
        self.r: tuple[Symbol, ...] = ()
        self.points = 1
        self.loads: list[Load] = []
        self.flops = 0
        self.writes: tuple[Buffer, ...] = ()
        self.leaves: frozenset[Buffer] | None = None
        self.tree_flops = 0
        self.stored = False
        self.kind = "extern"
        if isinstance(step, Extern):
            self.extern = step
            self.writes = tuple(b for b in step.outputs if b is not None)
        else:
            self._from_kernel(step)

    def _from_kernel(self, k: Kernel) -> None:
        self.kernels = [k]
        store = k.body[-1]
        assert isinstance(store, Store)
        self.out, self.place = store.buffer, store.index
        self.writes = (store.buffer,)
        axes = {a.index: a.size for a in k.x}
        self.kind = "point"
        if k.r:
            self.kind = "reduce"
            for a in k.r:
                axes[a.index] = a.size
            self.r = tuple([a.index for a in k.r])
        self.axes = axes
        flops = 0
        for i in k.body:
            if isinstance(i, Load):
                self.loads.append(i)
            elif isinstance(i, Compute):
                flops += COSTS.get(i.fn, 1)
        self.flops = max(flops, 1)
        if not self.loads:
            self.kind = "free"
        for n in axes.values():
            self.points *= n if isinstance(n, int) else hint(n)

    @property
    def device(self) -> torch.device:
        return self.kernels[0].device

    def reads(self) -> list[Buffer]:
        """Every buffer that the step reads, with repeats."""
        if self.extern is not None:
            return buffers_in(self.extern.args) + buffers_in(self.extern.kwargs)
        if self.kind == "fixed":
            return [b for k in self.kernels for b in k.reads if b is not self.out]
        return [i.buffer for i in self.loads]

    def __repr__(self) -> str:
        return f"{self.kind} {', '.join(b.name for b in self.writes)}"


class Analysis:
    """The ops of a program in order, and who defines and reads each buffer."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ops: list[Op] = []
        self.owner: dict[Buffer, Op] = {}
        for step in program.steps:
            if isinstance(step, Kernel):
                out = step.body[-1].buffer  # type: ignore[union-attr]
                old = self.owner.get(out)
                if old is not None:
                    old.kind = "fixed"
                    old.kernels.append(step)
                    old.loads = old.loads + [i for i in step.body if isinstance(i, Load)]
                    # The op runs where its last kernel stood.
                    self.ops.remove(old)
                    self.ops.append(old)
                    continue
            op = Op(len(self.ops), step)
            self.ops.append(op)
            for b in op.writes:
                self.owner[b] = op
        for k, op in enumerate(self.ops):
            op.id = k
        self.users: dict[Buffer, list[Op]] = {}
        for op in self.ops:
            for b in dict.fromkeys(op.reads()):
                self.users.setdefault(b, []).append(op)
        self.outputs = frozenset(buffers_in(program.outputs))
        self._needed()
        self.find_leaves(frozenset())

    def _needed(self) -> None:
        """Which results must exist in memory: outputs, and what vendor calls and scatters touch."""
        for op in self.ops:
            if op.kind in ("extern", "fixed"):
                op.stored = True
                if op.extern is not None:
                    for b in op.reads():
                        owner = self.owner.get(b)
                        if owner is not None:
                            owner.stored = True
        for b in self.outputs:
            if b in self.owner:
                self.owner[b].stored = True

    def find_leaves(self, stored: Set[Buffer]) -> None:
        """For each pointwise op, the buffers that its expression tree reads down to what is stored anyway (``stored``
        among it), and the tree's arithmetic."""
        for op in self.ops:
            op.leaves = None
            if op.kind == "free":
                op.leaves, op.tree_flops = frozenset(), op.flops
            elif op.kind == "point":
                leaves: set[Buffer] = set()
                flops = op.flops
                for i in op.loads:
                    o = self.owner.get(i.buffer)
                    if o is None or o.kind not in ("point", "free") or i.indirect or _in_memory(o, stored):
                        leaves.add(i.buffer)
                    elif o.leaves is None:
                        break
                    else:
                        leaves |= o.leaves
                        flops += o.tree_flops
                else:
                    if len(leaves) <= MAX_LEAVES and flops <= MAX_TREE:
                        op.leaves, op.tree_flops = frozenset(leaves), flops


def _in_memory(op: Op, stored: Set[Buffer]) -> bool:
    return op.kind == "point" and (op.stored or op.out in stored)


def nbytes(b: Buffer) -> int:
    """Bytes of a buffer's elements."""
    n = b.type.numel
    return (n if isinstance(n, int) else hint(n)) * b.type.dtype.itemsize
