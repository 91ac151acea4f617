"""Creation: factories, ``*_like``, ``new_*``, copies and casts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...ir import Expr, IntLike, TensorType, known_eq
from ..layout import contiguous, dense_by, in_format
from ..promote import number_dtype, result_type
from ..registry import rule
from ..result import copy_of, dim_of, fresh, real_device
from .view import transpose


def made(
    sizes: Sequence[IntLike], dtype: Any = None, device: Any = None, strides: Any = None, fmt: Any = None
) -> TensorType:
    """A new tensor; dtype defaults to the default dtype, device to the CPU."""
    n = tuple(sizes)
    if strides is None:
        strides = in_format(n, contiguous(n), fmt)
    return TensorType(n, tuple(strides), dtype or torch.get_default_dtype(), real_device(device))


@rule("zeros ones rand randn empty.memory_format")
def factory(
    sizes: Sequence[IntLike], *, dtype: Any = None, device: Any = None, memory_format: Any = None, **kw: Any
) -> TensorType:
    return made(sizes, dtype, device, None, memory_format)


@rule("empty_strided")
def empty_strided(
    sizes: Sequence[IntLike], strides: Sequence[IntLike], *, dtype: Any = None, device: Any = None, **kw: Any
) -> TensorType:
    return made(sizes, dtype, device, strides)


@rule("empty_permuted")
def empty_permuted(
    sizes: Sequence[IntLike], layout: Sequence[int], *, dtype: Any = None, device: Any = None, **kw: Any
) -> TensorType:
    return made(sizes, dtype, device, dense_by(tuple(sizes), tuple(reversed(layout))))


@rule("full")
def full(sizes: Sequence[IntLike], value: Any, *, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    return made(sizes, dtype or number_dtype(type(value)), device)


@rule("scalar_tensor")
def scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    return made((), dtype, device)


@rule("randint.default randint.generator")
def randint(high: IntLike, sizes: Any, *, dtype: Any = torch.int64, device: Any = None, **kw: Any) -> TensorType:
    return made(sizes, dtype or torch.int64, device)


@rule("randint.low randint.low_generator")
def randint_low(low: Any, high: Any, sizes: Any, *, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    return made(sizes, dtype or torch.int64, device)


@rule("randperm")
def randperm(n: IntLike, *, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    return made((n,), dtype or torch.int64, device)


@rule("normal.float_float")
def normal(mean: Any, std: Any, sizes: Any, *, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    return made(sizes, dtype, device)


@rule("eye.default")
def eye(n: IntLike, *, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    return made((n, n), dtype, device)


@rule("eye.m")
def eye_m(n: IntLike, m: IntLike, *, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    return made((n, m), dtype, device)


@rule("arange.default")
def arange(end: Any, **kw: Any) -> TensorType:
    return arange_step(0, end, 1, **kw)


@rule("arange.start")
def arange_start(start: Any, end: Any, step: Any = 1, **kw: Any) -> TensorType:
    return arange_step(start, end, step, **kw)


@rule("arange.start_step")
def arange_step(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    whole = all(isinstance(v, (int, Expr)) for v in (start, end, step))
    if dtype is None:
        dtype = torch.int64 if whole else torch.get_default_dtype()
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if not whole:
        return made((math.ceil((end - start) / step),), dtype, device)
    n = (end - start + step - 1) // step if step > 0 else (start - end - step - 1) // -step
    if isinstance(n, int) and n < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    return made((n,), dtype, device)


@rule("bartlett_window blackman_window hamming_window hann_window kaiser_window")
def window(n: IntLike, *rest: Any, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    return made((n,), dtype, device)


@rule("fft_fftfreq")
def fftfreq(n: IntLike, d: float = 1.0, *, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    return made((n,), dtype, device)


@rule("fft_rfftfreq")
def rfftfreq(n: IntLike, d: float = 1.0, *, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    return made((n // 2 + 1,), dtype, device)


@rule("affine_grid_generator")
def affine_grid(theta: TensorType, size: Sequence[IntLike], align: bool) -> TensorType:
    return fresh(theta, (size[0], *size[2:], len(size) - 2))


@rule("linspace logspace")
def linspace(start: Any, end: Any, steps: IntLike, *rest: Any, dtype: Any = None, device: Any = None, **kw: Any) -> Any:
    return made((steps,), dtype, device)


@rule("tril_indices")
def tril_indices(
    rows: int, cols: int, offset: int = 0, *, dtype: Any = None, device: Any = None, **kw: Any
) -> TensorType:
    n = sum(min(max(i + offset + 1, 0), cols) for i in range(rows))
    return made((2, n), dtype or torch.int64, device)


@rule("triu_indices")
def triu_indices(rows: int, cols: int, offset: int = 0, **kw: Any) -> TensorType:
    n = sum(cols - min(max(i + offset, 0), cols) for i in range(rows))
    return made((2, n), kw.get("dtype") or torch.int64, kw.get("device"))


@rule(
    """empty_like zeros_like ones_like rand_like rand_like.generator randn_like randn_like.generator full_like
    randint_like randint_like.low_dtype"""
)
def like(
    x: TensorType, *rest: Any, dtype: Any = None, device: Any = None, memory_format: Any = None, **kw: Any
) -> TensorType:
    strides = in_format(x.sizes, x.strides, memory_format)
    return TensorType(x.sizes, strides, dtype or x.dtype, x.device if device is None else real_device(device))


@rule("new_empty new_zeros new_ones new_full")
def new(x: TensorType, sizes: Sequence[IntLike], *rest: Any, dtype: Any = None, device: Any = None, **kw: Any) -> Any:
    return made(sizes, dtype or x.dtype, x.device if device is None else device)


@rule("new_empty_strided")
def new_strided(
    x: TensorType, sizes: Any, strides: Any, *, dtype: Any = None, device: Any = None, **kw: Any
) -> TensorType:
    return made(sizes, dtype or x.dtype, x.device if device is None else device, strides)


@rule("clone _lazy_clone")
def clone(x: TensorType, *, memory_format: Any = None) -> TensorType:
    return copy_of(x, memory_format)


@rule("contiguous")
def to_contiguous(x: TensorType, *, memory_format: Any = torch.contiguous_format) -> TensorType:
    return copy_of(x, memory_format)


@rule("_to_copy")
def to_copy(
    x: TensorType, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **kw: Any
) -> TensorType:
    if not isinstance(x, TensorType):  # a number, which batching rules cast
        x = TensorType((), (), dtype or torch.get_default_dtype(), torch.device("cpu"))
    out = copy_of(x, memory_format, dtype)
    return out if device is None else TensorType(out.sizes, out.strides, out.dtype, real_device(device))


@rule("copy")
def copy(x: TensorType, source: TensorType, non_blocking: bool = False) -> TensorType:
    return copy_of(x)


@rule("tril triu")
def triangle(x: TensorType, diagonal: int = 0) -> TensorType:
    return fresh(x)


@rule("fill.Scalar fill.Tensor zero")
def filled(x: TensorType, value: Any = None) -> TensorType:
    return copy_of(x)


@rule("flip")
def flip(x: TensorType, dims: Sequence[int]) -> TensorType:
    return copy_of(x)


@rule("roll")
def roll(x: TensorType, shifts: Any, dims: Any = ()) -> TensorType:
    for d in dims:
        dim_of(d, x.rank)
    return copy_of(x) if dims and known_eq(x.numel, 0) else fresh(x)


@rule("rot90")
def rot90(x: TensorType, k: int = 1, dims: Sequence[int] = (0, 1)) -> TensorType:
    if k % 4 == 0:
        return fresh(x)
    return copy_of(x) if k % 4 == 2 else transpose(copy_of(x), dims[0], dims[1])


@rule("_efficientzerotensor")
def zero_tensor(sizes: Sequence[IntLike], *, dtype: Any = None, device: Any = None, **kw: Any) -> TensorType:
    return made(sizes, dtype, device)


@rule("block_diag")
def block_diag(xs: Sequence[TensorType]) -> TensorType:
    rows: IntLike = 0
    cols: IntLike = 0
    for x in xs:
        rows = rows + (x.sizes[0] if x.rank == 2 else 1)
        cols = cols + (x.sizes[-1] if x.rank else 1)
    return fresh(xs[0], (rows, cols), result_type(tuple(xs)))


@rule("diag_embed")
def diag_embed(x: TensorType, offset: int = 0, dim1: int = -2, dim2: int = -1) -> TensorType:
    a, b = sorted((dim_of(dim1, x.rank + 1), dim_of(dim2, x.rank + 1)))
    n = x.sizes[-1] + abs(offset)
    sizes = list(x.sizes[:-1])
    sizes.insert(a, n)
    sizes.insert(b, n)
    return fresh(x, sizes)


@rule("repeat")
def repeat(x: TensorType, counts: Sequence[IntLike]) -> TensorType:
    sizes = (1,) * (len(counts) - x.rank) + x.sizes
    return fresh(x, [n * k for n, k in zip(sizes, counts)])


@rule("lift_fresh_copy")
def lift_copy(x: TensorType) -> TensorType:
    return copy_of(x)


@rule("_pin_memory pin_memory")
def pinned(x: TensorType, device: Any = None) -> TensorType:
    return fresh(x)
