"""Costs of opaque calls, against torch's own counter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aten_trace import record
from torch.utils.flop_counter import FlopCounterMode

from braze.prims.cost import cost_of

CASES: dict[str, tuple[Any, list[torch.Tensor]]] = {
    "mm": (lambda a, b: a @ b, [torch.randn(3, 4), torch.randn(4, 5)]),
    "addmm": (torch.addmm, [torch.randn(5), torch.randn(3, 4), torch.randn(4, 5)]),
    "bmm": (torch.bmm, [torch.randn(2, 3, 4), torch.randn(2, 4, 5)]),
    "convolution": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1),
        [torch.randn(2, 6, 9, 9), torch.randn(4, 6, 3, 3)],
    ),
    "grouped": (lambda x, w: F.conv2d(x, w, groups=2), [torch.randn(2, 6, 9, 9), torch.randn(4, 3, 3, 3)]),
    "transposed": (F.conv_transpose2d, [torch.randn(2, 6, 9, 9), torch.randn(6, 4, 3, 3)]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backward", [False, True])
def test_flops(name: str, backward: bool) -> None:
    if backward and name == "grouped":
        pytest.skip("torch counts the weight's gradient of a grouped convolution as if it were not grouped")
    fn, inputs = CASES[name]

    def run(*tensors: torch.Tensor) -> Any:
        tensors = tuple(t.detach().requires_grad_(backward) for t in tensors)
        out = fn(*tensors)
        return torch.autograd.grad(out, tensors, out.detach()) if backward else out

    graph, _ = record(run, inputs)
    counter = FlopCounterMode(display=False)
    with counter:
        run(*inputs)
    kinds = ("mm", "bmm", "conv")
    assert (
        sum(cost_of(n).flops for n in graph.calls if any(k in str(n.target) for k in kinds))
        == counter.get_total_flops()
    )


def test_bytes() -> None:
    graph, _ = record(lambda a, b: a @ b, [torch.randn(3, 4), torch.randn(4, 5)])
    assert cost_of(graph.calls[0]).nbytes == 4 * (12 + 20 + 15)
