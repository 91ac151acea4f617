"""The graph that capture, autograd and prims share: a straight line of calls in SSA form.

A :class:`Node` is an input, a constant, or a call of a callable: a torch function or method after capture, an ATen
``OpOverload`` after autograd, a ``Prim`` (or an opaque ``OpOverload``) after prims.  Arguments are nested tuples,
lists, dicts and slices of nodes, Python constants and symbolic integers (:class:`Expr`).  An input may be an integer:
its ``val`` is a symbol, which has the input's name.  A node with several results has a tuple ``val``; its results
are taken by ``operator.getitem`` nodes.  Nodes are data: passes build a new graph, they do not edit one in place.

Invariants (``verify``): a node is used only after it is defined, names are unique, every node has a ``val``.
"""

from __future__ import annotations

import keyword
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .types import Loc

Target = Callable[..., Any]
_RESERVED = frozenset(("torch", "operator", "prims", "slice", "float", "getattr", "_c"))  # what printed source uses


class Node:
    """One value. ``op`` is "input", "const" or "call"; ``target`` is the callable, or the constant's object."""

    __slots__ = ("name", "op", "target", "args", "kwargs", "val", "loc", "tags")

    def __init__(
        self, name: str, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], val: Any, loc: Loc | None
    ) -> None:
        self.name, self.op, self.target = name, op, target
        self.args, self.kwargs, self.val, self.loc = args, kwargs, val, loc
        self.tags: dict[str, Any] = {}

    def __repr__(self) -> str:
        return self.name


class Graph:
    """Nodes in execution order (inputs first) and the nested structure of outputs."""

    def __init__(self, name: str = "forward") -> None:
        self.name = name
        self.inputs: list[Node] = []
        self.nodes: list[Node] = []
        self.outputs: Any = ()
        self.overwrites: tuple[tuple[int, int], ...] = ()  # (output, input): the output is the input's new value
        self.decide: Any = None  # answers questions about symbolic sizes while this graph is compiled (``decisions``)
        self._names: dict[str, int] = {}

    def _name(self, base: str) -> str:
        if not base.isidentifier():
            base = "v" + "".join(c if c.isalnum() or c == "_" else "_" for c in base)
        elif base in _RESERVED or keyword.iskeyword(base):
            base += "_"
        count, name = self._names.get(base), base
        while name in self._names:
            count = (count or 0) + 1
            name = f"{base}_{count}"
        self._names[base] = count or 0
        self._names.setdefault(name, 0)
        return name

    def _append(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def input(self, name: str, val: Any, loc: Loc | None = None) -> Node:
        node = self._append(Node(self._name(name), "input", None, (), {}, val, loc))
        self.inputs.append(node)
        return node

    def const(self, value: Any, val: Any, name: str = "const") -> Node:
        """A constant object (a real tensor, a generator, …) baked into the program."""
        return self._append(Node(self._name(name), "const", value, (), {}, val, None))

    def call(
        self,
        target: Target,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        val: Any = None,
        loc: Loc | None = None,
        name: str | None = None,
    ) -> Node:
        base = name or target_name(target)
        return self._append(Node(self._name(base), "call", target, args, kwargs or {}, val, loc))

    def getitem(self, node: Node, index: int) -> Node:
        return self.call(operator.getitem, (node, index), val=node.val[index], loc=node.loc, name=node.name)

    @property
    def calls(self) -> list[Node]:
        return [n for n in self.nodes if n.op == "call"]

    def users(self) -> dict[Node, list[Node]]:
        """node -> the nodes that read it, in order, each once. Outputs do not count."""
        out: dict[Node, list[Node]] = {n: [] for n in self.nodes}
        for n in self.nodes:
            for a in dict.fromkeys(node_args(n)):
                out[a].append(n)
        return out

    def __str__(self) -> str:
        from .printer import to_python

        return to_python(self)


def target_name(target: Target) -> str:
    """A short name: ``aten.mm.default`` -> ``mm``."""
    name = getattr(target, "_opname", None) or getattr(target, "__name__", None) or type(target).__name__
    return str(name).strip("_") or "v"


def leaves(tree: Any) -> Iterator[Any]:
    """The leaves of nested tuples, lists, dicts and slices, in order."""
    if isinstance(tree, (tuple, list)):
        for x in tree:
            yield from leaves(x)
    elif isinstance(tree, dict):
        for x in tree.values():
            yield from leaves(x)
    elif isinstance(tree, slice):
        yield from leaves((tree.start, tree.stop, tree.step))
    else:
        yield tree


def nodes_in(tree: Any) -> list[Node]:
    """The nodes in a nested structure, in order, with repeats."""
    return [x for x in leaves(tree) if isinstance(x, Node)]


def node_args(node: Node) -> list[Node]:
    """The nodes that a node reads."""
    out = nodes_in(node.args)
    if node.kwargs:
        out += nodes_in(node.kwargs)
    return out


def map_leaves(tree: Any, f: Callable[[Any], Any]) -> Any:
    """The same structure with every leaf replaced; namedtuples and tuple subclasses keep their type."""
    if isinstance(tree, tuple):
        items = [map_leaves(x, f) for x in tree]
        if type(tree) is tuple:
            return tuple(items)
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if isinstance(tree, list):
        return [map_leaves(x, f) for x in tree]
    if isinstance(tree, dict):
        return {k: map_leaves(x, f) for k, x in tree.items()}
    if isinstance(tree, slice):
        return slice(map_leaves(tree.start, f), map_leaves(tree.stop, f), map_leaves(tree.step, f))
    return f(tree)


def map_nodes(tree: Any, env: Mapping[Node, Any]) -> Any:
    """The same structure with nodes looked up in ``env``. KeyError for a node that is not there."""
    return map_leaves(tree, lambda x: env[x] if isinstance(x, Node) else x)
