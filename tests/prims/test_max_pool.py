"""Maxima over windows as primitives: values, places (first largest, last NaN) and gradients, exactly as ATen's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from braze.fake import find_rule
from braze.ir import Graph, TensorType, interpret, type_of
from braze.prims.builder import Policy
from braze.prims.decompose import decompose
from braze.prims.prim import Prim

FORWARD, BACKWARD = (
    torch.ops.aten.max_pool2d_with_indices.default,
    torch.ops.aten.max_pool2d_with_indices_backward.default,
)
CASES: list[tuple[tuple[int, ...], list[int], list[int], list[int], bool]] = [
    ((2, 3, 9, 11), [3, 3], [2, 2], [1, 1], False),  # overlapping
    ((2, 3, 9, 11), [3, 2], [2, 1], [1, 0], False),
    ((1, 2, 7, 7), [3, 3], [2, 2], [0, 0], True),  # the last window hangs over
    ((1, 2, 7, 9), [3, 3], [2, 2], [1, 1], True),
    ((2, 2, 8, 8), [2, 2], [2, 2], [0, 0], False),
    ((3, 6, 6), [3, 3], [3, 3], [1, 1], True),
    ((1, 1, 5, 5), [2, 2], [3, 3], [0, 0], True),  # gaps between windows
    ((1, 1, 10, 10), [4, 4], [1, 1], [2, 2], False),
]


def run(op: Any, tensors: list[torch.Tensor], make: Any) -> Any:
    """The decomposed call on tensors; every call in it a primitive."""
    g = Graph("pool")
    nodes = [g.input(f"x{i}", type_of(t)) for i, t in enumerate(tensors)]
    args = make(*nodes)
    rule = find_rule(op)
    assert rule is not None
    out = g.call(op, args, {}, rule(*[a.val if hasattr(a, "val") else a for a in args]))
    g.outputs = (out,) if isinstance(out.val, TensorType) else (g.getitem(out, 0), g.getitem(out, 1))
    low = decompose(g, Policy(max_pools=True))
    assert low.calls and all(isinstance(n.target, Prim) for n in low.calls)
    return interpret(low, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes, kernel, stride, padding, ceil", CASES)
def test_values_places_gradients(
    sizes: tuple[int, ...], kernel: list[int], stride: list[int], padding: list[int], ceil: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = torch.randint(-3, 4, sizes).to(dtype)  # many equal values
    x.flatten()[torch.randint(0, x.numel(), (3,))] = float("nan")
    settings = (kernel, stride, padding, [1, 1], ceil)
    want = FORWARD(x, *settings)
    for got, truth in zip(run(FORWARD, [x], lambda a: (a, *settings)), want):
        torch.testing.assert_close(got, truth, rtol=0, atol=0, equal_nan=True)
    grad = torch.randn(want[0].shape).to(dtype)
    (got,) = run(BACKWARD, [grad, x, want[1]], lambda g, a, i: (g, a, *settings, i))
    exact = BACKWARD(grad.double(), x.double(), *settings, want[1])
    unit = torch.finfo(dtype).eps * exact.abs().max()
    assert (got.double() - exact).abs().max() <= unit


def test_left_to_the_vendor() -> None:
    x = torch.randn(1, 1, 12, 12)
    for settings in (([5, 5], [1, 1], [0, 0], [1, 1], False), ([2, 2], [1, 1], [0, 0], [2, 2], False)):
        g = Graph("pool")
        a = g.input("x", type_of(x))
        out = g.call(FORWARD, (a, *settings), {}, tuple(type_of(t) for t in FORWARD(x, *settings)))
        g.outputs = (g.getitem(out, 0),)
        assert decompose(g, Policy(max_pools=True)).calls[0].target is FORWARD
        assert decompose(g).calls[0].target is FORWARD
