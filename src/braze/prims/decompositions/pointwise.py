"""Arithmetic, comparison and bitwise ATen calls: promotion, then one to a few primitives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from braze.ir import Node

from ..builder import Builder, opmath, rounded
from ..elementwise import DTYPES, FLOATS, INTS
from ..prim import PRIMS, Prim
from ..registry import decomposes, register

BOOL = torch.bool
Row = Callable[..., Any]


def binary(b: Builder, prim: Prim, x: Any, y: Any, dtype: torch.dtype) -> Node:
    """prim(x, y) on operands converted to dtype."""
    return b.elementwise(prim, (b.convert(x, dtype), b.convert(y, dtype)))


def _to_result(prim: Prim) -> Row:
    """Operands converted to the dtype of the result."""
    return lambda b, x, y: binary(b, prim, x, y, b.out.dtype)


def _to_common(prim: Prim) -> Row:
    """Operands converted to their common dtype."""

    def row(b: Builder, x: Any, y: Any) -> Node:
        return binary(b, prim, x, y, b.common(x, y))

    return row


def _float_unary(prim: Prim) -> Row:
    """Integers become floats; one primitive."""
    return lambda b, x: b.elementwise(prim, (b.convert(x, b.out.dtype),))


def _rounding(prim: Prim) -> Row:
    """Integers and bool are whole already."""
    return lambda b, x: b.elementwise(prim, (x,)) if x.val.dtype in FLOATS else x


for _name in (
    "reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh"
    " atanh erf erfc erfinv lgamma digamma sigmoid"
).split():
    register(_name, _float_unary(PRIMS[_name]))
for _name in "floor ceil round trunc".split():
    register(_name, _rounding(PRIMS[_name]))
for _aten, _prim in (
    ("floor_divide floor_divide.Scalar", "floor_div"),
    ("fmod.Scalar fmod.Tensor", "fmod"),
    ("remainder.Scalar remainder.Tensor remainder.Scalar_Tensor", "remainder"),
    ("atan2", "atan2"),
    ("copysign.Scalar copysign.Tensor", "copysign"),
    ("bitwise_and.Scalar bitwise_and.Tensor bitwise_and.Scalar_Tensor", "bitwise_and"),
    ("bitwise_or.Scalar bitwise_or.Tensor bitwise_or.Scalar_Tensor", "bitwise_or"),
    ("bitwise_xor.Scalar bitwise_xor.Tensor bitwise_xor.Scalar_Tensor", "bitwise_xor"),
    (
        "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Scalar_Tensor"
        " __lshift__.Scalar __lshift__.Tensor",
        "shift_left",
    ),
    (
        "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Scalar_Tensor"
        " __rshift__.Scalar __rshift__.Tensor",
        "shift_right",
    ),
):
    register(_aten, _to_result(PRIMS[_prim]))
for _name in "eq ne lt le gt ge".split():
    register(f"{_name}.Scalar {_name}.Tensor", _to_common(PRIMS[_name]))


# -- sums and products -----------------------------------------------------------------------------------------------


def _scaled(b: Builder, x: Any, alpha: Any) -> Any:
    return x if type(alpha) in (int, float) and alpha == 1 or alpha is True else b.mul(x, alpha)


@decomposes("add.Tensor add.Scalar")
def add(b: Builder, self: Any, other: Any, alpha: Any = 1) -> Node:
    x, y = self, other
    if b.out.dtype == BOOL:
        return binary(b, PRIMS["bitwise_or"], x, y, BOOL) if alpha else b.convert(self, BOOL)
    x, y = b.promoted(x, y, dtype=b.out.dtype)
    if alpha == 1:
        return b.add(x, y)
    if not isinstance(y, Node):
        return b.add(x, y * alpha)
    return b.add(b.compute(x), _scaled(b, b.compute(y), alpha))


@decomposes("sub.Tensor sub.Scalar")
def sub(b: Builder, self: Any, other: Any, alpha: Any = 1) -> Node:
    x, y = b.promoted(self, other, dtype=b.out.dtype)
    if alpha == 1:
        return b.sub(x, y)
    if not isinstance(y, Node):
        return b.sub(x, y * alpha)
    return b.sub(b.compute(x), _scaled(b, b.compute(y), alpha))


@decomposes("rsub.Tensor rsub.Scalar")
def rsub(b: Builder, self: Node, other: Any, alpha: Any = 1) -> Node:
    x, y = b.promoted(self, other, dtype=b.out.dtype)
    if alpha == 1:
        return b.sub(y, x)
    return b.sub(b.compute(y), _scaled(b, b.compute(x), alpha))


@decomposes("mul.Tensor mul.Scalar")
def mul(b: Builder, self: Any, other: Any) -> Any:
    x, y = self, other
    if b.out.dtype == BOOL:
        return binary(b, PRIMS["bitwise_and"], x, y, BOOL)
    x, y = b.promoted(x, y, dtype=b.out.dtype)
    if type(y) in (int, float):
        return scaled(b, x, y)
    return b.mul(x, y)


def _is_mask(x: Node) -> bool:
    return x.target is PRIMS["convert"] and x.args[0].val.dtype == BOOL


def scaled(b: Builder, x: Node, factor: float) -> Node:
    """x * factor; of a mask (0 or 1) the choice between 0 and the factor, which is exact."""
    if factor == 1:
        return x
    if _is_mask(x) and x.val.dtype in FLOATS and 0 < factor < math.inf:
        kept = b.full((), factor, x.val.dtype, x.val.device)
        return b.where(x.args[0], kept, 0.0)
    return b.mul(x, factor)


@decomposes("div.Tensor div.Scalar true_divide.Tensor")
def div(b: Builder, self: Any, other: Any) -> Any:
    """Division by a number is a product with its inverse where that is exact, and on CUDA, where ATen does so too."""
    x, y = b.promoted(self, other, dtype=b.out.dtype)
    if type(y) in (int, float) and y != 0:
        inverse = rounded(1.0 / rounded(y, opmath(b.out.dtype)), opmath(b.out.dtype))
        if x.val.device.type == "cuda" or abs(math.frexp(y)[0]) == 0.5 and 2.0**-60 < abs(y) < 2.0**60 or _is_mask(x):
            return scaled(b, x, inverse)
    return b.div(x, y)


@decomposes("div.Tensor_mode div.Scalar_mode")
def div_mode(b: Builder, self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return div(b, self, other)
    d = b.out.dtype
    x, y = b.promoted(self, other, dtype=d)
    if rounding_mode == "floor":
        return b.floor_div(x, y)
    if d in INTS:
        return b.trunc_div(x, y)
    return b.trunc(b.div(b.compute(x), b.compute(y)))


@decomposes("nextafter")
def nextafter(b: Builder, self: Node, other: Node) -> Any:
    if b.out.dtype not in DTYPES["nextafter"]:
        return NotImplemented
    return binary(b, PRIMS["nextafter"], self, other, b.out.dtype)


@decomposes("neg")
def neg(b: Builder, self: Node) -> Node:
    return b.neg(self)


@decomposes("abs")
def absolute(b: Builder, self: Node) -> Node:
    return self if self.val.dtype in (BOOL, torch.uint8) else b.abs(self)


@decomposes("sign sgn")
def sign(b: Builder, self: Node) -> Node:
    return self if self.val.dtype == BOOL else b.sign(self)


@decomposes("signbit")
def signbit(b: Builder, self: Node) -> Node:
    if self.val.dtype in FLOATS:
        return b.signbit(self)
    return b.full_like(b.out, False) if self.val.dtype in (BOOL, torch.uint8) else b.lt(self, 0)


@decomposes("isnan")
def isnan(b: Builder, self: Node) -> Node:
    return b.isnan(self) if self.val.dtype in FLOATS else b.full_like(b.out, False)


@decomposes("isinf")
def isinf(b: Builder, self: Node) -> Node:
    return b.isinf(self) if self.val.dtype in FLOATS else b.full_like(b.out, False)


@decomposes("isposinf")
def isposinf(b: Builder, self: Node) -> Node:
    return b.eq(self, math.inf) if self.val.dtype in FLOATS else b.full_like(b.out, False)


@decomposes("isneginf")
def isneginf(b: Builder, self: Node) -> Node:
    return b.eq(self, -math.inf) if self.val.dtype in FLOATS else b.full_like(b.out, False)


@decomposes("bitwise_not")
def bitwise_not(b: Builder, self: Node) -> Node:
    return b.bitwise_not(self)


@decomposes("logical_not")
def logical_not(b: Builder, self: Node) -> Node:
    return b.bitwise_not(self) if self.val.dtype == BOOL else b.eq(self, 0)


@decomposes("logical_and")
def logical_and(b: Builder, self: Node, other: Node) -> Node:
    return b.bitwise_and(b.truth(self), b.truth(other))


@decomposes("logical_or")
def logical_or(b: Builder, self: Node, other: Node) -> Node:
    return b.bitwise_or(b.truth(self), b.truth(other))


@decomposes("logical_xor")
def logical_xor(b: Builder, self: Node, other: Node) -> Node:
    return b.bitwise_xor(b.truth(self), b.truth(other))


# -- selection -------------------------------------------------------------------------------------------------------


@decomposes("where.self where.Scalar where.ScalarOther where.ScalarSelf")
def where(b: Builder, condition: Node, self: Any, other: Any) -> Node:
    x, y = b.promoted(self, other, dtype=b.out.dtype)
    return b.where(b.truth(condition), x, y)


@decomposes("masked_fill.Scalar masked_fill.Tensor")
def masked_fill(b: Builder, self: Node, mask: Node, value: Any) -> Node:
    return b.where(mask, b.convert(value, self.val.dtype), self)


def maximum_of(b: Builder, x: Any, y: Any, dtype: torch.dtype, largest: bool = True) -> Node:
    """The NaN-propagating maximum (or minimum), also of bool."""
    if dtype == BOOL:
        return binary(b, PRIMS["bitwise_or" if largest else "bitwise_and"], x, y, BOOL)
    return binary(b, PRIMS["maximum" if largest else "minimum"], x, y, dtype)


@decomposes("maximum")
def maximum(b: Builder, self: Node, other: Node) -> Node:
    return maximum_of(b, self, other, b.out.dtype)


@decomposes("minimum")
def minimum(b: Builder, self: Node, other: Node) -> Node:
    return maximum_of(b, self, other, b.out.dtype, False)


def _ignoring_nan(largest: bool) -> Row:
    def row(b: Builder, self: Node, other: Node) -> Node:
        d = b.out.dtype
        x, y = b.promoted(self, other, dtype=d)
        best = maximum_of(b, x, y, d, largest)
        return b.where(b.isnan(x), y, b.where(b.isnan(y), x, best)) if d in FLOATS else best

    return row


register("fmax", _ignoring_nan(True))
register("fmin", _ignoring_nan(False))


@decomposes("clamp clamp.Tensor")
def clamp(b: Builder, self: Node, min: Any = None, max: Any = None) -> Any:
    d = b.out.dtype
    x = b.convert(self, d)
    if min is not None:
        x = maximum_of(b, x, min, d)
    if max is not None:
        x = maximum_of(b, x, max, d, False)
    return x


@decomposes("clamp_min clamp_min.Tensor")
def clamp_min(b: Builder, self: Node, min: Any) -> Any:
    return clamp(b, self, min)


@decomposes("clamp_max clamp_max.Tensor")
def clamp_max(b: Builder, self: Node, max: Any) -> Any:
    return clamp(b, self, None, max)


@decomposes("nan_to_num")
def nan_to_num(
    b: Builder, self: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Node:
    d = self.val.dtype
    if d not in FLOATS:
        return self
    info = torch.finfo(d)
    x = b.where(b.isnan(self), 0.0 if nan is None else nan, self)
    x = b.where(b.eq(self, math.inf), info.max if posinf is None else posinf, x)
    return b.where(b.eq(self, -math.inf), info.min if neginf is None else neginf, x)


@decomposes("heaviside")
def heaviside(b: Builder, self: Node, values: Node) -> Node:
    step = b.convert(b.lt(0, self), self.val.dtype)
    return b.where(b.eq(self, 0), values, step)


# -- powers ----------------------------------------------------------------------------------------------------------

_POWERS: dict[float, Callable[[Builder, Node], Node]] = {
    0.5: lambda b, x: b.sqrt(x),
    -0.5: lambda b, x: b.rsqrt(x),
    1: lambda b, x: x,
    -1: lambda b, x: b.reciprocal(x),
    2: lambda b, x: b.mul(x, x),
    3: lambda b, x: b.mul(b.mul(x, x), x),
    -2: lambda b, x: b.reciprocal(b.mul(x, x)),
}


@decomposes("pow.Tensor_Scalar")
def pow_scalar(b: Builder, self: Node, exponent: Any) -> Node:
    d = b.out.dtype
    x = b.convert(self, d)
    if exponent == 0:
        return b.full_like(b.out, 1)
    short = _POWERS.get(exponent) if not isinstance(exponent, Node) else None
    if short is not None and (d in FLOATS or exponent in (1, 2, 3)):
        return short(b, x if exponent == 2 else b.compute(x))
    return b.pow(x, exponent)


@decomposes("pow.Tensor_Tensor pow.Scalar")
def pow_tensor(b: Builder, self: Any, exponent: Node) -> Node:
    return binary(b, PRIMS["pow"], self, exponent, b.out.dtype)


@decomposes("ldexp.Tensor")
def ldexp(b: Builder, self: Node, other: Node) -> Node:
    x, n = b.promoted(self, other, dtype=b.out.dtype)
    return b.mul(b.compute(x), b.pow(2.0, b.compute(n)))


@decomposes("square")
def square(b: Builder, self: Node) -> Node:
    return b.mul(self, self)


# -- compound arithmetic ---------------------------------------------------------------------------------------------


@decomposes("addcmul")
def addcmul(b: Builder, self: Node, tensor1: Node, tensor2: Node, value: Any = 1) -> Node:
    x, y, z = (b.compute(t) for t in b.promoted(self, tensor1, tensor2, dtype=b.out.dtype))
    return b.add(x, b.mul(_scaled(b, y, value), z))


@decomposes("addcdiv")
def addcdiv(b: Builder, self: Node, tensor1: Node, tensor2: Node, value: Any = 1) -> Node:
    x, y, z = (b.compute(t) for t in b.promoted(self, tensor1, tensor2, dtype=b.out.dtype))
    return b.add(x, b.div(_scaled(b, y, value), z))


@decomposes("lerp.Scalar lerp.Tensor")
def lerp(b: Builder, self: Node, end: Node, weight: Any) -> Node:
    x, y, w = (b.compute(t) for t in b.promoted(self, end, weight, dtype=b.out.dtype))
    gap = b.sub(y, x)
    if not isinstance(w, Node):
        return b.add(x, b.mul(gap, w)) if abs(w) < 0.5 else b.sub(y, b.mul(gap, 1 - w))
    near = b.add(x, b.mul(w, gap))
    far = b.sub(y, b.mul(gap, b.sub(1.0, w)))
    return b.where(b.lt(b.abs(w), 0.5), near, far)


@decomposes("deg2rad")
def deg2rad(b: Builder, self: Node) -> Node:
    return b.mul(b.convert(self, b.out.dtype), math.pi / 180)


@decomposes("rad2deg")
def rad2deg(b: Builder, self: Node) -> Node:
    return b.mul(b.convert(self, b.out.dtype), 180 / math.pi)


@decomposes("frac")
def frac(b: Builder, self: Node) -> Node:
    return b.sub(self, b.trunc(self)) if self.val.dtype in FLOATS else b.full_like(b.out, 0)


@decomposes("round.decimals")
def round_decimals(b: Builder, self: Node, decimals: int) -> Node:
    if self.val.dtype not in FLOATS:
        return self
    if decimals == 0:
        return b.round(self)
    ten = 10.0 ** abs(decimals)
    x = b.compute(self)
    return b.div(b.round(b.mul(x, ten)), ten) if decimals > 0 else b.mul(b.round(b.div(x, ten)), ten)


@decomposes("angle")
def angle(b: Builder, self: Node) -> Node:
    if self.val.dtype not in FLOATS:
        return (
            b.where(b.lt(self, 0), b.full_like(b.out, math.pi), 0.0)
            if self.val.dtype != BOOL
            else b.full_like(b.out, 0.0)
        )
    return b.where(b.isnan(self), self, b.where(b.lt(self, 0), b.full_like(b.out, math.pi), 0.0))


@decomposes("sinc")
def sinc(b: Builder, self: Node) -> Node:
    x = b.mul(b.compute(b.convert(self, b.out.dtype)), math.pi)
    return b.where(b.eq(x, 0.0), 1.0, b.div(b.sin(x), x))


@decomposes("logit")
def logit(b: Builder, self: Node, eps: float | None = None) -> Node:
    x = b.compute(b.convert(self, b.out.dtype))
    if eps is not None:
        x = b.where(b.lt(x, eps), eps, b.where(b.gt(x, 1 - eps), 1 - eps, x))
    return b.log(b.div(x, b.sub(1.0, x)))


def _x_log(log: str) -> Row:
    def row(b: Builder, self: Any, other: Any) -> Node:
        x, y = (b.compute(t) for t in b.promoted(self, other, dtype=b.out.dtype))
        if not isinstance(y, Node):
            y = b.full((), y, x.val.dtype, x.val.device)
        if not isinstance(x, Node):
            x = b.full((), x, y.val.dtype, y.val.device)
        log_y = b.elementwise(PRIMS[log], (y,))
        return b.where(b.isnan(y), y, b.where(b.eq(x, 0.0), 0.0, b.mul(x, log_y)))

    return row


register("xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other", _x_log("log"))
register("special_xlog1py special_xlog1py.self_scalar special_xlog1py.other_scalar", _x_log("log1p"))


@decomposes("special_entr")
def special_entr(b: Builder, self: Node) -> Node:
    x = b.compute(b.convert(self, b.out.dtype))
    inside = b.where(b.eq(x, 0.0), 0.0, b.where(b.lt(x, 0.0), -math.inf, b.mul(b.neg(x), b.log(x))))
    return b.where(b.isnan(x), x, inside)


def _log_add(exp: str, log: Callable[[Builder, Node], Node]) -> Row:
    def row(b: Builder, self: Node, other: Node) -> Node:
        x, y = (b.compute(t) for t in b.promoted(self, other, dtype=b.out.dtype))
        most = b.maximum(x, y)
        small = b.elementwise(PRIMS[exp], (b.neg(b.abs(b.sub(x, y))),))
        return b.where(b.bitwise_and(b.isinf(x), b.eq(x, y)), x, b.add(most, log(b, small)))

    return row


register("logaddexp", _log_add("exp", lambda b, x: b.log1p(x)))
register("logaddexp2", _log_add("exp2", lambda b, x: b.mul(b.log1p(x), 1 / math.log(2))))


# -- derivatives -----------------------------------------------------------------------------------------------------


@decomposes("sigmoid_backward")
def sigmoid_backward(b: Builder, grad_output: Node, output: Node) -> Node:
    g, y = b.compute(grad_output), b.compute(output)
    return b.mul(b.mul(g, b.sub(1.0, y)), y)


@decomposes("tanh_backward")
def tanh_backward(b: Builder, grad_output: Node, output: Node) -> Node:
    g, y = b.compute(grad_output), b.compute(output)
    return b.mul(g, b.sub(1.0, b.mul(y, y)))


@decomposes("logit_backward")
def logit_backward(b: Builder, grad_output: Node, self: Node, eps: float | None = None) -> Node:
    g, x = b.compute(grad_output), b.compute(self)
    lo, outside = (eps, 0.0) if eps is not None else (0.0, math.nan)
    out = b.bitwise_or(b.lt(x, lo), b.gt(x, 1.0 - lo))
    return b.where(out, outside, b.div(g, b.mul(x, b.sub(1.0, x))))
