"""Writes through strides, as a function: what a view that no other operator describes is written by."""

from __future__ import annotations

from typing import Any

import torch

from ..ir import IntLike, TensorType, contiguous_strides


class StridedScatter:
    """``strided_scatter(x, source, layout, sizes, strides, start)``: a copy of ``x`` with the strides ``layout``, in
    which the elements that ``sizes`` and ``strides`` show from element ``start`` of its memory on are ``source``'s.

    Unlike ``aten.as_strided_scatter`` it counts from the tensor's own first element, since an input's place in its
    storage differs from call to call, and takes tensors that require grad.
    """

    __name__ = "strided_scatter"
    qualified_name = "prims.strided.strided_scatter"

    def __call__(
        self, x: torch.Tensor, source: torch.Tensor, layout: Any, sizes: list[int], strides: list[int], start: int
    ) -> torch.Tensor:
        out = torch.empty_strided(x.shape, layout, dtype=x.dtype, device=x.device)
        if x.numel():
            out.copy_(x.detach())
            out.as_strided(sizes, strides, start).copy_(source.detach())
        return out

    def __repr__(self) -> str:
        return self.__name__

    @staticmethod
    def shape(x: TensorType, source: Any, layout: Any, sizes: Any, strides: Any, start: IntLike) -> TensorType:
        return TensorType(x.sizes, x.strides, x.dtype, x.device)


strided_scatter = StridedScatter()


class StridedRead:
    """``strided_read(x, sizes, strides, start)``: a contiguous copy of what ``sizes`` and ``strides`` show from element
    ``start`` of ``x`` on. Of a graph's input also what it does not itself show of its storage."""

    __name__ = "strided_read"
    qualified_name = "prims.strided.strided_read"

    def __call__(self, x: torch.Tensor, sizes: list[int], strides: list[int], start: int) -> torch.Tensor:
        seen = x.detach().as_strided(sizes, strides, x.storage_offset() + start)
        return seen.clone(memory_format=torch.contiguous_format)

    def __repr__(self) -> str:
        return self.__name__

    @staticmethod
    def shape(x: TensorType, sizes: Any, strides: Any, start: IntLike) -> TensorType:
        return TensorType(tuple(sizes), contiguous_strides(tuple(sizes)), x.dtype, x.device)


strided_read = StridedRead()
STRIDED: dict[str, Any] = {x.__name__: x for x in (strided_scatter, strided_read)}


def strided_view(x: torch.Tensor, sizes: Any, strides: Any, start: int) -> torch.Tensor:
    """``as_strided`` from the tensor's own first element on."""
    return x.as_strided(sizes, strides, x.storage_offset() + start)
