"""Random primitive graphs: chains of elementwise, view, reduction, indexing and opaque nodes over small tensors."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "loops"))
from prim_graphs import G  # noqa: E402

from braze.ir import Graph, Node, product  # noqa: E402

SHAPES = [(4, 6), (2, 3, 4), (24,), (2, 12), (6, 4), (4, 1, 6), (2, 2, 6), (8, 3), (1, 24)]


class RandomGraph:
    """``RandomGraph(seed).make(n)`` gives a graph of about n nodes and inputs for it."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        self.rng = random.Random(seed)
        self.g = G()
        self.dtype = dtype
        self.values: list[Node] = []
        self.inputs: list[torch.Tensor] = []
        torch.manual_seed(seed)

    def add_input(self) -> None:
        shape = self.rng.choice(SHAPES)
        order = list(range(len(shape)))
        if self.rng.random() < 0.3:
            self.rng.shuffle(order)
        t = torch.randn([shape[d] for d in order], dtype=torch.float64).to(self.dtype)
        t = t.permute([order.index(d) for d in range(len(shape))])
        self.inputs.append(t)
        self.values.append(self.g.input(f"in{len(self.inputs)}", shape, self.dtype, t.stride()))

    def pick(self) -> Node:
        if self.rng.random() < 0.6:
            return self.rng.choice(self.values[-4:])
        return self.rng.choice(self.values)

    def like(self, x: Node) -> Node:
        """Some value brought to x's shape."""
        g, y = self.g, self.pick()
        if y.val.sizes == x.val.sizes:
            return y
        n, m = product(y.val.sizes), product(x.val.sizes)
        if n == m:
            return g.reshape(y, x.val.sizes)
        for d in range(x.val.rank):
            if y.val.sizes == x.val.sizes[:d] + x.val.sizes[d + 1 :]:
                shape = y.val.sizes[:d] + (1,) + y.val.sizes[d:]
                return g.expand(g.reshape(y, shape), x.val.sizes)
        k = y.val.rank
        if k < x.val.rank and y.val.sizes == x.val.sizes[x.val.rank - k :]:
            return g.expand(y, x.val.sizes)
        s = g.sum(y, tuple(range(k))) if k else y
        return g.expand(g.reshape(s, (1,) * x.val.rank), x.val.sizes)

    def unary(self) -> Node:
        return getattr(self.g, self.rng.choice(["neg", "abs", "exp", "sigmoid", "clone", "tanh"]))(
            self.g.minimum(self.pick(), 3.0)
        )

    def binary(self) -> Node:
        x = self.pick()
        return getattr(self.g, self.rng.choice(["add", "sub", "mul", "maximum"]))(x, self.like(x))

    def where(self) -> Node:
        x = self.pick()
        return self.g.where(self.g.lt(x, self.like(x)), self.like(x), x)

    def reduction(self) -> Node:
        x = self.pick()
        if not x.val.rank:
            return x
        dims = tuple(sorted(self.rng.sample(range(x.val.rank), self.rng.randint(1, x.val.rank))))
        return getattr(self.g, self.rng.choice(["sum", "amax", "amin", "sum"]))(x, dims)

    def normalise(self) -> Node:
        """x minus its mean over some dims: the pattern of softmax and layer norm."""
        x, g = self.pick(), self.g
        if not x.val.rank:
            return x
        dims = tuple(sorted(self.rng.sample(range(x.val.rank), self.rng.randint(1, x.val.rank))))
        s = g.sum(x, dims)
        keep = tuple(1 if d in dims else n for d, n in enumerate(x.val.sizes))
        return g.sub(x, g.expand(g.reshape(g.mul(s, 0.1), keep), x.val.sizes))

    def view(self) -> Node:
        x, g, rng = self.pick(), self.g, self.rng
        kind = rng.choice(["reshape", "permute", "slice", "flip"])
        if kind == "reshape":
            fits = [s for s in SHAPES if product(s) == product(x.val.sizes)]
            return g.reshape(x, rng.choice(fits)) if fits else x
        if kind == "permute":
            dims = list(range(x.val.rank))
            rng.shuffle(dims)
            return g.permute(x, tuple(dims))
        if kind == "flip":
            return g.flip(x, (rng.randrange(x.val.rank),)) if x.val.rank else x
        starts = tuple(rng.randrange(n) for n in x.val.sizes)
        stops = tuple(rng.randint(a + 1, n) for a, n in zip(starts, x.val.sizes))
        return g.slice(x, starts, stops, tuple(rng.randint(1, 2) for _ in starts))

    def indexing(self) -> Node:
        x, g, rng = self.pick(), self.g, self.rng
        if not x.val.rank:
            return x
        dim = rng.randrange(x.val.rank)
        kind = rng.choice(["pad", "cat", "take", "scatter_add", "index_put"])
        if kind == "pad":
            low, high = ([rng.randint(0, 2) for _ in x.val.sizes] for _ in range(2))
            return g.pad(x, tuple(low), tuple(high), 0.5)
        if kind == "cat":
            return g.cat([x, self.like(x), x], dim)
        n = x.val.sizes[dim]
        index = torch.tensor([rng.randint(-n, n - 1) for _ in range(5)])
        i = g.graph.const(index, _type(index))
        taken = g.take(x, dim, i)
        if kind == "take":
            return taken
        if kind == "index_put":
            where = [None] * dim + [i]
            return g.index_put(x, where, g.mul(taken, 2.0), True)
        wide = g.expand_to(i, taken.val.sizes, (dim,))
        return g.scatter_add(x, dim, wide, taken)

    def opaque(self) -> Node:
        x = self.pick()
        if x.val.rank != 2:
            return x
        return self.g.aten(torch.ops.aten.mm.default, x, self.g.permute(x, (1, 0)))

    def make(self, n: int) -> tuple[Graph, list[Any]]:
        for _ in range(3):
            self.add_input()
        kinds = [self.unary, self.binary, self.binary, self.where, self.reduction, self.normalise, self.view]
        kinds += [self.view, self.indexing, self.opaque]
        for _ in range(n):
            made = self.rng.choice(kinds)()
            if product(made.val.sizes) <= 400:
                self.values.append(made)
        outs = self.rng.sample(self.values, min(3, len(self.values))) + [self.values[-1]]
        return self.g.out(*outs), self.inputs


def _type(t: torch.Tensor) -> Any:
    from braze.ir import type_of

    return type_of(t)
