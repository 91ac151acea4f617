"""Fusion, order and memory: which kernels become one, when they run, and where their buffers live.

Takes a :class:`Program` with one kernel a primitive (``loops.lower``), gives a program that computes the same with few
kernels: ``fuse(program, traits)``, then ``plan(program)``.

Each virtual buffer has a definition; a fused kernel evaluates definitions on demand, so every grouping is right and the
passes only choose: ``vertical`` and ``siblings`` group ops into clusters over one iteration domain, ``placement``
decides what is stored and what is recomputed, ``emit`` writes the bodies, ``schedule`` orders the steps, ``plan`` lets
buffers take over the memory of dead ones.  ``legality`` says why two clusters may not merge (:class:`Reason`).

The running example at this stage: one vendor call and one kernel, plus the final sum::

    mm = aten.mm(x, w)
    for i0 in range(64):
        for i1 in range(256):
            v0 = mm[i0, i1]
            v1 = max(v0, 0)
            v2 = reduce_max(v1)
        for i1 in range(256):
            v3 = exp(v1 - v2)
            v4 = reduce_sum(v3)
        ...
"""

from .apart import apart
from .contract import Product, contract
from .fuse import fuse
from .plan import plan
from .traits import CPU, CUDA, DeviceTraits, Reason, traits_of

__all__ = ["CPU", "CUDA", "DeviceTraits", "Product", "Reason", "apart", "contract", "fuse", "plan", "traits_of"]
