"""From a Python frame to a graph of torch calls, guards, and replacement bytecode.

Takes a frame that is about to run (from the frame hook) and gives a :class:`Captured`: the graph, how to read each of
its inputs again (:class:`~braze.capture.source.Source`), guard data, and the code that replaces the frame's own while
the guards hold. The running example::

    def f(x, w):                       # x: f32[64, 256], w: f32[256, 256]
        h = torch.relu(x @ w)
        return torch.softmax(h, -1).sum()

    capture_frame(f.__code__, f, (x, w), compile_graph=...).graph:

    def forward(x, w):
        matmul = operator.matmul(x, w)
        relu = torch.relu(matmul)
        softmax = torch.softmax(relu, -1)
        sum = torch.Tensor.sum(softmax)
        return (sum,)

    guards: global state; x: float32[64, 256] cpu; w: float32[256, 256] cpu

Invariants: capturing changes nothing of the user's; while the guards hold, replacement code does what the frame does,
side effects and exceptions included; what cannot be captured runs in Python.

- ``source``, ``guards``, ``program``: where values come from, what must hold, and the native program that checks it.
- ``bytecode``, ``assemble``, ``emit``: code objects of CPython 3.11 to 3.13 as data, and back.
- ``vm``: the symbolic interpreter.
"""

from .vm import Captured, CompileGraph, Skip, capture_frame

__all__ = ["Captured", "CompileGraph", "Skip", "capture_frame"]
