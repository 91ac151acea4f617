"""Indices and sizes that change from call to call: Python integers, and integers that tensors hold.

A small integer tensor that a call begins with is read before the graph; its number is a symbol in the graph, so that
``x[i]`` is a view, as in eager, and ``x[: lengths.max()]`` needs no break.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch

import braze
from braze.api import log_of

T = torch.tensor


def outcome(f: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    args = copy.deepcopy(args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return f(*args), args
        except Exception as e:
            return f"{type(e).__name__}: {e}", args


def check(f: Any, calls: list[tuple[Any, ...]], backend: str = "inductor") -> Any:
    fast = braze.compile(f, backend=backend)
    for args in calls:
        want, got = outcome(f, args), outcome(fast, args)
        assert isinstance(want[0], str) == isinstance(got[0], str), (want[0], got[0])
        if isinstance(want[0], str):
            assert want[0] == got[0]
        else:
            torch.testing.assert_close(got, want)
    log = log_of(fast)
    assert log is not None and not any(g.fallback for g in log.graphs) and not log.gave_up
    return log


def y() -> torch.Tensor:
    return torch.arange(360.0).view(3, 4, 5, 6)


I = T([2, 0])  # noqa: E741
KEYS = """
y[i];y[:, i];y[..., i];y[i, :, i];y[None, i];y[i, None, ..., i];y[1:, i, ::2];y[i, I];y[I, i];y[:, i, I]
y[I, i, I];y[i:i+1, i]
y[i, ..., None];y[-1, i];y[i][i];y[i, i, i, i];y[[0, 1], i];y[i, :, [0, 2]];y[..., i, :];y[..., None, i]
y[i - 3];y[-i];y.select(1, i)
y.narrow(3, i, 2);y[:, i:];y[..., :i];torch.unbind(y)[0][i]
"""
KEY_LIST = [k for line in KEYS.strip().split("\n") for k in line.split(";")]


@pytest.mark.parametrize("key", KEY_LIST)
@pytest.mark.parametrize("kind", ["int", "tensor"])
def test_an_index_that_changes(key: str, kind: str) -> None:
    scope = {"I": I, "torch": torch}
    exec(f"def f(y, i):\n    out = {key}\n    return out * 1, out.stride(), y.add_(1).shape", scope)
    log = check(scope["f"], [(y(), T(k) if kind == "tensor" else k) for k in (2, 1, 2, 1)], "eager")
    assert not log.breaks
    assert len(log.recompiles) <= (kind == "int") + 1, [r.reason for r in log.recompiles]


@pytest.mark.parametrize("key", [k for k in KEY_LIST if k.startswith("y[") and "][" not in k])
def test_a_write_at_an_index_that_changes(key: str) -> None:
    scope = {"I": I}
    exec(f"def f(y, i):\n    {key} = 7.0\n    {key} += i\n    return y * 2", scope)
    log = check(scope["f"], [(y(), T(k)) for k in (2, 1, 2, 1)], "eager")
    assert not log.breaks and len(log.recompiles) <= 1


def test_a_computed_index_beside_one_that_changes() -> None:
    def f(x: torch.Tensor, i: int, j: int) -> torch.Tensor:
        return x[i, (j & 1) + 1, None] + x[None, j & 1, :, i]

    log = check(f, [(torch.randn(5, 5, 5), k, k + 1) for k in (1, 2, 3, 4)])
    assert not log.breaks


@pytest.mark.parametrize("kind", ["int", "tensor"])
def test_every_row_is_one_graph(kind: str) -> None:
    x = torch.randn(9, 4)
    rows = [T(k) if kind == "tensor" else k for k in (2, 3, 4, 5, 6, 7, 8, 3)]
    log = check(lambda x, i: (x[i] * 2).sum(), [(x, i) for i in rows])
    assert not log.breaks and len(log.recompiles) == (kind == "int")


def test_writes_at_an_index_in_a_tensor() -> None:
    def f(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        row = x[i]
        row.mul_(2)  # a view: x sees it
        x[i, i - 1] = 5.0
        x[:, i] += v
        return row + x.sum()

    log = check(f, [(torch.randn(6, 6), T(k), torch.randn(6)) for k in (2, 3, 4, 1)])
    assert not log.breaks and len(log.graphs) == 1


def test_lengths_decide_sizes() -> None:
    def f(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        longest = int(lengths.max())
        mask = torch.arange(longest)[None] < lengths[:, None]
        return (x[:, :longest] * mask).sum(1) + torch.zeros(lengths.max().item(), 3).shape[0]

    log = check(f, [(torch.randn(3, 12), T([2, n, 3])) for n in (4, 5, 7, 12, 9)])
    assert not log.breaks and len(log.graphs) == 1


def test_numbers_after_a_write_are_not_read_before() -> None:
    def written(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        n.add_(1)
        return x[n]

    def derived(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        m = n + 1
        m.add_(1)
        return x[m]

    def between(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        first = x[n + 1]
        n += 1
        return first + x[n]

    def by_data(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        n.data.add_(1)
        return x[n]

    for f in (written, derived, between, by_data):
        log = check(f, [(torch.randn(9, 2), T(k)) for k in (2, 3, 4)])
        assert log.breaks


def test_a_view_of_what_was_written_is_not_read_before() -> None:
    def f(x: torch.Tensor, buffer: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        buffer.add_(1)
        return x[i]

    fast = braze.compile(f)
    x = torch.randn(9, 2)
    for part in (False, True, True, False):
        buffer = torch.arange(6)
        i = buffer[2] if part else T(2)
        assert torch.equal(fast(x, buffer, i), x[3 if part else 2])


def test_masks_of_one_element_are_masks() -> None:
    x = torch.randn(3, 2)
    for values in ((True, False, True), (T(1, dtype=torch.uint8), T(0, dtype=torch.uint8))):
        check(lambda x, i: x[i], [(x, T(v) if isinstance(v, bool) else v) for v in values])


def test_a_branch_on_a_small_input() -> None:
    def f(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if mask.all():
            return x * 2
        return x.masked_fill(~mask, 0.0)

    x = torch.randn(3)
    log = check(f, [(x, T([True, True, k])) for k in (True, True)])
    assert not log.breaks and len(log.graphs) == 1
    log = check(f, [(x, T([True, True, k])) for k in (True, False, True, False)])
    assert not log.breaks and len(log.graphs) == 2


def test_branches_on_many_small_inputs() -> None:
    def f(x: torch.Tensor, *flags: torch.Tensor) -> torch.Tensor:
        for k, flag in enumerate(flags):
            if flag:
                x = x + 2.0**k
        return x

    calls = [(torch.randn(3), *(T(bool(n & 2**k)) for k in range(5))) for n in (0, 1, 31, 5, 8, 21, 10, 31, 0, 17, 3)]
    log = check(f, calls)
    assert any("branch" in b.reason for b in log.breaks)


def test_a_flag_of_the_first_step() -> None:
    model = torch.nn.Linear(3, 2)
    averaged = torch.optim.swa_utils.AveragedModel(model)

    def f(x: torch.Tensor) -> torch.Tensor:
        averaged.update_parameters(model)
        return averaged(x)

    def steps(f: Any) -> list[torch.Tensor]:
        averaged.n_averaged.zero_()
        out = []
        for k in range(4):
            torch.nn.init.constant_(model.weight, k)
            out.append(f(torch.ones(2, 3)))
        return out

    fast = braze.compile(f)
    torch.testing.assert_close(steps(fast), steps(f))
    log = log_of(fast)
    assert log is not None and not log.breaks and len(log.graphs) <= 3


def test_an_index_beyond_the_end() -> None:
    check(lambda x, i: x[i], [(torch.randn(5), T(k)) for k in (2, 4, 5, -6, -5)])


def test_a_number_that_must_be_known() -> None:
    """A loop of as many steps: after a second number the frame breaks there instead of compiling each."""

    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        return x + [0.5, 1.5, 2.5, 3.5][k]

    fast = braze.compile(f)
    x = torch.randn(3)
    for k in (1, 2, 3, 0):
        torch.testing.assert_close(fast(x, T(k)), f(x, T(k)))
    log = log_of(fast)
    assert log is not None and [b.reason for b in log.breaks] == ["Tensor.item()"]
