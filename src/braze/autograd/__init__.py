"""Ahead-of-time autograd: the forward and the backward of a captured graph, as functional ATen graphs.

Takes a captured graph (or any callable over flat tensors) and its inputs' types; gives :class:`AotGraphs`: a forward
graph, a backward graph and the ``ir.Signature`` that says how the runtime calls them.

``trace_joint`` runs the program on fake tensors under the real autograd engine, so every derivative is eager's own, and
records one functional joint graph: mutations become new values, random operators become functions of a seed.
``partition`` simplifies that graph and cuts it in two.  The running example::

    def joint(x, w, tangent0):  # x: f32[64, 256], w: f32[256, 256], tangent0: f32[]
        mm = torch.ops.aten.mm.default(x, w)  # f32[64, 256]
        relu = torch.ops.aten.relu.default(mm)  # f32[64, 256]
        softmax = torch.ops.aten._softmax.default(relu, -1, False)  # f32[64, 256]
        sum_1 = torch.ops.aten.sum.default(softmax)  # f32[]
        expand = torch.ops.aten.expand.default(tangent0, [64, 256])  # f32[64, 256]{0, 0}
        softmax_backward_data = torch.ops.aten._softmax_backward_data.default(expand, softmax, -1, torch.float32)
        threshold_backward = torch.ops.aten.threshold_backward.default(softmax_backward_data, relu, 0)
        t = torch.ops.aten.t.default(x)  # f32[256, 64]{1, 256}
        mm_1 = torch.ops.aten.mm.default(t, threshold_backward)  # f32[256, 256]
        return (sum_1, None, mm_1)

    forward(x, w) -> (sum_1, mm, softmax)
    backward(x, mm, softmax, tangent0) -> (None, mm_1)      # relu(mm) is computed again

Invariants (``verify_joint``, ``verify_aot``): nothing in a graph mutates; every value has eager's sizes, strides and
dtype; outputs share no memory that eager's do not share; the forward depends on no tangent.
"""

from .channels import channels_last
from .check import verify_aot, verify_joint
from .joint import Joint, trace_joint
from .partition import AotGraphs, budget_curve, curve_text, partition

__all__ = [
    "AotGraphs", "Joint", "budget_curve", "channels_last", "curve_text", "partition", "trace_joint", "verify_aot",
    "verify_joint",
]  # fmt: skip
