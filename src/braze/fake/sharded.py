"""DTensors in a trace: torch's own, over tracing tensors. Their dispatch does the work on the local parts."""

from __future__ import annotations

from typing import Any

from ..config import TENSOR_PARALLEL
from ..errors import Unsupported

_CLASSES = {"DTensor": "torch.distributed.tensor", "AsyncCollectiveTensor": "torch.distributed._functional_collectives"}


# DTensors are captured where ``BRAZE_TENSOR_PARALLEL=1``; else what they compute runs in eager. Not yet the default: a
# process that had compiled much else before crashed in such a graph.
ENABLED = TENSOR_PARALLEL

_known: dict[type, bool] = {}


def wraps_local(cls: type) -> bool:
    """Whether tensors of this class compute by calls on the tensors that they hold (a DTensor, a pending result)."""
    known = _known.get(cls)
    if known is None:
        known = _known[cls] = _CLASSES.get(cls.__name__) == cls.__module__.removesuffix("._api")
    return known


def is_sharded(x: Any) -> bool:
    """Whether ``x`` is a DTensor."""
    return type(x).__name__ == "DTensor" and wraps_local(type(x))


def left_to(types: Any, op: Any) -> bool:
    """Whether an operator is for a class among ``types`` to answer. Unsupported for random numbers in a DTensor, whose
    offsets it keeps in the device's generator."""
    for t in types:
        if wraps_local(t):
            dispatcher = getattr(t, "_op_dispatcher", None)
            if dispatcher is not None and op in dispatcher._random_ops:
                raise Unsupported(f"{op} on a DTensor", hint="draw on the local tensors, x.to_local()")
            return True
    return False
