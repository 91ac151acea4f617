"""A backward is begun while the forward's kernels are compiled elsewhere, and waited for when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.backends import inductor


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What happens to the programs of a graph that counts as a card's."""
    events: list[str] = []
    start = inductor.start_program

    def started(program: Any, config: Any) -> Any:
        events.append(f"begin {program.name}")
        finish = start(program, config)

        def wait() -> Any:
            events.append(f"wait {program.name}")
            return finish()

        return wait

    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(inductor, "start_program", started)
    monkeypatch.setattr(inductor, "on_gpu", lambda request: True)
    monkeypatch.setattr(inductor, "warm_up", lambda config: None)
    return events


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


def test_a_backward_is_begun_before_the_forward_is_waited_for(order: list[str]) -> None:
    x = torch.randn(16, requires_grad=True)
    out = braze.compile(f, options={"strict": True})(x)
    assert order == ["begin forward", "begin backward", "wait forward"]
    out.backward()
    assert order[3:] == ["wait backward"]
    torch.testing.assert_close(x.grad, (x.cos() * x + x.sin()).detach())


def test_a_symbolic_backward_waits_for_its_use(order: list[str]) -> None:
    x = torch.randn(16, requires_grad=True)
    out = braze.compile(f, dynamic=True, options={"strict": True})(x)
    assert order == ["begin forward", "wait forward"]
    out.backward()
    assert order[2:] == ["begin backward", "wait backward"]


def test_without_gradients_there_is_one_side(order: list[str]) -> None:
    braze.compile(f, options={"strict": True})(torch.randn(16))
    assert order == ["begin forward", "wait forward"]
