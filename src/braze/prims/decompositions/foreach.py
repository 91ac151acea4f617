"""Lists of tensors: each tensor apart, so that the optimizer's arithmetic fuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.ir import Node

from ..builder import Builder, normal_dims
from ..elementwise import FLOATS
from ..registry import DECOMPOSITIONS, decomposes, register
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


# ---- the gradient scaler's kernels


@decomposes("_amp_foreach_non_finite_check_and_unscale")
def unscale(b: Builder, self: Sequence[Node], found_inf: Node, inv_scale: Node) -> Any:
    """Gradients times ``inv_scale``; ``found_inf`` becomes 1 where any of them is infinite or NaN."""
    if any(g.val.dtype not in FLOATS for g in self):
        return NotImplemented
    out = []
    for g in self:
        x = b.compute(g)
        bad = b.reduce("any", b.isnan(b.sub(x, x)), normal_dims(None, g.val.rank))
        found_inf = b.where(bad, 1.0, found_inf)
        out.append(b.convert(b.mul(x, b.convert(inv_scale, x.val.dtype)), g.val.dtype))
    return out, found_inf


@decomposes("_amp_update_scale")
def update_scale(
    b: Builder, self: Node, growth_tracker: Node, found_inf: Node, growth: float, backoff: float, interval: int
) -> tuple[Node, Node]:
    """A smaller scale after an overflow, a larger one after ``interval`` steps without, unless it would be infinite."""
    overflow = b.ne(found_inf, 0.0)
    steps = b.add(growth_tracker, 1)
    due = b.eq(steps, interval)
    wide = b.convert(self, torch.float64)
    larger, smaller = (b.convert(b.mul(wide, f), self.val.dtype) for f in (growth, backoff))
    grown = b.where(b.isnan(b.sub(larger, larger)), self, larger)
    scale = b.where(overflow, smaller, b.where(due, grown, self))
    return scale, b.where(overflow, 0, b.where(due, 0, steps))
