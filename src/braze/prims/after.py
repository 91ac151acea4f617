"""``after(x, late)``: a copy of ``x`` that is made once ``late`` exists.

What is computed from it comes after ``late``, and no pass takes it for what was computed from ``x``: an activation
checkpoint in a graph that holds forward and backward is computed again late, on copies of what the region takes.
"""

from __future__ import annotations

import torch

from ..ir import TensorType


class After:
    """The copy has the layout of ``x``, which must have neither gaps nor shared memory."""

    __name__ = "after"
    qualified_name = "prims.after.after"

    def __call__(self, x: torch.Tensor, late: torch.Tensor) -> torch.Tensor:
        return x.detach().clone()

    def __repr__(self) -> str:
        return self.__name__

    @staticmethod
    def shape(x: TensorType, late: TensorType) -> TensorType:
        return TensorType(x.sizes, x.strides, x.dtype, x.device)


after = After()
