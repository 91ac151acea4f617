"""Matrix products: contiguous results."""

from __future__ import annotations

from typing import Any

import torch

from ...ir import IntLike, TensorType
from ..layout import broadcast
from ..questions import agree
from ..registry import rule
from ..result import fresh
from .pointwise import pointwise


def _inner(a: IntLike, b: IntLike, x: TensorType, y: TensorType) -> None:
    agree(a, b, f"mat1 and mat2 shapes cannot be multiplied ({x} and {y})")


def _dtypes(x: TensorType, y: TensorType) -> None:
    if x.dtype is not y.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {x.dtype} != {y.dtype}")


@rule("mm")
def mm(a: TensorType, b: TensorType, out_dtype: Any = None) -> TensorType:
    if a.rank != 2 or b.rank != 2:
        raise RuntimeError("mm: both arguments must be matrices")
    _inner(a.sizes[1], b.sizes[0], a, b)
    _dtypes(a, b)
    return fresh(a, (a.sizes[0], b.sizes[1]), out_dtype)


@rule("addmm _addmm_activation")
def addmm(c: TensorType, a: TensorType, b: TensorType, *rest: Any, **kwargs: Any) -> TensorType:
    return _added(c, mm(a, b))


def _added(c: TensorType, out: TensorType) -> TensorType:
    """What is added must broadcast to the result."""
    if broadcast((c.sizes, out.sizes)) != out.sizes:
        raise RuntimeError(f"the expanded size of the tensor {c} must match {out}")
    return out


@rule("bmm")
def bmm(a: TensorType, b: TensorType, out_dtype: Any = None) -> TensorType:
    if a.rank != 3 or b.rank != 3:
        raise RuntimeError("batch1 and batch2 must be 3D tensors")
    _inner(a.sizes[2], b.sizes[1], a, b)
    _inner(a.sizes[0], b.sizes[0], a, b)
    _dtypes(a, b)
    return fresh(a, (a.sizes[0], a.sizes[1], b.sizes[2]), out_dtype)


@rule("baddbmm")
def baddbmm(c: TensorType, a: TensorType, b: TensorType, *rest: Any, **kwargs: Any) -> TensorType:
    return _added(c, bmm(a, b))


@rule("addbmm")
def addbmm(c: TensorType, a: TensorType, b: TensorType, **kwargs: Any) -> TensorType:
    return fresh(a, (a.sizes[1], b.sizes[2]))


@rule("mv")
def mv(a: TensorType, v: TensorType) -> TensorType:
    _inner(a.sizes[1], v.sizes[0], a, v)
    return fresh(a, (a.sizes[0],))


@rule("addmv")
def addmv(c: TensorType, a: TensorType, v: TensorType, **kwargs: Any) -> TensorType:
    return mv(a, v)


@rule("dot vdot")
def dot(a: TensorType, b: TensorType) -> TensorType:
    _inner(a.sizes[0], b.sizes[0], a, b)
    return fresh(a, ())


@rule("addr")
def addr(c: TensorType, a: TensorType, b: TensorType, **kwargs: Any) -> TensorType:
    rows = TensorType((a.sizes[0], 1), (a.strides[0], 0), a.dtype, a.device)
    return pointwise("same", (c, rows, b))


@rule("_int_mm")
def int_mm(a: TensorType, b: TensorType) -> TensorType:
    return fresh(a, (a.sizes[0], b.sizes[1]), torch.int32)


@rule("_scaled_mm")
def scaled_mm(
    a: TensorType, b: TensorType, sa: Any, sb: Any, bias: Any = None, scale: Any = None, out_dtype: Any = None, *r: Any
) -> TensorType:
    return fresh(a, (a.sizes[0], b.sizes[1]), out_dtype)


@rule("linear")
def linear(x: TensorType, w: TensorType, b: TensorType | None = None) -> TensorType:
    _inner(x.sizes[-1], w.sizes[-1], x, w)
    out = fresh(x, (*x.sizes[:-1], w.sizes[0]) if w.rank == 2 else x.sizes[:-1])
    return out if b is None else _added(b, out)


@rule("linear_backward")
def linear_backward(x: TensorType, g: TensorType, w: TensorType, mask: Any) -> Any:
    out = (fresh(x), fresh(w), fresh(w, (w.sizes[0],)))
    return tuple(t if keep else None for t, keep in zip(out, mask))
