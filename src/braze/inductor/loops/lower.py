"""Primitive graph -> Program with one kernel a computing primitive: the loop nests before any fusion.

``lower(graph)`` walks the graph once.  A view primitive only changes a :class:`Ref`; a computing primitive gets a fresh
buffer and a kernel that fills it (rows of ``rules``); an opaque call becomes an ``Extern`` on ``Strided`` arguments.
Buffers are virtual until ``fuse`` decides which ones exist in memory.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from braze.ir import Expr, Graph, Node, TensorType, map_leaves, symbol_of
from braze.prims import Prim

from .build import Lowering, op_name
from .ir import Buffer, Extern, Kernel, Program
from .ref import Ref, view, whole
from .rules import ELEMENTWISE, RULES


def _input(state: Lowering, node: Node) -> Any:
    if isinstance(node.val, TensorType):
        b = Buffer(node.name, node.val)
        state.env[node] = whole(b)
        return b
    if isinstance(node.val, (int, Expr)) and not isinstance(node.val, bool):
        s = symbol_of(node.val)
        state.env[node] = node.val
        return s if s is not None else node.val
    raise state.unsupported(node, f"an input of type {type(node.val).__name__}")


def _const(state: Lowering, node: Node) -> None:
    if isinstance(node.target, torch.Tensor):
        b = Buffer(node.name, node.val)
        state.constants[b] = node.target
        state.env[node] = whole(b)
    else:
        state.env[node] = node.target


def _view(state: Lowering, node: Node) -> None:
    first, *rest = node.args
    args = [state.operand(a) if isinstance(a, Node) else a for a in rest]
    if any(isinstance(a, (tuple, list)) and any(isinstance(e, Node) for e in a) for a in args):
        args = [map_leaves(a, state.operand) for a in args]
    state.env[node] = view(node.target.name, state.ref(first), *args)


def _extern(state: Lowering, node: Node, used: dict[Node, set[int]]) -> None:
    def leaf(x: Any) -> Any:
        if not isinstance(x, Node):
            return x
        value = state.env[x]
        return state.strided(x, value, x.val) if isinstance(value, Ref) else value

    args, kwargs = map_leaves(node.args, leaf), map_leaves(node.kwargs, leaf)
    vals = node.val if isinstance(node.val, (tuple, list)) else (node.val,)
    several = isinstance(node.val, (tuple, list))
    outs: list[Buffer | None] = []
    results: list[Any] = []
    for i, v in enumerate(vals):
        if isinstance(v, TensorType):
            wanted = not several or i in used.get(node, ())
            b = state.buffer(f"{node.name}.{i}" if several else node.name, v)
            outs.append(b if wanted else None)
            results.append(whole(b) if wanted else None)
        else:
            outs.append(None)
            results.append(v)
    state.steps.append(Extern(node.target, args, kwargs, tuple(outs), ((op_name(node), node.loc),)))
    state.env[node] = results if several else results[0]


def _used_results(graph: Graph) -> dict[Node, set[int]]:
    used: dict[Node, set[int]] = {}
    for n in graph.nodes:
        if n.target is operator.getitem:
            used.setdefault(n.args[0], set()).add(n.args[1])
    return used


def _outputs(state: Lowering) -> Any:
    def leaf(x: Any) -> Any:
        if not isinstance(x, Node):
            return x
        value = state.env[x]
        return state.strided(x, value, x.val) if isinstance(value, Ref) else value

    return map_leaves(state.graph.outputs, leaf)


def lower(graph: Graph) -> Program:
    """The program of a primitive graph. Raises Unsupported for a primitive without a rule."""
    state = Lowering(graph)
    inputs = tuple([_input(state, n) for n in graph.inputs])
    used = _used_results(graph)
    for node in graph.nodes:
        if node.op == "const":
            _const(state, node)
        elif node.op != "call":
            continue
        elif isinstance(node.target, Prim):
            family, name = node.target.family, node.target.name
            if family == "view":
                _view(state, node)
            elif name in RULES:
                state.env[node] = RULES[name](state, node)
            elif family == "elementwise":
                state.env[node] = ELEMENTWISE(state, node)
            else:
                raise state.unsupported(node, f"no loop rule for prims.{name}")
        elif node.target is operator.getitem:
            state.env[node] = state.env[node.args[0]][node.args[1]]
        else:
            _extern(state, node, used)
    outputs = _outputs(state)
    program = Program(graph.name, inputs, state.steps, outputs, constants=state.constants, overwrites=graph.overwrites)
    program.buffers = allocated(program.steps)
    return program


def allocated(steps: Sequence[Any]) -> list[Buffer]:
    """The buffers that the steps define, in order of first write."""
    out: dict[Buffer, None] = {}
    for s in steps:
        for b in s.writes if isinstance(s, Kernel) else s.outputs:
            if b is not None:
                out[b] = None
    return list(out)
