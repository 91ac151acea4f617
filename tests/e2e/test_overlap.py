"""Inputs that are views of one storage, one of them written: the right answer, in eager."""

from __future__ import annotations

import pytest
import torch

import braze


def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return y * 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_overlapping_views(backend: str) -> None:
    fast = braze.compile(step, backend=backend)
    for first, second in [(slice(0, 4), slice(4, 8)), (slice(0, 4), slice(2, 6)), (slice(0, 4), slice(0, 4))]:
        want, got = torch.arange(8.0), torch.arange(8.0)
        assert torch.equal(fast(got[first], got[second]), step(want[first], want[second]))
        assert torch.equal(got, want)
    a, b = torch.ones(4), torch.ones(4)
    assert torch.equal(fast(a, b), b * 2) and torch.equal(a, b + 1)


def test_two_tensors_over_one_array() -> None:
    """They have one memory and two storages."""

    @braze.compile
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    array = torch.zeros(8).numpy()
    torch.testing.assert_close(add(torch.zeros(8), torch.zeros(8)), torch.zeros(8))
    torch.testing.assert_close(add(torch.from_numpy(array), torch.from_numpy(array)), torch.full((8,), 2.0))
