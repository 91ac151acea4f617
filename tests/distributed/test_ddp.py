"""DistributedDataParallel on gloo: compiled equals eager, and gradients leave the backward before it ends."""

from __future__ import annotations

import pytest
from ddp_cases import FEATURES
from ranks import Ranks
from test_matrix import MATRIX

slow = pytest.mark.slow


@pytest.mark.parametrize("name", [name for name in FEATURES if name not in MATRIX])
def test_compiled_ddp_equals_eager(ranks2: Ranks, name: str) -> None:
    ranks2.run("ddp_cases", "feature", name=name, inside=False, bf16=False)


@pytest.mark.parametrize("bf16", [False, True])
def test_ddp_of_a_compiled_module(ranks2: Ranks, bf16: bool) -> None:
    ranks2.run("ddp_cases", "feature", name="plain", inside=True, bf16=bf16)


@slow
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", list(FEATURES))
def test_all_on_four_ranks(ranks4: Ranks, name: str, inside: bool, bf16: bool) -> None:
    ranks4.run("ddp_cases", "feature", name=name, inside=inside, bf16=bf16)


def test_buckets_leave_during_the_backward(ranks2: Ranks) -> None:
    for events, nodes in ranks2.run("ddp_cases", "overlap"):
        assert nodes >= 3 and events.count("stage") == nodes
        assert events.index("bucket") < len(events) - 1 - events[::-1].index("stage"), events
        after_last_stage = events[::-1].index("stage")
        assert events.count("bucket") >= 4 and after_last_stage <= events.count("bucket") // 2, events
