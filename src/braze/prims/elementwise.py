"""Elementwise primitives: one output element from the elements at the same place.

Operands are tensors of one shape and one dtype, or Python scalars (also ``IntLike``) that take the tensors' dtype; at
least one operand is a tensor.  float16 and bfloat16 compute in float32 (scalars are not rounded to 16 bits first) and
round at the end.  bool has only comparisons, ``bitwise_*``, ``where``, ``clone`` and ``convert``.  Other dtypes
(complex, float8, the wide unsigned integers) have none: ops on them stay opaque.

Result dtype rules: ``same`` (the operands'), ``bool``, or the ``dtype`` argument (``convert``, ``bitcast``).

Integers wrap around.  Integer division by zero is an error in eager on the CPU; generated code must not fault and its
value is then unspecified.  Float semantics are IEEE with signed zeros, infinities and NaN kept: no fast-math.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from braze.ir import IntLike, TensorType, contiguous_strides

from .prim import Prim

FLOATS = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))
INTS = frozenset((torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8))
REAL = FLOATS | INTS
BOOL = frozenset((torch.bool,))
ANY = REAL | BOOL
BITS = INTS | BOOL

DTYPES: dict[str, frozenset[torch.dtype]] = {}
"""Primitive name -> the operand dtypes that it takes (elementwise family)."""


@lru_cache(maxsize=4096)
def dense_strides(sizes: tuple[IntLike, ...], strides: tuple[IntLike, ...]) -> tuple[IntLike, ...] | None:
    """The strides of a fresh buffer that keeps this layout: themselves when dense and non-overlapping, else None."""
    if strides == contiguous_strides(sizes):
        return strides
    dims = [d for d, n in enumerate(sizes) if n != 1]
    if any(not isinstance(strides[d], int) for d in dims):
        return None
    step: IntLike = 1
    for d in sorted(dims, key=lambda d: (strides[d], d)):
        if strides[d] != step:
            return None
        step = step * sizes[d]
    return strides


def like(operands: tuple[Any, ...]) -> TensorType:
    """The type of an elementwise result: dtype of the first tensor, layout of the first dense one, else contiguous."""
    first: TensorType | None = None
    dense: tuple[IntLike, ...] | None = None
    for t in operands:
        if isinstance(t, TensorType):
            if first is None:
                first = t
            if dense is None:
                dense = dense_strides(t.sizes, t.strides)
    assert first is not None, "an elementwise primitive needs a tensor operand"
    return TensorType(first.sizes, dense or contiguous_strides(first.sizes), first.dtype, first.device)


def check_operands(name: str, operands: tuple[Any, ...]) -> None:
    """AssertionError unless the tensors agree in sizes and dtype and the dtype is one that the primitive takes."""
    tensors = [t for t in operands if isinstance(t, TensorType)]
    assert tensors, f"prims.{name} needs a tensor operand"
    first, allowed = tensors[0], DTYPES[name]
    assert first.dtype in allowed, f"prims.{name} does not take {first.dtype}"
    for t in tensors[1:]:
        assert t.sizes == first.sizes, f"prims.{name}: sizes {first.sizes} and {t.sizes} differ"
        assert t.dtype == first.dtype, f"prims.{name}: dtypes {first.dtype} and {t.dtype} differ"


def _shape_rule(name: str, result: str) -> Callable[..., TensorType]:
    def same(*operands: Any) -> TensorType:
        check_operands(name, operands)
        return like(operands)

    def boolean(*operands: Any) -> TensorType:
        t = same(*operands)
        return TensorType(t.sizes, t.strides, torch.bool, t.device)

    return boolean if result == "bool" else same


def _on_tensors(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` with scalars made 0-dim tensors (which do not promote dtypes of the same category)."""

    def call(*operands: Any) -> Any:
        first = next(t for t in operands if isinstance(t, torch.Tensor))
        args = [t if isinstance(t, torch.Tensor) else _scalar(t, first) for t in operands]
        out = fn(*args)
        return out if out.dtype == torch.bool or out.dtype == first.dtype else out.to(first.dtype)

    return call


