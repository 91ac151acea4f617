"""The symbolic bytecode interpreter: a frame that has not started becomes a graph, guards and replacement code.

In: a code object, its function, and the values of its arguments. Out: :class:`Captured`, or :class:`Skip` with the
reason. ``f(x, w)`` of the running example gives ::

    def forward(x, w):  # x: f32[64, 256], w: f32[256, 256]
        matmul = operator.matmul(x, w)  # f32[64, 256]
        relu = torch.relu(matmul)  # f32[64, 256]
        softmax = torch.softmax(relu, -1)  # f32[64, 256]
        sum = torch.Tensor.sum(softmax)  # f32[]
        return (sum,)

with guards on the two tensors, and the code ``return compiled(*inputs)[0]``.

Invariants: tracing changes nothing that exists; the graph and the replayed side effects do together what the frame
does, while the guards hold; modes (grad mode, autocast) that the frame switches are calls of the graph, which leaves
them as it found them. Targets of the graph's calls are torch functions, methods of ``torch.Tensor``, functions of
``operator``, ``getattr`` (for ``x.T``), and the mode setters of torch.
"""

from .entry import capture_frame
from .output import Captured, CompileGraph, Skip
from .resume import is_continuation, origin

__all__ = ["Captured", "CompileGraph", "Skip", "capture_frame", "is_continuation", "origin"]
