"""The choice among launches, with a pretended clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from braze.runtime.cache import DiskCache
from braze.runtime.cuda_kernel import GridDim, Launch, TritonKernel
from braze.runtime.cuda_tune import Budget, Tuned, repeatable, spare

KERNEL = TritonKernel(
    "k",
    "tl.store(out_ptr0, 1)",
    (("in_ptr0", "*fp32"), ("out_ptr0", "*fp32"), ("n", "i32")),
    (GridDim(1, ""),),
    Launch(()),
)


class World:
    def __init__(self, times: list[float], folder: Path | None = None, kernel: TritonKernel = KERNEL) -> None:
        self.times, self.calls, self.timings = times, [0] * len(times), 0
        self.budget = Budget(10.0)
        cache = DiskCache(folder)
        self.tuned = Tuned(kernel, self.options, "ab" * 32, cache, self.budget, self.timer)

    def options(self) -> list[Callable[..., None]]:
        def make(k: int) -> Callable[..., None]:
            def run(*args: Any) -> None:
                self.calls[k] += 1
                args[1].fill_(float(k))

            run.index = k  # type: ignore[attr-defined]
            return run

        return [make(k) for k in range(len(self.times))]

    def timer(self, f: Any, args: Any) -> float:
        self.timings += 1
        f(*args)
        return self.times[f.index]


@pytest.fixture(autouse=True)
def _no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_the_fastest_wins_and_timing_leaves_no_trace() -> None:
    w = World([3.0, 1.0, 2.0])
    a, b = torch.zeros(2), torch.full((2,), 77.0)
    w.tuned(a, b, 2)
    assert b.tolist() == [1.0, 1.0] and w.timings == 3
    w.tuned(a, b, 2)
    assert w.calls == [1, 3, 1]


def test_a_small_gain_does_not_count() -> None:
    w = World([1.0, 0.99])
    w.tuned(torch.zeros(2), b := torch.zeros(2), 2)
    assert b[0] == 0.0 and w.calls[0] == 2


def test_the_choice_is_remembered(tmp_path: Path) -> None:
    World([3.0, 1.0], tmp_path).tuned(torch.zeros(2), torch.zeros(2), 2)
    again = World([3.0, 1.0], tmp_path)
    again.tuned(torch.zeros(2), b := torch.zeros(2), 2)
    assert again.timings == 0 and b[0] == 1.0


def test_no_budget_no_timing() -> None:
    w = World([3.0, 1.0])
    w.budget.seconds = 0.0
    w.tuned(torch.zeros(2), b := torch.full((2,), 9.0), 2)
    assert w.timings == 0 and b[0] == 0.0


def test_kernels_with_effects_are_not_timed() -> None:
    adds = TritonKernel("k", "tl.atomic_add(p, 1)", KERNEL.signature, KERNEL.grid, KERNEL.launch)
    both = TritonKernel("k", "", (("in_out_ptr0", "*fp32"),), KERNEL.grid, KERNEL.launch)
    assert repeatable(KERNEL) and not repeatable(adds) and not repeatable(both)
    w = World([3.0, 1.0], kernel=adds)
    w.tuned(torch.zeros(2), torch.zeros(2), 2)
    assert w.timings == 0 and w.calls == [1, 0]


def test_inside_a_recording_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World([3.0, 1.0])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    w.tuned(torch.zeros(2), torch.zeros(2), 2)
    assert w.timings == 0 and w.tuned.best is None


def test_spare_memory_has_the_same_layout() -> None:
    a, b = torch.zeros(4, 3), torch.zeros(3, 4).t()
    x, y, n = spare(KERNEL, (a, b, 5))
    assert x is a and y is not b and y.stride() == b.stride() and n == 5