def _scalar(value: Any, like: torch.Tensor) -> torch.Tensor:
    kind = torch.float64 if like.dtype in FLOATS else like.dtype
    return torch.tensor(value, dtype=kind, device=like.device)


def _row(name: str, fn: Callable[..., Any], dtypes: frozenset[torch.dtype], result: str, doc: str) -> Prim:
    DTYPES[name] = dtypes
    return Prim(name, "elementwise", _shape_rule(name, result), _on_tensors(fn), doc)


def _trunc_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _where(c: torch.Tensor, a: Any, b: Any) -> torch.Tensor:
    t = a if isinstance(a, torch.Tensor) else b
    return torch.where(c, a, b).to(t.dtype)


def _where_shape(c: TensorType, a: Any, b: Any) -> TensorType:
    check_operands("where", (a, b))
    t = like((a, b))
    assert c.dtype == torch.bool and c.sizes == t.sizes, f"prims.where: the condition is {c} and the values are {t}"
    return t


def _cast_shape(x: TensorType, dtype: torch.dtype) -> TensorType:
    t = like((x,))
    return TensorType(t.sizes, t.strides, dtype, t.device)


def _bitcast_shape(x: TensorType, dtype: torch.dtype) -> TensorType:
    assert x.dtype.itemsize == dtype.itemsize, f"prims.bitcast: {x.dtype} and {dtype} differ in size"
    return _cast_shape(x, dtype)


_UNARY: tuple[tuple[str, Callable[..., Any], frozenset[torch.dtype], str], ...] = (
    ("neg", torch.neg, REAL, "-x"),
    ("abs", torch.abs, REAL, "|x|; the smallest integer stays itself"),
    ("sign", torch.sign, REAL, "-1, 0 or 1; NaN gives 0, as ATen"),
    ("reciprocal", torch.reciprocal, FLOATS, "1 / x"),
    ("sqrt", torch.sqrt, FLOATS, "correctly rounded square root"),
    ("rsqrt", torch.rsqrt, FLOATS, "1 / sqrt(x)"),
    ("exp", torch.exp, FLOATS, "e ** x"),
    ("exp2", torch.exp2, FLOATS, "2 ** x"),
    ("expm1", torch.expm1, FLOATS, "e ** x - 1, accurate near 0"),
    ("log", torch.log, FLOATS, "natural logarithm"),
    ("log2", torch.log2, FLOATS, "base 2 logarithm"),
    ("log10", torch.log10, FLOATS, "base 10 logarithm"),
    ("log1p", torch.log1p, FLOATS, "log(1 + x), accurate near 0"),
    ("sin", torch.sin, FLOATS, "sine of radians"),
    ("cos", torch.cos, FLOATS, "cosine of radians"),
    ("tan", torch.tan, FLOATS, "tangent of radians"),
    ("asin", torch.asin, FLOATS, "inverse sine"),
    ("acos", torch.acos, FLOATS, "inverse cosine"),
    ("atan", torch.atan, FLOATS, "inverse tangent"),
    ("sinh", torch.sinh, FLOATS, "hyperbolic sine"),
    ("cosh", torch.cosh, FLOATS, "hyperbolic cosine"),
    ("tanh", torch.tanh, FLOATS, "hyperbolic tangent"),
    ("asinh", torch.asinh, FLOATS, "inverse hyperbolic sine"),
    ("acosh", torch.acosh, FLOATS, "inverse hyperbolic cosine"),
    ("atanh", torch.atanh, FLOATS, "inverse hyperbolic tangent"),
    ("erf", torch.erf, FLOATS, "error function"),
    ("erfc", torch.erfc, FLOATS, "1 - erf(x), accurate for large x"),
    ("erfinv", torch.erfinv, FLOATS, "inverse error function"),
    ("lgamma", torch.lgamma, FLOATS, "log |gamma(x)|"),
    ("digamma", torch.digamma, FLOATS, "derivative of lgamma"),
    ("sigmoid", torch.sigmoid, FLOATS, "1 / (1 + exp(-x))"),
    ("floor", torch.floor, FLOATS, "largest integer <= x"),
    ("ceil", torch.ceil, FLOATS, "smallest integer >= x"),
    ("round", torch.round, FLOATS, "nearest integer, halves to even"),
    ("trunc", torch.trunc, FLOATS, "towards zero"),
    ("bitwise_not", torch.bitwise_not, BITS, "all bits flipped; logical not on bool"),
    ("clone", torch.clone, ANY, "the same values, in fresh memory with the strides of the node's val"),
)

