"""torch's operator samples: traced types equal eager's. A fixed spread by default, all of them under --runslow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_opinfo import check, check_foreach, check_in_place, operators
from torch.testing._internal import common_methods_invocations

# one of each rule family, and those that went wrong once
SPREAD = """
add addcmul addmm all amax arange argmax as_strided baddbmm bernoulli bmm bool broadcast_to cat chunk clamp clone
constant_pad_nd cumsum diagonal div einsum empty_like eq expand fill flip float full gather gelu index_add
index_copy index_put index_select isnan ldexp lerp linalg_vector_norm log_softmax logsumexp masked_fill matmul
max_binary max_reduction_with_dim mean mul native_batch_norm native_layer_norm new_zeros
nn_functional_adaptive_avg_pool2d nn_functional_avg_pool2d nn_functional_batch_norm
nn_functional_binary_cross_entropy_with_logits nn_functional_conv2d nn_functional_conv_transpose2d
nn_functional_cross_entropy nn_functional_dropout nn_functional_embedding nn_functional_group_norm
nn_functional_layer_norm nn_functional_max_pool2d nn_functional_mse_loss nn_functional_nll_loss nn_functional_relu
nn_functional_scaled_dot_product_attention nn_functional_silu nn_functional_softmax ones_like permute polar pow
prod repeat reshape roll scatter_add select sigmoid slice softmax sort split_with_sizes squeeze stack std sub sum t
tan topk transpose tril unbind unfold unsqueeze var_mean view where
""".split()

FOREACH = [f"foreach_{kind}_op_db" for kind in ("unary", "binary", "pointwise", "reduce", "other")]
LAYOUTS = ["", "fortran", "gaps", "last"]


def assert_same(op: Any, dtype: torch.dtype, limit: int | None, layout: str) -> int:
    tally = check(op, dtype, limit, layout)
    assert not tally.differ, f"{tally.name}: {len(tally.differ)} samples differ, first: {tally.differ[0]}"
    return tally.same


@pytest.mark.parametrize("layout", LAYOUTS)
def test_spread(layout: str) -> None:
    ops = [op for op in operators(torch.float32) if op.formatted_name in SPREAD]
    assert len(ops) >= 0.95 * len(SPREAD)
    same = sum(assert_same(op, torch.float32, 3, layout) for op in ops)
    assert same > 2 * len(ops)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool])
def test_spread_dtypes(dtype: torch.dtype) -> None:
    ops = [op for op in operators(dtype) if op.formatted_name in SPREAD]
    assert sum(assert_same(op, dtype, 2, "") for op in ops) > len(ops)


def test_foreach() -> None:
    ops = [op for db in FOREACH for op in getattr(common_methods_invocations, db)]
    tallies = [check_foreach(op, 4) for op in ops]
    assert [t.name for t in tallies if t.differ or t.unsupported] == []
    assert sum(t.same for t in tallies) > 100


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_in_place() -> None:
    ops = [op for op in operators(torch.float32) if op.inplace_variant is not None and op.name != "resize_"]
    tallies = [check_in_place(op, 30) for op in ops]
    assert {t.name: t.differ[0] for t in tallies if t.differ} == {}
    assert sum(t.same for t in tallies) > 700


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_float32(layout: str) -> None:
    sparse = "sparse_sampled_addmm sparse_mm_reduce".split()
    ops = [op for op in operators(torch.float32) if op.formatted_name not in sparse]
    assert sum(assert_same(op, torch.float32, None, layout) for op in ops) > 16_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_all_dtypes(dtype: torch.dtype) -> None:
    for op in operators(dtype):
        assert_same(op, dtype, 6, "")
