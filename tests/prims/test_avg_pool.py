"""Means over windows that overlap, hang over or reach into the padding, and their gradients, as primitives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from braze.fake import find_rule
from braze.ir import Graph, interpret, type_of
from braze.prims.builder import Policy
from braze.prims.decompose import decompose
from braze.prims.prim import Prim

FORWARD, BACKWARD = torch.ops.aten.avg_pool2d.default, torch.ops.aten.avg_pool2d_backward.default
CASES: list[tuple[tuple[int, ...], list[int], list[int], list[int], bool]] = [
    ((2, 3, 9, 11), [3, 3], [1, 1], [1, 1], False),
    ((2, 3, 9, 11), [3, 3], [2, 2], [1, 1], False),
    ((2, 3, 9, 11), [3, 2], [2, 1], [1, 0], False),
    ((1, 2, 7, 7), [3, 3], [2, 2], [0, 0], True),  # the last window hangs over
    ((1, 2, 8, 9), [3, 3], [2, 2], [1, 1], True),
    ((1, 2, 8, 8), [2, 2], [3, 3], [1, 1], True),  # gaps between windows
    ((3, 6, 6), [4, 4], [1, 1], [2, 2], False),
    ((1, 1, 10, 5), [2, 3], [1, 1], [0, 0], False),
    ((1, 1, 5, 6), [4], [1], [1], False),
]


def run(op: Any, tensors: list[torch.Tensor], make: Any, primitive: bool) -> Any:
    """The decomposed call on tensors; ``primitive``: every call in it a primitive."""
    g = Graph("pool")
    nodes = [g.input(f"x{i}", type_of(t)) for i, t in enumerate(tensors)]
    args = make(*nodes)
    rule = find_rule(op)
    assert rule is not None
    g.outputs = (g.call(op, args, {}, rule(*[a.val if hasattr(a, "val") else a for a in args])),)
    low = decompose(g, Policy(max_pools=True))
    assert not primitive or (low.calls and all(isinstance(n.target, Prim) for n in low.calls))
    return interpret(low, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("include_pad, divisor", [(True, None), (False, None), (True, 5)])
@pytest.mark.parametrize("sizes, kernel, stride, padding, ceil", CASES)
def test_values_and_gradients(
    sizes: tuple[int, ...],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil: bool,
    include_pad: bool,
    divisor: int | None,
    dtype: torch.dtype,
) -> None:
    x = torch.randn(sizes).to(dtype)
    settings = (kernel, stride, padding, ceil, include_pad, divisor)
    want = FORWARD(x.double(), *settings)
    (got,) = run(FORWARD, [x], lambda a: (a, *settings), True)
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), want, rtol=unit, atol=8e-7)
    grad = torch.randn(want.shape).to(dtype)
    (got,) = run(BACKWARD, [grad, x], lambda g, a: (g, a, *settings), stride in ([1], [1, 1]))
    exact = BACKWARD(grad.double(), x.double(), *settings)
    torch.testing.assert_close(got.double(), exact, rtol=unit, atol=8 * unit)


def test_large_windows_are_left_to_the_vendor() -> None:
    x = torch.randn(1, 1, 12, 12)
    g = Graph("pool")
    a = g.input("x", type_of(x))
    g.outputs = (g.call(FORWARD, (a, [5, 5], [1, 1]), {}, type_of(FORWARD(x, [5, 5], [1, 1]))),)
    assert decompose(g, Policy(max_pools=True)).calls[0].target is FORWARD
