"""braze's Graph as a ``torch.fx.GraphModule`` and back: the exchange format of custom backends."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from braze.errors import Unsupported
from braze.ir import Expr, Graph, IntLike, Node, TensorType, map_leaves, terms_of
from braze.ir.expr import Call, Symbol


def to_fx(graph: Graph) -> torch.fx.GraphModule:
    """The captured graph as a GraphModule, as torch.compile hands one to a backend: inputs are placeholders, tensor
    methods are ``call_method``, everything else ``call_function``; the result is a flat tuple. Symbolic sizes are
    placeholders, and arithmetic on them calls of ``operator`` functions."""
    out = torch.fx.Graph()
    env: dict[Node, torch.fx.Node] = {}
    sizes: dict[str, Any] = {}
    consts: dict[str, Any] = {}
    for n in graph.nodes:
        if n.op == "input":
            new = sizes[n.name] = out.placeholder(n.name)
        elif n.op == "const":
            consts[n.name] = n.target
            new = out.get_attr(n.name)
        else:
            args = _map(n.args, env, out, sizes)
            kwargs = _map(n.kwargs, env, out, sizes)
            name = getattr(n.target, "__name__", "")
            if n.target is getattr(torch.Tensor, name, None) and args and isinstance(args[0], torch.fx.Node):
                new = out.call_method(name, args, kwargs)
            else:
                new = out.call_function(n.target, args, kwargs)
        new.meta["braze_val"] = n.val
        if n.loc is not None:
            new.meta["stack_trace"] = f'  File "{n.loc.file}", line {n.loc.line}\n    {n.loc.text}'
        env[n] = new
    out.output(_map(graph.outputs, env, out, sizes))
    root = torch.nn.Module()
    for name, value in consts.items():
        setattr(root, name, value)
    return torch.fx.GraphModule(root, out)


def _map(tree: Any, env: dict[Node, torch.fx.Node], out: torch.fx.Graph, sizes: dict[str, Any]) -> Any:
    return map_leaves(
        tree, lambda x: env[x] if isinstance(x, Node) else _size(out, sizes, x) if isinstance(x, Expr) else x
    )


_CALLS: dict[str, Any] = {"floordiv": operator.floordiv, "mod": operator.mod, "min": min, "max": max}


def _size(out: torch.fx.Graph, sizes: dict[str, Any], e: IntLike) -> Any:
    """An expression of symbolic sizes as calls; each is made once."""
    if not isinstance(e, Expr):
        return e
    key = str(e)
    if key not in sizes:
        total: Any = None
        for c, factors in terms_of(e):
            term: Any = None
            for a in factors:
                if isinstance(a, Symbol):
                    value = sizes[a.name]
                else:
                    assert isinstance(a, Call)
                    value = out.call_function(_CALLS[a.op], tuple(_size(out, sizes, x) for x in a.args))
                term = value if term is None else out.call_function(operator.mul, (term, value))
            if term is None:
                term = c
            elif c != 1:
                term = out.call_function(operator.mul, (c, term))
            total = term if total is None else out.call_function(operator.add, (total, term))
        sizes[key] = total
    return sizes[key]


def from_fx(gm: torch.fx.GraphModule, types: Sequence[TensorType | Any]) -> Graph:
    """A GraphModule's graph as braze's, with the inputs' types; an input whose type is a Python number becomes that
    constant and is no input. Unsupported for submodule calls with parameters, which would be baked in as constants."""
    out = Graph()
    env: dict[torch.fx.Node, Any] = {}
    types_left = iter(types)
    for n in gm.graph.nodes:
        args = map_leaves(n.args, lambda x: env[x] if isinstance(x, torch.fx.Node) else x)
        kwargs = map_leaves(dict(n.kwargs), lambda x: env[x] if isinstance(x, torch.fx.Node) else x)
        if n.op == "placeholder":
            kind = next(types_left)
            env[n] = out.input(n.name, kind) if isinstance(kind, TensorType) else kind
        elif n.op == "get_attr":
            env[n] = out.const(operator.attrgetter(n.target)(gm), None, n.name)
        elif n.op == "call_function":
            env[n] = out.call(n.target, args, kwargs, name=n.name)
        elif n.op == "call_method":
            env[n] = out.call(getattr(torch.Tensor, n.target), args, kwargs, name=n.name)
        elif n.op == "call_module":
            env[n] = out.call(_stateless(gm.get_submodule(n.target), n.target), args, kwargs, name=n.name)
        else:
            out.outputs = args[0]
    return out


def _stateless(module: torch.nn.Module, name: str) -> torch.nn.Module:
    if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
        raise Unsupported(
            f"the graph calls the submodule {name!r}, which holds parameters",
            hint="lift its parameters to graph inputs",
        )
    return module
