"""The joint trace: forward and backward of a function over fake tensors, as one functional graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from ..errors import Unsupported
from ..fake import FakeMode, FakeTensor, fake_from, with_history
from ..fake.layout import overlaps
from ..fake.symint import Decide, refuse, to_expr, to_symint
from ..ir import Graph, IntLike, Loc, MutatedInput, Node, OutputSpec, TensorType, ViewStep, leaves
from ..ir.decisions import Decisions, settle
from ..ir.pause import modes_kept, no_saved_tensors_hooks, paused_gc
from ..ir.types import contiguous_strides
from ..prims.strided import strided_view
from . import collective, derived, mutate, random, recurrent, storage  # noqa: F401  (they fill the recorder's table)
from .follow import Follower
from .freed import Freed
from .record import CONSTANT, PHYSICAL, Recorder, Value


@dataclass(frozen=True)
class Joint:
    """``graph``: inputs are the primals, then one tangent for each differentiable result and mutated input; outputs are
    a flat tuple ``(*results, *mutated inputs' new values, *gradients)``, one gradient or None a primal.

    ``outputs`` says how the user's outputs come from results and inputs; ``result_grads`` which results require grad;
    ``reshaped`` which inputs change their sizes in place; ``shown`` as in ``ir.Signature``.
    """

    graph: Graph
    n_primals: int
    n_results: int
    outputs: tuple[OutputSpec, ...]
    result_grads: tuple[bool, ...]
    mutated: tuple[MutatedInput, ...]
    reshaped: tuple[tuple[int, tuple[ViewStep, ...]], ...] = ()
    shown: tuple[tuple[int, OutputSpec], ...] = ()

    @property
    def primals(self) -> list[Node]:
        return self.graph.inputs[: self.n_primals]

    @property
    def tangents(self) -> list[Node]:
        return self.graph.inputs[self.n_primals :]

    @property
    def forward_outputs(self) -> tuple[Any, ...]:
        """Results and new values of mutated inputs."""
        out: tuple[Any, ...] = self.graph.outputs[: self.n_results + len(self.mutated)]
        return out

    @property
    def gradients(self) -> tuple[Any, ...]:
        out: tuple[Any, ...] = self.graph.outputs[self.n_results + len(self.mutated) :]
        return out


class _LeafWritten(Exception):
    """An input that requires grad is overwritten: trace again with inputs that are not leaves."""


def trace_joint(
    fn: Callable[..., Any] | Graph,
    types: Sequence[TensorType | IntLike],
    *,
    names: Sequence[str] | None = None,
    locate: Callable[[], Loc | None] | None = None,
    decide: Decide = refuse,
    strict_random: bool = False,
) -> Joint:
    """Run ``fn(*fakes)`` and its backward under the real autograd engine, recording every ATen call. A captured graph
    as ``fn`` is run call by call, and gives its inputs' names and its calls' lines to the joint graph.

    ``types`` are the inputs' types, with ``requires_grad``, and a symbol for each integer that is one; grad mode and
    autocast are those of the call. ``fn`` returns tensors and constants, flat or nested in tuples, lists and dicts
    (flattened in that order). ``locate()`` names the user's line at hand; ``decide(op, a, b)``
    answers what the ranges of symbolic sizes leave open (and records a guard); ``strict_random`` leaves random
    operators to torch's generators, drawn as eager does. Raises Unsupported.
    """
    if isinstance(fn, Graph):
        names = names or [n.name for n in fn.inputs]
        decide = fn.decide if fn.decide is not None else decide
        fn = Follower(fn, decide)
        locate = locate or fn.locate
    with paused_gc(), no_saved_tensors_hooks(), modes_kept():
        try:
            return _trace(fn, types, names, locate, decide, strict_random, leaf=True)
        except _LeafWritten:
            return _trace(fn, types, names, locate, decide, strict_random, leaf=False)


def _trace(
    fn: Callable[..., Any],
    types: Sequence[TensorType | IntLike],
    names: Sequence[str] | None,
    locate: Callable[[], Loc | None] | None,
    decide: Decide,
    strict_random: bool,
    leaf: bool,
) -> Joint:
    graph = Graph("joint")
    rec = Recorder(graph, locate, decide, strict_random)
    if isinstance(fn, Follower):
        rec.placed = frozenset([i for i, n in enumerate(fn.graph.inputs) if n.tags.get("placed")])
    if isinstance(fn, Follower) and any(n.tags for n in fn.graph.nodes):
        rec.checkpoint, rec.keeps = fn.checkpoint, fn.keeps
    with _engine(), FakeMode(rec.on_op, rec.lift, decide):
        primals = [_primal(t, decide) for t in types]
        for i, p in enumerate(primals):
            rec.input(p, names[i] if names else f"x{i}", i)
        inputs = primals if leaf else [_fresh(p) if _wanted(p) else p for p in primals]
        starts = [getattr(x, "grad_fn", None) for x in inputs]
        try:
            outs = list(leaves(fn(*inputs)))
        except RuntimeError as e:
            if leaf and "leaf Variable that requires grad" in str(e):
                raise _LeafWritten from None
            raise
        mutated = _mutations(inputs, starts)
        freed = fn.freed if isinstance(fn, Follower) else Freed()
        specs, results, shown = _describe(outs, inputs, freed)
        result_grads = tuple(_tracked(r) and r not in freed for r in results)
        heads = [r for r, g in zip(results, result_grads) if g]
        heads += [inputs[m.index] for m in mutated if m.differentiable]
        nodes = [rec.lower(r) for r in results] + [rec.read(inputs[m.index].node.base) for m in mutated]
        gradients = _differentiate(rec, primals, heads, decide)
        storage.check_unwritten(rec, [m.index for m in mutated])
    rec.close()
    graph.outputs = (*nodes, *gradients)
    if isinstance(decide, Decisions):
        settle(graph, decide)
    reshaped = tuple((i, tuple(steps)) for i, steps in rec.reshaped.items())
    n, showing = len(primals), tuple(shown.items())
    return Joint(graph, n, len(results), tuple(specs), result_grads, tuple(mutated), reshaped, showing)


def _primal(t: TensorType | IntLike, decide: Decide) -> Any:
    return fake_from(t, decide=decide) if isinstance(t, TensorType) else to_symint(t, decide)


def _wanted(p: Any) -> bool:
    """Whether an input gets a gradient: integers get none."""
    return isinstance(p, FakeTensor) and p.requires_grad


@contextmanager
def _engine() -> Iterator[None]:
    """Backward in this thread, and without the anomaly mode, which reads gradients' values; inference mode, which has
    no dispatch to decompose operators, as no_grad."""
    with ExitStack() as stack:
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        if torch.is_anomaly_enabled():
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        yield


def _fresh(primal: FakeTensor) -> FakeTensor:
    out = with_history(primal)
    out.node.fake = out
    return out


def _mutations(inputs: list[Any], starts: list[Any]) -> list[MutatedInput]:
    out = []
    for i, (x, start) in enumerate(zip(inputs, starts)):
        if isinstance(x, FakeTensor) and x.node.base.version:
            out.append(MutatedInput(i, x.requires_grad and x.grad_fn is not start))
    return out


def _describe(
    outs: list[Any], inputs: list[FakeTensor], freed: Freed
) -> tuple[list[OutputSpec], list[FakeTensor], dict[int, OutputSpec]]:
    """Each output as a view of an input or of a result, the results, and what the memory of some of these is."""
    grouped: dict[Value, set[int]] = {}
    for o in outs:
        if type(o) is FakeTensor:
            grouped.setdefault(o.node.base, set()).add(id(o))
    cuts: dict[Value, int] = {}
    shown: dict[int, OutputSpec] = {}
    results: list[FakeTensor] = []
    index: dict[int, int] = {}

    def result(x: FakeTensor) -> int:
        if id(x) not in index:
            index[id(x)] = len(results)
            results.append(x)
        return index[id(x)]

    def spec(o: Any) -> OutputSpec:
        if type(o) is not FakeTensor:
            return OutputSpec("const", value=to_expr(o) if isinstance(o, torch.SymInt) else o)
        base: Value = o.node.base
        source = inputs[base.input] if base.input >= 0 else base.fake
        if o.node is base and o is not source and len(grouped[base]) > 1:
            raise Unsupported("a tensor is returned together with an _unsafe_view of it")
        if o in freed and base.input < 0:
            return _freed_output(o, result)
        if base.input >= 0 and o is source:
            return OutputSpec("input", base.input, (), o.requires_grad)
        flagged = _flagged(o.node.chain)
        outside = o.requires_grad and not _tracked(o)
        alone = len(grouped[base]) == 1 and not (flagged or outside or overlaps(o.val.sizes, o.val.strides))
        if base.input < 0 and (o is source or alone):
            return OutputSpec("result", result(o), (), _tracked(o))
        if source is None:
            source = _renamed(base, o)
        if flagged is None:
            raise Unsupported("a real view of a conjugate is returned together with what it is a view of")
        if not _replayable(o, source):
            if len(grouped[base]) > 1 and any(v.apart is not None for v in o.node.line()):
                raise Unsupported("views that belong to a tensor apart are returned, whose memory was overwritten")
            if base.input != CONSTANT:
                of = OutputSpec("input", base.input) if base.input >= 0 else OutputSpec("result", result(source))
                shown[result(o)] = replace(of, views=_views(o))
            return OutputSpec("result", result(o), (), _tracked(o))
        views, shared = _views(o), _shared(o, cuts)
        if base.input >= 0:
            return OutputSpec("input", base.input, views, o.requires_grad, no_grad=outside, shared=shared)
        if base.input == CONSTANT:
            return OutputSpec("result", result(o), (), _tracked(o))
        return OutputSpec("result", result(source), views, o.requires_grad, no_grad=outside, shared=shared)

    specs: list[OutputSpec] = []
    first: dict[int, int] = {}
    for i, o in enumerate(outs):
        at = first.setdefault(id(o), i) if type(o) is FakeTensor else i
        specs.append(spec(o) if at == i else OutputSpec("output", at))
    return specs, results, shown


def _renamed(base: Value, o: FakeTensor) -> FakeTensor:
    """A tensor for memory whose own one was made a view of it, in place."""
    if o.requires_grad:
        raise Unsupported("a tensor whose shape was changed in place is returned together with its views")
    base.fake = out = fake_from(base.type)
    out.node = base
    return out


def _freed_output(o: FakeTensor, result: Callable[[FakeTensor], int]) -> OutputSpec:
    """An output through whose graph nobody can go again; see ``freed.py``."""
    base: Value = o.node.base
    if o is base.fake or base.fake is None:
        return OutputSpec("result", result(o), freed=True)
    return OutputSpec("result", result(base.fake), _views(o), freed=True)


def _line(o: FakeTensor) -> list[Value]:
    """The views from the memory's owner to ``o``; the owner may itself be a reshape of what was allocated."""
    line: list[Value] = o.node.line()
    base: Value = o.node.base
    reshaped = base.input == -1 and base.fake is not None and base.fake.node in line
    return line[line.index(base.fake.node) + 1 :] if reshaped else line


def _views(o: FakeTensor) -> tuple[ViewStep, ...]:
    """The steps from the memory's owner; a view of all of it is another tensor."""
    steps, line = [], _line(o)
    for v in line:
        step = v.step
        if step is None:
            if v.apart is not None:
                steps.append(ViewStep(v.apart))
            continue
        if step.op is torch.ops.aten.as_strided.default:  # absolute, and this call's memory starts elsewhere
            assert v.parent is not None
            sizes, strides, offset = step.args
            step = ViewStep(strided_view, (sizes, strides, offset - v.parent.type.offset))
        steps.append(step)
    if not line or line[-1].step is None and line[-1].apart is None:
        steps.append(ViewStep(torch.ops.aten.alias.default))
    return tuple(steps)


def _shared(o: FakeTensor, cuts: dict[Value, int]) -> tuple[tuple[int, int], ...]:
    """Which detached tensors ``o`` is or is a view of, by number, and after how many of its views."""
    steps, found = 0, []
    for v in _line(o):
        steps += v.step is not None or v.apart is not None
        if v.apart is not None:
            found.append((cuts.setdefault(v, len(cuts)), steps))
    return tuple(found)


def _flagged(chain: tuple[ViewStep, ...]) -> bool | None:
    """Whether eager gives a lazily conjugated or negated view; None where the steps after it do not apply to one."""
    flagged: bool | None = False
    for step in chain:
        if step.op in PHYSICAL:
            flagged = True
        elif flagged and step.op in _REINTERPRET:
            return None
    return flagged


_REINTERPRET = frozenset({torch.ops.aten.view_as_real.default, torch.ops.aten.view.dtype})


def _tracked(o: FakeTensor) -> bool:
    """Whether the autograd graph leads to ``o``. A view taken under no_grad requires grad with its base, yet is
    outside. Unsupported for a tensor that was made a leaf inside."""
    if not o.requires_grad or o.grad_fn is not None:
        return o.requires_grad
    if not o._is_view():
        raise Unsupported("a tensor that was made to require grad inside of the compiled function is returned")
    return False


def _replayable(o: FakeTensor, source: FakeTensor) -> bool:
    """Whether autograd sees ``o`` as a view of ``source``, or outside of its graph. False for what a custom function
    made of it: a replayed view would skip that function's backward, and eager refuses writes to it anyway.

    Unsupported for an alias with a history of its own (a detached view that was written to).
    """
    if not o.requires_grad:
        return True
    if not _tracked(o):
        owner: Any = o._base
        return owner is source or _replayable(owner, source)
    end, at = source.grad_fn, o.grad_fn
    views = len(_line(o))
    while at is not None and views >= 0:  # more functions than views: it was written to, apart from its source
        if at is end or getattr(at, "variable", None) is source:
            return True
        views -= 1
        if isinstance(at, BackwardCFunction):
            return False
        edges = at.next_functions
        at = edges[0][0] if len(edges) == 1 else None
    raise Unsupported("a detached view that was written to under autograd is returned", hint="return a clone of it")


def _differentiate(rec: Recorder, primals: list[Any], heads: list[FakeTensor], decide: Decide) -> list[Node | None]:
    """Gradient nodes of the primals for tangents of the heads; each tangent becomes a graph input."""
    wanted = [p for p in primals if _wanted(p)]
    if not heads or not wanted:
        return [None] * len(primals)
    tangents = []
    for i, h in enumerate(heads):
        tangent = fake_from(tangent_type(h.val), decide=decide)
        rec.input(tangent, f"tangent{i}", -1)
        tangents.append(tangent)
    with _no_autocast():
        grads = iter(torch.autograd.grad(heads, wanted, tangents, allow_unused=True))
    out: list[Node | None] = []
    for p in primals:
        g = next(grads) if _wanted(p) else None
        out.append(None if g is None else rec.lower(g))
    return out


@contextmanager
def _no_autocast() -> Iterator[None]:
    """A backward computes in the types that its forward chose, as eager does when it runs outside of the autocast."""
    devices = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    for d in devices:
        torch.set_autocast_enabled(d, False)
    try:
        yield
    finally:
        for d in devices:
            torch.set_autocast_enabled(d, True)


def tangent_type(t: TensorType) -> TensorType:
    """The layout that a tangent has in the backward graph: its result's, without gaps or shared memory."""
    from ..fake.layout import is_dense

    dense = is_dense(t.sizes, t.strides)
    return TensorType(t.sizes, t.strides if dense else contiguous_strides(t.sizes), t.dtype, t.device)
