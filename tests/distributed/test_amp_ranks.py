"""GradScaler across ranks: an overflow on one rank is skipped by all."""

from __future__ import annotations

import pytest
from ranks import Ranks


@pytest.mark.parametrize("kind, dtype", [("ddp", "float16"), ("fsdp", "float16"), ("ddp", "bfloat16")])
def test_an_overflow_on_one_rank_is_skipped_by_all(ranks2: Ranks, kind: str, dtype: str) -> None:
    scales = ranks2.run("amp_cases", "grad_scaler", kind=kind, dtype=dtype)
    assert scales[0] == scales[1]
    assert scales[0][3] == scales[0][2] / 2, scales
