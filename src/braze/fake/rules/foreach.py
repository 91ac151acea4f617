"""``_foreach_*``: the rule of the single-tensor operator, list element by list element."""

from __future__ import annotations

from typing import Any

from ...ir import TensorType
from ..promote import to_real
from ..registry import BY_NAME, register
from ..result import fresh
from . import create, inplace, matmul, pointwise

_ = (create, inplace, matmul, pointwise)  # their rows serve single tensors

NAMES = """
abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp lgamma
log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc
copy fill zero clone mm"""


def _each(name: str) -> Any:
    single = BY_NAME.get(f"aten::{name}") or BY_NAME.get(f"aten::{name}.Tensor") or BY_NAME[f"aten::{name}_"]

    def run(*args: Any, **kwargs: Any) -> list[TensorType]:
        xs = args[0] if isinstance(args[0], list) else args[1]
        columns = [a if isinstance(a, (list, tuple)) else [a] * len(xs) for a in args]
        return [single(*row) for row in zip(*columns)]

    return run


for _name in NAMES.split():
    register(_each(_name), [f"_foreach_{_name}"])


def _norms(xs: list[TensorType], order: Any = 2, dtype: Any = None) -> list[TensorType]:
    return [fresh(x, (), to_real(dtype or x.dtype)) for x in xs]


def _max(xs: list[TensorType]) -> list[TensorType]:
    return [fresh(x, ()) for x in xs]


register(_norms, ["_foreach_norm", "_foreach_powsum"])
register(_max, ["_foreach_max"])


def _unscaled(grads: list[TensorType], found_inf: TensorType, inv_scale: TensorType) -> tuple[Any, ...]:
    return [fresh(g) for g in grads], fresh(found_inf)


def _new_scale(scale: TensorType, tracker: TensorType, *rest: Any) -> tuple[TensorType, TensorType]:
    return fresh(scale), fresh(tracker)


register(_unscaled, ["_amp_foreach_non_finite_check_and_unscale"])
register(_new_scale, ["_amp_update_scale"])