_BINARY: tuple[tuple[str, Callable[..., Any], frozenset[torch.dtype], str], ...] = (
    ("add", torch.add, REAL, "a + b"),
    ("sub", torch.sub, REAL, "a - b"),
    ("mul", torch.mul, REAL, "a * b"),
    ("div", torch.div, FLOATS, "a / b, correctly rounded; integers are converted first"),
    ("floor_div", torch.floor_divide, REAL, "a / b rounded down; floats as ATen's (a - fmod(a, b)) / b, fixed up"),
    ("trunc_div", _trunc_div, INTS, "a / b rounded towards zero (C division)"),
    ("fmod", torch.fmod, REAL, "C remainder: the sign of a"),
    ("remainder", torch.remainder, REAL, "Python remainder: the sign of b"),
    ("pow", torch.pow, REAL, "a ** b; a negative integer exponent gives 0, or +-1 for the bases +-1"),
    ("atan2", torch.atan2, FLOATS, "angle of the point (x=b, y=a)"),
    ("maximum", torch.maximum, REAL, "the larger; NaN if either is NaN"),
    ("minimum", torch.minimum, REAL, "the smaller; NaN if either is NaN"),
    ("copysign", torch.copysign, FLOATS, "|a| with the sign bit of b"),
    ("nextafter", torch.nextafter, frozenset((torch.float32, torch.float64)), "the next float after a towards b"),
    ("bitwise_and", torch.bitwise_and, BITS, "a & b"),
    ("bitwise_or", torch.bitwise_or, BITS, "a | b"),
    ("bitwise_xor", torch.bitwise_xor, BITS, "a ^ b"),
    ("shift_left", torch.bitwise_left_shift, INTS, "a << b; 0 when b is negative or not below the bit width"),
    (
        "shift_right",
        torch.bitwise_right_shift,
        INTS,
        "a >> b, arithmetic when signed; a shift past the width (or negative) leaves only the sign",
    ),
)

_TESTS: tuple[tuple[str, Callable[..., Any], frozenset[torch.dtype], str], ...] = (
    ("eq", torch.eq, ANY, "a == b"),
    ("ne", torch.ne, ANY, "a != b; True for NaN"),
    ("lt", torch.lt, ANY, "a < b"),
    ("le", torch.le, ANY, "a <= b"),
    ("gt", torch.gt, ANY, "a > b"),
    ("ge", torch.ge, ANY, "a >= b"),
    ("isnan", torch.isnan, FLOATS, "x is NaN"),
    ("isinf", torch.isinf, FLOATS, "x is +-infinity"),
    ("signbit", torch.signbit, REAL, "the sign bit is set, also of -0.0 and -NaN"),
)

for _name, _fn, _dtypes, _doc in _UNARY + _BINARY:
    _row(_name, _fn, _dtypes, "same", _doc)
for _name, _fn, _dtypes, _doc in _TESTS:
    _row(_name, _fn, _dtypes, "bool", _doc)

DTYPES["where"] = ANY
where = Prim("where", "elementwise", _where_shape, _where, "a where the bool c is True, else b; a or b may be a scalar")
convert = Prim(
    "convert",
    "elementwise",
    _cast_shape,
    lambda x, dtype: x.to(dtype),
    "x as dtype: floats round to nearest even, float to integer truncates (out of range: unspecified), to bool: x != 0",
)
bitcast = Prim(
    "bitcast",
    "elementwise",
    _bitcast_shape,
    lambda x, dtype: x.view(dtype),
    "the bits of x read as an equal-size dtype",
)
