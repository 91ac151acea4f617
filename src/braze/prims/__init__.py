"""The primitive set and the lowering of ATen graphs to it.

Takes a functional ATen graph (``autograd``'s forward or backward), gives a graph of the same inputs and outputs whose
calls are :class:`Prim` rows and ATen ops that stay opaque.  Every primitive is an attribute: ``prims.add``, and is
callable on real tensors, so ``ir.interpret`` runs the result.  The running example after this stage::

    def forward(x, w):  # x: f32[64, 256], w: f32[256, 256]
        mm = torch.ops.aten.mm.default(x, w)  # f32[64, 256]
        maximum = prims.maximum(mm, 0)  # f32[64, 256]
        amax = prims.amax(maximum, (1,))  # f32[64]
        reshape = prims.reshape(amax, (64, 1))  # f32[64, 1]
        expand = prims.expand(reshape, (64, 256))  # f32[64, 256]{1, 0}
        sub = prims.sub(maximum, expand)  # f32[64, 256]
        exp = prims.exp(sub)  # f32[64, 256]
        sum = prims.sum(exp, (1,))  # f32[64]
        reshape_1 = prims.reshape(sum, (64, 1))  # f32[64, 1]
        expand_1 = prims.expand(reshape_1, (64, 256))  # f32[64, 256]{1, 0}
        div = prims.div(exp, expand_1)  # f32[64, 256]
        sum_1 = prims.sum(div, (0, 1))  # f32[]
        return (sum_1,)

Invariants: operands of elementwise primitives agree in sizes and dtype; only ``braze.ir`` values and primitives occur
besides opaque calls, which see every tensor in the layout that the ATen graph promised; nothing mutates.
"""

from . import creation, elementwise, indexing, reduction, rng, scan, view  # noqa: F401  (each fills the table)
from .builder import Policy
from .decompose import decompose
from .prim import FAMILIES, PRIMS, Prim

__all__ = ["FAMILIES", "PRIMS", "Policy", "Prim", "decompose"]


def __getattr__(name: str) -> Prim:
    try:
        return PRIMS[name]
    except KeyError:
        raise AttributeError(f"there is no primitive {name!r}") from None
