"""The smallest part of a graph on which a stage still goes wrong."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from braze.ir import Graph, Node, interpret, map_nodes, node_args, nodes_in
from braze.ir.types import TensorType

from .stages import Inputs, copies, seeded

Wrong = Callable[[Graph, Inputs], bool]


def shrink(graph: Graph, inputs: Inputs, wrong: Wrong) -> tuple[Graph, list[Any]]:
    """A part of the graph, with the values that it gets, for which ``wrong`` holds as it does for the whole."""
    values: dict[Node, Any] = {}
    seeded(lambda: interpret(graph, copies(inputs), lambda n, v: values.__setitem__(n, v)))
    calls = [n for n in graph.nodes if n.op == "call"]
    found = _single(graph, calls, values, wrong)
    if found is not None:
        return found
    end = _least(1, len(calls), lambda n: _holds(graph, calls[:n], values, wrong))
    start = _most(0, end - 1, lambda n: _holds(graph, calls[n:end], values, wrong))
    part = _thin(graph, calls[start:end], values, wrong)
    made = extract(graph, part, values)
    return made if made is not None and wrong(*made) else (graph, list(inputs))


def _single(graph: Graph, calls: list[Node], values: dict[Node, Any], wrong: Wrong) -> tuple[Graph, list[Any]] | None:
    """One call (with what picks its results) that goes wrong alone; equal calls are tried once."""
    tried = set()
    users = graph.users()
    for n in calls:
        if n.target is operator.getitem:
            continue
        key = (str(n.target), str(n.val), str(map_nodes((n.args, n.kwargs), {a: str(a.val) for a in node_args(n)})))
        if key in tried:
            continue
        tried.add(key)
        picks = [u for u in users[n] if u.target is operator.getitem]
        made = extract(graph, [n, *picks], values)
        if made is not None and wrong(*made):
            return made
    return None


def _holds(graph: Graph, part: list[Node], values: dict[Node, Any], wrong: Wrong) -> bool:
    made = extract(graph, part, values)
    return made is not None and wrong(*made)


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The smallest number in [low, high] for which ``holds``, taken to be monotone; it holds for ``high``."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _most(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest number in [low, high] for which ``holds``; it holds for ``low``."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _thin(graph: Graph, part: list[Node], values: dict[Node, Any], wrong: Wrong) -> list[Node]:
    """Drop calls one by one while it stays wrong; at most 60 tries."""
    tries = 0
    for n in list(part):
        if tries >= 60 or len(part) == 1:
            break
        tries += 1
        rest = [x for x in part if x is not n]
        if _holds(graph, rest, values, wrong):
            part = rest
    return part


def extract(graph: Graph, part: list[Node], values: dict[Node, Any]) -> tuple[Graph, list[Any]] | None:
    """The calls of ``part`` as a graph of their own: what they read from outside are inputs, results that nothing in it
    reads are outputs. None where there is no such result, or a value from outside is no tensor."""
    inside = set(part)
    out = Graph(graph.name)
    env: dict[Node, Any] = {}
    inputs: list[Any] = []
    for n in part:
        if n.target is operator.getitem and n.args[0] not in inside:
            continue  # read from outside when it is used
        for a in node_args(n):
            if a in env or a in inside and not (a.target is operator.getitem and a.args[0] not in inside):
                continue
            if not isinstance(values.get(a), torch.Tensor):
                return None
            env[a] = out.input(a.name, a.val)
            inputs.append(values[a])
        env[n] = out.call(n.target, map_nodes(n.args, env), map_nodes(n.kwargs, env), n.val, n.loc, n.name)
    read = {a for n in part for a in node_args(n)}
    made = [n for n in part if n in env and isinstance(n.val, TensorType) and n not in read]
    wanted = set(nodes_in(graph.outputs)) & inside
    made += [n for n in part if n in wanted and n not in made and n in env and isinstance(n.val, TensorType)]
    if not made:
        return None
    out.outputs = tuple(env[n] for n in made)
    return out, inputs
