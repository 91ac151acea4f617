"""The order of sets whose keys collide: it follows from how the set was made, where the region made it key by key."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze
from braze.api import log_of


def from_list(x: torch.Tensor, names: list[int]) -> torch.Tensor:
    for n in set(names):
        x = x * 2 + n
    return x


def display(x: torch.Tensor, names: list[int]) -> torch.Tensor:
    a, b, c = names
    for n in {a, b, c}:
        x = x * 2 + n
    return x


def changed(x: torch.Tensor, names: list[int]) -> torch.Tensor:
    made = set(names)
    made.add(names[0] + 8)
    for n in made:
        x = x * 2 + n
    return x


def copied(x: torch.Tensor, names: list[int]) -> torch.Tensor:
    for n in set(dict.fromkeys(names)):
        x = x * 2 + n
    return x


@pytest.mark.parametrize("fn, breaks", [(from_list, 0), (display, 0), (changed, 1), (copied, 1)])
def test_as_eager(fn: Callable[[torch.Tensor, list[int]], torch.Tensor], breaks: int) -> None:
    compiled = braze.compile(fn)
    x = torch.arange(3.0)
    assert list({8, 0, 16}) != list({16, 0, 8}) or list({0, 8}) != list({8, 0})
    for names in ([8, 0, 16], [0, 8, 16], [16, 8, 0], [3, 11, 19]):
        torch.testing.assert_close(compiled(x, list(names)), fn(x, list(names)), rtol=0, atol=0)
    assert bool(log_of(compiled).breaks) is bool(breaks)
