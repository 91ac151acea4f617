"""ATen's dtype promotion: tensors with dimensions win over 0-d tensors, which win over Python numbers."""

from __future__ import annotations

from functools import lru_cache

import torch

from ..ir import TensorType

Operand = TensorType | type

promote = lru_cache(None)(torch.promote_types)
_TO_COMPLEX = {
    torch.float16: torch.complex32,
    torch.bfloat16: torch.complex64,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
_TO_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


def to_complex(d: torch.dtype) -> torch.dtype:
    """float32 -> complex64 and so on; complex dtypes stay. KeyError for integers."""
    return d if d.is_complex else _TO_COMPLEX[d]


def to_real(d: torch.dtype) -> torch.dtype:
    """complex64 -> float32 and so on; others stay."""
    return _TO_REAL.get(d, d)


def to_float(d: torch.dtype) -> torch.dtype:
    """Integers and bool become the default dtype."""
    return d if d.is_floating_point or d.is_complex else torch.get_default_dtype()


def number_dtype(kind: type) -> torch.dtype:
    """The dtype of a tensor made of a Python number of this type."""
    if kind is bool:
        return torch.bool
    if kind is complex:
        return to_complex(torch.get_default_dtype())
    return torch.get_default_dtype() if kind is float else torch.int64


def _combine(high: torch.dtype | None, low: torch.dtype | None) -> torch.dtype | None:
    if high is None or low is None:
        return high or low
    if high.is_complex:
        return high
    if high.is_floating_point:
        return to_complex(high) if low.is_complex else high
    if high is torch.bool or low.is_floating_point or low.is_complex:
        return promote(high, low)
    return high


def result_type(operands: tuple[Operand, ...]) -> torch.dtype:
    """The common dtype of tensors and Python numbers (given by their Python type), as ``torch.result_type``."""
    dims: torch.dtype | None = None
    zero: torch.dtype | None = None
    wrapped: torch.dtype | None = None
    for x in operands:
        if isinstance(x, type):
            d = number_dtype(x)
            wrapped = d if wrapped is None else promote(wrapped, d)
        elif x.sizes:
            dims = x.dtype if dims is None else promote(dims, x.dtype)
        else:
            zero = x.dtype if zero is None else promote(zero, x.dtype)
    out = _combine(dims, _combine(zero, wrapped))
    assert out is not None
    return out
