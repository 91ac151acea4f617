"""braze's Graph as a ``torch.fx.GraphModule`` and back: the exchange format of custom backends."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from braze.errors import Unsupported
from braze.ir import Graph, Node, TensorType, map_leaves


def to_fx(graph: Graph) -> torch.fx.GraphModule:
    """The captured graph as a GraphModule, as torch.compile hands one to a backend: inputs are placeholders, tensor
    methods are ``call_method``, everything else ``call_function``; the result is a flat tuple."""
    out = torch.fx.Graph()
    env: dict[Node, torch.fx.Node] = {}
    consts: dict[str, Any] = {}
    for n in graph.nodes:
        if n.op == "input":
            new = out.placeholder(n.name)
        elif n.op == "const":
            consts[n.name] = n.target
            new = out.get_attr(n.name)
        else:
            args = _map(n.args, env)
            kwargs = _map(n.kwargs, env)
            name = getattr(n.target, "__name__", "")
            if n.target is getattr(torch.Tensor, name, None) and args and isinstance(args[0], torch.fx.Node):
                new = out.call_method(name, args, kwargs)
            else:
                new = out.call_function(n.target, args, kwargs)
        new.meta["braze_val"] = n.val
        if n.loc is not None:
            new.meta["stack_trace"] = f'  File "{n.loc.file}", line {n.loc.line}\n    {n.loc.text}'
        env[n] = new
    out.output(_map(graph.outputs, env))
    root = torch.nn.Module()
    for name, value in consts.items():
        setattr(root, name, value)
    return torch.fx.GraphModule(root, out)


def _map(tree: Any, env: dict[Node, torch.fx.Node]) -> Any:
    return map_leaves(tree, lambda x: env[x] if isinstance(x, Node) else x)


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
