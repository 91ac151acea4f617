"""Which parts of a primitive graph become fusions: connected, closed under data flow, worth a launch.

Every node gets a depth: how many library calls lie between it and the inputs, where a node that nvFuser takes counts as
deeper than the library calls it reads.  Connected nodes of one depth form a region; since depths never fall along an
edge, no region can depend on itself through a library call.  Views at a region's edge stay outside (they are free
there: the other path passes tensors with strides).

Example: ``relu(x @ w + b).sum()`` has the library call ``addmm`` at depth 0 and one region {relu, sum} at depth 1.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from braze.ir import Graph, Node, map_nodes, nodes_in
from braze.ir.graph import node_args

from .rules import VIEWS, refusal

FEWEST, MOST = 2, 600  # computing nodes of a region: below, a launch is not worth it; above, nvFuser compiles for long


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes in graph order; ``inputs`` are read from outside, ``outputs`` are needed outside. ``views`` are needed
    outside too, and made again there: a fusion would write them out."""

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    views: tuple[Node, ...] = ()

    def graph(self, name: str) -> Graph:
        """The region as a graph of its own."""
        out = Graph(name)
        env = {n: out.input(n.name, n.val, n.loc) for n in self.inputs}
        for n in self.nodes:
            env[n] = _copy(out, n, env)
        out.outputs = tuple([env[n] for n in self.outputs])
        return out


def split(graph: Graph, make: Callable[[Region], Any], device: str = "cuda") -> tuple[Graph, list[Region]]:
    """The graph with a call of ``make(region)`` in the place of each region, and the regions."""
    regions = find_regions(graph, device)
    where = {n: r for r in regions for n in r.nodes}
    out = Graph(graph.name)
    env: dict[Node, Node] = {}
    for unit in _in_order(graph, where):
        if isinstance(unit, Region):
            _call(out, unit, make(unit), env)
        elif unit.op == "input":
            env[unit] = out.input(unit.name, unit.val, unit.loc)
        elif unit.op == "const":
            env[unit] = out.const(unit.target, unit.val, unit.name)
        else:
            env[unit] = _copy(out, unit, env)
    out.outputs = map_nodes(graph.outputs, env)
    return out, regions


def find_regions(graph: Graph, device: str = "cuda") -> list[Region]:
    """The regions of a graph, in the order of their first nodes."""
    inside = {n for n in graph.nodes if refusal(n, device) is None}
    depth = _depths(graph, inside)
    users = graph.users()
    group = _groups(graph, inside, depth)
    members: dict[int, list[Node]] = {}
    for n in graph.nodes:
        if n in inside:
            members.setdefault(group(n), []).append(n)
    returned = set(nodes_in(graph.outputs))
    out = []
    for nodes in members.values():
        kept = _trim(nodes, users)
        computing = sum(n.target.name not in VIEWS for n in kept)
        region = _region(kept, users, returned)
        if FEWEST <= computing <= MOST and region.outputs:
            out.append(region)
    return out


def _depths(graph: Graph, inside: set[Node]) -> dict[Node, int]:
    depth: dict[Node, int] = {}
    for n in graph.nodes:
        below = [depth[a] + (n in inside and a not in inside) for a in node_args(n) if a.op == "call"]
        depth[n] = max(below, default=0)
    return depth


def _groups(graph: Graph, inside: set[Node], depth: dict[Node, int]) -> Callable[[Node], int]:
    """node -> a number for its connected part of one depth (union-find)."""
    index = {n: k for k, n in enumerate(graph.nodes)}
    parent = list(range(len(index)))

    def find(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    for n in inside:
        for a in node_args(n):
            if a in inside and depth[a] == depth[n]:
                parent[find(index[n])] = find(index[a])
    return lambda n: find(index[n])


def _trim(nodes: list[Node], users: dict[Node, list[Node]]) -> list[Node]:
    """The nodes without the views at the edges. An ``expand`` of an input stays: broadcasting is free inside."""
    kept = set(nodes)
    for n in reversed(nodes):
        if n.target.name in VIEWS and not any(u in kept for u in users[n]):
            kept.discard(n)
    for n in nodes:
        if n.target.name in VIEWS and n.target.name != "expand" and not any(a in kept for a in node_args(n)):
            kept.discard(n)
    return [n for n in nodes if n in kept]


def _region(nodes: list[Node], users: dict[Node, list[Node]], returned: set[Node]) -> Region:
    own = set(nodes)
    inputs = dict.fromkeys(a for n in nodes for a in node_args(n) if a not in own)
    needed = {n for n in nodes if n in returned or any(u not in own for u in users[n])}
    views: list[Node] = []
    for n in reversed(nodes):
        if n in needed and n.target.name in VIEWS:
            views.append(n)
            needed.discard(n)
            needed.update(a for a in node_args(n) if a in own)
    outputs = [n for n in nodes if n in needed]
    return Region(tuple(nodes), tuple(inputs), tuple(outputs), tuple(reversed(views)))


def _in_order(graph: Graph, where: dict[Node, Region]) -> list[Node | Region]:
    """Regions and other nodes, each after what it reads; as near to the graph's order as that allows."""
    units: dict[Node | Region, int] = {}
    for k, n in enumerate(graph.nodes):
        units.setdefault(where.get(n, n), k)
    needs: dict[Node | Region, set[Node | Region]] = {}
    feeds: dict[Node | Region, list[Node | Region]] = {u: [] for u in units}
    for u in units:
        reads = u.inputs if isinstance(u, Region) else node_args(u)
        needs[u] = {where.get(a, a) for a in reads}
        for a in needs[u]:
            feeds[a].append(u)
    by_place = {k: u for u, k in units.items()}
    ready = [k for u, k in units.items() if not needs[u]]
    heapq.heapify(ready)
    out: list[Node | Region] = []
    while ready:
        u = by_place[heapq.heappop(ready)]
        out.append(u)
        for f in feeds[u]:
            needs[f].discard(u)
            if not needs[f]:
                heapq.heappush(ready, units[f])
    assert len(out) == len(units), "regions depend on each other in a circle"
    return out


def _call(out: Graph, region: Region, target: Any, env: dict[Node, Node]) -> None:
    args = tuple([env[a] for a in region.inputs])
    loc = region.nodes[0].loc
    vals: Sequence[Any] = [n.val for n in region.outputs]
    if len(vals) == 1:
        env[region.outputs[0]] = out.call(target, args, val=vals[0], loc=loc)
    else:
        node = out.call(target, args, val=tuple(vals), loc=loc)
        for k, n in enumerate(region.outputs):
            env[n] = out.getitem(node, k)
    for n in region.views:
        env[n] = _copy(out, n, env)


def _copy(out: Graph, n: Node, env: dict[Node, Node]) -> Node:
    return out.call(n.target, map_nodes(n.args, env), map_nodes(n.kwargs, env), n.val, n.loc, n.name)
