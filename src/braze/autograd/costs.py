"""What computing an operator again costs, as a table: the partitioner's knowledge of operators.

A class says what a compiled program does with an operator; the figures are in bytes of memory traffic for each byte of
the result.  An operator that is not in the table is ``OPAQUE``: never computed twice.
"""

from __future__ import annotations

import enum
import operator
from typing import Any

from torch._ops import OpOverload

from ..ir import Node
from ..prims import PRIMS
from ..prims.rng import philox_seed, philox_uniform


class Kind(enum.Enum):
    """How an operator runs after fusion."""

    VIEW = "view"  # no work
    CREATE = "create"  # constants, from nothing
    CHEAP = "cheap"  # pointwise arithmetic, fused
    COSTLY = "costly"  # pointwise with transcendental functions, fused
    GATHER = "gather"  # indirect reads, fused
    DRAW = "draw"  # random numbers from a seed
    REDUCE = "reduce"  # fused with its neighbours; small results, so they are saved
    OPAQUE = "opaque"  # a library call, or unknown


POINTWISE = frozenset({Kind.CHEAP, Kind.COSTLY})
RECOMPUTE: dict[Kind, float] = {
    Kind.VIEW: 0.0,
    Kind.CREATE: 0.01,
    Kind.CHEAP: 0.05,
    Kind.COSTLY: 0.25,
    Kind.GATHER: 2.0,
    Kind.DRAW: 2.5,
}
DRAW_ON_GPU = 0.6
"""Of ``Kind.DRAW`` on a GPU, where integer arithmetic hides behind memory: less than writing and reading a mask."""

_NAMES: dict[Kind, str] = {
    Kind.VIEW: """alias as_strided detach diagonal expand lift_fresh permute select slice split split_with_sizes squeeze
        t transpose unbind unfold unsqueeze view view_as_complex view_as_real _conj _neg_view _reshape_alias
        _unsafe_view
        """,
    Kind.CREATE: """arange empty empty_like empty_strided eye full full_like linspace logspace new_empty
        new_empty_strided new_full new_ones new_zeros ones ones_like scalar_tensor zeros zeros_like tril_indices
        triu_indices""",
    Kind.CHEAP: """abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min
        clone constant_pad_nd copysign div diagonal_scatter eq fill floor floor_divide flip fmod ge gt hardsigmoid
        hardswish hardtanh isinf isnan le leaky_relu lerp logical_and logical_not logical_or logical_xor lt masked_fill
        maximum minimum mul ne neg reciprocal relu relu6 remainder roll round rsqrt rsub select_scatter select_backward
        sgn sign slice_scatter slice_backward sqrt sub threshold threshold_backward tril triu trunc where _to_copy
        leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward repeat square bitwise_left_shift
        bitwise_right_shift convert_element_type""",
    Kind.COSTLY: """acos acosh asin asinh atan atan2 atanh celu cos cosh digamma elu erf erfc erfinv exp exp2 expm1 gelu
        gelu_backward lgamma log log10 log1p log2 log_sigmoid_forward logit logaddexp mish pow sigmoid sigmoid_backward
        silu silu_backward sin sinh softplus softplus_backward tan tanh tanh_backward xlogy cat stack hypot
        elu_backward mish_backward upsample_nearest1d upsample_nearest2d upsample_nearest3d""",
    Kind.GATHER: "embedding gather index index_select take",
    Kind.REDUCE: """all amax amin any argmax argmin logsumexp max mean min native_layer_norm native_group_norm
        native_layer_norm_backward native_group_norm_backward native_batch_norm native_batch_norm_backward
        _native_batch_norm_legit _native_batch_norm_legit_functional norm linalg_vector_norm prod std sum var var_mean
        std_mean _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data nll_loss_forward
        nll_loss_backward nll_loss2d_forward mse_loss mse_loss_backward smooth_l1_loss binary_cross_entropy
        binary_cross_entropy_with_logits huber_loss avg_pool2d mean _fused_rms_norm""",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_PRIMS = {philox_seed: Kind.OPAQUE, philox_uniform: Kind.DRAW, PRIMS["as_strided"]: Kind.VIEW}


def kind_of(node: Node) -> Kind:
    """The class of a call. Results of a call with several count as views of it."""
    target: Any = node.target
    if target is operator.getitem:
        return Kind.VIEW
    if isinstance(target, OpOverload):
        if target.namespace != "aten":
            return Kind.OPAQUE
        return _KINDS.get(target._opname, Kind.OPAQUE)
    return _PRIMS.get(target, Kind.OPAQUE)
