"""Numbers of tensors that constants and sizes alone went into are known while tracing; no others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from vm_public import check

import braze
from braze.api import log_of

X = torch.arange(24.0).reshape(2, 12) + 1


def quotient(x: torch.Tensor) -> Any:
    return x.view(x.size(0), torch.div(x.size(1), 4, rounding_mode="trunc"), 4) * 2  # type: ignore[call-overload]


def by_name(x: torch.Tensor) -> Any:
    n = torch.div(x.size(1), 4, rounding_mode="trunc")  # type: ignore[call-overload]
    return x.as_strided(size=(2, n - 1, 4), stride=(12, 4, 1)) + 1


def of_size(x: torch.Tensor) -> Any:
    n = torch.tensor(x.shape[1])
    half = torch.div(n, 2, rounding_mode="trunc")
    return x.new_zeros((2, int(half) + 1)) + int(n)


def branches(x: torch.Tensor) -> Any:
    n = torch.tensor([3, 1])
    if n.max() > 2:
        x = x + [1, 2, 3, 4][n[1]]
    return x * n[0].item(), float(n.max()), bool(n[1] == 1)


@pytest.mark.parametrize("f", [quotient, by_name, of_size, branches], ids=lambda f: f.__name__)
def test_known(f: Callable[..., Any]) -> None:
    assert check(f, X, fullgraph=True) == []


def test_a_size_that_changes() -> None:
    compiled = braze.compile(quotient, backend="eager")
    for n in (12, 8, 20, 24):
        x = torch.randn(3, n)
        assert torch.equal(compiled(x), quotient(x))
    assert not log_of(compiled).breaks  # type: ignore[union-attr]


def test_written_in_place() -> None:
    def added(x: torch.Tensor) -> Any:
        n = torch.tensor(3)
        n += 1
        return x * n.item()

    def through_a_view(x: torch.Tensor) -> Any:
        n = torch.tensor([3, 4])
        m, v = n.view(2, 1), n[0]
        m.add_(1)
        return x * (v * 2).item()

    assert check(added, X) and check(through_a_view, X)


def test_what_is_random_or_computed_is_not_known() -> None:
    assert check(lambda x: x * torch.randint(5, (1,)).item(), X)
    assert check(lambda x: x * x.sum().long().item(), X)
    assert not check(lambda x, n: x * n.item(), X, torch.tensor(3))  # read before the graph
