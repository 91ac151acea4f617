"""A symbolic frame: slots, stack, program counter, and the loop that runs instructions until it returns or yields."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from braze.capture.skip import skipped_file

from .decode import Code, Op
from .passing import PASSING, passes_result
from .signals import Break, NotConst, Raised, StopHere
from .values.base import Const, Value

if TYPE_CHECKING:
    from .tracer import Tracer
    from .values.functions import MadeFunction
    from .values.statics import FunctionValue


LASTI = Const(0)  # the offset of the raising instruction; only tracebacks use it, and those are Python's


class Frame:
    """One call of a Python function during interpretation.

    (``serial``, ``jumps``, ``pc``) is a moment of the trace: the frame's number, its jumps back so far, and place.
    """

    __slots__ = (
        "vm", "code", "func", "slots", "stack", "pc", "kw_names", "yielded", "pending", "globals", "serial", "jumps",
        "begun", "tensors",
    )  # fmt: skip

    def __init__(self, vm: Tracer, code: Code, func: FunctionValue | MadeFunction, slots: list[Value | None]) -> None:
        self.vm, self.code, self.func = vm, code, func
        self.slots = slots + [None] * (len(code.slots) - len(slots))
        self.stack: list[Value] = []
        self.pc = 0
        self.kw_names: tuple[str, ...] = ()
        self.yielded = False
        self.pending: Value | None = None  # an exception to raise when the generator goes on
        self.globals: dict[str, Any] = func.globals
        self.serial = vm.frames_made
        vm.frames_made += 1
        self.jumps = 0
        self.begun = len(vm.graph.nodes)
        self.tensors = any(v is not None and v.holds_tensor() for v in slots)

    def computes(self) -> bool:
        """Whether the call got a tensor, or has recorded a call in the graph. Comprehensions and continuations count as
        what they are part of."""
        if self.code.code.co_name.endswith(_PARTS):
            return True
        return self.tensors or any(n.op == "call" for n in self.vm.graph.nodes[self.begun :])

    def machinery(self) -> bool:
        """Whether the code is a library's that may switch modes of the process midway: it is not split."""
        file = self.code.code.co_filename
        return skipped_file(file) and not file.endswith("_contextlib.py")

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
        """Run until the frame returns or yields (``yielded``); the value. StopHere at the planned moment."""
        ops = self.code.ops
        if self.pending is not None:
            error, self.pending = self.pending, None
            self.unwind(Raised(error))
        stop = self.vm.plan.stop_pc if self.serial == self.vm.plan.stop_serial else -1
        while True:
            pc = self.pc
            op = ops[pc]
            if pc == stop and self.jumps == self.vm.plan.stop_jumps:
                self.vm.stopped = list(self.vm.frames)
                raise StopHere
            self.pc = pc + 1
            try:
                out = op.run(self, op)
            except Raised as e:
                self.unwind(e)
                continue
            except NotConst as e:
                new = Break(f"{op.name} needs a value that is only known when the program runs")
                self.locate(new.with_traceback(e.__traceback__))
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
        if target < self.pc:
            self.jumps += 1
        self.pc = target


_PARTS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<resume>")  # comprehensions are frames before 3.12
_CALLS = frozenset(("CALL", "CALL_KW", "CALL_FUNCTION_EX"))
for _f in (Frame.run, Frame.run_call, Frame.locate, Frame.unwind):
    passes_result(_f)


def moments(e: BaseException) -> tuple[list[tuple[int, int, int]], bool]:
    """Where a trace that an exception ended can be split: the moments (serial, jumps, pc) of the frames that it went
    through, from the outermost one inwards; and whether the last one is where the exception was raised.

    Every frame but the last is at a call whose result is what the next frame returns. A call that computes nothing is
    not split: Python runs it as one instruction.
    """
    out: list[tuple[int, int, int]] = []
    last: Frame | None = None
    tb = e.__traceback__
    while tb is not None:
        code = tb.tb_frame.f_code
        if code is Frame.run.__code__:
            frame = tb.tb_frame.f_locals["self"]
            if frame is not last:
                if last is not None and (last.op.name not in _CALLS or not frame.computes() or frame.machinery()):
                    return out, False
                out.append((frame.serial, frame.jumps, frame.pc - 1))
                last = frame
        elif last is not None and code not in PASSING and _runs_below(tb):
            return out, False
        tb = tb.tb_next
    return out, True


def _runs_below(tb: TracebackType) -> bool:
    below: TracebackType | None = tb
    while below is not None:
        if below.tb_frame.f_code is Frame.run_call.__code__:
            return True
        below = below.tb_next
    return False
