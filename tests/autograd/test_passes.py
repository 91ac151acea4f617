"""The passes on small graphs: what goes, what stays, and that the meaning does not change."""

from __future__ import annotations

import operator

import pytest
import torch

from braze.autograd.cse import eliminate_common_subexpressions
from braze.autograd.dce import eliminate_dead_code
from braze.autograd.norms import split_norms
from braze.autograd.simplify import simplify
from braze.autograd.unalias import storage_root, unalias, unalias_gradients
from braze.fake import find_rule
from braze.ir import Graph, interpret, map_leaves, tensor_type, verify
from braze.ir import Node as IrNode
from braze.prims.rng import philox_seed, philox_uniform

aten = torch.ops.aten


class Builder:
    """A graph whose calls get their types from the shape rules."""

    def __init__(self, *types):
        self.graph = Graph("g")
        self.inputs = [self.graph.input(f"x{i}", t) for i, t in enumerate(types)]

    def __call__(self, op, *args, **kwargs):
        types = map_leaves((args, kwargs), lambda x: x.val if isinstance(x, IrNode) else x)
        return self.graph.call(op, args, kwargs, find_rule(op)(*types[0], **types[1]))

    def item(self, node, i):
        return self.graph.getitem(node, i)

    def done(self, *outputs):
        self.graph.outputs = outputs
        return verify(self.graph)


def targets(graph):
    return [n.target for n in graph.calls]


def same_meaning(a, b):
    torch.manual_seed(0)
    xs = [torch.randn(n.val.sizes).to(n.val.dtype).as_strided(n.val.sizes, n.val.strides) for n in a.inputs]
    verify(b)
    for x, y in zip(interpret(a, xs), interpret(b, xs)):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
        assert x.stride() == y.stride()
    return b


T = tensor_type((4, 6))


def test_dead_code():
    b = Builder(T)
    (x,) = b.inputs
    b(aten.mul.Tensor, b(aten.add.Tensor, x, 1), 2)
    y = b(aten.relu.default, x)
    check = b(aten.exp.default, x)
    check.tags["effect"] = True
    g = same_meaning(b.graph, eliminate_dead_code(b.done(y)))
    assert targets(g) == [aten.relu.default, aten.exp.default]


def test_common_subexpressions():
    b = Builder(T)
    (x,) = b.inputs
    p, q = b(aten.add.Tensor, x, 1), b(aten.add.Tensor, x, 1)
    r, s = b(aten.mul.Tensor, p, q), b(aten.mul.Tensor, q, p)
    u = b(aten.mul.Tensor, p, p)
    g = same_meaning(b.graph, eliminate_common_subexpressions(b.done(r, s, u)))
    assert targets(g) == [aten.add.Tensor, aten.mul.Tensor]


def test_what_looks_alike_stays():
    b = Builder(T)
    (x,) = b.inputs
    outs = [b(aten.add.Tensor, x, k) for k in (1, 1.0, True, 0.0, -0.0)]
    outs += [b(aten.rand_like.default, x) for _ in range(2)]
    g = eliminate_common_subexpressions(b.done(*outs))
    assert len(g.calls) == 7
    seeds = Graph("g")
    cpu = torch.device("cpu")
    nodes = [seeds.call(philox_seed, (cpu,), val=philox_seed.shape(cpu)) for _ in range(2)]
    draws = [
        seeds.call(philox_uniform, (nodes[0], k, (4,), cpu), val=philox_uniform.shape(nodes[0].val, k, (4,), cpu))
        for k in (0, 0, 1)
    ]
    seeds.outputs = (*nodes, *draws)
    assert targets(eliminate_common_subexpressions(seeds)) == [philox_seed, philox_seed, philox_uniform, philox_uniform]


def chain(*steps, start=T):
    """A graph of one input through (op, args...) steps."""
    b = Builder(start)
    x = b.inputs[0]
    for op, *args in steps:
        kwargs = args.pop() if args and isinstance(args[-1], dict) else {}
        x = b(op, x, *args, **kwargs)
    return b.done(x)


BF16 = {"dtype": torch.bfloat16}
F32 = {"dtype": torch.float32}
SIMPLIFIED = {
    "view of view": ([(aten.view.default, [24]), (aten.view.default, [2, 12])], [aten.view.default]),
    "view back": ([(aten.view.default, [24]), (aten.view.default, [4, 6])], []),
    "unsafe view": ([(aten._unsafe_view.default, [24])], [aten.view.default]),
    "cast to itself": ([(aten._to_copy.default, F32)], []),
    "clone": ([(aten.clone.default,)], []),
    "expand to itself": ([(aten.expand.default, [4, 6])], []),
    "whole slice": ([(aten.slice.Tensor, 0, 0, 9)], []),
    "t twice": ([(aten.t.default,), (aten.t.default,)], []),
    "transpose twice": ([(aten.transpose.int, 0, 1), (aten.transpose.int, -1, -2)], []),
    "times one": ([(aten.mul.Tensor, 1), (aten.div.Tensor, 1.0), (aten.pow.Tensor_Scalar, 1)], []),
    "zeros like": ([(aten.sin.default,), (aten.zeros_like.default, BF16)], [aten.full.default]),
    "ones like": ([(aten.sin.default,), (aten.ones_like.default, {"dtype": torch.bool})], [aten.full.default]),
    "new of a value": ([(aten.sin.default,), (aten.new_full.default, [3, 1], 2.5)], [aten.full.default]),
    "permute back": ([(aten.permute.default, [1, 0]), (aten.permute.default, [1, 0])], []),
}
KEPT = {
    "narrowing": [(aten._to_copy.default, BF16), (aten._to_copy.default, F32)],
    "clone that packs": [(aten.t.default,), (aten.clone.default, {"memory_format": torch.contiguous_format})],
    "times a half": [(aten.mul.Tensor, 0.5), (aten.pow.Tensor_Scalar, 2)],
    "zeros like what is transposed": [(aten.t.default,), (aten.zeros_like.default,)],
    "part": [(aten.slice.Tensor, 0, 1, 9)],
    "flip twice": [(aten.flip.default, [0]), (aten.flip.default, [0])],
}


