"""The graph: building, printing as runnable Python, interpreting, verifying."""

from __future__ import annotations

import pytest
import torch

from braze.ir import Graph, interpret, load_python, map_leaves, tensor_type, to_python, verify


def softmax_sum() -> Graph:
    g = Graph()
    x, w = g.input("x", tensor_type((8, 4))), g.input("w", tensor_type((4, 4)))
    mm = g.call(torch.ops.aten.mm.default, (x, w), val=tensor_type((8, 4)))
    h = g.call(torch.relu, (mm,), val=mm.val)
    s = g.call(torch.nn.functional.softmax, (h,), {"dim": -1}, val=mm.val)
    g.outputs = (g.call(torch.Tensor.sum, (s,), val=tensor_type(())), {"h": h})
    return g


def test_prints_and_reloads_as_python() -> None:
    g = softmax_sum()
    x, w = torch.randn(8, 4), torch.randn(4, 4)
    want = interpret(g, [x, w])
    got = load_python(g)(x, w)
    torch.testing.assert_close(got, want)
    assert "torch.ops.aten.mm.default(x, w)  # f32[8, 4]" in to_python(g)


def test_interpret_drops_dead_values_and_counts_inputs() -> None:
    g = softmax_sum()
    with pytest.raises(ValueError, match="takes 2 inputs, got 1"):
        interpret(g, [torch.randn(8, 4)])
    seen: list[str] = []
    interpret(g, [torch.randn(8, 4), torch.randn(4, 4)], lambda n, v: seen.append(n.name))
    assert seen == [n.name for n in g.nodes]


def test_verify_names_the_broken_node() -> None:
    g = softmax_sum()
    verify(g)
    g.nodes[2], g.nodes[3] = g.nodes[3], g.nodes[2]
    with pytest.raises(AssertionError, match="relu reads mm before"):
        verify(g)


def test_names_are_unique_and_identifiers() -> None:
    g = Graph()
    names = [g.input(n, None).name for n in ("x", "x", "x_1", "1a", "a.b")]
    assert len(set(names)) == 5 and all(n.isidentifier() for n in names)


def test_map_leaves_keeps_namedtuples() -> None:
    r = torch.return_types.max((torch.ones(2), torch.ones(2)))
    assert type(map_leaves(r, lambda x: x)) is type(r)
