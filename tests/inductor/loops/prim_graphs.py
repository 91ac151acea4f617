"""Primitive graphs built by hand, op by op, with vals from the primitives' own shape rules."""

from __future__ import annotations

from typing import Any

import torch

from braze.ir import Graph, Node, TensorType, map_nodes, tensor_type, type_of
from braze.prims import PRIMS


class G:
    """``g.add(x, y)`` appends a primitive; ``g.expand_to(x, sizes)``, ``g.out(...)``."""

    def __init__(self) -> None:
        self.graph = Graph()

    def input(self, name: str, sizes: Any, dtype: torch.dtype = torch.float32, strides: Any = None) -> Node:
        return self.graph.input(name, tensor_type(sizes, dtype, strides=strides))

    def __getattr__(self, name: str) -> Any:
        prim = PRIMS[name]

        def call(*args: Any, val: TensorType | None = None) -> Node:
            vals = {n: n.val for n in self.graph.nodes}
            return self.graph.call(prim, args, val=val or prim.shape(*map_nodes(args, vals)))

        return call

    def aten(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        def dummy(x: Any) -> Any:
            return torch.empty_strided(x.sizes, x.strides, dtype=x.dtype).zero_() if isinstance(x, TensorType) else x

        from braze.ir import map_leaves

        vals = {n: n.val for n in self.graph.nodes}
        out = op(*map_leaves(map_nodes(args, vals), dummy), **map_leaves(map_nodes(kwargs, vals), dummy))
        val = map_leaves(out, lambda t: type_of(t) if isinstance(t, torch.Tensor) else t)
        return self.graph.call(op, args, kwargs, val=val)

    def expand_to(self, x: Node, sizes: Any, dims: Any = None) -> Node:
        """Broadcast ``x``, whose dims are ``dims`` of the result (default: the trailing ones)."""
        rank = len(sizes)
        dims = tuple(range(rank - x.val.rank, rank)) if dims is None else dims
        shape = [1] * rank
        for d, n in zip(dims, x.val.sizes):
            shape[d] = n
        return self.expand(self.reshape(x, tuple(shape)), tuple(sizes))

    def out(self, *nodes: Any) -> Graph:
        self.graph.outputs = tuple(nodes)
        return self.graph