@pytest.mark.parametrize("name", SIMPLIFIED)
def test_simplified(name):
    steps, left = SIMPLIFIED[name]
    g = chain(*steps)
    assert targets(eliminate_dead_code(same_meaning(g, simplify(g)))) == left


def test_widening_and_back():
    g = chain((aten._to_copy.default, F32), (aten._to_copy.default, BF16), start=tensor_type((4,), torch.bfloat16))
    assert targets(eliminate_dead_code(same_meaning(g, simplify(g)))) == []


@pytest.mark.parametrize("name", KEPT)
def test_kept(name):
    g = chain(*KEPT[name])
    assert len(same_meaning(g, simplify(g)).calls) == len(KEPT[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm_split(dtype):
    t, w = tensor_type((4, 6), dtype), tensor_type((6,), dtype)
    b = Builder(t, w, w)
    x, weight, bias = b.inputs
    node = b(aten.native_layer_norm.default, x, [6], weight, bias, 1e-5)
    g = b.done(b.item(node, 0), b.item(node, 1))
    new = verify(split_norms(g))
    xs = [torch.randn(n.val.sizes).to(dtype) for n in g.inputs]
    tol = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(interpret(new, xs)[0], interpret(g, xs)[0], rtol=tol, atol=tol)
    assert not any(n.target is operator.getitem and n.args[1] == 0 for n in eliminate_dead_code(new).calls)


SOFTMAXES = [(aten._softmax.default, -1, False), (aten._log_softmax.default, 0, False), (aten._safe_softmax.default, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("call", SOFTMAXES, ids=str)
def test_softmax_split(call, dtype):
    g = chain(call, start=tensor_type((4, 6), dtype))
    new = verify(split_norms(g))
    x = torch.randn(4, 6).to(dtype) * 5
    if "safe" in str(call):
        x[2] = float("-inf")
        x[3, 1] = float("-inf")
    tol = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(interpret(new, [x])[0], interpret(g, [x])[0], rtol=tol, atol=tol)
    assert len(new.calls) > 3


@pytest.mark.parametrize("strides", [(54, 9, 3, 1), (54, 1, 18, 6)])
def test_group_norm_split(strides):
    b = Builder(tensor_type((2, 6, 3, 3)).with_(strides=strides), tensor_type((6,)), tensor_type((6,)))
    x, weight, bias = b.inputs
    node = b(aten.native_group_norm.default, x, weight, bias, 2, 6, 9, 3, 1e-5)
    g = b.done(b.item(node, 0))
    assert len(same_meaning(g, split_norms(g)).calls) > 5


def test_storage_root():
    b = Builder(T)
    (x,) = b.inputs
    parts = b(aten.split.Tensor, b(aten.view.default, x, [24]), 12)
    assert storage_root(b.item(parts, 1)) is x
    y = b(aten.mul.Tensor, x, 2)
    assert storage_root(b(aten.t.default, y)) is y


def test_unalias_results():
    b = Builder(T)
    (x,) = b.inputs
    y = b(aten.mul.Tensor, x, 2)
    g = unalias(b.done(y, y, b(aten.t.default, y), x), 4, [])
    assert targets(g).count(aten.clone.default) == 3
    assert len({storage_root(o) for o in g.outputs}) == 4
    same_meaning(b.graph, g)


def test_unalias_overlapping_view():
    """A view whose copy would be larger, or laid out otherwise, is taken again of a copied root."""
    b = Builder(T)
    (x,) = b.inputs
    e = b(aten.expand.default, b(aten.slice.Tensor, x, 0, 0, 1), [5, 6])
    g = same_meaning(b.graph, unalias(b.done(e), 1, []))
    assert g.outputs[0].val.strides == e.val.strides and g.outputs[0].target is aten.expand.default


def test_unalias_mutated():
    b = Builder(T, T)
    x, y = b.inputs
    g = unalias(b.done(y, x), 0, [0, 1])  # x and y swap
    assert targets(g) == [aten.clone.default] * 2


def test_unalias_gradients():
    b = Builder(T, T)
    saved, tangent = b.inputs
    flat = b(aten.view.default, tangent, [24])
    g = unalias_gradients(b.done(tangent, tangent, flat, saved), 1)
    assert g.outputs[0] is g.outputs[1] is tangent
    assert targets(g) == [aten.view.default] + [aten.clone.default] * 2
