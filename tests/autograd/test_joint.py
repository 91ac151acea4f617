"""The joint trace itself: lines, names, symbolic sizes, what is refused."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F

from braze.autograd import partition, trace_joint
from braze.errors import Unsupported
from braze.fake import DataDependent
from braze.ir import Expr, Graph, Loc, TensorType, evaluate, interpret, map_leaves, symbol, tensor_type, verify

aten = torch.ops.aten


def captured():
    """The running example as capture gives it."""
    g = Graph()
    x = g.input("x", tensor_type((64, 256)))
    w = g.input("w", tensor_type((256, 256)))
    loc = [Loc("model.py", i, text) for i, text in ((2, "h = torch.relu(x @ w)"), (3, "return softmax(h, -1).sum()"))]
    mm = g.call(torch.matmul, (x, w), loc=loc[0])
    h = g.call(torch.relu, (mm,), loc=loc[0])
    s = g.call(torch.softmax, (h, -1), loc=loc[1])
    g.outputs = (g.call(torch.Tensor.sum, (s,), loc=loc[1]),)
    return g


TYPES = [tensor_type((64, 256)), tensor_type((256, 256), requires_grad=True)]


def test_inference_mode():
    w = torch.randn(256, 256, requires_grad=True)
    with torch.inference_mode():
        joint = trace_joint(lambda x, w: F.linear(x, w).relu_(), TYPES)
    assert [n.target for n in joint.graph.calls] == [aten.t.default, aten.mm.default, aten.relu.default]
    assert not joint.tangents and w.requires_grad and not torch.is_inference_mode_enabled()


def test_names_and_lines():
    joint = trace_joint(captured(), TYPES)
    verify(joint.graph)
    assert [n.name for n in joint.graph.inputs] == ["x", "w", "tangent0"]
    lines = {n.name: n.loc.line for n in joint.graph.calls}
    assert lines["mm"] == lines["relu"] == lines["threshold_backward"] == lines["mm_1"] == 2
    assert lines["softmax"] == lines["expand"] == 3


def test_error_names_the_line():
    g = Graph()
    x = g.input("x", tensor_type((4,)))
    g.outputs = (g.call(torch.Tensor.item, (x,), loc=Loc("model.py", 7, "x.item()")),)
    with pytest.raises(Unsupported, match="model.py:7"):
        trace_joint(g, [tensor_type((1,))])


def test_printed_joint_graph():
    text = str(trace_joint(lambda x, w: torch.softmax(torch.relu(x @ w), -1).sum(), TYPES, names=["x", "w"]).graph)
    assert "mm_1 = torch.ops.aten.mm.default(t, threshold_backward)  # f32[256, 256]" in text
    assert text.endswith("return (sum_1, None, mm_1)") or text.endswith("return (sum, None, mm_1)")


def test_garbage_collection_is_as_before():
    assert gc.isenabled()
    with pytest.raises(Unsupported):
        trace_joint(lambda x: x.resize_(8), [tensor_type((4,))])
    assert gc.isenabled()


@pytest.mark.parametrize(
    "fn",
    [lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: x * 2 if x.sum() > 0 else x],
    ids=["item", "nonzero", "if"],
)
def test_data_dependent(fn):
    with pytest.raises(DataDependent):
        trace_joint(fn, [tensor_type((4,))])


def test_foreign_tensor_that_requires_grad():
    w = torch.randn(4, requires_grad=True)
    with pytest.raises(Unsupported, match="no input"):
        trace_joint(lambda x: x * w, [tensor_type((4,))])


def test_foreign_constants_are_kept():
    c = torch.randn(4)
    joint = trace_joint(lambda x: x * c + c, [tensor_type((4,))])
    assert [n.target is c for n in joint.graph.nodes if n.op == "const"] == [True]
    with pytest.raises(Unsupported, match="overwritten"):
        trace_joint(lambda x: c.add_(x), [tensor_type((4,))])


def at_size(graph, **sizes):
    """The graph for given sizes."""
    out = Graph(graph.name)
    env = {}

    def fix(x):
        if isinstance(x, Expr):
            return evaluate(x, sizes)
        if isinstance(x, TensorType):
            return x.with_(sizes=tuple(map(fix, x.sizes)), strides=tuple(map(fix, x.strides)), offset=fix(x.offset))
        return env.get(x, x) if isinstance(x, type(graph.nodes[0])) else x

    for n in graph.nodes:
        val = map_leaves(n.val, fix)
        if n.op == "input":
            env[n] = out.input(n.name, val)
        elif n.op == "const":
            env[n] = out.const(n.target, val)
        else:
            env[n] = out.call(n.target, map_leaves(n.args, fix), map_leaves(n.kwargs, fix), val, name=n.name)
    out.outputs = map_leaves(graph.outputs, fix)
    return verify(out)


def test_symbolic_batch():
    """One trace serves every batch size."""
    b = symbol("b", 2, 64, hint=3)

    def fn(x, w, v):
        h = F.layer_norm(F.gelu(x @ w), (8,)).view(-1, 2, 4).transpose(1, 2).reshape(x.shape[0], -1)
        return (F.log_softmax(h @ v, -1)[:, 0]).mean()

    types = [tensor_type((b, 6)), tensor_type((6, 8), requires_grad=True), tensor_type((8, 5), requires_grad=True)]
    aot = partition(trace_joint(fn, types))
    for n in (3, 7):
        inputs = [torch.randn(n, 6), torch.randn(6, 8, requires_grad=True), torch.randn(8, 5, requires_grad=True)]
        want = fn(*inputs)
        out, *extras = interpret(at_size(aot.forward, b=n), [x.detach() for x in inputs])
        torch.testing.assert_close(out, want.detach())
        sources = {"input": inputs, "result": [out], "extra": extras}
        saved = [sources[r.kind][r.index].detach() for r in aot.signature.saved]
        grads = interpret(at_size(aot.backward, b=n), [*saved, torch.ones(())])
        for g, h in zip(grads[1:], torch.autograd.grad(want, inputs[1:])):
            torch.testing.assert_close(g, h)


def test_symbols_of_the_backward_are_shown_by_its_inputs():
    b, c = symbol("b", 2, 64, hint=3), symbol("c", 2, 64, hint=4)
    aot = partition(trace_joint(lambda x: x.sum(), [tensor_type((b, c), requires_grad=True)]))
    sizes = {d for n in aot.backward.inputs for d in n.val.sizes}
    assert {b, c} <= sizes
