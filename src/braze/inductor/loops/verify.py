"""The executable specification of the loop IR. Raises AssertionError that names the kernel and the instruction.

Of a kernel: values are defined before they are used; index expressions stand over the axes, bound indirect symbols and
sizes, and lie provably inside the buffer unless masked; dtypes obey the rules of ``ir``; what is stored is not read
again at another place.  Of a program: buffers are written before they are read, and wholly.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from braze.ir import Expr, IntLike, Symbol, bounds, known_le, known_lt, symbols
from braze.ir.types import product
from braze.prims.elementwise import DTYPES

from .interpret import buffers_in
from .ir import (
    REDUCTIONS,
    Buffer,
    Compute,
    Const,
    Extern,
    Index,
    Instr,
    Kernel,
    Load,
    Program,
    Reduce,
    Store,
    Value,
    operands,
)

NARROW = (torch.float16, torch.bfloat16)
RAW = ("convert", "bitcast")  # take and give 16-bit floats
SPECIAL = ("convert", "bitcast", "philox", "check_index")


class _Kernel:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.axes = {a.index: a.size for a in (*kernel.x, *kernel.r)}
        self.seen: set[Value] = set()
        self.stored: dict[Buffer, list[Store]] = {}

    def fail(self, i: Instr, why: str) -> str:
        return f"{self.kernel.name}: {type(i).__name__} {getattr(i, 'fn', getattr(i, 'buffer', ''))}: {why}"

    def run(self) -> None:
        k = self.kernel
        assert len(self.axes) == len(k.x) + len(k.r), f"{k.name}: an axis occurs twice"
        for i in k.body:
            for v in operands(i):
                assert v in self.seen, self.fail(i, "an operand is not defined before")
            if isinstance(i, (Load, Store)):
                self.access(i)
            elif isinstance(i, Compute):
                self.compute(i)
            elif isinstance(i, Reduce):
                self.reduce(i)
            elif isinstance(i, Index):
                self.scope(i, (i.expr,), set())
                assert i.dtype in (torch.int64, torch.int32), self.fail(i, f"dtype {i.dtype}")
            else:
                assert isinstance(i, Const), self.fail(i, "is no instruction")
                assert i.dtype not in NARROW, self.fail(i, "16-bit constants do not exist")
            if isinstance(i, Value):
                self.seen.add(i)

    def scope(self, i: Instr, index: Iterable[IntLike], bound: set[Symbol]) -> None:
        for s in symbols(*index):
            known = s in self.axes or s in bound or s.name[:1] not in "xrit" or s.hint is not None
            assert known, self.fail(i, f"the symbol {s} is not an axis")

    def access(self, i: Load | Store) -> None:
        t = i.buffer.type
        bound = {s for s, _ in i.indirect}
        assert len(i.index) == t.rank, self.fail(i, f"{len(i.index)} indices for rank {t.rank}")
        self.scope(i, i.index, bound)
        for s, v in i.indirect:
            assert v.dtype in (torch.int64, torch.int32), self.fail(i, f"{s} is bound to a {v.dtype}")
        if i.mask is not None:
            assert i.mask.dtype == torch.bool, self.fail(i, "the mask is not bool")
        else:
            empty = any(n == 0 for n in (*t.sizes, *self.axes.values()))
            for e, n in zip(i.index, t.sizes):
                assert empty or inside(e, n), self.fail(i, f"the index {e} may leave [0, {n})")
        if isinstance(i, Store):
            assert i.value.dtype == t.dtype, self.fail(i, f"a {i.value.dtype} into {t.dtype}")
            assert i.mode in ("set", "atomic_add", "sum"), self.fail(i, f"mode {i.mode}")
            self.stored.setdefault(i.buffer, []).append(i)
        else:
            for store in self.stored.get(i.buffer, ()):
                assert store.index == i.index, self.fail(i, "reads at another place what the kernel writes")

    def compute(self, i: Compute) -> None:
        dtypes = [a.dtype for a in i.args]
        if i.fn not in RAW:
            assert i.dtype not in NARROW and not any(d in NARROW for d in dtypes), self.fail(i, "16-bit arithmetic")
        if i.fn in SPECIAL:
            return
        assert i.fn in DTYPES, self.fail(i, "unknown function")
        if i.fn == "where":
            assert dtypes[0] == torch.bool, self.fail(i, "the condition is not bool")
            dtypes = dtypes[1:]
        assert len(set(dtypes)) == 1, self.fail(i, f"operands of {dtypes}")
        assert dtypes[0] in DTYPES[i.fn], self.fail(i, f"does not take {dtypes[0]}")
        assert i.dtype in (dtypes[0], torch.bool), self.fail(i, f"gives {i.dtype}")

    def reduce(self, i: Reduce) -> None:
        assert i.kind in REDUCTIONS, self.fail(i, f"kind {i.kind}")
        assert self.kernel.r, self.fail(i, "there is no axis to reduce")
        want = torch.int64 if i.kind.startswith("arg") else i.value.dtype
        assert i.dtype == want and i.dtype not in NARROW, self.fail(i, f"a {i.kind} of {i.value.dtype} as {i.dtype}")


def inside(e: IntLike, n: IntLike) -> bool:
    """True when 0 <= e < n is proven, or not decidable because the size is symbolic."""
    if isinstance(n, Expr):
        return bounds(e)[0] >= 0 or bool(symbols(e))
    return known_le(0, e) and known_lt(e, n)


def verify_kernel(kernel: Kernel) -> Kernel:
    """Check one kernel; returns it."""
    _Kernel(kernel).run()
    return kernel


def _written_points(kernel: Kernel, s: Store) -> IntLike | None:
    """How many elements a store writes (at most, where masked); None for one at computed places."""
    if s.indirect or s.mode == "atomic_add":
        return None
    used = symbols(*s.index)
    return product([a.size for a in (*kernel.x, *kernel.r) if a.index in used])


def verify_program(program: Program) -> Program:
    """Check a program and its kernels; returns it."""
    ready: set[Buffer] = {b for b in program.inputs if isinstance(b, Buffer)} | set(program.constants)
    written: dict[Buffer, IntLike] = {}
    last = {b: k for k, s in enumerate(program.steps) for b in _writes(s)}
    for k, step in enumerate(program.steps):
        if isinstance(step, Extern):
            for b in buffers_in(step.args) + buffers_in(step.kwargs):
                assert b in ready and last.get(b, -1) < k, f"{step.target} reads {b.name} before it is written"
            ready.update(b for b in step.outputs if b is not None)
            continue
        verify_kernel(step)
        for b in step.reads:
            assert b in ready or b in step.writes, f"{step.name} reads {b.name} before it is written"
        for i in step.body:
            if isinstance(i, Store):
                n = _written_points(step, i)
                if n is not None:
                    written[i.buffer] = written.get(i.buffer, 0) + n
                else:
                    assert i.buffer in written, f"{step.name} writes parts of {i.buffer.name}, which nothing filled"
        ready.update(step.writes)
    for b, n in written.items():
        full = b.type.numel
        assert isinstance(full, Expr) or isinstance(n, Expr) or n >= full, f"{b.name}: {n} of {full} are written"
    for b in buffers_in(program.outputs):
        assert b in ready, f"the output {b.name} is never written"
    _verify_reuse(program)
    _verify_groups(program)
    return program


def _writes(step: object) -> list[Buffer]:
    if isinstance(step, Kernel):
        return step.writes
    assert isinstance(step, Extern)
    return [b for b in step.outputs if b is not None]


def _verify_groups(program: Program) -> None:
    """Kernels of a group touch nothing that another of them writes, whatever memory it is."""
    for first, end in program.groups:
        written: dict[Buffer, int] = {}
        kernels = program.steps[first:end]
        for n, k in enumerate(kernels):
            assert isinstance(k, Kernel), "a group holds a vendor call"
            for b in k.writes:
                assert written.setdefault(_root(program, b), n) == n, f"two kernels of a group write {b.name}"
        for n, k in enumerate(kernels):
            for b in k.reads:  # type: ignore[union-attr]
                assert written.get(_root(program, b), n) == n, f"a kernel of a group writes {b.name}, another reads it"


def _root(program: Program, b: Buffer) -> Buffer:
    while b in program.reuse:
        b = program.reuse[b]
    return b


def _verify_reuse(program: Program) -> None:
    """A buffer that gives its memory away is not needed once the taker is written."""
    first: dict[Buffer, int] = {}
    final: dict[Buffer, int] = {}
    for k, step in enumerate(program.steps):
        reads = step.reads if isinstance(step, Kernel) else buffers_in(step.args) + buffers_in(step.kwargs)
        for b in [*reads, *_writes(step)]:
            first.setdefault(b, k)
            final[b] = k
    overwritten = {program.inputs[i] for _, i in program.overwrites}
    kept = {b for b in program.inputs if isinstance(b, Buffer)} - overwritten
    kept |= set(buffers_in(program.outputs))
    givers = list(program.reuse.values())
    assert len(set(givers)) == len(givers), "two buffers take over the same memory"
    for b, old in program.reuse.items():
        assert old not in kept and old not in program.constants, (
            f"{b.name} takes over {old.name}, which is still needed"
        )
        assert final.get(old, -1) <= first[b], f"{b.name} takes over {old.name} before its last use"
