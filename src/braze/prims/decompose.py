"""ATen graph in, graph of primitives and opaque ATen calls out.

Before::

    layer_norm = torch.ops.aten.native_layer_norm.default(x, [256], w, b, 1e-05)
    getitem = layer_norm[0]

After: sums, differences, products and an rsqrt, shared where equal.

Layout.  A result that the ATen graph promises in some strides (``node.val``) has those strides in the val of the last
primitive of its decomposition.  Where that primitive is a view, or an earlier node, of another layout, a ``clone`` with
the promised strides stands before graph outputs and opaque calls, the only places where layout can be seen.  Sharing
never makes two outputs alias each other, or an input, that did not alias in the ATen graph.
"""

from __future__ import annotations

import operator
from typing import Any

from torch._ops import OpOverload

from braze.errors import Unsupported
from braze.fake.layout import preserved
from braze.ir import Graph, Node, TensorType, leaves

from . import decompositions  # noqa: F401  (fills the table)
from .builder import Builder, Policy
from .collective import Collective, kept_operands, start, token_type, wait
from .elementwise import ANY
from .opaque import refusal
from .prim import PRIMS, Prim
from .registry import Row, decomposition_of, overload_name


def decompose(graph: Graph, policy: Policy | None = None) -> Graph:
    """The graph with every ATen call that has a row in the table replaced by primitives; dead nodes are dropped.

    Same inputs (all of them, also unused ones), same outputs. Calls of primitives pass through. Raises Unsupported
    for calls that mutate or alias and have no row.
    """
    return _Decomposer(graph, policy or Policy()).run()


