"""Products that leave a graph wider than their operands."""

from __future__ import annotations

import cuda_typed
import torch
import torch.nn.functional as F

from braze.autograd import partition, trace_joint, verify_aot
from braze.ir import tensor_type

aten = torch.ops.aten


def test_weight_gradients_leave_their_products_in_float32() -> None:
    cuda = torch.device("cuda", 0)
    cuda_typed.enable()

    def loss(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.linear(F.linear(x, w).relu(), v).float().square().sum()

    sizes = [(6, 4), (5, 4), (3, 5)]
    types = [tensor_type(n, torch.float32, cuda).with_(requires_grad=i > 0) for i, n in enumerate(sizes)]
    aot = partition(trace_joint(loss, types))
    verify_aot(aot)
    assert aot.backward is not None
    gradients = [g for g in aot.backward.outputs if g is not None]
    assert [g.target for g in gradients] == [aten.mm.dtype] * 2
    assert all(n.target is not aten.mm.dtype for n in aot.forward.nodes)  # arithmetic reads these
