"""How each kind of reduction folds: its identity, one step, and merging of partial results.

A fold's state is a list of values (argmax: best value and its position).  Sums of floats are cascaded: short runs are
summed plainly, and the runs' sums are added with compensation (Kahan), so that the error does not grow with the
length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from braze.errors import Unsupported
from braze.inductor.loops.ir import Reduce

from .llvm_builder import BITS, ELEM, UNSIGNED, Builder, V, is_float
from .llvm_ops import extreme

State = list[V]


class Fold:
    """A fold over lanes and points. ``step`` adds a value; ``merge`` joins two states; ``outer_*`` is the state that
    collects runs (the same unless compensated)."""

    def __init__(self, reduce: Reduce) -> None:
        self.reduce = reduce
        self.dtype = reduce.value.dtype
        self.elem = ELEM[self.dtype]
        if self.dtype in (torch.bfloat16, torch.float16):
            raise Unsupported(f"a CPU reduction over {self.dtype}: the lowering converts to float32 first")

    def identity(self, b: Builder, lanes: int) -> State:
        return [b.splat(b.const(self.elem, _identity(self.reduce.kind, self.dtype)), lanes)]

    def step(self, b: Builder, state: State, value: V, mask: V | None, position: V | None) -> State:
        if mask is not None:
            value = b.select(mask, value, self.identity(b, mask.lanes)[0])
        return self.merge(b, state, [value])

    def merge(self, b: Builder, x: State, y: State) -> State:
        raise NotImplementedError

    def outer_identity(self, b: Builder, lanes: int) -> State:
        return self.identity(b, lanes)

    def outer_merge(self, b: Builder, outer: State, run: State) -> State:
        return self.merge(b, outer, run)

    def outer_result(self, outer: State) -> State:
        return outer

    def fold_lanes(self, b: Builder, state: State) -> State:
        """One lane from many, pairwise."""
        while state[0].lanes > 1:
            half = state[0].lanes // 2
            state = self.merge(b, [b.slice(v, 0, half) for v in state], [b.slice(v, half, half) for v in state])
        return state

    def insert(self, b: Builder, state: State, scalar: State) -> State:
        """Merge a one-lane state into a state of many lanes."""
        lanes = state[0].lanes
        if lanes == 1:
            return self.merge(b, state, scalar)
        wide = [
            b.let(v.elem, lanes, f"insertelement {v.typed}, {s.typed}, i64 0")
            for v, s in zip(self.identity(b, lanes), scalar)
        ]
        return self.merge(b, state, wide)

    def result(self, state: State) -> V:
        return state[-1]


class _Sum(Fold):
    def merge(self, b: Builder, x: State, y: State) -> State:
        return [b.add(x[0], y[0])]


class _CascadedSum(_Sum):
    def outer_identity(self, b: Builder, lanes: int) -> State:
        return self.identity(b, lanes) * 2

    def outer_merge(self, b: Builder, outer: State, run: State) -> State:
        total, lost = outer
        y = b.sub(run[0], lost)
        t = b.add(total, y)
        lost = b.sub(b.sub(t, total), y)
        # An infinite total would turn the compensation into NaN.
        finite = b.compare("olt", b.intrinsic("fabs", t), b.like(t, math.inf))
        return [t, b.select(finite, lost, b.splat(b.like(t, 0.0), t.lanes))]

    def outer_result(self, outer: State) -> State:
        return outer[:1]


class _Prod(Fold):
    def merge(self, b: Builder, x: State, y: State) -> State:
        return [b.mul(x[0], y[0])]


class _Extreme(Fold):
    def merge(self, b: Builder, x: State, y: State) -> State:
        # The newer value first: for floats that is the cheaper order for a NaN that stays.
        return [extreme(b, self.reduce.kind, y[0], x[0], self.dtype in UNSIGNED)]

    def step(self, b: Builder, state: State, value: V, mask: V | None, position: V | None) -> State:
        if not is_float(value.elem):
            return super().step(b, state, value, mask, position)
        if mask is not None:
            value = b.select(mask, value, self.identity(b, mask.lanes)[0])
        value, old = b.unify(value, state[0])
        best = b.upper(value, old) if self.reduce.kind == "max" else b.lower(value, old)
        return [b.select(b.is_nan(value), value, best)]

    def fold_lanes(self, b: Builder, state: State) -> State:
        return super().fold_lanes(b, state)


class _Logic(Fold):
    def merge(self, b: Builder, x: State, y: State) -> State:
        return [b.binary("or" if self.reduce.kind == "any" else "and", x[0], y[0])]


class _Position(Fold):
    """State: best value, its position. The first best wins; a NaN is better than any number."""

    def identity(self, b: Builder, lanes: int) -> State:
        kind = "max" if self.reduce.kind == "argmax" else "min"
        worst = b.const(self.elem, _identity(kind, self.dtype))
        return [b.splat(worst, lanes), b.splat(b.const("i64", 0), lanes)]

    def _better(self, b: Builder, x: V, y: V) -> V:
        """x strictly better than y."""
        largest = self.reduce.kind == "argmax"
        if not is_float(x.elem):
            sign = "u" if self.dtype in UNSIGNED else "s"
            return b.compare(sign + ("gt" if largest else "lt"), x, y)
        more = b.compare("ogt" if largest else "olt", x, y)
        number = b.compare("ord", y, y)
        return b.binary("or", more, b.binary("and", b.is_nan(x), number))

    def step(self, b: Builder, state: State, value: V, mask: V | None, position: V | None) -> State:
        assert position is not None
        value, position, best, where = b.unify(value, position, *state)
        better = self._better(b, value, best)
        if mask is not None:
            better = b.binary("and", better, mask)
        return [b.select(better, value, best), b.select(better, position, where)]

    def merge(self, b: Builder, x: State, y: State) -> State:
        better = self._better(b, y[0], x[0])
        worse = self._better(b, x[0], y[0])
        earlier = b.compare("slt", y[1], x[1])
        tie = b.binary("and", b.binary("xor", worse, b.like(worse, True)), earlier)
        take = b.binary("or", better, tie)
        return [b.select(take, y[0], x[0]), b.select(take, y[1], x[1])]


def _identity(kind: str, dtype: torch.dtype) -> Any:
    if kind == "sum":
        return 0
    if kind == "prod":
        return 1
    if kind in ("any", "all"):
        return kind == "all"
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    if dtype == torch.bool:
        return kind == "min"
    unsigned, bits = dtype in UNSIGNED, BITS[ELEM[dtype]]
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return low if kind == "max" else high


def fold_of(reduce: Reduce, cascade: bool) -> Fold:
    """The fold of a reduction; ``cascade``: it is long enough for compensated sums."""
    if reduce.kind == "sum":
        return _CascadedSum(reduce) if cascade and reduce.value.dtype.is_floating_point else _Sum(reduce)
    kinds: dict[str, type[Fold]] = {
        "prod": _Prod,
        "max": _Extreme,
        "min": _Extreme,
        "any": _Logic,
        "all": _Logic,
        "argmax": _Position,
        "argmin": _Position,
    }
    if reduce.kind not in kinds:
        raise Unsupported(f"the CPU code generator has no reduction {reduce.kind!r}")
    return kinds[reduce.kind](reduce)


def merge_all(b: Builder, folds: Sequence[Fold], outer: list[V], runs: list[V]) -> list[V]:
    """Merge the flat states of several folds: collected runs with new runs."""
    out: list[V] = []
    i = j = 0
    for f in folds:
        n, m = len(f.outer_identity(b, 1)), len(f.identity(b, 1))
        out += f.outer_merge(b, outer[i : i + n], runs[j : j + m])
        i, j = i + n, j + m
    return out
