"""Generators: a symbolic frame that stops at each ``yield``."""

from __future__ import annotations

import builtins
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol

from ..signals import Raised, unsupported
from .base import NONE, Value
from .iterators import IteratorValue

if TYPE_CHECKING:
    from ..frame import Frame
    from ..rebuild import Rebuilder
    from ..tracer import Tracer


class GeneratorValue(IteratorValue):
    """A generator object over a suspended frame. ``result`` is what it returned."""

    __slots__ = ("frame", "started", "done", "running", "result", "made_by")

    def __init__(self, frame: Frame, func: Value, args: list[Value], kwargs: dict[str, Value]) -> None:
        self.source = None
        self.frame = frame
        self.made_by = (func, args, kwargs)
        self.started = self.done = self.running = False
        self.result: Value = NONE

    def pytype(self, vm: Tracer) -> type:
        return GeneratorType

    def cleans_up(self) -> bool:
        """Whether closing it now would run code of the program: an except or finally clause, the end of a ``with``."""
        if self.done or not self.started:
            return False
        code, at = self.frame.code, self.frame.pc - 1
        inner = self.frame.stack[-1] if code.ops[at].send is not None else None
        if isinstance(inner, GeneratorValue) and inner.cleans_up():
            return True
        return _acts_on_close(self.frame, at)

    def next(self, vm: Tracer) -> Value | None:
        return self.resume(vm, NONE, None)

    def resume(self, vm: Tracer, sent: Value, error: Value | None) -> Value | None:
        """Run to the next yield with ``sent``, or with ``error`` raised at the pause. None: it returned ``result``."""
        if self.running:
            vm.raise_(ValueError, "generator already executing")
        if self.done:
            if error is not None:
                raise Raised(error)
            self.result = NONE
            return None
        if not self.started and error is not None:
            self.done = True
            raise Raised(error)
        self.running = True
        try:
            out = vm.run_generator(self, sent, error)
        except Raised as e:
            self.done = True
            if vm.exception_matches(e.value, StopIteration):
                vm.raise_(RuntimeError, "generator raised StopIteration")
            raise
        finally:
            self.running = False
            self.started = True
        if out is None:
            self.done = True
        return out

    def close(self, vm: Tracer) -> Value:
        """``generator.close()``."""
        if not self.started:
            self.done = True
        if self.done:
            return NONE
        try:
            out = self.resume(vm, NONE, vm.new_exception(GeneratorExit, []))
        except Raised as e:
            if vm.exception_matches(e.value, (GeneratorExit, StopIteration)):
                return NONE
            raise
        if out is not None:
            vm.raise_(RuntimeError, "generator ignored GeneratorExit")
        return self.result

    def parts(self, vm: Tracer) -> list[Value]:
        if self.done:
            return []
        if self.started:
            return self._rest(vm).parts()
        func, args, kwargs = self.made_by
        return [func, *args, *kwargs.values()]

    def _rest(self, vm: Tracer) -> GeneratorRest:
        if self.running:
            unsupported("a generator that runs leaves the compiled region")
        rest: GeneratorRest = vm.generator_rest(self)
        return rest

    def rebuild(self, rb: Rebuilder) -> None:
        """One that has not started is made again by the same call, one that has by a continuation."""
        func, args, kwargs = self.made_by
        if self.done:
            rb.remember(self, lambda: rb.call(_exhausted, []))
        elif self.started:
            rest = self._rest(rb.vm)
            rb.remember(self, lambda: rb.call(_started, [rest.function(rb), *rest.args]))
        else:
            rb.remember(self, lambda: rb.call(_call, [func, *args], kwargs))


def _acts_on_close(frame: Frame, at: int) -> bool:
    """Whether a GeneratorExit raised at an instruction runs more than except clauses that do not match it."""
    ops, handlers = frame.code.ops, frame.code.handlers
    seen: list[Any] = []
    entry = handlers[at]
    at = entry[0] if entry is not None else -1
    while at >= 0:
        op = ops[at]
        if op.name in ("CLEANUP_THROW", "RERAISE"):
            entry = handlers[at]
            at = entry[0] if entry is not None else -1
            continue
        if op.name == "CALL_INTRINSIC_1":  # StopIteration to RuntimeError, around every generator
            return False
        if op.name == "LOAD_GLOBAL":
            seen.append(frame.globals.get(op.arg, getattr(builtins, op.arg, None)))
        elif op.name == "LOAD_ATTR" and seen:
            seen.append(getattr(seen.pop(), op.arg, None))
        elif op.name == "POP_JUMP_IF_FALSE" and ops[at - 1].name == "CHECK_EXC_MATCH":
            if any(not isinstance(c, type) or issubclass(GeneratorExit, c) for c in seen):
                return True
            seen.clear()
            at = op.arg
            continue
        elif op.name not in _MATCHING:
            return True
        at += 1
    return False


_MATCHING = frozenset(("PUSH_EXC_INFO", "CHECK_EXC_MATCH", "BUILD_TUPLE", "COPY", "POP_EXCEPT", "NOP"))


class GeneratorRest(Protocol):
    """The continuation of a started generator: its arguments, and its function (see :mod:`..split`)."""

    args: list[Value]

    def parts(self) -> list[Value]: ...

    def function(self, rb: Rebuilder) -> Value: ...


def _started(func: Any, *args: Any) -> Any:
    """A generator that is at the ``yield`` where its continuation begins."""
    out = func(*args)
    next(out)
    return out


def _call(func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _exhausted() -> Any:
    none: tuple[Any, ...] = ()
    out = (x for x in none)
    out.close()
    return out
