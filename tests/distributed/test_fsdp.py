"""FSDP2 (fully_shard) and tensor parallelism on gloo: compiled equals eager, breaks have reasons."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fsdp_cases import FEATURES, PLANS
from ranks import Ranks
from test_matrix import MATRIX

slow = pytest.mark.slow


@pytest.mark.parametrize("name", [name for name in FEATURES if name not in MATRIX])
def test_compiled_blocks_equal_eager(ranks2: Ranks, name: str) -> None:
    breaks = ranks2.run("fsdp_cases", "feature", name=name, how="after", bf16=False)
    assert breaks == [[], []]


def test_blocks_compiled_before_sharding(ranks2: Ranks) -> None:
    ranks2.run("fsdp_cases", "feature", name="plain", how="before", bf16=True)


def test_the_whole_model_breaks_at_the_hooks_and_says_so(ranks2: Ranks) -> None:
    for reasons in ranks2.run("fsdp_cases", "feature", name="plain", how="whole", bf16=False):
        assert len(reasons) <= 3 and any("torch.distributed, which runs collectives" in r for r in reasons), reasons
        assert any("fully_shard(block)" in r for r in reasons)


@slow
@pytest.mark.parametrize("how", ["before", "after", "whole"])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", list(FEATURES))
def test_all_on_four_ranks(ranks4: Ranks, name: str, how: str, bf16: bool) -> None:
    ranks4.run("fsdp_cases", "feature", name=name, how=how, bf16=bf16)


def test_distributed_checkpoint(ranks2: Ranks, tmp_path: Path) -> None:
    ranks2.run("fsdp_cases", "checkpoint_round_trip", folder=str(tmp_path / "saved"))


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("plan", list(PLANS))
def test_tensor_parallel_runs_with_reasons(ranks2: Ranks, plan: str, bf16: bool) -> None:
    for reasons, calls in ranks2.run("fsdp_cases", "tensor_parallel_equals_eager", plan=plan, bf16=bf16, sharded=False):
        if os.environ.get("BRAZE_TENSOR_PARALLEL") == "1":
            assert not reasons and calls >= 10, reasons
        else:
            assert any("DTensor" in r for r in reasons), reasons


@pytest.mark.parametrize("plan", list(PLANS))
def test_tensor_parallel_under_fsdp(ranks4: Ranks, plan: str) -> None:
    ranks4.run("fsdp_cases", "tensor_parallel_equals_eager", plan=plan, bf16=False, sharded=True)
