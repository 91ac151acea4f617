"""``capture_frame``: a frame that has not started, to a graph, guards and replacement code."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

import torch

from braze.capture.guards import GlobalState
from braze.capture.sizes import SizePolicy
from braze.capture.source import Source, argument_count
from braze.config import Config
from braze.errors import Unsupported
from braze.fake import FakeMode, fake_like
from braze.ir.pause import paused_gc

from .decode import decode
from .frame import Frame, moments
from .output import Captured, CompileGraph, Skip, finish_return
from .resume import is_continuation
from .signals import Break, Raised, Restart, StopHere, Unfinished
from .split import finish_break
from .tracer import Plan, Tracer
from .values.base import Value
from .values.functions import CellValue
from .values.statics import FunctionValue, Opaque

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def capture_frame(
    code: CodeType,
    function: FunctionType,
    args: Sequence[Any],
    *,
    compile_graph: CompileGraph,
    config: Config | None = None,
    fullgraph: bool = False,
    policy: SizePolicy | None = None,
    root: bool = True,
) -> Captured | Skip:
    """Trace one frame.

    ``args`` are the values of its argument slots; ``compile_graph(graph, types, example_inputs)`` gives the callable
    over tensors, returning a tuple, that the replacement code calls; ``policy`` says which sizes are symbolic.
    ``root``: the frame is the one that the user compiled, which is split even before it computes anything. Nothing that
    exists is changed. Raises Unsupported for a break when ``fullgraph``, and what ``compile_graph`` raises; other
    failures give a Skip.
    """
    if code.co_flags & _GENERATORS:
        return Skip("a generator or coroutine", always=True)
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return Skip("a torch function or dispatch mode is active")
    state = GlobalState.now()
    if state.inference_mode:
        # composite operators stay whole in inference mode; without gradients the graph is the same
        with torch.inference_mode(False), torch.no_grad():
            return _capture(code, function, args, compile_graph, fullgraph, state, policy, root)
    return _capture(code, function, args, compile_graph, fullgraph, state, policy, root)


def _capture(
    code: CodeType,
    function: FunctionType,
    args: Sequence[Any],
    compile_graph: CompileGraph,
    fullgraph: bool,
    state: GlobalState,
    policy: SizePolicy | None,
    root: bool,
) -> Captured | Skip:
    plan = Plan(policy=policy or SizePolicy(), whole=fullgraph)
    plan.policy.begin()
    with paused_gc():
        for _ in range(MAX_RESTARTS):
            try:
                t = _run(code, function, args, plan, state)
                if t.error is None or fullgraph:
                    return t.result(compile_graph, fullgraph)
                return _split(t, code, function, args, compile_graph, state, root)
            except Unfinished as e:
                plan.real_generators.add(e.serial)
            except Restart:
                pass
    return Skip("too many generators that are dropped before they are done")


_RAISES = "nothing, where it is meant: Python raises it; else check the arguments before the compiled function"
MAX_RESTARTS = 16
ATTEMPTS = 3  # places, from the innermost frame outwards, at which a frame is tried to be split


def _split(
    first: _Pass,
    code: CodeType,
    function: FunctionType,
    args: Sequence[Any],
    compile_graph: CompileGraph,
    state: GlobalState,
    root: bool,
) -> Captured | Skip:
    """Trace again, up to what ended the first trace, and make a graph break there."""
    e, reason = first.error, first.reason()
    assert e is not None
    places, complete = moments(e)
    e.__traceback__ = None  # it holds all frames
    first.close()
    if reason.whole and complete:
        places.pop()
    if not (root or is_continuation(code) or first.frame.computes()):
        return Skip(f"{reason.what}, before it computes anything", reason.loc, hint=reason.hint)
    out: Captured | Skip | None = None
    for serial, jumps, pc in dict.fromkeys([*places[:-ATTEMPTS:-1], *places[:1]]):
        plan = replace(first.plan, stop_serial=serial, stop_jumps=jumps, stop_pc=pc, reason=reason)
        t = _run(code, function, args, plan, state)
        got = t.result(compile_graph, False)
        if not isinstance(got, Skip):
            return got
        out = got if out is None else out
    return first.result(compile_graph, False) if out is None else out


def _run(code: CodeType, function: FunctionType, args: Sequence[Any], plan: Plan, state: GlobalState) -> _Pass:
    """A pass over the frame, again from the start where the trace asks for it."""
    while True:
        t = _Pass(code, function, args, plan, state)
        try:
            t.run()
            return t
        except Restart:
            t.close()
            while plan.prepare:
                plan.prepare.pop()()


class _Pass:
    """One trace of a frame."""

    def __init__(
        self, code: CodeType, function: FunctionType, args: Sequence[Any], plan: Plan, state: GlobalState
    ) -> None:
        self.code, self.plan = code, plan
        vm = self.vm = Tracer(code, function, plan, state)
        func = FunctionValue(function)
        func._cells = [CellValue(None, c, vm.sources.closure(i)) for i, c in enumerate(function.__closure__ or ())]
        for raw, cell in zip(function.__closure__ or (), func._cells):
            vm.remember_value(raw, cell)
        slots = [_argument(vm, args[i], vm.sources.local(i)) for i in range(argument_count(code))]
        self.frame = Frame(vm, decode(code), func, list(slots))
        self.value: Value | None = None
        self.error: Break | Raised | None = None

    def run(self) -> None:
        """Trace to the return, to the planned break, or to a new one (``error``)."""
        vm = self.vm
        try:
            with FakeMode(lift=fake_like, decide=vm.sizes):
                self.value = self.frame.run_call()
        except StopHere:
            pass
        except (Break, Raised) as e:
            self.error = e
        finally:
            vm.mode_calls = vm.modes.close(vm.graph)
            vm.modes.restore()
            del vm.guards.set.here  # the set outlives the trace

    def close(self) -> None:
        """What outlives the trace (fake tensors' sizes) must not hold it, nor the program's objects."""
        self.vm.sizes.locate, self.vm.sizes.inputs = None, []

    def reason(self) -> Break:
        """Why the trace ended."""
        e = self.error
        if isinstance(e, Break):
            return e
        assert e is not None
        out = Break(f"the program raises {e.value.pytype(self.vm).__name__}", _RAISES)
        out.loc = getattr(e.value, "loc", None)
        return out

    def result(self, compile_graph: CompileGraph, fullgraph: bool) -> Captured | Skip:
        """The compiled version, or why there is none; the trace is over."""
        try:
            return self._result(compile_graph, fullgraph)
        finally:
            self.close()

    def _result(self, compile_graph: CompileGraph, fullgraph: bool) -> Captured | Skip:
        vm, e = self.vm, self.error
        if isinstance(e, Break):
            if fullgraph:
                raise _explained(e) from e.__cause__
            return Skip(e.what, e.loc, hint=e.hint)
        if e is not None:
            return Skip(f"the frame raises {e.value.pytype(vm).__name__}", once=True)
        vm.guard_found()
        if self.value is not None and not vm.graph.calls:
            return Skip("no tensor operations", guards=vm.guards.set)
        if vm.logger_changed():
            return Skip("a change of a logger that has messages to write")
        vm.guard_mutated_inputs()
        vm.guard_written_objects()
        if self.value is not None:
            return finish_return(vm, self.code, self.value, compile_graph)
        reason = self.plan.reason
        assert reason is not None
        try:
            return finish_break(vm, self.code, compile_graph, reason)
        except Break as again:
            what = f"{reason.what}, and there the frame cannot be split: {again.what}"
            return Skip(what, reason.loc, hint=reason.hint)


def _argument(vm: Tracer, raw: Any, source: Source) -> Value:
    try:
        return vm.wrap(raw, source)
    except Break as e:
        return Opaque(raw, source, e.what)


def _explained(e: Break) -> Unsupported:
    return Unsupported(f"fullgraph=True, but the program has a graph break: {e.what}", e.where, e.hint)
