"""A compiled backward under ``vmap``: many gradients at once, as ``torch.autograd.grad(is_grads_batched=True)``,
``jacobian(vectorize=True)`` and ``torch.func.vmap`` around a backward ask for.

A kernel reads the memory of plain tensors, so the backward runs once for each gradient of the batch, below the
transform, and the results are stacked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import Unsupported

_functorch = torch._C._functorch
has_storage = torch._C._has_storage
"""False for a tensor that stands for a batch of tensors, or is sparse."""

_running = threading.local()


def each(backward: Callable[..., Sequence[Any]], grads: Sequence[Any]) -> tuple[Any, ...]:
    """``backward(*grads)`` for gradients of which some have a dimension of the running ``vmap``: results with that
    dimension. Unsupported for other gradients without memory."""
    level = _functorch.maybe_current_level()
    before, _running.on = saved_again(), True
    try:
        return _mapped(backward, grads, _EngineVmap() if level is None else _FuncVmap(level))
    finally:
        _running.on = before


def saved_again() -> bool:
    """Whether this thread runs one backward several times, on the same saved tensors."""
    return getattr(_running, "on", False)


class _FuncVmap:
    """``torch.func.vmap`` at ``level``."""

    def __init__(self, level: int) -> None:
        self.level = level

    def rows(self, g: Any) -> Sequence[Any] | None:
        if _functorch.maybe_get_level(g) != self.level:
            return None
        if not _functorch.is_batchedtensor(g):
            raise _refused()
        rows: Sequence[Any] = _functorch.get_unwrapped(g).unbind(_functorch.maybe_get_bdim(g))
        return rows

    def wrap(self, x: Any) -> Any:
        return _functorch._add_batch_dim(x, 0, self.level)

    @contextmanager
    def below(self) -> Iterator[None]:
        layer = _functorch.pop_dynamic_layer_stack()
        try:
            yield
        finally:
            _functorch.push_dynamic_layer_stack(layer)


class _EngineVmap:
    """The ``vmap`` of ``is_grads_batched``, which is not torch.func's."""

    def __init__(self) -> None:
        self.level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()

    def rows(self, g: Any) -> Sequence[Any] | None:
        if has_storage(g):
            return None
        if self.level < 1:
            raise _refused()
        rows: Sequence[Any] = torch._remove_batch_dim(g, self.level, 1, 0).unbind(0)
        return rows

    def wrap(self, x: Any) -> Any:
        return torch._add_batch_dim(x, 0, self.level)

    @contextmanager
    def below(self) -> Iterator[None]:
        yield


def _refused() -> Unsupported:
    return Unsupported(
        "a gradient that has no memory of its own, of a transform of torch.func, in a compiled backward",
        hint="compile the transformed function, or leave this one in eager",
    )


def _mapped(backward: Callable[..., Sequence[Any]], grads: Sequence[Any], vmap: Any) -> tuple[Any, ...]:
    rows = [None if g is None else vmap.rows(g) for g in grads]
    size = next((len(r) for r in rows if r is not None), None)
    with vmap.below():
        if size is None:
            return tuple(backward(*grads))
        found = [backward(*[g if r is None else r[k] for g, r in zip(grads, rows)]) for k in range(size)]
        stacked = [None if column[0] is None else torch.stack(column) for column in zip(*found)]
    return tuple([None if x is None else vmap.wrap(x) for x in stacked])
