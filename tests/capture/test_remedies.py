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


def test_a_decision_on_a_number_names_its_line() -> None:
    @braze.compile(backend="eager")
    def f(x: torch.Tensor, k: int) -> torch.Tensor:
        y = x + 1
        return y * k if k > 3 else y - k  # the line

    for k in (1, 2, 5):
        f(torch.ones(3), k)
    log = log_of(f)
    assert log is not None
    last = log.recompiles[-1]
    assert last.reason == "k <= 3: got 5" and "outcome" in last.hint
    assert last.loc is not None and last.loc.text == "return y * k if k > 3 else y - k  # the line"


def test_what_was_found_is_said_in_the_guards_terms() -> None:
    class Options:
        mode = "a"

    options = Options()

    @braze.compile(backend="eager")
    def f(x: torch.Tensor, items: list[int], table: dict[str, int], act: object) -> torch.Tensor:
        y = x * len(items) + len(table)
        return act(y) if options.mode == "a" else y  # type: ignore[operator]

    x = torch.ones(3)
    f(x, [1, 2], {"a": 1}, torch.sin)
    f(x, [1, 2, 3], {"a": 1}, torch.sin)
    f(x, [1, 2, 3], {"a": 1, "b": 2}, torch.sin)
    f(x, [1, 2, 3], {"a": 1, "b": 2}, torch.cos)
    options.mode = "b"
    f(x, [1, 2, 3], {"a": 1, "b": 2}, torch.cos)
    log = log_of(f)
    assert log is not None
    found = [r.reason for r in log.recompiles]
    assert found == [
        "items: expected length 2, got length 3",
        "table: expected keys ['a'], got keys ['a', 'b']",
        "act: expected the object sin, got cos",
        "options: expected no instance attribute 'mode', got mode = 'b'",
    ]
    assert all(r.hint and r.loc is not None for r in log.recompiles)


def test_every_break_has_a_remedy_and_a_readable_reason() -> None:
    import numpy as np

    @braze.compile(backend="eager")
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.from_numpy(np.sort(x.numpy())) + 1
        with open(__file__):
            return torch.nonzero(y) + 1

    f(torch.ones(3))
    log = log_of(f)
    assert log is not None and len(log.breaks) >= 4
    assert all(b.hint and b.loc is not None and b.count == 1 for b in log.breaks)
    assert any("torch.nonzero: the size of the result" in b.reason for b in log.breaks)
    assert not any("_VariableFunctionsClass" in b.reason for b in log.breaks)
