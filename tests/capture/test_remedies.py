"""Guard failures and breaks in the log: the user's line, the reason, the remedy, the count and the time."""

from __future__ import annotations

import torch

import braze
from braze.api import log_of


class Config:
    flag = "a"


def test_a_guard_failure_names_line_reason_and_remedy() -> None:
    config = Config()

    @braze.compile(backend="eager")
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y * 2 if config.flag == "a" else y - 1  # the line

    for flag in ("a", "b", "c"):
        config.flag = flag
        f(torch.ones(3))
    log = log_of(f)
    assert log is not None
    assert [r.loc.text for r in log.recompiles if r.loc] == [
        'return y * 2 if config.flag == "a" else y - 1  # the line'
    ] * 2
    (failure,) = log.guard_failures
    assert failure.what == "config.flag" and failure.count == 2 and failure.seconds > 0
    assert (
        "expected 'b', got 'c'" in failure.reason and failure.loc is not None and "few distinct values" in failure.hint
    )


def test_a_size_failure_names_the_dimension() -> None:
    @braze.compile(backend="eager", dynamic=False)
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    f(torch.ones(3))
    f(torch.ones(4))
    f(torch.ones(4, dtype=torch.float64))
    log = log_of(f)
    assert log is not None
    assert [g.what for g in log.guard_failures] == ["x: size(0)", "x: dtype"]
    assert "dynamic" in log.guard_failures[0].hint and "dtype" in log.guard_failures[1].hint


def test_a_break_has_a_remedy_and_a_time() -> None:
    @braze.compile(backend="eager")
    def f(x: torch.Tensor) -> int:
        return (x + 1).long().sum().item() + 1

    f(torch.ones(3))
    log = log_of(f)
    assert log is not None
    (b,) = log.breaks
    assert "item" in b.reason and b.hint and b.seconds > 0 and b.loc is not None and "item()" in b.loc.text
