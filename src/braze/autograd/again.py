"""Activation checkpoints in one graph of forward and backward (a whole training step): the backward's part computes
what lies inside of a region again.

    h = gelu(x); y = h @ v; ...; g = ...; dv = h.t() @ g
    ->  h = gelu(x); y = h @ v; ...; g = ...; x1 = after(x, g); h1 = gelu(x1); dv = h1.t() @ g

Of nested regions the inner ones count: what passes between them is saved, which is little, and each is computed once
more. ``prims.after`` holds it back until the gradient that needs it exists, and apart from the first.
"""

from __future__ import annotations

from ..fake.layout import is_dense
from ..ir import Graph, Node, TensorType, nodes_in
from ..prims.after import after
from .checkpoints import keep, region_of, repeatable
from .costs import Kind, kind_of
from .rewrite import build, operands, replaced, substituted

RECENT = 6


def compute_again(graph: Graph) -> Graph:
    """The graph with second computations of what the backward's calls (tagged "backward") read inside of regions."""
    regions = {n: r for n in graph.nodes if n.op == "call" and (r := region_of(n, "inner")) is not None}
    inner = _inner(graph, regions) if regions else set()
    if not inner:
        return graph
    order = _Order(graph)
    ends = {r: order.place[n] for n, r in regions.items()}
    made = {r: _Region(inner, order, end) for r, end in ends.items()}
    env: dict[Node, Node] = {}
    for n in graph.nodes:
        new = n
        if n.op == "call":
            if n.tags.get("backward"):
                read = {a: made[regions[a]].need(a, n, env) for a in operands(n) if a in inner}
                new = replaced(n, {**env, **read}) if read else replaced(n, env)
            else:
                new = replaced(n, env)
            if new is not n:
                env[n] = new
        order.add(new, n)
    return build(graph.name, graph.inputs, order.nodes, substituted(graph.outputs, env))


def _inner(graph: Graph, regions: dict[Node, int]) -> set[Node]:
    """What only its own region and the backward read, and what can be computed again."""
    outside = set(nodes_in(graph.outputs))
    for n in graph.nodes:
        if n.op == "call" and not n.tags.get("backward"):
            mine = regions.get(n)
            outside.update([a for a in operands(n) if regions.get(a) != mine])
    for n in reversed(graph.nodes):
        if n in outside and n in regions and kind_of(n) is Kind.VIEW:
            outside.update(operands(n))
    return {n for n in regions if n not in outside and repeatable(n) and not keep(n)}


class _Order:
    """The new graph's calls so far; ``latest``: the last call of the forward that a value waits for."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.place = {n: i for i, n in enumerate(graph.nodes)}
        self.latest: dict[Node, int] = {}
        self.forward: Node | None = None  # the last computed tensor of the forward
        self.recent: list[Node] = []  # the last tensors of the backward

    def add(self, node: Node, of: Node | None = None) -> None:
        """Append a call, or an input; ``of`` is what it was in the old graph, None for a new one."""
        self.nodes.append(node)
        waits = max((self.latest.get(a, -1) for a in operands(node)), default=-1)
        late = of is None or bool(node.tags.get("backward"))
        self.latest[node] = waits if late or of is None or node.op != "call" else self.place[of]
        if node.op == "call" and isinstance(node.val, TensorType):
            if late:
                self.recent = [*self.recent[1 - RECENT :], node]
            else:
                self.forward = node

    def token(self, reader: Node, env: dict[Node, Node], end: int) -> Node | None:
        """A small value that exists when ``reader`` can run, and not before a region that ends at ``end`` has."""
        device = reader.val.device if isinstance(reader.val, TensorType) else None
        near = [env.get(a, a) for a in operands(reader)] + self.recent + ([self.forward] if self.forward else [])
        late = [a for a in near if isinstance(a.val, TensorType) and self.latest.get(a, -1) > end]
        late = [a for a in late if device is None or a.val.device == device]
        past = [a for a in late if a is not self.forward]
        return min(past, key=lambda a: a.val.rank) if past else late[-1] if late else None


class _Region:
    """The second computation of one region, made as it is asked for."""

    def __init__(self, inner: set[Node], order: _Order, end: int) -> None:
        self.inner, self.order, self.end = inner, order, end
        self.env: dict[Node, Node] = {}
        self.token: Node | None = None

    def need(self, value: Node, reader: Node, env: dict[Node, Node]) -> Node:
        """The second ``value``, with all that it is made of."""
        if self.token is None:
            self.token = self.order.token(reader, env, self.end)
        stack = [value]
        while stack:
            n = stack[-1]
            missing = [a for a in operands(n) if a in self.inner and a not in self.env]
            if n in self.env or missing:
                stack.extend(reversed(missing))
                if not missing:
                    stack.pop()
                continue
            stack.pop()
            for a in operands(n):
                if a not in self.env:
                    self.env[a] = self._held(env.get(a, a))
            new = Node(f"{n.name}_again", "call", n.target, *_substituted(n, self.env), n.val, n.loc)
            self.env[n] = new
            self.order.add(new)
        return self.env[value]

    def _held(self, n: Node) -> Node:
        """A copy of what the region takes, made late; graph inputs as they are."""
        t = n.val
        if self.token is None or n.op != "call" or not isinstance(t, TensorType) or t.device != self.token.val.device:
            return n
        if not is_dense(t.sizes, t.strides):
            return n
        new = Node(f"{n.name}_late", "call", after, (n, self.token), {}, after.shape(t, self.token.val), n.loc)
        self.order.add(new)
        return new


def _substituted(n: Node, env: dict[Node, Node]) -> tuple[tuple[object, ...], dict[str, object]]:
    return tuple(substituted(n.args, env)), dict(substituted(n.kwargs, env))
