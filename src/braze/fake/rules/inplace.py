"""In-place operators without a functional twin of their own: the result is the first argument."""

from __future__ import annotations

from typing import Any

from ...ir import TensorType
from ..registry import rule


@rule(
    """
    fill_ zero_ copy_ bernoulli_ normal_ uniform_ random_ exponential_ geometric_ log_normal_ cauchy_ index_put_
    _index_put_impl_ scatter_ scatter_add_ scatter_reduce_ index_add_ index_copy_ index_fill_ index_reduce_
    masked_fill_ masked_scatter_ put_ addmm_ baddbmm_ addbmm_ addmv_ addr_ fill_diagonal_ embedding_renorm_
    _amp_update_scale_ renorm_ _unsafe_masked_index_put_accumulate_ lift_fresh_ eye_ _fused_adam_ _fused_adamw_
    _fused_sgd_ _fused_adagrad_ _amp_foreach_non_finite_check_and_unscale_
    """
)
def first(x: TensorType, *rest: Any, **kwargs: Any) -> TensorType:
    return x
