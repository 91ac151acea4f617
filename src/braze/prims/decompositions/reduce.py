"""Sums, means, extrema, variances and norms. 16-bit floats accumulate in float32 and round once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from braze.ir import IntLike, Node, known_le

from ..builder import Builder, count, normal_dims
from ..elementwise import ANY, FLOATS
from ..prim import PRIMS
from ..reduction import Dims
from ..registry import decomposes, register

BOOL = torch.bool


@decomposes("sum sum.dim_IntList")
def sum_(b: Builder, self: Node, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if b.out.dtype not in ANY:
        return NotImplemented
    return b.sum(b.convert(self, b.out.dtype), normal_dims(dim, self.val.rank), keepdim)


@decomposes("nansum")
def nansum(b: Builder, self: Node, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    x = b.where(b.isnan(self), 0.0, self) if self.val.dtype in FLOATS else self
    return sum_(b, x, dim, keepdim)


@decomposes("mean mean.dim")
def mean(b: Builder, self: Node, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    x = b.compute(b.convert(self, b.out.dtype))
    return b.mean(x, normal_dims(dim, self.val.rank), keepdim)


@decomposes("prod")
def prod(b: Builder, self: Node, *, dtype: Any = None) -> Node:
    return b.reduce("prod", b.convert(self, b.out.dtype), normal_dims(None, self.val.rank))


@decomposes("prod.dim_int")
def prod_dim(b: Builder, self: Node, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Node:
    return b.reduce("prod", b.convert(self, b.out.dtype), normal_dims(dim, self.val.rank), keepdim)


def _extremum(b: Builder, name: str, x: Node, dims: Dims, keepdim: bool = False) -> Node:
    """amax or amin, also of bool."""
    if x.val.dtype == BOOL:
        return b.reduce("any" if name == "amax" else "all", x, dims, keepdim)
    return b.reduce(name, x, dims, keepdim)


def _amax(name: str) -> Callable[..., Node]:
    def row(b: Builder, self: Node, dim: Any = (), keepdim: bool = False) -> Node:
        return _extremum(b, name, self, normal_dims(dim, self.val.rank), keepdim)

    return row


def _whole(name: str) -> Callable[..., Node]:
    return lambda b, self: _extremum(b, name, self, normal_dims(None, self.val.rank))


def position(b: Builder, name: str, x: Node, dims: Dims, keepdim: bool = False) -> Node:
    """argmax or argmin, also of bool."""
    return b.reduce(name, b.convert(x, torch.uint8) if x.val.dtype == BOOL else x, dims, keepdim)


def _with_position(kind: str) -> Callable[..., tuple[Node, Node]]:
    def row(b: Builder, self: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
        dims = normal_dims(dim, self.val.rank)
        return _extremum(b, f"a{kind}", self, dims, keepdim), position(b, f"arg{kind}", self, dims, keepdim)

    return row


def _argbest(name: str) -> Callable[..., Node]:
    def row(b: Builder, self: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        return position(b, name, self, normal_dims(dim, self.val.rank), keepdim)

    return row


for _kind in ("max", "min"):
    register(f"a{_kind}", _amax(f"a{_kind}"))
    register(_kind, _whole(f"a{_kind}"))
    register(f"{_kind}.dim", _with_position(_kind))
    register(f"arg{_kind}", _argbest(f"arg{_kind}"))


@decomposes("aminmax _aminmax _aminmax.dim")
def aminmax(b: Builder, self: Node, dim: int | None = None, keepdim: bool = False) -> tuple[Node, Node]:
    dims = normal_dims(dim, self.val.rank)
    return _extremum(b, "amin", self, dims, keepdim), _extremum(b, "amax", self, dims, keepdim)


def _quantifier(name: str) -> Callable[..., Node]:
    def row(b: Builder, self: Node, dim: Any = None, keepdim: bool = False) -> Node:
        dims = tuple(dim) if isinstance(dim, (list, tuple)) and not dim and b.out.rank == self.val.rank else None
        return b.reduce(name, b.truth(self), normal_dims(dim, self.val.rank) if dims is None else dims, keepdim)

    return row


for _name in ("any", "all"):
    register(f"{_name} {_name}.dim {_name}.dims", _quantifier(_name))


@decomposes("_is_all_true")
def is_all_true(b: Builder, self: Node) -> Node:
    return b.reduce("all", self, normal_dims(None, self.val.rank))


@decomposes("_is_any_true")
def is_any_true(b: Builder, self: Node) -> Node:
    return b.reduce("any", self, normal_dims(None, self.val.rank))


@decomposes("count_nonzero count_nonzero.dim_IntList")
def count_nonzero(b: Builder, self: Node, dim: Any = None) -> Node:
    return b.sum(b.convert(b.truth(self), torch.int64), normal_dims(dim, self.val.rank))


# -- variance --------------------------------------------------------------------------------------------------------


def moments(b: Builder, x: Node, dims: Dims, correction: Any = 0) -> tuple[Node, Node]:
    """Mean and variance (two passes) in x's dtype, the dims kept as 1. The divisor is max(0, n - correction)."""
    mean = b.mean(x, dims, keepdim=True)
    gap = b.sub(x, mean)
    squares = b.sum(b.mul(gap, gap), dims, keepdim=True)
    n: IntLike = count(x.val.sizes, dims)
    left: Any = n - correction
    if not isinstance(left, float) and not known_le(0, left) or isinstance(left, float) and left < 0:
        left = 0
    return mean, b.div(squares, left)


