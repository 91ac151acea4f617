"""``as_strided`` and what else sees a tensor's storage, at several places in it, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.api import log_of

BASE = torch.arange(1.0, 25.0)
PLACES = (slice(2, 6), slice(3, 7), slice(3, 7), slice(1, 5), slice(2, 10, 2), slice(3, 11, 2))


def fell_back(fast: Any) -> list[str]:
    log = log_of(fast)
    assert log is not None
    return [g.fallback for g in log.graphs if g.fallback] + [b.reason for b in log.breaks]


def scattered(x: torch.Tensor) -> torch.Tensor:
    first = x.storage_offset()
    return torch.as_strided_scatter(x, torch.ones(2), (2,), (1,), first)


def resized(x: torch.Tensor) -> torch.Tensor:
    return x.clone().as_strided_((2, 3), (0, 1)) * 2


READS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "offset": lambda x: x * x.storage_offset(),
    "offset of a view": lambda x: x[1:] * x[1:].storage_offset(),
    "view": lambda x: x.as_strided((3,), (1,), 1) * 2,
    "before the input": lambda x: x.as_strided((2, 2), (1, 2), 0) + 1,
    "beyond the input": lambda x: torch.as_strided(x, (2, 2), (5, 1), 12).neg(),
    "keyword": lambda x: x.as_strided(size=(2,), stride=(1,), storage_offset=3) - 1,
    "of a view": lambda x: x.view(2, 2).t().as_strided((2,), (1,), 2) * 3,
    "copy": lambda x: torch.as_strided_copy(x, (2, 2), (1, 2), 0),
    "operator": lambda x: torch.ops.aten.as_strided.default(x, [2], [1], 2) + 1,
    "of a clone": lambda x: x.clone().as_strided((2,), (1,), 2) + 0,
    "of a result": lambda x: (x * 2).as_strided((2, 2), (1, 1), 1),
    "place kept": lambda x: x.as_strided((2,), (1,)) + 1,
    "in place": resized,
    "in place, returned": lambda x: x.clone().as_strided_((2, 3), (0, 1)),
}


@pytest.mark.parametrize("name", READS)
def test_reads(name: str) -> None:
    fn = READS[name]
    fast = braze.compile(lambda x: fn(x))
    for place in PLACES:
        got, want = fast(BASE[place]), fn(BASE[place])
        assert torch.equal(got, want) and got.stride() == want.stride(), place
    assert not fell_back(fast)


def test_scatter() -> None:
    fast = braze.compile(scattered)
    for place in PLACES[:4]:
        assert torch.equal(fast(BASE[place]), scattered(BASE[place])), place
    assert not fell_back(fast)


def test_a_returned_view_shows_the_storage() -> None:
    fast = braze.compile(lambda x: x.as_strided((3,), (1,), 1))
    for place in PLACES:
        got = fast(BASE[place])
        assert got.data_ptr() == BASE.data_ptr() + BASE.element_size()
        assert torch.equal(got, BASE[1:4])


@pytest.mark.parametrize("step", [1, 2])
def test_gradients(step: int) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2, 2), (1, 2), 1) * x.as_strided((2, 2), (2, 1), 0)

    fast = braze.compile(lambda x: fn(x))
    xs = [BASE.clone()[0 : 4 * step : step].detach().requires_grad_() for _ in range(2)]
    tangent = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for f, x in zip((fast, fn), xs):
        f(x).backward(tangent)
    assert torch.equal(xs[0].grad, xs[1].grad)  # type: ignore[arg-type]
    assert not fell_back(fast)


def test_a_write_through_a_view() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.as_strided((2,), (1,), x.storage_offset() + 1).mul_(2)
        return x + 1

    fast = braze.compile(lambda x: fn(x))
    for place in PLACES[:4]:
        mine, theirs = BASE.clone(), BASE.clone()
        assert torch.equal(fast(mine[place]), fn(theirs[place])) and torch.equal(mine, theirs)
    assert not fell_back(fast)


@pytest.mark.filterwarnings("ignore:braze could not compile")
@pytest.mark.parametrize("place", [slice(1, 3), slice(0, 8, 2)])
def test_a_write_to_what_the_input_does_not_show(place: slice) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.as_strided((4,), (1,), 1).mul_(2)
        return x + 1

    fast = braze.compile(lambda x: fn(x))
    mine, theirs = BASE.clone(), BASE.clone()
    assert torch.equal(fast(mine[place]), fn(theirs[place])) and torch.equal(mine, theirs)


@pytest.mark.filterwarnings("ignore:braze could not compile")
def test_a_read_of_what_another_input_overwrites() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen = x.as_strided((2,), (1,), 4)
        y.mul_(2)
        return seen + 1

    fast = braze.compile(lambda x, y: fn(x, y))
    mine, theirs = BASE.clone(), BASE.clone()
    assert torch.equal(fast(mine[1:3], mine[3:6]), fn(theirs[1:3], theirs[3:6])) and torch.equal(mine, theirs)


def test_complex_numbers() -> None:
    z = torch.complex(BASE, -BASE)
    for fn in (
        lambda x: x.as_strided((2, 2), (1, 2), 1) * 1j,
        lambda x: x.clone().resize_(2, 2),
        lambda x: x.clone().as_strided_((2, 2), (1, 2)),
    ):
        fast = braze.compile(lambda x: fn(x))  # noqa: B023
        for place in PLACES[:4]:
            got, want = fast(z[place]), fn(z[place])
            assert torch.equal(got, want) and got.stride() == want.stride()
        assert not fell_back(fast)
