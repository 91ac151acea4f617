"""Split a graph that mixes CPU and GPU tensors: what only needs the CPU runs first, and its numbers go over together.

An optimizer's counters and rates are CPU scalars, its parameters are on the GPU::

    def forward(p, g, step, lr):                # step, lr: on the CPU
        n = step + 1; s = lr / (1 - 0.9 ** n)
        return p - g * s, n

    ->  host(step, lr):      n = step + 1; s = lr / (1 - 0.9 ** n); return s, n
        device(p, g, pack):  return p - g * pack[0], None         # pack: f64[1] on the GPU

``split_host`` does not run anything: ``runtime/mixed.py`` puts the two parts together. So kernels never read the
memory of another device, many scalars cost one transfer, and the device part alone is a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..ir import Graph, Node, TensorType, leaves
from .rewrite import build, operands, replaced

aten = torch.ops.aten
TAKES_EITHER: dict[Any, tuple[int, ...]] = {
    aten._scaled_dot_product_efficient_attention_backward.default: (7, 8),
    aten._efficient_attention_backward.default: (12, 13),
}
"""Operands that the device's call reads itself, where they are: dropout's seed and offset, which the forward's call
leaves on the host, and on the device while it is recorded. Sent over, they would be read as host memory."""


@dataclass(frozen=True)
class HostSplit:
    """``host(*inputs[host_inputs], *places) -> (*scalars, *moved, *outputs)``; ``device(*inputs[device_inputs], *packs,
    *moved) -> outputs``, with None for those that the host gives. Each scalar has a place, of its pack's dtype, which
    the host's program may write it to; then it gives None for it.

    ``packs``: the dtype and number of the scalars in each pack, in order; ``moved``: how many tensors go over as they
    are; ``host_outputs``: which outputs of the whole the host gives.
    """

    host: Graph
    device: Graph
    host_inputs: tuple[int, ...]
    device_inputs: tuple[int, ...]
    packs: tuple[tuple[torch.dtype, int], ...]
    moved: int
    host_outputs: tuple[int, ...]
    target: torch.device


def on_cpu(t: TensorType) -> bool:
    return t.device.type == "cpu"


def split_host(graph: Graph, is_host: Callable[[TensorType], bool] = on_cpu) -> HostSplit | None:
    """The two parts of a functional ATen graph; None where it lives on one device."""
    values = [t for n in graph.nodes for t in _types(n)]
    target = next((t.device for t in values if not is_host(t)), None)
    if target is None or not any(map(is_host, values)):
        return None
    splitter = _Splitter(graph, is_host, target)
    return splitter.run() if splitter.host else None


def _passed(graph: Graph) -> set[Node]:
    """Inputs that only go to calls which take them on either device."""
    read: set[Node] = set(leaves(graph.outputs))
    passed: set[Node] = set()
    for n in graph.nodes:
        own = {a for k, a in enumerate(n.args) if k in TAKES_EITHER.get(n.target, ()) and isinstance(a, Node)}
        passed |= {a for a in own if a.op == "input"}
        read |= {a for a in operands(n) if a not in own}
    return passed - read


def _types(n: Node) -> list[TensorType]:
    return [t for t in leaves(n.val) if isinstance(t, TensorType)]


class _Splitter:
    def __init__(self, graph: Graph, is_host: Callable[[TensorType], bool], target: torch.device) -> None:
        self.graph, self.is_host, self.target = graph, is_host, target
        self.host: dict[Node, None] = {}
        self.consts: dict[Node, Node] = {}
        self.scalars: dict[torch.dtype, list[Node]] = {}
        self.whole: dict[Node, None] = {}  # tensors that go over as they are
        passed = _passed(graph)
        for n in graph.nodes:
            if n not in passed and self._belongs(n):
                self.host[n] = None

    def run(self) -> HostSplit:
        graph = self.graph
        outputs = tuple(graph.outputs)
        given = tuple(k for k, x in enumerate(outputs) if isinstance(x, Node) and x in self.host)
        for n in graph.nodes:
            if n.op == "call" and n not in self.host:
                for a in operands(n):
                    self._crosses(a, n)
        return HostSplit(
            self._host_graph([outputs[k] for k in given], given),
            self._device_graph(outputs, given),
            self._positions(lambda n: n in self.host or not _types(n)),
            self._positions(lambda n: n not in self.host),
            tuple((dtype, len(nodes)) for dtype, nodes in self.scalars.items()),
            len(self.whole),
            given,
            self.target,
        )

    def _belongs(self, n: Node) -> bool:
        """Whether the node is the host's: made of host values alone."""
        types = _types(n)
        if not types or not all(map(self.is_host, types)):
            return False
        return n.op != "call" or all(a in self.host or not _types(a) for a in operands(n))

    def _positions(self, wanted: Callable[[Node], bool]) -> tuple[int, ...]:
        return tuple(i for i, n in enumerate(self.graph.inputs) if wanted(n))

    def _crosses(self, a: Node, reader: Node) -> None:
        """A host value read by the device's part."""
        if a not in self.host:
            return
        types = _types(reader)
        t = a.val
        if a.op == "const":
            self.consts.setdefault(a, a)
        elif types and all(map(self.is_host, types)) or not isinstance(t, TensorType):
            self.whole[a] = None
        elif t.rank == 0 and not t.dtype.is_complex:
            nodes = self.scalars.setdefault(torch.float64 if t.dtype.is_floating_point else torch.int64, [])
            if a not in nodes:
                nodes.append(a)
        else:
            self.whole[a] = None

    def _host_graph(self, outputs: list[Node], given: tuple[int, ...]) -> Graph:
        graph = self.graph
        inputs = [n for n in graph.inputs if n in self.host or not _types(n)]
        first = len(inputs)
        nodes, scalars = list(self.host), []
        for dtype, found in self.scalars.items():
            val = TensorType((), (), dtype, torch.device("cpu"))
            for n in found:
                place = Node(f"{n.name}_place", "input", None, (), {}, val, None)
                inputs.append(place)
                if n.val.dtype != dtype:
                    n = Node(f"{n.name}_packed", "call", aten._to_copy.default, (n,), {"dtype": dtype}, val, n.loc)
                    nodes.append(n)
                scalars.append(n)
        crossing = scalars + list(self.whole)
        out = self._finish(
            build(f"{graph.name}_host", inputs, nodes, (*crossing, *outputs)),
            {k: len(crossing) + i for i, k in enumerate(given)},
        )
        out.overwrites += tuple([(k, first + k) for k in range(len(scalars))])
        return out

    def _device_graph(self, outputs: tuple[Any, ...], given: tuple[int, ...]) -> Graph:
        graph = self.graph
        inputs = [n for n in graph.inputs if n not in self.host]
        env: dict[Node, Node] = {}
        nodes: list[Node] = []
        for dtype, scalars in self.scalars.items():
            val = TensorType((len(scalars),), (1,), dtype, self.target)
            pack = Node(f"pack_{str(dtype)[6:]}", "input", None, (), {}, val, None)
            inputs.append(pack)
            for k, s in enumerate(scalars):
                env[s] = self._unpacked(pack, k, s, nodes)
        for n in self.whole:
            env[n] = Node(f"{n.name}_moved", "input", None, (), {}, n.val.with_(device=self.target), n.loc)
            inputs.append(env[n])
        for n in self.consts:
            env[n] = self._const(n)
            nodes.append(env[n])
        for n in graph.nodes:
            if n not in self.host and n.op != "input":
                nodes.append(self._call(n, env, nodes))
        kept = tuple(None if k in given else env.get(x, x) for k, x in enumerate(outputs))
        return self._finish(
            build(graph.name, inputs, nodes, kept), {k: k for k in range(len(outputs)) if k not in given}
        )

    def _call(self, n: Node, env: dict[Node, Node], nodes: list[Node]) -> Node:
        """A call of the device's part; scalars that come back from the device are sent over again."""
        for a in operands(n):
            b = env.get(a, a)
            back = isinstance(b.val, TensorType) and self.is_host(b.val) and b.val.rank == 0 and b.op == "call"
            if back and isinstance(n.val, TensorType) and not self.is_host(n.val):
                val = b.val.with_(device=self.target)
                env[a] = Node(
                    f"{b.name}_there", "call", aten._to_copy.default, (b,), {"device": self.target}, val, n.loc
                )
                nodes.append(env[a])
        new = replaced(n, env) if env else n
        if new is not n:
            env[n] = new
        return new

    def _unpacked(self, pack: Node, k: int, s: Node, nodes: list[Node]) -> Node:
        val = TensorType((), (), pack.val.dtype, self.target, k)
        out = Node(f"{s.name}_packed", "call", aten.select.int, (pack, 0, k), {}, val, s.loc)
        nodes.append(out)
        if s.val.dtype == val.dtype:
            return out
        val = TensorType((), (), s.val.dtype, self.target)
        out = Node(f"{s.name}_unpacked", "call", aten._to_copy.default, (out,), {"dtype": s.val.dtype}, val, s.loc)
        nodes.append(out)
        return out

    def _const(self, n: Node) -> Node:
        there = self.target.type != "cuda" or torch.cuda.is_available()
        value = n.target.to(self.target) if there else n.target
        return Node(f"{n.name}_there", "const", value, (), {}, n.val.with_(device=self.target), n.loc)

    def _finish(self, out: Graph, where: dict[int, int]) -> Graph:
        """Outputs that overwrite inputs, at their new positions (``where``: old output position -> new)."""
        inputs = {n: i for i, n in enumerate(out.inputs)}
        out.decide = self.graph.decide
        out.overwrites = tuple(
            (where[o], inputs[self.graph.inputs[i]])
            for o, i in self.graph.overwrites
            if o in where and self.graph.inputs[i] in inputs
        )
        return out