class _Decomposer:
    def __init__(self, graph: Graph, policy: Policy) -> None:
        self.source = graph
        self.result = Graph(graph.name)
        self.result.overwrites = graph.overwrites
        self.builder = Builder(self.result, policy)
        self.env: dict[Node, Any] = {}  # node of the ATen graph -> new node, or a tuple of them
        self._exact: dict[Node, Node] = {}
        self._token: Node | None = None  # of the last collective

    def run(self) -> Graph:
        for node in self.source.nodes:
            if node.op == "input":
                self.env[node] = self.result.input(node.name, node.val, node.loc)
            elif node.op == "const":
                self.env[node] = self.result.const(node.target, node.val, node.name)
            elif node.target is operator.getitem:
                self.env[node] = self._getitem(node)
            else:
                start = len(self.result.nodes)
                self.env[node] = self._call(node)
                self._label(node, start)
        self.result.outputs = _Outputs(self).build()
        _drop_dead(self.result)
        return self.result

    def _getitem(self, node: Node) -> Any:
        whole = self.env[node.args[0]]
        if isinstance(whole, (tuple, list)):
            return whole[node.args[1]]
        return self.result.getitem(whole, node.args[1])

    def _label(self, node: Node, start: int) -> None:
        origin = getattr(node.target, "_opname", None) or getattr(node.target, "name", "")
        tags = {**node.tags, "origin": origin} if node.tags else None
        for n in self.result.nodes[start:]:
            if n.loc is None:
                n.loc = node.loc
            if tags is not None:
                n.tags.update(tags)
            else:
                n.tags["origin"] = origin

    def _call(self, node: Node) -> Any:
        target = node.target
        if isinstance(target, OpOverload):
            row = decomposition_of(target)
            if row is not None and (row.any_dtype or _plain(node)):
                out = self._apply(row, node)
                if out is not NotImplemented:
                    return out
            reason = refusal(target)
            if reason is not None:
                raise Unsupported(f"{overload_name(target)}: {reason}", str(node.loc or ""))
        elif isinstance(target, Prim):
            return self.result.call(target, self._map(node.args), self._map(node.kwargs), node.val)
        elif isinstance(target, Collective):
            return self._collective(target, node)
        return self.result.call(target, self._pin(node.args), self._pin(node.kwargs), node.val)

    def _collective(self, target: Collective, node: Node) -> Any:
        """The start, after the one before, and a wait for each result."""
        args, result = self._pin(node.args), self.result
        vals: list[TensorType] = list(node.val) if target.several else [node.val]
        kwargs = self._pin(node.kwargs)
        begun = result.call(start(target.__name__), (self._token, *args), kwargs, (*vals, token_type(vals[0].device)))
        self._token = result.getitem(begun, len(vals))
        read = kept_operands((args, kwargs))
        done = [result.call(wait, (result.getitem(begun, i), *read), {}, v) for i, v in enumerate(vals)]
        return done if target.several else done[0]

    def _apply(self, row: Row, node: Node) -> Any:
        nodes = self.result.nodes
        start = len(nodes)
        self.builder.out = node.val
        if isinstance(node.val, TensorType) and 0 in node.val.sizes and not _is_view(node.target):
            return self._finish(self.builder.full_like(node.val, 0), node.val, start)  # no elements, nothing to compute
        try:
            out = row.fn(self.builder, *self._map(node.args), **self._map(node.kwargs))
            if out is NotImplemented:
                return out
            return self._finish(out, node.val, start)
        except (AssertionError, TypeError, AttributeError) as e:
            e.add_note(f"while decomposing {node.target} {node.args} {node.kwargs} at {node.loc}")
            raise

    def _finish(self, out: Any, want: Any, start: int) -> Any:
        """The results converted to the promised dtypes, and the strides promised where that is free."""
        if isinstance(want, (tuple, list)):
            assert len(out) == len(want), f"{len(out)} results, {len(want)} promised"
            return tuple([self._finish(o, w, start) for o, w in zip(out, want)])
        if not isinstance(want, TensorType) or out is None:
            return out
        assert out.val.sizes == want.sizes, f"result {out.val}, promised {want}"
        if out.val.dtype != want.dtype:
            out = self.builder.convert(out, want.dtype)
        if out.val.strides != want.strides and out in self.result.nodes[start:]:
            if isinstance(out.target, Prim) and out.target.family != "view":
                out.val = TensorType(want.sizes, want.strides, want.dtype, out.val.device)
        return out

    def _map(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is Node:
            new = self.env[tree]
            return new if kind is not Node or isinstance(tree.val, (TensorType, float, tuple, list)) else tree.val
        if kind is tuple:
            return tuple([self._map(x) for x in tree])
        if kind is list:
            return [self._map(x) for x in tree]
        if kind is dict:
            return {k: self._map(x) for k, x in tree.items()} if tree else tree
        return tree

    def _pin(self, tree: Any) -> Any:
        """Like ``_map``, with every tensor in exactly the layout that the ATen graph has."""
        kind = type(tree)
        if kind is Node:
            return self.exact(tree)
        if kind is tuple:
            return tuple([self._pin(x) for x in tree])
        if kind is list:
            return [self._pin(x) for x in tree]
        if kind is dict:
            return {k: self._pin(x) for k, x in tree.items()}
        return tree

    def exact(self, node: Node) -> Any:
        """The new node for an ATen node, in the layout of ``node.val``."""
        new = self.env[node]
        want = node.val
        if not isinstance(want, TensorType) or new.val.strides == want.strides or same_layout(new.val, want):
            return new
        out = self._exact.get(node)
        if out is None:
            start = len(self.result.nodes)
            out = self._exact[node] = self._relaid(new, want)
            self._label(node, start)
        return out

    def _relaid(self, x: Node, want: TensorType) -> Node:
        """A copy of x with the strides of ``want``: broadcast dims (stride 0) stay broadcast, gaps are closed."""
        wide = [d for d, (n, s) in enumerate(zip(want.sizes, want.strides)) if s == 0 and n != 1]
        if not wide:
            return self.builder.clone(x, _owned(want))
        for d in wide:
            x = self.builder.slice(x, d, 0, 1)
        thin = _owned(want.with_(sizes=x.val.sizes))
        if not same_layout(x.val, thin):
            x = self.builder.clone(x, thin)
        return self.builder.call(PRIMS["expand"], x, want.sizes)


def _owned(t: TensorType) -> TensorType:
    """A type of memory of its own: the same order of dims, no gaps or overlaps."""
    return TensorType(t.sizes, preserved(t.sizes, t.strides), t.dtype, t.device)


def same_layout(a: TensorType, b: TensorType) -> bool:
    """Equal strides in every dim that has more than one element."""
    return any(n == 0 for n in a.sizes) or all(s == t or n == 1 for n, s, t in zip(a.sizes, a.strides, b.strides))


def _plain(node: Node) -> bool:
    """All tensors have dtypes that elementwise primitives take."""
    for tree in (node.args, node.kwargs, node.val):
        for x in leaves(tree):
            val = x.val if isinstance(x, Node) else x
            if isinstance(val, TensorType):
                if val.dtype not in ANY:
                    return False
            elif isinstance(val, (tuple, list)):
                return all(not isinstance(t, TensorType) or t.dtype in ANY for t in val)
            elif isinstance(val, complex):
                return False
    return True


class _Outputs:
    """The outputs of the new graph: in the promised layouts, and no new aliasing between them or with inputs."""

    def __init__(self, d: _Decomposer) -> None:
        self.d = d
        self.owner: dict[Node, Node] = {}  # root in the new graph -> root in the ATen graph that first used it

    def build(self) -> Any:
        for node in self.d.source.inputs:
            self.owner[self.d.env[node]] = node
        return self._map(self.d.source.outputs)

    def _map(self, tree: Any) -> Any:
        if isinstance(tree, Node):
            return self._one(tree)
        if isinstance(tree, (tuple, list)):
            return type(tree)([self._map(x) for x in tree])
        if isinstance(tree, dict):
            return {k: self._map(x) for k, x in tree.items()}
        return tree

    def _one(self, node: Node) -> Any:
        new = self.d.exact(node)
        if not isinstance(new, Node) or not isinstance(new.val, TensorType):
            return new
        root, old = _root(new), _root(node)
        if self.owner.setdefault(root, old) is not old:
            copy = self.d.builder.clone(new, _owned(new.val), fresh=True)
            copy.loc = copy.loc or node.loc
            self.owner[copy] = old
            return copy
        return new


def _root(node: Node) -> Node:
    """The node whose memory a node shows: through views."""
    while node.op == "call":
        t = node.target
        if isinstance(t, Prim):
            if t.family != "view":
                break
        elif t is operator.getitem:
            if not _is_view(node.args[0].target):
                break
        elif not _is_view(t):
            break
        first = node.args[0]
        if not isinstance(first, Node):
            break
        node = first
    return node


_VIEW: dict[Any, bool] = {}


def _is_view(target: Any) -> bool:
    found = _VIEW.get(target)
    if found is None:
        found = False
        if isinstance(target, OpOverload):
            args = target._schema.arguments
            found = bool(args) and args[0].alias_info is not None and not target._schema.is_mutable
        _VIEW[target] = found
    return found


def _drop_dead(graph: Graph) -> None:
    """Removes calls that nothing reads."""
    live: set[Node] = {x for x in leaves(graph.outputs) if isinstance(x, Node)}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.op == "call" and node not in live and not (node.tags.get("effect") or has_effect(node.target)):
            continue
        kept.append(node)
        if node.op == "call":
            _mark(node.args, live)
            if node.kwargs:
                _mark(tuple(node.kwargs.values()), live)
    graph.nodes[:] = reversed(kept)


_EFFECT: dict[Any, bool] = {}


def has_effect(target: Any) -> bool:
    """A call that matters though nothing reads its result: an operator that returns nothing."""
    found = _EFFECT.get(target)
    if found is None:
        found = _EFFECT[target] = isinstance(target, OpOverload) and not target._schema.returns
    return found


def _mark(args: Any, live: set[Node]) -> None:
    for x in args:
        kind = type(x)
        if kind is Node:
            live.add(x)
        elif kind is tuple or kind is list:
            _mark(x, live)
        elif kind is dict or kind is slice:
            live.update(n for n in leaves(x) if isinstance(n, Node))
