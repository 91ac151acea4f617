"""Drop attention masks that mask nothing.

Model code builds a mask from sizes alone when it is not given one, and a fused attention kernel is chosen only where
there is no mask. Before::

    arange = torch.arange(128)
    ge = operator.ge(arange, 0)
    mask = torch.Tensor.expand(ge[None, None, None, :], (32, 1, 128, 128))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask)

after: ``out = scaled_dot_product_attention(q, k, v, attn_mask=None)``. A mask that depends on an input stays.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F

from braze.ir import Graph, Node, TensorType, leaves, map_nodes, node_args

ATTENTION = F.scaled_dot_product_attention
MAX_ELEMENTS = 1 << 26
# Functions without effect whose result is a matter of their arguments alone.
_NAMES = """arange ones zeros full ones_like zeros_like full_like eye tril triu where logical_and logical_or logical_not
    ge gt le lt eq ne add sub mul neg floordiv floor_divide remainder bitwise_and bitwise_or bitwise_not invert and_ or_
    expand expand_as view reshape unsqueeze squeeze to bool int long transpose permute contiguous getitem __getitem__
    broadcast_to cumsum index_select gather all any stack cat clone"""
_OPERATOR_INPLACE = {getattr(operator, n) for n in dir(operator) if n.startswith("i") and hasattr(operator, n[1:])}
_WRITERS = _OPERATOR_INPLACE | {operator.setitem, operator.delitem, torch.Tensor.__setitem__}
_REINTERPRETING = {"view", "view_as_real", "view_as_complex", "real", "imag", "set_"}


def _pure() -> set[Any]:
    homes = (torch, torch.Tensor, operator)
    return {f for name in _NAMES.split() for home in homes if (f := getattr(home, name, None)) is not None}


PURE = _pure()


def drop_full_masks(graph: Graph) -> Graph:
    """The graph with every boolean ``attn_mask`` that is true everywhere, whatever the inputs, replaced by None."""
    calls = [n for n in graph.calls if n.target is ATTENTION and _mask_of(n) is not None]
    if not calls:
        return graph
    fixed = _constant_nodes(graph)
    values: dict[Node, Any] = {}
    full = {m for m in map(_mask_of, calls) if m in fixed and _is_full(m, values)}
    if not full:
        return graph
    out = Graph(graph.name)
    out.decide = graph.decide
    env: dict[Node, Any] = {}
    for n in graph.nodes:
        if n.op == "input":
            env[n] = out.input(n.name, n.val, n.loc)
        elif n.op == "const":
            env[n] = out.const(n.target, n.val, n.name)
        else:
            args, kwargs = (n.args, n.kwargs) if _mask_of(n) not in full else _without_mask(n)
            new = out.call(n.target, map_nodes(args, env), map_nodes(kwargs, env), n.val, n.loc, n.name)
            new.tags, env[n] = n.tags, new
    out.outputs = map_nodes(graph.outputs, env)
    return out


def _mask_of(n: Node) -> Any:
    if n.target is not ATTENTION:
        return None
    mask = n.kwargs.get("attn_mask", n.args[3] if len(n.args) > 3 else None)
    return mask if isinstance(mask, Node) else None


def _without_mask(n: Node) -> tuple[Any, Any]:
    if "attn_mask" in n.kwargs:
        return n.args, {**n.kwargs, "attn_mask": None}
    return (*n.args[:3], None, *n.args[4:]), n.kwargs


def _constant_nodes(graph: Graph) -> set[Node]:
    """Nodes that depend on no input, made by pure calls alone, and that nothing writes to."""
    written: set[Node] = set()
    for n in graph.calls:
        name = getattr(n.target, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__") or n.kwargs.get("inplace")
        if in_place or n.target in _WRITERS:
            written.update(a for a in leaves(n.args[:1]) if isinstance(a, Node))
        written.update(a for a in leaves(n.kwargs.get("out")) if isinstance(a, Node))
    written = _made_from(written)
    fixed: set[Node] = set()
    for n in graph.calls:
        if n not in written and n.target in PURE and all(a in fixed for a in node_args(n)):
            fixed.add(n)
    return fixed


def _made_from(nodes: set[Node]) -> set[Node]:
    """The nodes and all that they may be views of: a write to one may show in the others."""
    out: set[Node] = set()
    todo = list(nodes)
    while todo:
        n = todo.pop()
        if n not in out:
            out.add(n)
            todo += [a for a in node_args(n) if _may_share(n, a)]
    return out


def _may_share(n: Node, a: Node) -> bool:
    """Whether a call's result may be memory of its argument: they have a dtype in common, or it reinterprets bits."""
    mine, its = ({t.dtype for t in leaves(x.val) if isinstance(t, TensorType)} for x in (n, a))
    return not mine or not its or bool(mine & its) or getattr(n.target, "__name__", "") in _REINTERPRETING


def _is_full(mask: Node, values: dict[Node, Any]) -> bool:
    numel = getattr(mask.val, "numel", None)
    if getattr(mask.val, "dtype", None) is not torch.bool or not isinstance(numel, int) or numel > MAX_ELEMENTS:
        return False
    return bool(_evaluate(mask, values).all())


def _evaluate(n: Node, values: dict[Node, Any]) -> Any:
    """The value of a constant node, on the CPU."""
    if n not in values:
        for a in node_args(n):
            _evaluate(a, values)
        kwargs = {k: torch.device("cpu") if isinstance(v, torch.device) else v for k, v in n.kwargs.items()}
        args = tuple(torch.device("cpu") if isinstance(v, torch.device) else v for v in n.args)
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        with torch.no_grad():
            values[n] = n.target(*map_nodes(args, values), **map_nodes(kwargs, values))
    return values[n]
