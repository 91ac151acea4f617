"""Symbolic sizes of one frame: which there are, where compiled code reads them, and what was decided about them.

A size or a Python int is a fixed number at first.  :class:`SizePolicy` remembers what each one was in earlier captures
of the frame and makes those symbolic that have changed (``dynamic=None``), all sizes (True) or none (False); marks on
the tensor go before.  :class:`FrameSizes` holds the symbols of one capture and turns decisions into guards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from braze.errors import SizeFixed
from braze.events import SizeNote
from braze.ir import Expr, Graph, IntLike, Loc, Symbol, coefficient, symbol_of, symbols
from braze.ir.decisions import Decision, Decisions
from braze.ir.expr import INF, symbol

from .guards import EqualsConst, IntRange, Relation
from .markers import Mark, marks_of
from .source import ConstSource, MemberSource, Source

LIMIT = 2**62  # integers beyond are left to Python
_BRANCHES = 2  # on tensors, with both outcomes as versions of their own


@dataclass(frozen=True)
class Choice:
    """What becomes of one size: symbolic in a range, or a number for a ``reason``."""

    symbolic: bool
    reason: str = ""
    low: int = 2
    high: int = INF
    strict: bool = False


@dataclass
class SizePolicy:
    """Which sizes and integers of a frame are symbolic. One for a code object and its root objects; ``begin`` before
    each capture, so that its passes agree."""

    dynamic: bool | None = None
    seen: dict[str, Any] = field(default_factory=dict)  # by source: sizes or int, None where it has changed
    failure: str = ""  # why a program with symbolic sizes could not be compiled: sizes are fixed after that
    pinned: set[str] = field(default_factory=set)  # integers in tensors that a capture needed as numbers
    outcomes: dict[str, set[bool]] = field(default_factory=dict)  # of branches on tensors, so far
    _now: dict[str, Any] = field(default_factory=dict)

    def fix(self, failure: str) -> None:
        self.dynamic, self.failure = False, failure.partition("\n")[0]

    def begin(self) -> None:
        self._now = {}

    def sizes(self, name: str, t: torch.Tensor, owned: bool = False) -> tuple[Choice, ...]:
        """The choice for each dim of a tensor. ``owned``: a module's; its sizes vary only where they have changed."""
        made: tuple[Choice, ...] | None = self._now.get(name)
        if made is None or len(made) != t.dim():
            changed = self._changed(name, tuple(t.shape))
            marks = marks_of(t)
            made = tuple(self._choose(t, d, n, d in changed, marks.get(d), owned) for d, n in enumerate(t.shape))
            self._now[name] = made
        return made

    def integer(self, name: str, value: int) -> bool:
        """Whether a Python int is symbolic."""
        if self.dynamic is False or abs(value) >= LIMIT:
            return False
        made: bool | None = self._now.get(name)
        if made is None:
            made = self._now[name] = bool(self._changed(name, (value,)))
        return made

    def floating(self, name: str, value: float) -> bool:
        """Whether a Python float is an input of the graph."""
        if self.dynamic is False:
            return False
        made: bool | None = self._now.get(name)
        if made is None:
            made = self._now[name] = bool(self._changed(name, (value,)))
        return made

    def outcome(self, name: str, value: bool) -> bool:
        """Whether a version of the frame may hold for one outcome of a branch on a tensor: as long as few have changed,
        since each doubles the versions."""
        self.outcomes.setdefault(name, set()).add(value)
        made: bool | None = self._now.get(name)
        if made is None:
            changed = [n for n, seen in self.outcomes.items() if len(seen) > 1]
            made = self._now[name] = name not in changed[_BRANCHES:]
        return made

    def _changed(self, name: str, now: tuple[float, ...]) -> set[int]:
        before = self.seen.get(name)
        if before is None or len(before) != len(now):
            before = now
        after = self.seen[name] = tuple(a if a == b else None for a, b in zip(before, now))
        return {d for d, n in enumerate(after) if n is None}

    def _choose(self, t: torch.Tensor, d: int, n: int, changed: bool, mark: Mark | None, owned: bool) -> Choice:
        if mark is not None and not mark.dynamic:
            return Choice(False, "marked static")
        if self.failure:
            reason = f"it does not compile with symbolic sizes ({self.failure})" if changed or mark is not None else ""
            return Choice(False, reason, strict=mark is not None and mark.strict)
        if mark is None:
            if isinstance(t, torch.nn.Parameter):
                return Choice(False)
            if self.dynamic is False:
                return Choice(False, "dynamic=False" if changed else "")
            if not changed and (owned or not self.dynamic):
                return Choice(False)
            mark = Mark(True)
        if n < 2:
            return Choice(False, "sizes 0 and 1 are specialised", strict=mark.strict)
        low, high = max(mark.low or 2, 2), INF if mark.high is None else mark.high
        if not low <= n <= high:
            return Choice(False, f"{n} is outside of the range [{low}, {high}] it was marked with", strict=mark.strict)
        return Choice(True, "", low, high, mark.strict)


