"""The ``nvfuser`` backend: parts of the primitive graph run as nvFuser fusions, the rest goes the inductor way.

* ``rules``: which primitives nvFuser takes and how each is written; legality apart from profit.
* ``regions``: the parts of a graph that become one fusion each, and the graph with a call in each one's place.
* ``translate``: a region as the text of a ``FusionDefinition``: what is executed, the cache's key, and the reproducer.
* ``backend``: compile, cache, run; why nvFuser may not be available.

The running example's row kernel (the softmax between its matrix product and sum) is one region::

    def fusion(fd):
        mm = fd.define_tensor(sizes=[64, 256], strides=[256, 1], dtype=DataType.Float, is_cpu=False)
        amax = fd.ops.max(mm, dims=[1])
        amax_1 = fd.ops.broadcast_in_dim(amax, shape=[64, 256], broadcast_dims=[0])
        sub = fd.ops.sub(mm, amax_1)
        ...
"""

from .backend import Fusion, why_not
from .regions import Region, find_regions, split
from .rules import refusal
from .translate import definition

__all__ = ["Fusion", "Region", "definition", "find_regions", "refusal", "split", "why_not"]
