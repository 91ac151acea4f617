"""Generators: a symbolic frame that stops at each ``yield``."""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING

from ..signals import Raised, unsupported
from .base import NONE, Value
from .iterators import IteratorValue

if TYPE_CHECKING:
    from ..frame import Frame
    from ..tracer import Tracer


class GeneratorValue(IteratorValue):
    """A generator object over a suspended frame. ``result`` is what it returned."""

    __slots__ = ("frame", "started", "done", "running", "result")

    def __init__(self, frame: Frame) -> None:
        self.source = None
        self.frame = frame
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
        unsupported("a generator that was started inside the compiled region leaves it")
