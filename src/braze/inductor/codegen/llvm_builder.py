"""A writer of LLVM IR text: typed SSA values of one or many lanes, constants, casts and counted loops.

Text is emitted directly: printing a kernel costs well under a millisecond, and the text is what the compile cache
keys on. A :class:`V` carries its element type and lane count; operations broadcast one-lane operands, so code written
once serves as scalar and as vector code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch


class V(NamedTuple):
    """A value: LLVM name or constant, element type ("float", "i64", "i1", "ptr", ...), lanes (1: a scalar)."""

    name: str
    elem: str
    lanes: int = 1
    const: bool = False

    @property
    def type(self) -> str:
        return vec_type(self.elem, self.lanes)

    @property
    def typed(self) -> str:
        return f"{vec_type(self.elem, self.lanes)} {self.name}"


def vec_type(elem: str, lanes: int) -> str:
    return elem if lanes == 1 else f"<{lanes} x {elem}>"


ELEM = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "half",
    torch.bfloat16: "i16",  # the bits: arithmetic never happens in bfloat16
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "i8",
    torch.uint16: "i16",
    torch.uint32: "i32",
    torch.uint64: "i64",
    torch.bool: "i1",
}
"""In-register element type of each dtype. In memory a bool is an i8."""

BITS = {"float": 32, "double": 64, "half": 16, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i1": 1, "ptr": 64}
UNSIGNED = frozenset((torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool))


def is_float(elem: str) -> bool:
    return elem in ("float", "double", "half")


def _double_bits(value: float) -> int:
    return int(struct.unpack("Q", struct.pack("d", value))[0])


def literal(elem: str, value: float | int | bool) -> str:
    """The LLVM spelling of a scalar constant. Floats are spelled by their bits, so that they are exact."""
    if elem == "float":
        rounded = torch.tensor(float(value), dtype=torch.float32).item() if abs(value) > 3e38 else value
        single = struct.unpack("f", struct.pack("f", rounded))[0]
        return f"0x{_double_bits(single):016X}"
    if elem == "double":
        return f"0x{_double_bits(float(value)):016X}"
    if elem == "half":
        return f"0xH{int(torch.tensor(float(value), dtype=torch.float16).view(torch.int16).item()) & 0xFFFF:04X}"
    if elem == "i1":
        return "true" if value else "false"
    bits = BITS[elem]
    number = int(value) & ((1 << bits) - 1)
    return str(number - (1 << bits) if number >> (bits - 1) else number)


class Builder:
    """Appends instructions to ``lines`` of the current function; ``declares`` collects external declarations."""

    def __init__(self, features: frozenset[str] = frozenset(), version: int = 22) -> None:
        self.lines: list[str] = []
        self.declares: dict[str, str] = {}
        self.helpers: dict[str, str] = {}  # internal functions by name, with their text
        self.features = features
        self.version = version  # LLVM's major version: it spells some intrinsics differently
        self.block = "entry"
        self._n = 0

    # -- plumbing
    def fresh(self, prefix: str = "v") -> str:
        self._n += 1
        return f"{prefix}{self._n}"

    def emit(self, text: str) -> None:
        self.lines.append("  " + text)

    def let(self, elem: str, lanes: int, text: str) -> V:
        """A new value defined by ``text``."""
        name = "%" + self.fresh()
        self.lines.append(f"  {name} = {text}")
        return V(name, elem, lanes)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def branch(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def declare(self, name: str, result: str, params: Sequence[str]) -> None:
        self.declares[name] = f"declare {result} @{name}({', '.join(params)})"

    # -- constants and lanes
    def const(self, elem: str, value: float | int | bool) -> V:
        return V(literal(elem, value), elem, 1, True)

    def like(self, v: V, value: float | int | bool) -> V:
        """A constant of v's element type (one lane: it broadcasts)."""
        return V(literal(v.elem, value), v.elem, 1, True)

    def splat(self, v: V, lanes: int) -> V:
        """``v`` in every lane."""
        if v.lanes == lanes:
            return v
        assert v.lanes == 1, (v, lanes)
        if v.const:
            return V(f"splat ({v.elem} {v.name})", v.elem, lanes, True)
        first = self.let(v.elem, lanes, f"insertelement {vec_type(v.elem, lanes)} poison, {v.typed}, i64 0")
        zero = f"<{lanes} x i32> zeroinitializer"
        return self.let(v.elem, lanes, f"shufflevector {first.typed}, {first.type} poison, {zero}")

    def unify(self, *values: V) -> tuple[V, ...]:
        """The operands with one lane count."""
        lanes = max(v.lanes for v in values)
        return tuple(self.splat(v, lanes) for v in values)

    def iota(self, elem: str, lanes: int, step: int = 1) -> V:
        """<0, step, 2*step, ...>."""
        if lanes == 1:
            return self.const(elem, 0)
        return V("<" + ", ".join(f"{elem} {i * step}" for i in range(lanes)) + ">", elem, lanes, True)

    def extract(self, v: V, lane: int) -> V:
        return v if v.lanes == 1 else self.let(v.elem, 1, f"extractelement {v.typed}, i64 {lane}")

    def slice(self, v: V, start: int, count: int) -> V:
        """Lanes [start, start+count)."""
        if count == 1:
            return self.extract(v, start)
        mask = ", ".join(f"i32 {start + i}" for i in range(count))
        return self.let(v.elem, count, f"shufflevector {v.typed}, {v.type} poison, <{count} x i32> <{mask}>")

    def reverse(self, v: V) -> V:
        """The lanes from last to first."""
        order = ", ".join(f"i32 {v.lanes - 1 - i}" for i in range(v.lanes))
        return self.let(v.elem, v.lanes, f"shufflevector {v.typed}, {v.type} poison, <{v.lanes} x i32> <{order}>")

    def concat(self, parts: Sequence[V]) -> V:
        """Equal-width parts (a power of two of them) joined in order."""
        parts = list(parts)
        if parts[0].lanes == 1 and len(parts) > 1:
            out = V("poison", parts[0].elem, len(parts), True)
            for k, x in enumerate(parts):
                out = self.let(x.elem, len(parts), f"insertelement {out.typed}, {x.typed}, i64 {k}")
            return out
        while len(parts) > 1:
            n = 2 * parts[0].lanes
            mask = ", ".join(f"i32 {i}" for i in range(n))
            parts = [
                self.let(a.elem, n, f"shufflevector {a.typed}, {b.typed}, <{n} x i32> <{mask}>")
                for a, b in zip(parts[::2], parts[1::2])
            ]
        return parts[0]

    def transpose(self, rows: Sequence[V]) -> list[V]:
        """n vectors of n lanes (a power of two), transposed by exchanging ever larger blocks."""
        out, n = list(rows), len(rows)
        step = 1
        while step < n:
            low = ", ".join(f"i32 {k if not k & step else n + k - step}" for k in range(n))
            high = ", ".join(f"i32 {k + step if not k & step else n + k}" for k in range(n))
            for k in range(n):
                if not k & step:
                    a, b = out[k], out[k + step]
                    pair = f"shufflevector {a.typed}, {b.typed}, <{n} x i32> "
                    out[k] = self.let(a.elem, n, f"{pair}<{low}>")
                    out[k + step] = self.let(a.elem, n, f"{pair}<{high}>")
            step *= 2
        return out

    # -- arithmetic
    def binary(self, op: str, a: V, b: V) -> V:
        a, b = self.unify(a, b)
        return self.let(a.elem, a.lanes, f"{op} {a.type} {a.name}, {b.name}")

    def add(self, a: V, b: V) -> V:
        return self.binary("fadd" if is_float(a.elem) else "add", a, b)

    def sub(self, a: V, b: V) -> V:
        return self.binary("fsub" if is_float(a.elem) else "sub", a, b)

    def mul(self, a: V, b: V) -> V:
        return self.binary("fmul" if is_float(a.elem) else "mul", a, b)

    def div(self, a: V, b: V) -> V:
        return self.binary("fdiv", a, b)

    def neg(self, a: V) -> V:
        if is_float(a.elem):
            return self.let(a.elem, a.lanes, f"fneg {a.typed}")
        return self.sub(self.like(a, 0), a)

    def fma(self, a: V, b: V, c: V) -> V:
        """a * b + c, in one rounding where the machine has it, else in two (never a libm call)."""
        return self.intrinsic("fma" if self.has_fma else "fmuladd", a, b, c)

    @property
    def has_fma(self) -> bool:
        return bool(self.features & {"fma", "neon", "avx512f"})

    def intrinsic(self, name: str, *args: V) -> V:
        """An LLVM intrinsic overloaded on its operands' one type."""
        args = self.unify(*args)
        a = args[0]
        suffix = {"float": "f32", "double": "f64", "half": "f16"}.get(a.elem, a.elem)
        full = f"llvm.{name}.v{a.lanes}{suffix}" if a.lanes > 1 else f"llvm.{name}.{suffix}"
        self.declare(full, a.type, [a.type] * len(args))
        return self.let(a.elem, a.lanes, f"call {a.type} @{full}({', '.join(x.typed for x in args)})")

    def compare(self, predicate: str, a: V, b: V) -> V:
        """``fcmp``/``icmp`` with the given predicate; i1 lanes."""
        a, b = self.unify(a, b)
        op = "fcmp" if is_float(a.elem) else "icmp"
        return self.let("i1", a.lanes, f"{op} {predicate} {a.type} {a.name}, {b.name}")

    def select(self, c: V, a: V, b: V) -> V:
        if c.lanes == 1:
            a, b = self.unify(a, b)
        else:
            c, a, b = self.unify(c, a, b)
        return self.let(a.elem, a.lanes, f"select {c.typed}, {a.typed}, {b.typed}")

    def cast(self, op: str, v: V, elem: str) -> V:
        """zext, sext, trunc, fpext, fptrunc, sitofp, uitofp, bitcast, ..."""
        return self.let(elem, v.lanes, f"{op} {v.typed} to {vec_type(elem, v.lanes)}")

    def bits(self, v: V) -> V:
        """The bits of a float as an integer of the same size."""
        return self.cast("bitcast", v, f"i{BITS[v.elem]}")

    def from_bits(self, v: V) -> V:
        return self.cast("bitcast", v, {32: "float", 64: "double", 16: "half"}[BITS[v.elem]])

    def lower(self, a: V, b: V) -> V:
        """a < b ? a : b. A NaN in either gives b (one machine instruction on x86)."""
        return self.select(self.compare("olt", a, b), a, b)

    def upper(self, a: V, b: V) -> V:
        """a > b ? a : b. A NaN in either gives b."""
        return self.select(self.compare("ogt", a, b), a, b)

    def is_nan(self, v: V) -> V:
        return self.compare("uno", v, v)

    def horner(self, x: V, coefficients: Sequence[float]) -> V:
        """The polynomial with the given coefficients, highest power first."""
        p = self.like(x, coefficients[0])
        for c in coefficients[1:]:
            p = self.fma(p, x, self.like(x, c))
        return p

    # -- control flow
    def loop(
        self,
        lo: V,
        hi: V,
        step: int,
        body: Callable[[V, list[V]], Sequence[V]],
        accumulators: Sequence[V] = (),
        runs: bool = False,
    ) -> list[V]:
        """``for i in range(lo, hi, step): accumulators = body(i, accumulators)``; ``runs``: known to run at least once.

        hi - lo need not be a multiple of step: the body runs while i < hi.
        """
        if lo.const and hi.const and 0 < int(hi.name) - int(lo.name) <= step:
            return [self.splat(n, a.lanes) for n, a in zip(body(lo, list(accumulators)) or (), accumulators)]
        head, exit_ = self.fresh("loop"), self.fresh("done")
        before = self.block
        if runs:
            self.branch(head)
        else:
            c = self.compare("slt", lo, hi)
            self.emit(f"br {c.typed}, label %{head}, label %{exit_}")
        self.label(head)
        i = V("%" + self.fresh("i"), "i64")
        phis = [V("%" + self.fresh("a"), a.elem, a.lanes) for a in accumulators]
        slot = len(self.lines)
        self.lines.append("")
        new = [self.splat(n, p.lanes) for n, p in zip(body(i, phis) or (), phis)]
        nxt = self.let("i64", 1, f"add nuw nsw i64 {i.name}, {step}")
        again = self.compare("slt", nxt, hi)
        last = self.block
        self.emit(f"br {again.typed}, label %{head}, label %{exit_}")
        text = [f"  {i.name} = phi i64 [ {lo.name}, %{before} ], [ {nxt.name}, %{last} ]"]
        for p, a, n in zip(phis, accumulators, new):
            text.append(f"  {p.name} = phi {p.type} [ {a.name}, %{before} ], [ {n.name}, %{last} ]")
        self.lines[slot] = "\n".join(text)
        self.label(exit_)
        if runs:
            return new
        out = []
        for a, n in zip(accumulators, new):
            out.append(self.let(a.elem, a.lanes, f"phi {a.type} [ {a.name}, %{before} ], [ {n.name}, %{last} ]"))
        return out

    def when(self, condition: V, body: Callable[[], Sequence[V] | None], otherwise: Sequence[V] = ()) -> list[V]:
        """``body()`` if the condition holds; its results, or ``otherwise``."""
        then, join = self.fresh("then"), self.fresh("join")
        before = self.block
        self.emit(f"br {condition.typed}, label %{then}, label %{join}")
        self.label(then)
        new = list(body() or ())
        last = self.block
        self.branch(join)
        self.label(join)
        return [
            self.let(a.elem, a.lanes, f"phi {a.type} [ {a.name}, %{before} ], [ {n.name}, %{last} ]")
            for a, n in zip(otherwise, new)
        ]

    def reduce_lanes(self, v: V, combine: Callable[[V, V], V]) -> V:
        """Fold the lanes pairwise: halves are combined until one lane is left."""
        while v.lanes > 1:
            half = v.lanes // 2
            v = combine(self.slice(v, 0, half), self.slice(v, half, half))
        return v
