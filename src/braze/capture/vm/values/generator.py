"""Generators: a symbolic frame that stops at each ``yield``."""

from __future__ import annotations

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
        return vm.generator_rest(self)

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
