"""The result of a capture: the finished graph, the guards, and replacement code for a frame that returned or broke."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from braze.capture.emit import INPUTS, Emitter
from braze.capture.guards import GuardSet
from braze.capture.source import Source
from braze.events import SizeNote
from braze.fake import FakeMode, fake_like
from braze.ir import Graph, Loc, TensorType
from braze.ir.decisions import settle

from .handlers.sharded import local_outputs
from .rebuild import OUTPUTS, Rebuilder
from .record import unflagged
from .signals import Restart, Unfinished, unsupported
from .tracer import Tracer
from .values.base import Value

CompileGraph = Callable[[Graph, Sequence[TensorType], Sequence[Any]], Callable[..., Any]]


@dataclass
class Captured:
    """One compiled version of a frame.

    ``code`` replaces the frame's code while ``guards`` hold; it takes the values at ``sources`` as one more argument
    (``emit.INPUTS``), of which the first ``len(graph.inputs)`` are the graph's inputs. ``breaks`` are the reasons and
    places of graph breaks (at most one a frame).
    """

    graph: Graph
    sources: list[Source]
    guards: GuardSet
    code: CodeType
    breaks: list[tuple[str, Loc | None]] = field(default_factory=list)
    hint: str = ""  # what would avoid the break
    sizes: list[SizeNote] = field(default_factory=list)


@dataclass
class Skip:
    """The frame is left to Python. ``always``: whoever compiles the code, and however it is called; ``once``: this
    call only; else while ``guards`` hold."""

    reason: str
    loc: Loc | None = None
    always: bool = False
    once: bool = False
    hint: str = ""
    guards: GuardSet | None = None  # while they hold; None: however it is called


class Writer:
    """Writes replacement code after a trace."""

    def __init__(self, vm: Tracer, code: CodeType) -> None:
        self.vm, self.code = vm, code
        self.e = Emitter.replacing(code, prologue=False)
        self.e.code.cellvars = []
        if code.co_freevars:
            self.e.emit("COPY_FREE_VARS", len(code.co_freevars))
        self.e.emit("RESUME", 0)
        self.rb = Rebuilder(vm, self.e)

    def begin(self, roots: list[Value], compile_graph: CompileGraph) -> None:
        """Emit what comes before the frame's own state: the graph's call, new objects, effects, modes."""
        vm, e, rb = self.vm, self.e, self.rb
        written = vm.effects.all()
        contents = [p for v in written for p in v.parts(vm)]
        with FakeMode(lift=fake_like, decide=vm.sizes):  # arithmetic that was put off becomes calls of the graph
            left = rb.collect([*roots, *contents])
        for g in vm.generators:
            if g.cleans_up():
                if g not in left:
                    raise Unfinished(g.frame.serial)
                if vm.stopped:  # after a break somebody else would hold it, too, where its loop drops it
                    unsupported(f"the generator {g.frame.code.code.co_name}(), which cleans up when its loop ends")
        if any(v.grad is None and v.node(vm) in rb.outputs for v in vm.retained):
            vm.plan.refused.add("retain_grad")  # a later backward sets its .grad
            raise Restart
        if any(v.node(vm) in rb.outputs for v in vm.hooked):
            vm.plan.refused.add("register_hook")  # who asks for its gradient outside gets what the hook makes of it
            raise Restart
        with FakeMode(lift=fake_like, decide=vm.sizes):
            outputs, self.whole = local_outputs(vm, list(rb.outputs))
        vm.graph.outputs = tuple(outputs)
        for v in vm.inputs:
            assert v.source is not None
            rb.read(v.source)
        if vm.graph.calls:
            self.call_graph(compile_graph)
        for w in [*roots, *contents, *(w for w in written if w.source is not None)]:
            rb.materialise(w)
        for w in written:
            w.replay(rb)
        for function, args in vm.mode_calls:
            e.callee_const(function)
            for a in args:
                e.load_const(a)
            e.call(len(args))
            e.pop()

    def call_graph(self, compile_graph: CompileGraph) -> None:
        """Emit the call of the compiled graph."""
        vm, e, rb = self.vm, self.e, self.rb
        settle(vm.graph, vm.sizes)
        vm.sizes.settled = True
        vm.graph.decide = vm.sizes
        types = [n.val for n in vm.graph.inputs]

        def compiled() -> Callable[..., Any]:
            out = compile_graph(vm.graph, types, [v.raw for v in vm.inputs])
            parts: dict[int, Callable[[Any], Any]] = {}
            floats = [i for i, v in enumerate(vm.inputs) if v in vm.float_inputs]
            flagged = [i for i, v in enumerate(vm.inputs) if v in vm.flagged_inputs]
            out = _made_of(out, unflagged, flagged) if flagged else out
            for i, v in enumerate(vm.inputs):
                if v in vm.sharded_inputs:
                    parts[i] = vm.sharded_inputs[v].part
            out = _made_local(out, parts) if parts else out
            out = _made_whole(out, self.whole) if self.whole else out
            return _made_of(out, _as_tensor, floats) if floats else out

        e.callee_const(compiled)
        self._compiled = next(i for i in reversed(e.code.instructions) if i.arg is compiled)
        e.load_inputs()
        self._cut = len(e.code.items)  # where the inputs are taken out of all reads, if there are more
        e.call_ex()
        if rb.outputs:
            e.store(OUTPUTS)
        else:
            e.pop()

    def finish(self) -> CodeType:
        """Compile the graph, now that everything can be written; the code object, and the guards of what was taken for
        granted about sizes.

        Cuts the inputs out of the reads where the code reads more than the inputs.
        """
        if hasattr(self, "_compiled"):
            self._compiled.arg = self._compiled.arg()
        self.vm.sizes.closed = True
        self.vm.sizes.inputs = []  # the graph's log keeps the decisions, and must not keep the user's tensors
        self.vm.sizes.locate = None  # it holds the trace, and the graph holds it
        for guard in self.vm.sizes.guards():
            self.vm.guards.set.add(guard, self.vm.sizes.place(guard))
        n = len(self.vm.inputs)
        if hasattr(self, "_cut") and len(self.rb.reads) > n:
            side = Emitter.replacing(self.code, prologue=False)
            side.code.items = []
            side.load_const(slice(0, n))
            side.binary_subscr()
            self.e.code.items[self._cut : self._cut] = side.code.items
        return self.e.assemble()

    def drop_temporaries(self) -> None:
        """Delete what the rest of the frame does not need from the frame that waits for it."""
        e = self.e
        for name in [*self.rb.temporaries(), *([OUTPUTS] if OUTPUTS in e.code.varnames else []), INPUTS]:
            e.delete(name)


def _made_of(compiled: Callable[..., Any], make: Callable[[Any], Any], where: list[int]) -> Callable[..., Any]:
    """The compiled graph, whose inputs at these positions are made of what the frame has."""

    def call(*inputs: Any) -> Any:
        given = list(inputs)
        for i in where:
            given[i] = make(given[i])
        return compiled(*given)

    return call


def _made_local(compiled: Callable[..., Any], parts: Mapping[int, Callable[[Any], Any]]) -> Callable[..., Any]:
    """The compiled graph, which gets the local parts of these inputs."""
    where = tuple(parts.items())

    def call(*inputs: Any) -> Any:
        given = list(inputs)
        for i, part in where:
            given[i] = part(given[i])
        return compiled(*given)

    return call


def _made_whole(compiled: Callable[..., Any], whole: Mapping[int, Callable[[Any], Any]]) -> Callable[..., Any]:
    """The compiled graph, of whose outputs these are made DTensors."""

    def call(*inputs: Any) -> Any:
        return tuple([whole[k](x) if k in whole else x for k, x in enumerate(compiled(*inputs))])

    return call


def _as_tensor(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def finish_return(vm: Tracer, code: CodeType, value: Value, compile_graph: CompileGraph) -> Captured:
    """Replacement code of a frame that was traced to its return."""
    w = Writer(vm, code)
    w.begin([value], compile_graph)
    w.rb.push(value)
    w.e.return_value()
    code = w.finish()
    return Captured(vm.graph, w.rb.reads, vm.guards.set, code, sizes=vm.sizes.describe())
