"""A symbolic frame: slots, stack, program counter, and the loop that runs instructions until it returns or yields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .decode import Code, Op
from .signals import Break, NotConst, Raised, StopHere
from .values.base import Const, Value

if TYPE_CHECKING:
    from .tracer import Tracer
    from .values.functions import MadeFunction
    from .values.statics import FunctionValue


LASTI = Const(0)  # the offset of the raising instruction; only tracebacks use it, and those are Python's


class Frame:
    """One call of a Python function during interpretation."""

    __slots__ = ("vm", "code", "func", "slots", "stack", "pc", "kw_names", "yielded", "pending", "globals")

    def __init__(self, vm: Tracer, code: Code, func: FunctionValue | MadeFunction, slots: list[Value | None]) -> None:
        self.vm, self.code, self.func = vm, code, func
        self.slots = slots + [None] * (len(code.slots) - len(slots))
        self.stack: list[Value] = []
        self.pc = 0
        self.kw_names: tuple[str, ...] = ()
        self.yielded = False
        self.pending: Value | None = None  # an exception to raise when the generator goes on
        self.globals: dict[str, Any] = func.globals

    @property
    def op(self) -> Op:
        """The instruction that runs now."""
        return self.code.ops[self.pc - 1]

    @property
    def line(self) -> int | None:
        return self.code.ops[max(self.pc - 1, 0)].line

    def push(self, v: Value) -> None:
        self.stack.append(v)

    def pop_n(self, n: int) -> list[Value]:
        """The last n entries, removed."""
        if not n:
            return []
        out = self.stack[-n:]
        del self.stack[-n:]
        return out

    def run_call(self) -> Value:
        """Run to the end; the return value. Raises Raised where the call raises."""
        frames = self.vm.frames
        frames.append(self)
        try:
            return self.run()
        finally:
            frames.pop()

    def run(self) -> Value:
        """Run until the frame returns or yields (``yielded``); the value."""
        ops = self.code.ops
        if self.pending is not None:
            error, self.pending = self.pending, None
            self.unwind(Raised(error))
        while True:
            pc = self.pc
            op = ops[pc]
            self.pc = pc + 1
            try:
                out = op.run(self, op)
            except Raised as e:
                self.unwind(e)
                continue
            except NotConst:
                self.locate(Break(f"{op.name} needs a value that is only known when the program runs"))
            except Break as e:
                self.locate(e)
            if out is not None:
                return out  # type: ignore[no-any-return]

    def locate(self, e: Break) -> None:
        """Give a break the user's line and raise it on."""
        if e.loc is None:
            e.loc = self.vm.loc()
            e.where = str(e.loc) if e.loc is not None else ""
        raise e

    def unwind(self, e: Raised) -> None:
        """Go to the handler of the exception in this frame, or raise it on."""
        entry = self.code.handlers[self.pc - 1]
        if entry is None:
            raise e
        target, depth, lasti = entry
        del self.stack[depth:]
        if lasti:
            self.stack.append(LASTI)
        self.stack.append(e.value)
        self.kw_names = ()
        self.pc = target


class OuterFrame(Frame):
    """The frame that is captured: counts its instructions, and stops where an earlier pass found a break."""

    __slots__ = ("step",)

    def __init__(self, vm: Tracer, code: Code, func: FunctionValue | MadeFunction, slots: list[Value | None]) -> None:
        Frame.__init__(self, vm, code, func, slots)
        self.step = 0  # instructions run

    def run(self) -> Value:
        ops = self.code.ops
        stop = self.vm.plan.stop_step
        while True:
            pc = self.pc
            op = ops[pc]
            if self.step == stop:
                raise StopHere
            self.step += 1
            self.pc = pc + 1
            try:
                out = op.run(self, op)
            except Raised as e:
                self.vm.plan.raised_at = self.step - 1
                self.unwind(e)
                continue
            except NotConst:
                self.locate(Break(f"{op.name} needs a value that is only known when the program runs"))
            except Break as e:
                self.locate(e)
            if out is not None:
                return out  # type: ignore[no-any-return]