def shifted_moments(b: Builder, x: Node, dims: Dims) -> tuple[Node, Node]:
    """Mean and biased variance from one pass, the dims kept as 1: sums of x - k and of its square.

    k, the median of three samples, is within the spread of the data unless two of them are outliers; then nothing
    cancels. With k far away by t standard deviations the variance loses a factor of 1 + t * t in relative accuracy.
    """
    sizes = x.val.sizes

    def sample(position: Callable[[IntLike], IntLike]) -> Node:
        y = x
        for d in dims:
            i = position(sizes[d])
            y = b.slice(y, d, i, i + 1)
        return y

    first, middle, last = sample(lambda n: 0), sample(lambda n: n // 2), sample(lambda n: n - 1)
    k = b.maximum(b.minimum(first, middle), b.minimum(b.maximum(first, middle), last))
    gap = b.sub(x, k)
    mean = b.mean(gap, dims, keepdim=True)
    square = b.mean(b.mul(gap, gap), dims, keepdim=True)
    return b.add(k, mean), b.maximum(b.sub(square, b.mul(mean, mean)), 0.0)


def _variance(b: Builder, x: Node, dim: Any, correction: Any, keepdim: bool, root: bool) -> tuple[Node, Node]:
    dims = normal_dims(dim, x.val.rank)
    want = b.out[0] if isinstance(b.out, (tuple, list)) else b.out
    mean, var = moments(b, b.compute(x), dims, 1 if correction is None else correction)
    if root:
        var = b.sqrt(var)
    return b.reshape(var, want.sizes), b.reshape(mean, want.sizes)


@decomposes("var.correction")
def var(b: Builder, self: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Node:
    return _variance(b, self, dim, correction, keepdim, False)[0]


@decomposes("std.correction")
def std(b: Builder, self: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Node:
    return _variance(b, self, dim, correction, keepdim, True)[0]


@decomposes("var_mean.correction")
def var_mean(b: Builder, self: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _variance(b, self, dim, correction, keepdim, False)


@decomposes("std_mean.correction")
def std_mean(b: Builder, self: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _variance(b, self, dim, correction, keepdim, True)


# -- norms -----------------------------------------------------------------------------------------------------------


def norm_of(b: Builder, x: Node, p: Any, dims: Dims, keepdim: bool) -> Node:
    """The p-norm over dims (p may be infinite; 0 counts the non-zeros). x is float."""
    if p == 2:
        return b.sqrt(b.sum(b.mul(x, x), dims, keepdim))
    size = b.abs(x)
    if p == 1:
        return b.sum(size, dims, keepdim)
    if p in (math.inf, -math.inf):
        return b.reduce("amax" if p > 0 else "amin", size, dims, keepdim)
    if p == 0:
        return b.sum(b.convert(b.ne(x, 0.0), x.val.dtype), dims, keepdim)
    return b.pow(b.sum(b.pow(size, float(p)), dims, keepdim), 1.0 / p)


@decomposes("linalg_vector_norm")
def linalg_vector_norm(
    b: Builder, self: Node, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    x = b.compute(b.convert(self, dtype or self.val.dtype))
    dims = normal_dims(dim, self.val.rank)
    if any(not known_le(1, self.val.sizes[d]) for d in dims):
        return NotImplemented
    out = norm_of(b, x, ord, dims, keepdim)
    return b.reshape(out, b.out.sizes)


@decomposes("norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype")
def norm(b: Builder, self: Node, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if self.val.dtype not in FLOATS or isinstance(dim, torch.dtype):
        return NotImplemented
    return linalg_vector_norm(b, self, 2 if p is None else p, dim, keepdim, dtype=dtype)


# -- prefix sums -----------------------------------------------------------------------------------------------------


def _scan(name: str) -> Callable[..., Node]:
    def row(b: Builder, self: Node, dim: int, *, dtype: Any = None) -> Node:
        x = b.convert(self, b.out.dtype)
        return b.call(PRIMS[name], x, dim % self.val.rank) if self.val.rank else x

    return row


register("cumsum", _scan("cumsum"))
register("cumprod", _scan("cumprod"))


@decomposes("trace")
def trace(b: Builder, self: Node) -> Node:
    same = b.eq(b.iota_along(self.val, 0), b.iota_along(self.val, 1))
    return b.sum(b.where(same, b.convert(self, b.out.dtype), 0), (0, 1))
