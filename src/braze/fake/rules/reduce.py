"""Reductions, scans, sorting and softmax: results are contiguous; the dtype follows a rule by kind."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...ir import IntLike, TensorType
from ..promote import to_float, to_real
from ..questions import fits
from ..registry import register, rule
from ..result import dim_of, dims_of, fresh
from .pointwise import pointwise

_I64 = torch.int64


def _sum_dtype(d: torch.dtype) -> torch.dtype:
    return d if d.is_floating_point or d.is_complex else _I64


DTYPES = {
    "sum": _sum_dtype,
    "float": to_float,
    "same": lambda d: d,
    "bool": lambda d: torch.uint8 if d is torch.uint8 else torch.bool,
    "index": lambda d: _I64,
    "real": to_real,
}


def reduced(x: TensorType, dims: Any, keepdim: bool) -> tuple[IntLike, ...]:
    """Sizes after a reduction over ``dims`` (None or empty: all)."""
    gone = frozenset(dims_of(dims, x.rank))
    if keepdim:
        return tuple(1 if i in gone else n for i, n in enumerate(x.sizes))
    return tuple(n for i, n in enumerate(x.sizes) if i not in gone)


# (dtype kind, the results' kinds after the first, names): op(x, dims=None, keepdim=False, *, dtype=None)
DIMS = (
    ("sum", "sum nansum prod"),
    ("float", "mean nanmean"),
    ("same", "amax amin"),
    ("float", "logsumexp"),
    ("bool", "any all"),
    ("index", "argmax argmin"),
    ("index", "count_nonzero"),
)


def _reduce(kind: str, x: TensorType, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorType:
    return fresh(x, reduced(x, dims, keepdim), dtype or DTYPES[kind](x.dtype))


for _kind, _names in DIMS:
    register(partial(_reduce, _kind), _names.split())


@rule("sum.default mean.default prod.default")
def full_reduction(x: TensorType, *, dtype: Any = None) -> TensorType:
    return fresh(x, (), dtype or _sum_dtype(x.dtype))


@rule("max.default min.default median.default nanmedian.default max.unary_out min.unary_out")
def full_same(x: TensorType) -> TensorType:
    return fresh(x, ())


@rule("max.dim min.dim median.dim nanmedian.dim mode max.dim_max min.dim_min median.dim_values nanmedian.dim_values")
def with_index(x: TensorType, dim: int = -1, keepdim: bool = False) -> tuple[TensorType, TensorType]:
    n = reduced(x, dim, keepdim)
    return fresh(x, n), fresh(x, n, _I64)


@rule("max.other min.other max.out min.out")
def two_tensors(a: TensorType, b: TensorType) -> TensorType:
    return pointwise("same", (a, b))


@rule("aminmax")
def aminmax(x: TensorType, *, dim: int | None = None, keepdim: bool = False) -> tuple[TensorType, TensorType]:
    n = reduced(x, dim, keepdim) if dim is not None or not keepdim else (1,) * x.rank
    return fresh(x, n), fresh(x, n)


@rule("var.correction std.correction var.dim std.dim var.out std.out")
def var(x: TensorType, dim: Any = None, *args: Any, correction: Any = None, keepdim: bool = False) -> TensorType:
    return fresh(x, reduced(x, dim, args[1] if len(args) > 1 else keepdim), to_real(x.dtype))


@rule("var.default std.default")
def var_all(x: TensorType, unbiased: bool = True) -> TensorType:
    return fresh(x, (), to_real(x.dtype))


@rule("var_mean.correction std_mean.correction")
def var_mean(
    x: TensorType, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[TensorType, TensorType]:
    n = reduced(x, dim, keepdim)
    return fresh(x, n, to_real(x.dtype)), fresh(x, n)


@rule("linalg_vector_norm")
def vector_norm(
    x: TensorType, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorType:
    return fresh(x, reduced(x, dim, keepdim), to_real(dtype or x.dtype))


@rule("norm.Scalar")
def norm_all(x: TensorType, p: Any = 2) -> TensorType:
    return fresh(x, (), to_real(x.dtype))


@rule("norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype")
def norm_dim(x: TensorType, p: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorType:
    return fresh(x, reduced(x, dim, keepdim), to_real(dtype or x.dtype))


@rule("cumsum cumprod")
def cumulative(x: TensorType, dim: int, *, dtype: Any = None) -> TensorType:
    dim_of(dim, x.rank)
    return fresh(x, None, dtype or _sum_dtype(x.dtype))


@rule("logcumsumexp")
def logcumsumexp(x: TensorType, dim: int) -> TensorType:
    return fresh(x, None)


@rule("cummax cummin")
def cummax(x: TensorType, dim: int) -> tuple[TensorType, TensorType]:
    return fresh(x), fresh(x, None, _I64)


@rule("_softmax _log_softmax _safe_softmax")
def softmax(x: TensorType, dim: int, half_to_float: Any = False) -> TensorType:
    dim_of(dim, x.rank)
    return fresh(x, None, torch.float32 if half_to_float is True else x.dtype)


@rule("softmax.int log_softmax.int")
def softmax_to(x: TensorType, dim: int, dtype: Any = None) -> TensorType:
    return fresh(x, None, dtype)


@rule("_softmax_backward_data _log_softmax_backward_data")
def softmax_backward(g: TensorType, out: TensorType, dim: int, input_dtype: torch.dtype) -> TensorType:
    return fresh(g, None, input_dtype)


@rule("_is_all_true _is_any_true")
def truth(x: TensorType) -> TensorType:
    return fresh(x, ())


@rule("renorm")
def renorm(x: TensorType, *rest: Any) -> TensorType:
    return fresh(x)


@rule("histc")
def histc(x: TensorType, bins: int = 100, *rest: Any) -> TensorType:
    return fresh(x, (bins,))


@rule("hash_tensor")
def hash_tensor(x: TensorType, dims: Any = (), *, keepdim: bool = False, mode: int = 0) -> TensorType:
    return fresh(x, reduced(x, dims, keepdim), torch.uint64)


@rule("segment_reduce")
def segment_reduce(
    x: TensorType, how: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, axis: int = 0, **kw: Any
) -> TensorType:
    count = lengths.sizes[axis] if lengths is not None else offsets.sizes[axis] - 1
    return fresh(x, (*x.sizes[:axis], count, *x.sizes[axis + 1 :]))


@rule("_segment_reduce_backward")
def segment_reduce_backward(g: TensorType, out: TensorType, x: TensorType, *rest: Any, **kw: Any) -> TensorType:
    return fresh(x)


@rule("topk")
def topk(x: TensorType, k: IntLike, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    d = dim_of(dim, x.rank)
    fits(k, x.sizes[d] if x.rank else 1, "selected index k out of range")
    n = (*x.sizes[:d], k, *x.sizes[d + 1 :]) if x.rank else ()
    return fresh(x, n), fresh(x, n, _I64)


@rule("kthvalue")
def kthvalue(x: TensorType, k: IntLike, dim: int = -1, keepdim: bool = False) -> Any:
    n, d = reduced(x, dim, keepdim), dim_of(dim, x.rank)
    fits(k, x.sizes[d] if x.rank else 1, f"kthvalue(): selected number k out of range for dimension {d}")
    return fresh(x, n), fresh(x, n, _I64)
