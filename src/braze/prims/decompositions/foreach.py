"""Lists of tensors: each tensor apart, so that the optimizer's arithmetic fuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from braze.ir import Node

from ..builder import Builder, normal_dims
from ..registry import DECOMPOSITIONS, register
from . import activation, creation, pointwise, reduce, shape  # noqa: F401  (their rows are looked up below)
from .reduce import norm_of

Row = Callable[..., Any]


def each(row: Row) -> Row:
    """The row for lists: list arguments are taken element by element, others are shared."""

    def listed(b: Builder, first: Sequence[Node], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        promised, out = b.out, []
        for i, x in enumerate(first):
            b.out = promised[i]
            pick = [a[i] if isinstance(a, (list, tuple)) else a for a in args]
            keys = {k: a[i] if isinstance(a, (list, tuple)) else a for k, a in kwargs.items()}
            out.append(row(b, x, *pick, **keys))
        b.out = promised
        return tuple(out)

    return listed


_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round"
    " rsqrt sigmoid sign sin sinh sqrt tan tanh trunc clone zero"
)
for _name in _UNARY.split():
    register(f"_foreach_{_name}", each(DECOMPOSITIONS[_name].fn))

for _aten, _row in (
    ("add.List add.Scalar add.ScalarList add.Tensor", pointwise.add),
    ("sub.List sub.Scalar sub.ScalarList", pointwise.sub),
    ("mul.List mul.Scalar mul.ScalarList mul.Tensor", pointwise.mul),
    ("div.List div.Scalar div.ScalarList div.Tensor", pointwise.div),
    ("clamp_min.List clamp_min.Scalar clamp_min.ScalarList", pointwise.clamp_min),
    ("clamp_max.List clamp_max.Scalar clamp_max.ScalarList", pointwise.clamp_max),
    ("maximum.List maximum.Scalar maximum.ScalarList", pointwise.clamp_min),
    ("minimum.List minimum.Scalar minimum.ScalarList", pointwise.clamp_max),
    ("addcmul.Scalar addcmul.ScalarList", pointwise.addcmul),
    ("addcdiv.Scalar addcdiv.ScalarList", pointwise.addcdiv),
    ("lerp.List lerp.Scalar lerp.ScalarList", pointwise.lerp),
    ("pow.List", pointwise.pow_tensor),
    ("pow.Scalar pow.ScalarList", pointwise.pow_scalar),
):
    register(" ".join(f"_foreach_{n}" for n in _aten.split()), each(_row))


def _norm(b: Builder, self: Node, ord: Any = 2, dtype: Any = None) -> Node:
    x = b.compute(b.convert(self, b.out.dtype))
    return norm_of(b, x, ord, normal_dims(None, self.val.rank), False)


def _base_power(b: Builder, exponents: Sequence[Node], base: Any) -> tuple[Node, ...]:
    return each(lambda b, e: pointwise.pow_tensor(b, base, e))(b, exponents)  # type: ignore[no-any-return]


register("_foreach_norm.Scalar", each(_norm))
register("_foreach_pow.ScalarAndTensor", lambda b, base, exponents: _base_power(b, exponents, base))


register("_foreach_max", each(DECOMPOSITIONS["max"].fn))
