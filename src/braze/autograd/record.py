"""The recorder: a stream of ATen calls on fake tensors in, one functional graph out.

Every fake tensor carries a :class:`Value` in its ``node`` slot.  A tensor with its own memory is a *root*; a view knows
its parent and the view operator.  A root's ``node`` is the graph node of its present contents and ``version`` counts
its overwrites; a view's node is valid while its version is the root's, and is derived again from its parent when it is
next read.  So a mutation becomes a new node for the root, and nothing in the graph mutates:

    y = x.view(-1); y.add_(1); z = x * 2    ->    v = view(x, [-1]); a = add(v, 1); w = view(a, [2, 3]); z = mul(w, 2)
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch._ops import OpOverload

from .. import ir
from ..errors import Unsupported
from ..fake import FakeTensor, fake_like, rule_for
from ..fake.layout import overlaps
from ..fake.questions import called
from ..fake.symint import Decide, refuse, to_expr
from ..ir import Graph, Loc, Node, TensorType, ViewStep
from ..ir.decisions import Decisions
from ..prims.rng import philox_seed
from . import storage
from .checkpoints import BACKWARD
from .layout import conform, reshape
from .schema import draws, op_info

aten = torch.ops.aten
Handler = Callable[["Recorder", OpOverload, tuple[Any, ...], dict[str, Any], Any], None]
_ATOMS = frozenset({int, float, bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format})


DATA = attrgetter("data")
CONSTANT = -2  # Value.input of a constant of the graph


class Value:
    """What one fake tensor holds. Roots have ``base is self`` and no parent.

    ``input`` of a root: the position of the graph input it is, CONSTANT, or -1. ``apart``: autograd sees no view of its
    parent, so that views of it belong to it alone; where there is no ``step``, it is the operator that did that.
    ``viewed``: there are views of it.
    """

    __slots__ = ("base", "parent", "step", "node", "version", "type", "fake", "input", "apart", "viewed")

    def __init__(self, node: Node, type_: TensorType, fake: Any = None, input_: int = -1) -> None:
        self.base: Value = self
        self.parent: Value | None = None
        self.step: ViewStep | None = None
        self.apart: Any = None
        self.viewed = False
        self.node, self.version, self.type, self.fake, self.input = node, 0, type_, fake, input_

    def view(self, step: ViewStep | None, node: Node, type_: TensorType) -> Value:
        """A view of this tensor; ``step`` None shows all of it (``detach``)."""
        out = Value(node, type_)
        out.base, out.parent, out.step, out.version = self.base, self, step, self.base.version
        return out

    def beside(self) -> Value:
        """What ``x.data`` holds."""
        out = self.view(None, self.node, self.type)
        out.version, out.apart = self.version, DATA
        return out

    @property
    def chain(self) -> tuple[ViewStep, ...]:
        """The view steps from the root, in order, ``detach`` left out."""
        return tuple([step for v in self.line() if (step := v.step) is not None])

    def line(self) -> list[Value]:
        """The views from the root to this one, in order."""
        out: list[Value] = []
        v = self
        while v.parent is not None:
            out.append(v)
            v = v.parent
        return out[::-1]


class Recorder:
    """Builds ``graph`` from calls of :meth:`on_op`. ``locate`` names the user's line of the call at hand."""

    def __init__(
        self,
        graph: Graph,
        locate: Callable[[], Loc | None] | None = None,
        decide: Decide = refuse,
        strict_random: bool = False,
    ) -> None:
        self.graph, self.decide, self.strict_random = graph, decide, strict_random
        self._locate = locate or (lambda: None)
        self._seeds: dict[torch.device, Node] = {}
        self.checkpoint: Callable[[], tuple[int, int] | None] | None = None  # see Follower.checkpoint
        self.keeps: Callable[[Any, Any, Any, Any], str | None] | None = None  # see Follower.keeps
        self._keep: str | None = None  # what it says of the operator at hand
        self._consts: dict[int, FakeTensor] = {}
        self._streams = 0
        self._roots: list[Value] = []
        self._inputs: dict[int, int] = {}  # id of an input's fake -> its position
        self.placed: frozenset[int] = frozenset()  # inputs whose place in their storage is guarded
        self.looked_around: list[int] = []  # inputs whose storage is read where they do not show it
        self.reshaped: dict[int, list[ViewStep]] = {}  # position -> in-place calls that changed its sizes
        self.differentiable = False
        self._folded: dict[
            Value, Value | None
        ] = {}  # memory whose owner (what it became) or view was reshaped in place

    def close(self) -> None:
        """Forget the fakes: they and their values hold each other, and would wait for the garbage collector."""
        for v in self._roots:
            v.fake = None

    def root(self, fake: FakeTensor, node: Node, input_: int = -1) -> None:
        """``fake`` has its own memory, which holds ``node``."""
        fake.node = v = Value(node, fake.val, fake, input_)
        self._roots.append(v)

    # -- reading and making values

    def input(self, fake: Any, name: str, index: int) -> Node:
        """A graph input whose contents ``fake`` holds, or an integer."""
        if not isinstance(fake, FakeTensor):
            return self.graph.input(name, to_expr(fake))
        node = self.graph.input(name, fake.val)
        self._inputs[id(fake)] = index
        self.differentiable = self.differentiable or fake.requires_grad
        self.root(fake, node, index)
        return node

    def read(self, value: Value) -> Node:
        """The node of a tensor's present contents."""
        base = value.base
        if value.version != base.version:
            assert value.parent is not None
            node = self.read(value.parent)
            if value.step is not None:
                node = self._replay(value.step, node, value.parent, value.type)
            value.node, value.version = node, base.version
        return value.node

    def _replay(self, step: ViewStep, node: Node, parent: Value, type_: TensorType) -> Node:
        args = step.args
        if step.op is aten.as_strided.default:
            return storage.read(self, node, parent, args)
        if step.op in PHYSICAL:
            return self.call(PHYSICAL[step.op], node)
        op = UNSAFE.get(step.op, step.op)  # type: ignore[call-overload]
        if step.index is None:
            return self.emit(op, (node, *args), dict(step.kwargs), type_)
        vals = self.infer(op, (node, *args), dict(step.kwargs))
        return self.graph.getitem(self.emit(op, (node, *args), dict(step.kwargs), vals), step.index)

    def emit(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], val: Any) -> Node:
        """Append a call whose arguments are nodes and constants."""
        node = self.graph.call(target, args, kwargs, val, self._locate())
        if self.checkpoint is not None:
            regions = self.checkpoint()
            if regions is BACKWARD:
                node.tags["backward"] = True
            elif regions is not None:
                node.tags["checkpoint"], node.tags["inner"] = regions
                if self._keep is not None:
                    node.tags["keep"] = self._keep
        return node

    def infer(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result's val by the operator's shape rule. Unsupported when there is none."""
        rule = rule_for(op) if isinstance(op, OpOverload) else op.shape
        types = self._settled(ir.map_leaves((args, kwargs), lambda x: x.val if isinstance(x, Node) else x))
        return called(rule, types[0], types[1], self.decide, self._settled)

    def _settled(self, tree: Any) -> Any:
        return self.decide.put(tree) if isinstance(self.decide, Decisions) else tree

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        """Append a functional ATen call on nodes; its val comes from the shape rule."""
        return self.emit(op, args, kwargs, self.infer(op, args, kwargs))

    def getitem(self, node: Node, index: int) -> Node:
        """One result of a call that gives several."""
        return self.graph.getitem(node, index)

    def seed(self, device: torch.device) -> Node:
        """The graph's one seed for a device."""
        node = self._seeds.get(device)
        if node is None:
            node = self.emit(philox_seed, (device,), {}, philox_seed.shape(device))
            self._seeds[device] = node
        return node

    def stream(self) -> int:
        """A fresh stream number."""
        self._streams += 1
        return self._streams - 1

    def lower(self, x: Any) -> Any:
        """An argument as the graph holds it: fake tensors become the nodes of their present contents."""
        kind = type(x)
        if kind in _ATOMS:
            return x
        if kind is FakeTensor:
            v: Value = x.node
            if v is None:
                raise Unsupported("a traced tensor of another trace is used")
            return v.node if v.version == v.base.version else self.read(v)
        if isinstance(x, (list, tuple)):
            return [self.lower(y) for y in x] if kind is list else tuple([self.lower(y) for y in x])
        assert not isinstance(x, torch.Tensor), "the mode lifts real tensors"
        return x

    def lift(self, real: torch.Tensor) -> FakeTensor:
        """The fake of a real tensor that meets the trace: a constant of the graph."""
        fake = self._consts.get(id(real))
        if fake is None:
            if real.requires_grad:
                raise Unsupported("a tensor that requires grad is used, yet is no input", hint="pass it as an argument")
            fake = self._consts[id(real)] = fake_like(real)
            self.root(fake, self.graph.const(real, fake.val), CONSTANT)
        return fake

    def define(self, out: Any, node: Node) -> None:
        """``node`` is what the call gave: each result tensor gets its own memory."""
        if type(out) is FakeTensor:
            self.root(out, node)
        elif isinstance(out, (list, tuple)):
            for i, x in enumerate(out):
                if type(x) is FakeTensor:
                    self.define(x, self.graph.getitem(node, i))

    # -- writing

    def write(self, fake: FakeTensor, node: Node) -> None:
        """``fake`` now holds ``node``'s elements (cast to its dtype, broadcast to its sizes)."""
        value: Value = fake.node
        if value.base.input == CONSTANT:
            raise Unsupported("a tensor that is no input is overwritten", hint="pass it as an argument")
        at: Value | None = value
        while at is not None:
            if overlaps(at.type.sizes, at.type.strides):
                raise Unsupported("an in-place write to a tensor whose elements share memory")
            at = at.parent
        if self.differentiable and value.base in self._folded and self._folded[value.base] not in value.line():
            # autograd would replay what the view was before, on fakes; on tensors it uses the strides
            raise Unsupported("an in-place write to memory of which a view was reshaped in place, under autograd")
        storage.check_write(value)
        if value.type.sizes != fake.val.sizes:
            self._resized(value, fake)
        self._store(value, node)

    def _resized(self, value: Value, fake: FakeTensor) -> None:
        """An empty tensor of the trace gets memory (``out=`` does that)."""
        if value.chain or value.base.input != -1 or 0 not in value.type.sizes:
            raise Unsupported(f"{value.type} is resized to {list(fake.val.sizes)}", hint="use the out-of-place form")
        at: Value | None = value
        while at is not None:  # factories give an alias of what they made
            at.type = fake.val
            at = at.parent

    def _store(self, value: Value, node: Node) -> None:
        base = value.base
        if value.parent is None:
            base.node = conform(self, node, base.type, base.node)
            base.version += 1
            return
        node = conform(self, node, value.type, None)
        if value.step is None:
            self._store(value.parent, node)
        else:
            from .inverse import scatter

            self._store(value.parent, scatter(self, value, node))
        if node.val.strides == value.type.strides:
            value.node, value.version = node, base.version

    # -- the stream of calls

    def on_op(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """One ATen call on fakes, with the fakes that its rule gave."""
        handler = HANDLERS.get(op)
        if self.keeps is not None:
            self._keep = self.keeps(op, args, kwargs, out)
        if self.strict_random and op_info(op).random:
            start = len(self.graph.nodes)
            self.by_schema(op, args, kwargs, out)
            for n in self.graph.nodes[start:]:
                if draws(n.target):
                    n.tags["effect"] = True  # later draws depend on it
        elif handler is not None:
            handler(self, op, args, kwargs, out)
        else:
            self.by_schema(op, args, kwargs, out)

    def by_schema(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Record a call without a row of its own as its schema says."""
        info = op_info(op)
        if info.writes:
            from .mutate import generic

            generic(self, op, args, kwargs, out)
        elif info.returns_view:
            self.view(op, args, kwargs, out)
        else:
            self.pure(op, args, kwargs, out)

    def pure(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Record a call that has no effect but its fresh results."""
        lowered = tuple([self.lower(a) for a in args])
        named = {k: self.lower(v) for k, v in kwargs.items()} if kwargs else {}
        kind = type(out)
        if kind is FakeTensor:
            self.root(out, self.emit(op, lowered, named, out.val))
        elif kind is tuple or kind is list:
            val = kind([x.val if type(x) is FakeTensor else x for x in out])
            self.define(out, self.emit(op, lowered, named, val))
        elif op_info(op).effect:
            self.emit(op, lowered, named, None).tags["effect"] = True

    def reshape_in_place(
        self, op: OpOverload, fake: FakeTensor, form: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """``op`` made ``fake`` the view ``form`` of what it was; its ``val`` says so already."""
        old: Value = fake.node
        if self.differentiable and old.viewed and not fake._is_view():
            # autograd would make the views' histories anew, on fakes by the sizes that their base has by then
            raise Unsupported("the shape of a tensor of which there are views is changed in place, under autograd")
        index = self._inputs.get(id(fake), -1)
        if index >= 0:
            if fake.requires_grad:
                raise Unsupported("the shape of an input that requires grad is changed in place")
            named = tuple((k, self.lower(v)) for k, v in kwargs.items())
            self.reshaped.setdefault(index, []).append(ViewStep(op, tuple([self.lower(a) for a in args]), named))
        elif old is old.base:
            if old.input != -1:
                raise Unsupported("the shape of a constant is changed in place", hint="use the out-of-place form")
            old.fake = None  # the root has no name any more
        parent, rest = old, args
        if form is aten.as_strided.default:
            parent, rest = storage.absolute(self, old, args, kwargs)
            kwargs = {}
        step = ViewStep(form, rest, tuple(kwargs.items()))
        fake.node = parent.view(step, self._replay(step, self.read(parent), parent, fake.val), fake.val)
        self._folded[parent.base] = None if fake._is_view() else fake.node

    def view(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Record a view operator: ``out`` shows the memory of its first argument."""
        source, info = args[0], op_info(op)
        parent: Value = source.node
        parent.viewed = True
        if info.identity:
            if parent.base.input == CONSTANT and op is aten.lift_fresh.default:
                self.define(out, self.read(parent))  # a literal: each call has its own
            elif out is not source:
                out.node = parent.view(None, self.read(parent), out.val)
                out.node.apart = op if op is aten.detach.default else None
            return
        if op is aten.as_strided.default:
            parent, rest = storage.absolute(self, parent, args[1:], kwargs)
            kwargs = {}
        else:
            rest = tuple([self.lower(a) for a in args[1:]])
        named = tuple((k, self.lower(v)) for k, v in kwargs.items())
        if type(out) is FakeTensor:
            step = ViewStep(op, rest, named)
            out.node = parent.view(step, self._replay(step, self.read(parent), parent, out.val), out.val)
            if not out.val.dtype.is_floating_point and not out.val.dtype.is_complex:
                out.node.apart = op
            return
        node = self.emit(UNSAFE.get(op, op), (self.read(parent), *rest), dict(named), type(out)([x.val for x in out]))
        for i, x in enumerate(out):
            x.node = parent.view(ViewStep(op, rest, named, i), self.graph.getitem(node, i), x.val)


# Views that only flag a tensor, which fakes cannot be: computed in the graph, views again among the outputs.
PHYSICAL = {aten._conj.default: aten.conj_physical.default, aten._neg_view.default: aten.neg.default}
# What is no view for autograd, yet shares the memory: the view that it is in the graph.
UNSAFE = {
    aten._unsafe_view.default: aten.view.default,
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}
HANDLERS: dict[OpOverload, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Decorator: the handler of these ATen overloads ("copy_.default"). Names absent from this torch are skipped."""

    def add(f: Handler) -> Handler:
        for full in " ".join(names).split():
            name, overload = full.split(".")
            op = getattr(getattr(aten, name, None), overload, None)
            if op is not None:
                HANDLERS[op] = f
        return f

    return add


__all__ = ["HANDLERS", "UNSAFE", "Handler", "Recorder", "Value", "handles", "reshape"]
