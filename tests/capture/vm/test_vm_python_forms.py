"""heapq, bisect and functools.cmp_to_key: captured; groups of exceptions and weak references: clean breaks."""

from __future__ import annotations

import bisect
import functools
import heapq
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from vm_public import check

X = torch.arange(6.0).reshape(2, 3) + 1


def heaps(x: torch.Tensor) -> Any:
    h = [3, 1, 2]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    a, b, c = heapq.heappop(h), heapq.heappushpop(h, 9), heapq.heapreplace(h, 5)
    rest = heapq.nlargest(2, h), heapq.nsmallest(2, h, key=lambda v: -v), list(heapq.merge([1, 4], [2, 3]))
    return x + a + b * 2 + c * 3, h, rest


def beam(x: torch.Tensor) -> Any:
    h: list[Any] = []
    for i in range(4):
        heapq.heappush(h, (-i * 7 % 5, i, x * i))
    out = torch.zeros_like(x)
    order = []
    while h:
        p, i, t = heapq.heappop(h)
        order.append(i)
        out = out + t * p
    return out, order


def existing(x: torch.Tensor, h: list[int]) -> Any:
    heapq.heappush(h, 2)
    return x * heapq.heappop(h)


def empty(x: torch.Tensor) -> Any:
    h: list[int] = []
    try:
        return heapq.heappop(h)
    except IndexError:
        return x * 2


def buckets(x: torch.Tensor, items: list[int]) -> Any:
    i, j = bisect.bisect_left(items, 3), bisect.bisect(items, 3, lo=1)
    bisect.insort(items, 4)
    bisect.insort_left(items, 0, key=lambda v: v)
    return x + i * 10 + j, bisect.bisect(["a", "bb", "cccc"], 2, key=len)


def compared(x: torch.Tensor) -> Any:
    order = sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))
    least = min([[3], [1, 2]], key=functools.cmp_to_key(lambda a, b: len(b) - len(a)))
    return x * order[0], order, least


@pytest.mark.parametrize("f", [heaps, beam, empty, compared], ids=lambda f: f.__name__)
def test_captured(f: Callable[..., Any]) -> None:
    assert check(f, X, fullgraph=True) == []


def test_existing_lists() -> None:
    assert check(existing, X, [1, 5, 3], fullgraph=True) == []
    assert check(buckets, X, [1, 3, 3, 5], fullgraph=True) == []


def test_no_list() -> None:
    def wrong(x: torch.Tensor) -> Any:
        heapq.heappush((1, 2), 3)  # type: ignore[type-var]
        return x * 2

    check(wrong, X)


def groups(x: torch.Tensor, bad: bool) -> Any:
    n = 0
    try:
        y = x * 2
        if bad:
            raise ExceptionGroup("several", [ValueError("a"), TypeError("b"), KeyError("c")])
    except* ValueError as e:
        n += len(e.exceptions)
    except* (TypeError, KeyError) as e:
        n += 10 * len(e.exceptions)
    return y + n


def test_exception_groups() -> None:
    assert check(groups, X, False, fullgraph=True) == []
    assert any("ExceptionGroup" in reason for reason in check(groups, X, True))


class Holder:
    v = 3


def test_weak_references() -> None:
    holder = Holder()
    ref = weakref.ref(holder)

    def follow(x: torch.Tensor) -> torch.Tensor:
        target = ref()
        return x * target.v if target is not None else x

    def make(x: torch.Tensor, h: Any) -> torch.Tensor:
        return x * weakref.ref(h)().v  # type: ignore[union-attr]

    assert check(follow, X) == []
    assert check(make, X, holder) == ["a weak reference made in the compiled function"]
    keyed = weakref.WeakKeyDictionary({holder: 4})
    check(lambda x: x * keyed[holder] + len(keyed), X)


def test_a_leaf_written_in_place_raises_where_the_program_catches_it() -> None:
    import braze

    def writes(y: torch.Tensor) -> str:
        try:
            y.add_(1)
        except RuntimeError:
            return "caught"
        return "written"

    compiled = braze.compile(writes, backend="eager")
    leaf = torch.ones(3, requires_grad=True)
    assert [compiled(leaf * 2), compiled(leaf), compiled(leaf * 2), compiled(leaf)] == ["written", "caught"] * 2
