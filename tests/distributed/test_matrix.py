"""Every combination of {DDP, FSDP2} x {float32, bfloat16 autocast} x {unused parameters, accumulation, checkpointing},
on 2 and 4 gloo processes: losses, gradients and the final state of 20 steps equal eager's."""

from __future__ import annotations

import pytest
from ranks import Ranks

MATRIX = ("unused", "accumulation", "checkpointing")
WRAPPED = {"ddp": ("ddp_cases", {"inside": False}), "fsdp": ("fsdp_cases", {"how": "after"})}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", list(WRAPPED))
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MATRIX)
def test_training_equals_eager(request: pytest.FixtureRequest, world: int, kind: str, bf16: bool, name: str) -> None:
    ranks: Ranks = request.getfixturevalue(f"ranks{world}")
    module, how = WRAPPED[kind]
    breaks = ranks.run(module, "feature", name=name, bf16=bf16, **how)
    assert kind == "ddp" or breaks == [[]] * world
