"""``torch.func``: a transform takes the graph of the function that it is applied to, and is one call of the graph.

Breaks, and Python runs the transform, where the function writes to tensors from outside, keeps tensors elsewhere than
in its results, draws random numbers under ``vmap``, or breaks itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from braze.capture.transforms import Transformed
from braze.errors import Unsupported
from braze.fake.symint import to_symint
from braze.ir import Expr, Graph, Node, leaves, map_leaves

from .. import record as recording
from ..registry import CODE_HANDLERS, handles
from ..signals import Break, NotConst, unsupported
from ..values.base import Const, Value
from ..values.mappings import DictValue, raw_key
from ..values.sequences import ListValue, SequenceValue, TupleValue
from ..values.statics import FunctionValue
from ..values.tensor import TensorValue

if TYPE_CHECKING:
    from ..rebuild import Rebuilder
    from ..tracer import Tracer

_HINT = "apply it to the compiled function, outside"


class TransformValue(Value):
    """``torch.func.grad(f)`` and its like: what a transform gives for a function."""

    __slots__ = ("raw", "args", "kwargs")

    def __init__(self, raw: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
        self.source = None
        self.raw, self.args, self.kwargs = raw, args, kwargs

    def pytype(self, vm: Tracer) -> type:
        return FunctionType

    def truth(self, vm: Tracer) -> bool:
        return True

    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        name = self.raw.__name__
        bound = inspect.signature(self.raw).bind(*self.args, **self.kwargs).arguments
        func = bound.pop("func", None)
        if func is None or kwargs:
            unsupported(f"torch.func.{name}() of this call", _HINT)
        options = _known(vm, name, bound)
        dims = None
        if self.raw is torch.func.vmap:
            if options.get("randomness", "error") != "error":
                unsupported("torch.func.vmap() with random numbers", _HINT)
            dims = options.get("in_dims", 0)
        raw = self.raw
        return Call(vm, name, func, TupleValue(args), len(args), dims).run(lambda body, *xs: raw(body, **options)(*xs))

    def parts(self, vm: Tracer) -> list[Value]:
        return [*self.args, *self.kwargs.values()]

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(self.raw, self.args, self.kwargs))


def _known(vm: Tracer, name: str, options: dict[str, Value]) -> dict[str, Any]:
    try:
        return {k: v.as_python(vm) for k, v in options.items()}
    except NotConst:
        unsupported(f"torch.func.{name}() with options that are computed", _HINT)


def _transform(raw: Any) -> None:
    names = inspect.signature(raw).parameters

    @handles(raw)
    def make(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return TransformValue(raw, args, kwargs)

    def existing(vm: Tracer, f: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """What was made before the trace: a closure, of which the options are cells."""
        cells = {k: c.read(vm) for k, c in zip(f.code.co_freevars, f.cells(vm)) if k in names}
        return TransformValue(raw, [], {k: v for k, v in cells.items() if v is not None}).call(vm, args, kwargs)

    if raw is not torch.func.hessian:  # which is made of two others
        CODE_HANDLERS[raw(_none).__code__] = existing


def _none() -> None:
    """A function to look at transforms of."""


for _raw in (
    torch.func.vmap,
    torch.func.grad,
    torch.func.grad_and_value,
    torch.func.jacrev,
    torch.func.jacfwd,
    torch.func.hessian,
):
    _transform(_raw)


@handles(torch.func.jvp)
def jvp(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    bound = inspect.signature(torch.func.jvp).bind(*args, **kwargs).arguments
    func, primals, tangents = bound.pop("func"), bound.pop("primals"), bound.pop("tangents")
    options = _known(vm, "jvp", bound)
    if not isinstance(primals, SequenceValue):
        unsupported("torch.func.jvp() of something that is no tuple of tensors", _HINT)
    given = TupleValue([*primals.items(vm), tangents])
    return Call(vm, "jvp", func, given, len(primals.items(vm)), None).run(
        lambda body, *xs: torch.func.jvp(body, xs[:-1], xs[-1], **options)
    )


@handles(torch.func.vjp)
def vjp(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if _known(vm, "vjp", kwargs).get("has_aux"):
        unsupported("torch.func.vjp(has_aux=True)", _HINT)
    func, primals = args[0], args[1:]
    out = Call(vm, "vjp", func, TupleValue(primals), len(primals), None).run(
        lambda body, *xs: torch.func.vjp(body, *xs)[0]
    )
    return TupleValue([out, PullbackValue(func, primals)])


def _pullback(func: Callable[..., Any], *primals: Any) -> Any:
    return torch.func.vjp(func, *primals)[1]


class PullbackValue(Value):
    """The function that ``torch.func.vjp`` gives. The graph computes the primal's part again, and merges it."""

    __slots__ = ("func", "primals")

    def __init__(self, func: Value, primals: list[Value]) -> None:
        self.source = None
        self.func, self.primals = func, primals

    def pytype(self, vm: Tracer) -> type:
        return FunctionType

    def truth(self, vm: Tracer) -> bool:
        return True

    def call(self, vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs:
            unsupported("options of the function that torch.func.vjp() gives", _HINT)
        n = len(self.primals)
        return Call(vm, "vjp", self.func, TupleValue([*self.primals, *args]), n, None).run(
            lambda body, *xs: torch.func.vjp(body, *xs[:n])[1](*xs[n:])
        )

    def parts(self, vm: Tracer) -> list[Value]:
        return [self.func, *self.primals]

    def rebuild(self, rb: Rebuilder) -> None:
        rb.remember(self, lambda: rb.call(_pullback, [self.func, *self.primals]))


class Call:
    """One call of a transformed function: its first ``n_body`` arguments go to the function."""

    def __init__(self, vm: Tracer, name: str, func: Value, args: TupleValue, n_body: int, dims: Any) -> None:
        self.vm, self.name, self.func, self.args, self.n_body, self.dims = vm, name, func, args, n_body, dims
        try:
            self.nodes, self.fakes = recording.lower(vm, args)
        except NotConst:
            unsupported(f"torch.func.{name}() of arguments that hold no tensors alone", _HINT)
        self.params: list[Node] = []

    def run(self, apply: Callable[..., Any]) -> Value:
        """The call, in the graph."""
        vm, graph = self.vm, self.vm.graph
        flat, spec = pytree.tree_flatten(self.fakes)
        dims = self._dims()
        known, before = set(graph.nodes), self._state()
        mine = [self._stand_in(v, dims) for v in self.args.items(vm)[: self.n_body]]
        out, fakes = self._lowered(self.func.call(vm, mine, {}))
        if not self._unwritten(before):
            unsupported(f"torch.func.{self.name}() of a function that writes to tensors from outside", _HINT)
        new = [n for n in graph.nodes if n not in known and n.op == "call"]
        body, free = _body(self.name, self.params, new, out)
        graph.nodes[:] = [n for n in graph.nodes if n in known or n.op != "call"]
        vm.enclosed.update(new)
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        template = [None if isinstance(x, torch.Tensor) else x for x in flat]
        target = Transformed(self.name, apply, body, template, spec, len(self.params))
        given = [n for n in leaves(self.nodes) if isinstance(n, Node)]
        return self._record(target, [*given, *free], [*tensors, *[self._fake(x) for x in free]])

    def _record(self, target: Transformed, nodes: list[Any], fakes: list[Any]) -> Value:
        vm = self.vm
        try:
            out = target(*fakes)
        except Unsupported as e:
            raise Break(f"torch.func.{self.name}(): {e.what}", e.hint) from None
        except Exception as e:
            raise Break(f"torch.func.{self.name}() raised {type(e).__name__}: {e}") from e
        if not all(isinstance(x, torch.Tensor) for x in out):
            unsupported(f"torch.func.{self.name}() that gives something that is no tensor", _HINT)
        found = recording.result(vm, target, tuple(nodes), {}, out, fakes)
        assert isinstance(found, SequenceValue)
        return _nested(vm, pytree.tree_unflatten(list(range(len(out))), target.results), found.items(vm))

    def _state(self) -> dict[int, tuple[TensorValue, int]]:
        """The tensors that exist, and how often each was written."""
        known = self.vm.by_fake.items()
        return {k: (v, v._fake._version) for k, v in known if v._fake is not None}

    def _unwritten(self, before: dict[int, tuple[TensorValue, int]]) -> bool:
        same = all(v.fake(self.vm)._version == n for v, n in before.values())
        inputs = [v for v in self.vm.inputs if isinstance(v, TensorValue) and id(v._fake) not in before]
        return same and not any(v.fake(self.vm)._version for v in inputs)

    def _dims(self) -> Any:
        """The axis of each tensor that ``vmap`` maps, in order; None for the other transforms."""
        if self.dims is None:
            return None
        flat, spec = pytree.tree_flatten(self.fakes)
        dims = pytree._broadcast_to_and_flatten(self.dims, spec)
        if dims is None:
            unsupported("torch.func.vmap() with in_dims that do not fit the arguments", "the call in eager says why")
        return iter([d for d, x in zip(dims, flat) if isinstance(x, torch.Tensor)])

    def _stand_in(self, v: Value, dims: Any) -> Value:
        """The argument as the function sees it."""
        vm = self.vm
        if isinstance(v, TensorValue):
            dim = None if dims is None else next(dims)
            at: list[Value] = [] if dim is None else [Const(dim), Const(0)]
            out = vm.record(torch.Tensor.detach if dim is None else torch.Tensor.select, [v, *at], {})
            assert isinstance(out, TensorValue)
            self.params.append(out.node(vm))
            if dim is not None:
                out.node(vm).target = _none  # else the first slice of a constant would be known for all of them
            return out
        if isinstance(v, SequenceValue):
            items = [self._stand_in(x, dims) for x in v.items(vm)]
            return ListValue(items) if isinstance(v, ListValue) else TupleValue(items, v.cls)
        if isinstance(v, DictValue):
            return vm.new_dict({raw_key(k): self._stand_in(x, dims) for k, x in v.items(vm)})
        return v

    def _lowered(self, out: Value) -> tuple[Any, Any]:
        try:
            return recording.lower(self.vm, out)
        except NotConst:
            unsupported(f"torch.func.{self.name}() of a function that gives more than tensors", _HINT)

    def _fake(self, x: Any) -> Any:
        """What runs for a value that the function takes from outside."""
        if isinstance(x, Expr):
            return to_symint(x, self.vm.sizes)
        for v in self.vm.by_fake.values():
            if v._node is x:
                return v._fake
        unsupported(f"torch.func.{self.name}() of a function that takes {x.name} from outside", _HINT)


def _body(name: str, params: list[Node], calls: list[Node], out: Any) -> tuple[Graph, list[Any]]:
    """The graph of a function's calls, and what it takes besides its parameters: nodes and sizes."""
    graph = Graph(name)
    env: dict[Any, Node] = {p: graph.input(p.name, p.val) for p in params}
    own = {*calls, *params}
    inner = [n for n in calls if n not in params]
    trees = [(n.args, n.kwargs) for n in inner] + [out]
    free: dict[Any, None] = {}
    for x in leaves(trees):
        if isinstance(x, Expr) or isinstance(x, Node) and x not in own:
            free.setdefault(x)
    for k, x in enumerate(free):
        env[x] = graph.input(x.name if isinstance(x, Node) else f"size{k}", x.val if isinstance(x, Node) else x)

    def inside(tree: Any) -> Any:
        return map_leaves(tree, lambda x: env[x] if isinstance(x, (Node, Expr)) else x)

    for n in inner:
        env[n] = graph.call(n.target, inside(n.args), inside(n.kwargs), n.val, n.loc)
        env[n].tags = n.tags
    graph.outputs = inside(out)
    return graph, list(free)


def _nested(vm: Tracer, tree: Any, items: list[Value]) -> Value:
    """Results, nested as the transform gives them."""
    if isinstance(tree, int):
        return items[tree]
    if isinstance(tree, dict):
        return vm.new_dict({k: _nested(vm, x, items) for k, x in tree.items()})
    if isinstance(tree, list):
        return ListValue([_nested(vm, x, items) for x in tree])
    return TupleValue([_nested(vm, x, items) for x in tree], type(tree))
