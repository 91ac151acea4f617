"""Stores to one place from several indices: on the CPU the last one stays, as in eager, with any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import braze

N = 40_000  # enough work for a kernel to be shared by threads


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def last(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    """``x`` with ``source``'s rows stored at ``index``, one after another."""
    x = x.clone()
    place = torch.full((len(x),), -1).scatter_reduce(0, index, torch.arange(len(index)), "amax")
    return torch.where((place >= 0).view(-1, *[1] * (x.ndim - 1)), source[place], x)


STORES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "scatter": lambda x, i, s: x.scatter(0, i.view(-1, *[1] * (x.ndim - 1)).expand_as(s), s * 2),
    "scatter_last": lambda x, i, s: x.T.scatter(-1, i.expand_as(s.T), s.T * 2).T,
    "index_put": lambda x, i, s: x.index_put((i,), s * 2),
    "index_copy": lambda x, i, s: x.index_copy(0, i, s * 2),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("row", [(), (3,), (24,)])
@pytest.mark.parametrize("name", STORES)
def test_last_stays(name: str, row: tuple[int, ...], dynamic: bool) -> None:
    if name == "scatter_last" and len(row) != 1:
        pytest.skip("a matrix")
    torch.manual_seed(0)
    compiled: Any = braze.compile(STORES[name], dynamic=dynamic)
    for n in (N, N + 5):
        x, index, source = torch.randn(7, *row), torch.randint(0, 6, (n,)), torch.randn(n, *row)
        want = last(x, index, source * 2)
        for _ in range(3):
            torch.testing.assert_close(compiled(x, index, source), want, rtol=0, atol=0)
