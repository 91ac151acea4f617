"""Pointwise operators: broadcast, TensorIterator's strides, and a dtype rule by kind. One table row a kind."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ...ir import TensorType, mod
from ..layout import broadcast, iterate
from ..promote import Operand, result_type, to_complex, to_float, to_real
from ..questions import agree
from ..registry import register, rule
from ..result import copy_of, dim_of, fresh

_BOOL = torch.bool


def _same(ops: tuple[Operand, ...]) -> torch.dtype:
    return result_type(ops)


def _float(ops: tuple[Operand, ...]) -> torch.dtype:
    return to_float(result_type(ops))


def _bool(ops: tuple[Operand, ...]) -> torch.dtype:
    return _BOOL


def _first(ops: tuple[Operand, ...]) -> torch.dtype:
    x = ops[0]
    assert isinstance(x, TensorType)
    return x.dtype


def _real(ops: tuple[Operand, ...]) -> torch.dtype:
    return to_real(result_type(ops))


def _rest(ops: tuple[Operand, ...]) -> torch.dtype:
    return result_type(ops[1:])


KINDS = {"same": _same, "float": _float, "bool": _bool, "first": _first, "real": _real, "rest": _rest}

# (dtype kind, number of leading arguments that are operands, operator names)
TABLE: tuple[tuple[str, int, str], ...] = (
    (
        "float",
        1,
        """acos acosh asin asinh atan atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 i0 lgamma log log10 log1p
        log2 logit rsqrt reciprocal sigmoid sin sinc sinh sqrt tan tanh deg2rad rad2deg
        special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_entr
        special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_modified_bessel_i0
        special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri
        special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0""",
    ),
    (
        "same",
        1,
        """neg relu sign sgn ceil floor round trunc frac positive conj_physical gelu silu mish hardswish hardsigmoid elu
        celu selu leaky_relu softplus softshrink hardshrink threshold bitwise_not square relu6""",
    ),
    ("real", 1, "abs"),
    ("bool", 1, "logical_not isnan isinf isposinf isneginf signbit"),
    (
        "same",
        2,
        """add sub mul rsub maximum minimum fmax fmin fmod remainder floor_divide gcd lcm bitwise_and bitwise_or
        bitwise_xor bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ hypot nextafter
        logaddexp logaddexp2 pow heaviside igamma igammac clamp_min clamp_max
        gelu_backward silu_backward mish_backward hardswish_backward hardsigmoid_backward tanh_backward sigmoid_backward
        logit_backward softplus_backward softshrink_backward hardshrink_backward leaky_relu_backward
        threshold_backward hardtanh_backward log_sigmoid_backward""",
    ),
    (
        "float",
        2,
        """div.Tensor div.Scalar div.out atan2 arctan2 copysign xlogy special_xlogy special_xlog1py special_zeta
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
        special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he
        special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t
        special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
        special_shifted_chebyshev_polynomial_w""",
    ),
    ("bool", 2, "eq ne lt le gt ge logical_and logical_or logical_xor"),
    ("first", 3, "lerp"),
    ("same", 3, "addcmul addcdiv clamp"),
    ("rest", 3, "where"),
)


def pointwise(kind: str, ops: tuple[Any, ...]) -> TensorType:
    """The type of a pointwise result: ``ops`` are types, numbers and Nones (which do not count)."""
    operands = tuple([x if isinstance(x, TensorType) else type(x) for x in ops if x is not None])
    tensors = [x for x in operands if isinstance(x, TensorType)]
    sizes, strides = (
        iterate(*[(t.sizes, t.strides) for t in tensors]) if len(operands) == len(tensors) else _mixed(tensors)
    )
    return TensorType(sizes, strides, KINDS[kind](operands), device_of(tensors))


def _mixed(tensors: list[TensorType]) -> tuple[Any, Any]:
    return iterate(*[(t.sizes, t.strides) for t in tensors], ((), ()))


def device_of(tensors: list[TensorType]) -> torch.device:
    """The common device: 0-d CPU tensors do not count beside others. RuntimeError when two devices meet."""
    if not tensors:  # an operator of two Python numbers: torch.div(7, 2)
        return torch.device("cpu")
    home = tensors[0].device
    for t in tensors:
        d = t.device
        if d == home:
            continue
        if home.type == "cpu" and all(not u.sizes for u in tensors if u.device == home):
            home = d
        elif not (d.type == "cpu" and not t.sizes):
            raise RuntimeError(f"Expected all tensors to be on the same device, but found {home} and {d}")
    return home


def _leading(kind: str, count: int, *args: Any, **kwargs: Any) -> TensorType:
    return pointwise(kind, args[:count])


for _kind, _count, _names in TABLE:
    register(partial(_leading, _kind, _count), _names.split())


@rule("div.Tensor_mode div.Scalar_mode div.out_mode")
def div_mode(a: Any, b: Any, *, rounding_mode: str | None) -> TensorType:
    return pointwise("float" if rounding_mode is None else "same", (a, b))


@rule("pow.Tensor_Scalar pow_.Scalar")
def pow_number(x: TensorType, power: Any) -> TensorType:
    out = pointwise("same", (x,))  # the number takes part in the dtype alone
    return TensorType(out.sizes, out.strides, result_type((x, type(power))), out.device)


@rule("pow.Scalar")
def number_pow(base: Any, x: TensorType) -> TensorType:
    return fresh(x, None, result_type((type(base), x)))


@rule("angle")
def angle(x: TensorType) -> TensorType:
    out = pointwise("float", (x,))
    return TensorType(out.sizes, out.strides, to_real(out.dtype), out.device)


@rule("ldexp")
def ldexp(x: TensorType, exponent: TensorType) -> TensorType:
    out = pointwise("same", (x, number_pow(2.0, exponent)))
    if x.dtype.is_floating_point and not exponent.dtype.is_floating_point:
        return TensorType(out.sizes, out.strides, x.dtype, out.device)
    return out


@rule("mvlgamma")
def mvlgamma(x: TensorType, p: int) -> TensorType:
    return fresh(x, None, to_float(x.dtype))


@rule("nan_to_num _prelu_kernel")
def nan_to_num(x: TensorType, *rest: Any) -> TensorType:
    return copy_of(x)


@rule("polygamma special_polygamma")
def polygamma(n: int, x: TensorType) -> TensorType:
    return pointwise("float", (x,))


@rule("polygamma_")
def polygamma_in_place(x: TensorType, n: int) -> TensorType:
    return pointwise("float", (x,))


@rule("float_power")
def float_power(a: Any, b: Any) -> TensorType:
    out = pointwise("same", (a, b))
    wide = torch.complex128 if out.dtype.is_complex else torch.float64
    return TensorType(out.sizes, out.strides, wide, out.device)


@rule("hardtanh")
def hardtanh(x: TensorType, low: Any = -1, high: Any = 1) -> TensorType:
    return copy_of(x)


@rule("elu_backward")
def elu_backward(g: TensorType, alpha: Any, scale: Any, inner: Any, is_result: bool, x: TensorType) -> TensorType:
    return pointwise("same", (g, x))


@rule("glu")
def glu(x: TensorType, dim: int = -1) -> TensorType:
    n = x.sizes[dim_of(dim, x.rank)]
    agree(mod(n, 2), 0, f"Halving dimension must be even, but dimension {dim} is size {n}")
    d = dim_of(dim, x.rank)
    half = (*x.sizes[:d], x.sizes[d] // 2, *x.sizes[d + 1 :])  # of each of the two operands, views of x
    return TensorType(*iterate((half, x.strides), (half, x.strides)), x.dtype, x.device)


@rule("glu_backward")
def glu_backward(g: TensorType, x: TensorType, dim: int) -> TensorType:
    return fresh(x)


@rule("masked_fill")
def masked_fill(x: TensorType, mask: TensorType, value: Any) -> TensorType:
    return fresh(x, broadcast((x.sizes, mask.sizes)))


@rule("log_sigmoid_forward")
def log_sigmoid_forward(x: TensorType) -> tuple[TensorType, TensorType]:
    if x.device.type == "cpu":
        return fresh(x), fresh(x)
    return copy_of(x), fresh(x, (0,))


@rule("complex")
def complex_(a: TensorType, b: TensorType) -> TensorType:
    out = pointwise("same", (a, b))
    wide = torch.complex32 if out.dtype is torch.float16 else to_complex(out.dtype)
    return TensorType(out.sizes, out.strides, wide, out.device)


@rule("polar")
def polar(a: TensorType, b: TensorType) -> TensorType:
    return complex_(a, b)
