"""What printed loop programs import: loops and memory that give the printed text its meaning, in vectorised torch.

``for i0 in loop(64):`` runs its body once, with all 64 values of ``i0`` at once; ``for i1 in fold(256):`` likewise, and
``reduce_sum(v)`` inside it folds ``v`` over the enclosing ``fold`` loops.  An inner loop's index is a tensor with one
more leading dim than the outer one's, so values of different loops broadcast.  ``x[i0, i1]`` reads and writes a
buffer's elements; ``x.where(mask, other)[…]`` touches only those where ``mask`` holds, ``x.accumulate[…] = v`` adds,
``x.sum[…] = v`` makes each element the sum of the values that hit it.

>>> @kernel
... def double(x, out):
...     for i0 in loop(3):
...         out[i0] = x[i0] * 2
>>> out = torch.empty(3); double(torch.ones(3), out); out
tensor([2., 2., 2.])
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from braze.prims import PRIMS
from braze.runtime.host import reused
from braze.runtime.spelling import spelled

from .interpret import philox

__all__ = ["bitcast", "check_index", "fold", "kernel", "loop", "philox", "reused", "spelled", "typed"]


class _Nest:
    """The loops that are open: (size, is it a fold) from the outside."""

    def __init__(self) -> None:
        self.loops: list[tuple[int, bool]] = []

    def run(self, size: int, folded: bool) -> Iterator[torch.Tensor]:
        depth = len(self.loops)
        self.loops.append((size, folded))
        try:
            yield torch.arange(size).reshape((size,) + (1,) * depth)
        finally:
            self.loops.pop()

    @property
    def shape(self) -> tuple[int, ...]:
        """The domain, innermost loop first."""
        return tuple(n for n, _ in reversed(self.loops))


_nest = _Nest()


def loop(size: int) -> Iterator[torch.Tensor]:
    """A parallel loop: one pass with every index in [0, size)."""
    return _nest.run(size, False)


def fold(size: int) -> Iterator[torch.Tensor]:
    """A loop that reductions fold: one pass with every index in [0, size)."""
    return _nest.run(size, True)


class Memory:
    """A tensor as a kernel sees it: elements by logical index, checked to be in range unless masked away."""

    def __init__(
        self, data: torch.Tensor, mask: Any = None, other: Any = 0, add: bool = False, clear: bool = False
    ) -> None:
        self.data, self.mask, self.other, self.add, self.clear = data, mask, other, add, clear

    def where(self, mask: torch.Tensor, other: Any = 0) -> Memory:
        return Memory(self.data, mask, other, self.add, self.clear)

    @property
    def accumulate(self) -> Memory:
        return Memory(self.data, self.mask, self.other, True)

    @property
    def sum(self) -> Memory:
        return Memory(self.data, self.mask, self.other, True, True)

    def _place(self, index: Any) -> list[torch.Tensor]:
        out = []
        for e, n in zip(index if isinstance(index, tuple) else (index,), self.data.shape, strict=True):
            v = torch.as_tensor(e, dtype=torch.int64)
            v = v if self.mask is None else torch.where(self.mask, v, 0)
            assert v.numel() == 0 or (0 <= int(v.min()) and int(v.max()) < n), f"an index leaves [0, {n})"
            out.append(v)
        return out

    def __getitem__(self, index: Any) -> torch.Tensor:
        if self.mask is not None and self.data.numel() == 0:
            return torch.full_like(self.mask, self.other, dtype=self.data.dtype)
        place = self._place(index)
        value = (self.data[tuple(place)] if place else self.data).clone().cpu()
        return value if self.mask is None else torch.where(self.mask, value, typed(self.other, value.dtype))

    def __setitem__(self, index: Any, value: Any) -> None:
        data, shape = self.data, _nest.shape
        value = typed(value, data.dtype) if not isinstance(value, torch.Tensor) else value
        assert value.dtype == data.dtype, f"{value.dtype} stored to {data.dtype}"
        place = [v.expand(shape) for v in self._place(index)]
        value = value.expand(shape)
        if self.mask is not None:
            keep = self.mask.expand(shape)
            place, value = [v[keep] for v in place], value[keep]
        if self.clear:
            data[tuple(place)] = 0
        if not place:
            data.copy_(data + value.sum() if self.add else value.reshape(-1)[-1])
        else:
            data.index_put_(tuple(v.to(data.device) for v in place), value.to(data.device), self.add)


def kernel(body: Callable[..., None]) -> Callable[..., None]:
    """A printed kernel as a function of tensors and sizes."""

    @functools.wraps(body)
    def run(*args: Any) -> None:
        global _nest
        outer, _nest = _nest, _Nest()
        try:
            body(*(Memory(a) if isinstance(a, torch.Tensor) else a for a in args))
        finally:
            _nest = outer

    return run


def typed(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A number or a value in a dtype."""
    return value.to(dtype) if isinstance(value, torch.Tensor) else torch.full((), value, dtype=dtype)


def bitcast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same bits in another dtype."""
    return value.contiguous().view(dtype)


def check_index(index: torch.Tensor, size: int) -> torch.Tensor:
    """A Python-style index in [-size, size) as one in [0, size). AssertionError when it is out of range."""
    assert bool(((index >= -size) & (index < size)).all()), f"an index is out of [-{size}, {size})"
    return torch.where(index < 0, index + size, index)


def _reduce(name: str, value: torch.Tensor) -> torch.Tensor:
    rank = len(_nest.loops)
    full = value.expand(_nest.shape).permute(tuple(range(rank))[::-1]).contiguous()
    inner = sum(folded for _, folded in _nest.loops)
    out: torch.Tensor = PRIMS[name].reference(full, tuple(range(rank - inner, rank)))
    return out.permute(tuple(range(out.dim()))[::-1])


def __getattr__(name: str) -> Any:
    kind = name.removeprefix("reduce_")
    if kind == name:
        raise AttributeError(name)
    return functools.partial(_reduce, {"max": "amax", "min": "amin"}.get(kind, kind))
