"""never_slower: the faster of eager and compiled stays, and the trial leaves no trace."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of
from braze.runtime import faster


def test_the_faster_one_is_kept() -> None:
    def slow(x: torch.Tensor) -> Any:
        time.sleep(0.003)
        return (x + 1,)

    def fast(x: torch.Tensor) -> Any:
        return (x + 1,)

    x = torch.randn(4)
    kept, why = faster.pick(slow, fast, [x])
    assert kept is fast and why.startswith("kept eager")
    kept, why = faster.pick(fast, slow, [x])
    assert kept is fast and why.startswith("kept compiled")


def test_a_failing_trial_keeps_compiled() -> None:
    def fails(x: torch.Tensor) -> Any:
        raise RuntimeError("no")

    kept, why = faster.pick(fails, fails, [torch.randn(1)])
    assert kept is fails and "RuntimeError: no" in why


@pytest.mark.parametrize("winner", ["eager", "compiled"])
def test_nothing_is_left_behind(winner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch statistics, gradients and random numbers are those of one call, whoever wins."""
    times = [2.0, 1.0] if winner == "eager" else [1.0, 2.0]
    measure = faster.measure

    def fixed(runs: Any, inputs: Any) -> list[float]:
        measure(runs, inputs)
        return times

    monkeypatch.setattr(faster, "measure", fixed)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    twin = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    twin.load_state_dict(model.state_dict())
    compiled = braze.compile(model, options={"never_slower": True, "strict": True})
    x = torch.randn(8, 4)
    torch.manual_seed(3)
    got = compiled(x)
    after = torch.rand(1)
    got.sum().backward()
    torch.manual_seed(3)
    want = twin(x)
    assert torch.equal(after, torch.rand(1))
    want.sum().backward()
    torch.testing.assert_close(got, want)
    for a, b in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-5)
    for a, b in zip(model.buffers(), twin.buffers()):
        torch.testing.assert_close(a, b)
    log = log_of(compiled)
    assert log is not None and log.graphs[0].choice.startswith(f"kept {winner}")
    assert f"never slower: kept {winner}" in str(braze.explain(compiled)(x))