@dataclass(frozen=True, eq=False)
class SizeInput:
    """An integer that the graph takes: where it is read, and its value at the call at hand."""

    source: Source
    raw: int


class FrameSizes(Decisions):
    """The symbols of one capture, in the order of ``inputs`` (shared with the tensors that the graph takes)."""

    def __init__(self, policy: SizePolicy, graph: Graph, inputs: list[Any], locate: Callable[[], Loc | None]) -> None:
        super().__init__(locate)
        self.policy, self.graph, self.inputs = policy, graph, inputs
        self.sources: dict[str, Source] = {}
        self.notes: list[SizeNote] = []
        self.strict: set[str] = set()
        self._symbols: dict[Source, Expr] = {}
        self._layout: list[tuple[Source, Expr]] = []  # strides that follow from sizes
        self.settled = False  # the graph's inputs are fixed
        self._parts: dict[str, tuple[str, int]] = {}  # symbol of s // k -> (s, k)
        self._varies: dict[Source, bool] = {}
        self._read: set[str] = set()  # symbols of numbers that tensors hold

    def varies(self, source: Source | None, value: int) -> bool:
        """Whether the Python int at a source is symbolic."""
        if source is None or isinstance(source.root, ConstSource):
            return False
        made = self._varies.get(source)
        if made is None:
            made = self._varies[source] = self.policy.integer(source.name(), value)
        return made

    def floating(self, source: Source, value: float) -> bool:
        """Whether the Python float at a source is an input of the graph."""
        return not isinstance(source.root, ConstSource) and self.policy.floating(source.name(), value)

    def symbol(self, source: Source, value: int, low: int, high: int, base: str = "s") -> Expr:
        """The symbol of the integer at a source, which becomes an input of the graph."""
        found = self._symbols.get(source)
        if found is None:
            node = self.graph.input(f"{base}{len(self._symbols)}", None)
            found = node.val = self._symbols[source] = self.new(node.name, value, low, high)
            self.sources[node.name] = source
            self.inputs.append(SizeInput(source, value))
        return found

    def integer(self, source: Source, value: int) -> Expr:
        return self.symbol(source, value, -LIMIT, LIMIT, "n")

    def number_read(self, source: Source, value: int) -> Expr | None:
        """The symbol of an integer that a tensor holds. None where an earlier capture had to fix its number."""
        if abs(value) >= LIMIT or source.name() in self.policy.pinned:
            return None
        out = self.integer(source, value)
        self._read.add(str(out))
        return out

    def part_possible(self, s: Symbol) -> bool:
        return s.name in self.sources and not self.settled

    def part(self, s: Symbol, k: int) -> IntLike | None:
        if not self.part_possible(s):
            return None
        source = self.sources[s.name]
        low, high = self.ranges[s.name]
        whole = source.call(_divided_by(k), "({} // " + str(k) + ")")
        out = self.symbol(whole, self.hints[s.name] // k, -(-low // k), high // k if high < LIMIT else INF, "d")
        self._parts.setdefault(str(out), (s.name, k))
        return out

    def tensor(self, source: Source, t: torch.Tensor) -> tuple[tuple[IntLike, ...], tuple[IntLike, ...]]:
        """Sizes and strides of an input, with symbols where its sizes may vary."""
        sizes: list[IntLike] = list(t.shape)
        for d, choice in enumerate(self.policy.sizes(source.name(), t, isinstance(source, MemberSource))):
            if choice.symbolic:
                sizes[d] = self.symbol(source.size(d), t.shape[d], choice.low, choice.high)
                if choice.strict:
                    self.strict.add(str(sizes[d]))
            elif choice.strict:
                raise SizeFixed(f"{source.size(d).name()} was marked dynamic (strict), but {choice.reason}")
            elif choice.reason:
                self.notes.append(SizeNote(source.size(d).name(), str(t.shape[d]), choice.reason))
        strides = follow(sizes, t.shape, t.stride())
        for d, n in enumerate(strides):
            if isinstance(n, Expr):
                self._layout.append((source.stride(d), n))
        return tuple(sizes), tuple(strides)

    # -- what it takes for granted

    def guards(self) -> list[Any]:
        """The guards of everything taken for granted. Raises SizeFixed where a strict mark is not kept."""
        for name in self.strict:
            now = self._is.get(name)
            if isinstance(now, int):
                where = next((str(d.loc) for d in self.taken if str(d.lhs) == name and d.op == "=="), "")
                what = f"{self.sources[name].name()} was marked dynamic (strict), but the program needs it to be {now}"
                raise SizeFixed(what, where)
        out: list[Any] = []
        for name, source in self.sources.items():
            now = self._is.get(name)
            if isinstance(now, int):
                out.append(EqualsConst(source, now))
                if name in self._read:
                    self.policy.pinned.add(source.name())
            elif name in self._parts:
                out.append(self._range_of_whole(name))
            else:
                out.append(IntRange(source, *self.ranges[name]))
        for k, (source, n) in enumerate(self._layout):
            own = symbol(f"stride{k}")
            (stride,) = symbols(own)
            out.append(Relation("==", own, n, ((stride, source), *self._env(n))))
        for d in self.taken:
            if not _of_one(d):  # those are in the ranges
                lhs, rhs = self._whole(d.lhs), self._whole(d.rhs)
                out.append(Relation(d.op, lhs, rhs, self._env(lhs, rhs)))
        return out

    def place(self, guard: Any) -> Loc | None:
        """The user's line that asked for what a guard of :meth:`guards` says."""
        if isinstance(guard, Relation):
            asked = [
                d
                for d in self.taken
                if (d.op, self._whole(d.lhs), self._whole(d.rhs)) == (guard.op, guard.lhs, guard.rhs)
            ]
        else:
            names = {name for name, source in self.sources.items() if source is guard.source}
            asked = [d for d in self.taken if any(s.name in names for s in symbols(d.lhs, d.rhs))]
        return next((d.loc for d in reversed(asked) if d.loc is not None), None)

    def _range_of_whole(self, name: str) -> IntRange:
        """The range of ``s // k`` as one of s, which the user knows."""
        k, (low, high) = 1, self.ranges[name]
        while name in self._parts:
            name, by = self._parts[name]
            k *= by
        return IntRange(self.sources[name], low * k, high * k if high < LIMIT else INF)

    def _whole(self, e: IntLike) -> IntLike:
        """An expression with ``k * (s // k)`` written as s, which is divisible by k."""
        for name, (whole, k) in reversed(self._parts.items()):
            for d in [d for d in symbols(e) if d.name == name]:
                own = Expr({(d,): 1})
                factor = coefficient(e, d)
                if isinstance(factor, int) and factor % k == 0:
                    (s,) = [s for x in self._symbols.values() for s in symbols(x) if s.name == whole]
                    e = e - own * factor + Expr({(s,): 1}) * (factor // k)
        return e

    def _env(self, *exprs: IntLike) -> tuple[Any, ...]:
        return tuple((s, self.sources[s.name]) for s in sorted(symbols(*exprs), key=lambda s: s.name))

    def describe(self) -> list[SizeNote]:
        """What each symbol is, for reports."""
        out = list(self.notes)
        for name, source in self.sources.items():
            if name in self._parts:
                continue
            now = self._is.get(name)
            if now is None or isinstance(now, Expr) and str(now) == name:
                (s,) = symbols(self._symbols[source] if now is None else now)
                text = "any" if s.lo <= -LIMIT else f"at least {s.lo}"
                if s.hi < LIMIT:
                    text = f"at most {s.hi}" if s.lo <= -LIMIT else f"{s.lo} to {s.hi}"
                out.append(SizeNote(source.name(), name, text))
                continue
            if isinstance(now, Expr) and all(s.name in self._parts for s in symbols(now)) and len(now.terms) == 1:
                (k,) = now.terms.values()
                out.append(SizeNote(source.name(), name, f"divisible by {k}"))
                continue
            d = next((d for d in self.taken if str(d.lhs) == name and d.op == "=="), None)
            value = Relation.text(now, dict(self._env(now)))
            where = f", which {d.loc} asks for" if d is not None and d.loc is not None else ""
            out.append(SizeNote(source.name(), str(value), f"{'fixed' if isinstance(now, int) else 'equal'}{where}"))
        return out


@lru_cache(256)
def _divided_by(k: int) -> Callable[[int], int]:
    return lambda n: n // k


def _of_one(d: Decision) -> bool:
    """Whether a decision is a limit of one symbol, or its value."""
    if d.op == "!=":
        return False
    return any(symbol_of(a) is not None and isinstance(b, int) for a, b in ((d.lhs, d.rhs), (d.rhs, d.lhs)))


def follow(sizes: list[IntLike], shape: tuple[int, ...], strides: tuple[int, ...]) -> list[IntLike]:
    """Strides in terms of symbolic sizes: a dim's stride is a smaller dim's stride times that one's size where the
    numbers say so, and a fixed number where they do not."""
    out: list[IntLike] = list(strides)
    if not any(isinstance(n, Expr) for n in sizes):
        return out
    ends: dict[int, IntLike] = {}  # where dims end -> as an expression
    for d in sorted(range(len(sizes)), key=lambda d: (strides[d], shape[d] != 1, -d)):
        out[d] = ends.get(strides[d], strides[d])
        if strides[d] and (shape[d] != 1 or strides[d] not in ends):
            ends[strides[d] * shape[d]] = out[d] * sizes[d]
    return out
