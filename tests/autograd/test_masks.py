"""Masks that mask nothing are dropped; all others stay."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F

from braze.autograd.masks import drop_full_masks
from braze.ir import Graph, Node, interpret, type_of, verify

Q = torch.randn(2, 3, 8, 4)


def attention(build) -> tuple[Graph, Node]:
    g = Graph()
    q, given = g.input("q", type_of(Q)), g.input("given", type_of(torch.ones(8, dtype=torch.bool)))
    mask = build(g, given)
    call = g.call(F.scaled_dot_product_attention, (q, q, q), {"attn_mask": mask}, val=type_of(Q))
    g.outputs = (call,)
    return g, call


def positions(g: Graph, at_least: int) -> Node:
    x = torch.arange(8)
    a = g.call(torch.arange, (8,), {"device": torch.device("cpu")}, val=type_of(x))
    ge = g.call(operator.ge, (a, at_least), val=type_of(x >= 0))
    row = g.call(operator.getitem, (ge, (None, None, None, slice(None))), val=type_of((x >= 0)[None, None, None]))
    wide = (x >= 0)[None, None, None].expand(2, 1, 8, 8)
    return g.call(torch.Tensor.expand, (row, 2, 1, 8, 8), val=type_of(wide))


def both_ways(g: Graph) -> torch.Tensor:
    """The mask of the attention in the changed graph, which gives what it gave before."""
    given = torch.tensor([True, False] * 4)
    out = verify(drop_full_masks(g))
    a, b = interpret(g, [Q.clone(), given])[0], interpret(out, [Q.clone(), given])[0]
    torch.testing.assert_close(a, b)
    return next(n for n in out.nodes if n.target is F.scaled_dot_product_attention).kwargs["attn_mask"]


def test_full_mask_goes() -> None:
    assert both_ways(attention(lambda g, given: positions(g, 0))[0]) is None


@pytest.mark.parametrize("kind", ["masks something", "depends on an input", "written to"])
def test_other_masks_stay(kind: str) -> None:
    def build(g: Graph, given: Node) -> Node:
        if kind == "masks something":
            return positions(g, 3)
        mask = positions(g, 0)
        if kind == "depends on an input":
            return g.call(operator.and_, (mask, given), val=mask.val)
        copy = g.call(torch.Tensor.clone, (mask,), val=mask.val)
        part = g.call(operator.getitem, (copy, 0), val=type_of(torch.ones(1, 8, 8, dtype=torch.bool)))
        g.call(torch.Tensor.logical_and_, (part, given), val=part.val)
        return copy

    assert both_ways(attention(build)[0]) is not None


def test_updates_of_what_attention_gave_leave_its_mask_alone() -> None:
    """A whole training step: the optimizer writes parameters and gradients, which all come from the masked scores."""
    masks: list[Node] = []

    def build(g: Graph, given: Node) -> Node:
        masks.append(positions(g, 0))
        return masks[0]

    g, call = attention(build)
    grad = g.call(torch.Tensor.clone, (call,), val=call.val)
    g.call(torch.Tensor.mul_, (grad, 0.5), val=grad.val)
    g.call(torch.Tensor.add_, (g.nodes[0], grad), val=call.val)
    assert both_ways(g) is None
