"""Modes that the traced code switches (grad mode, autocast): in force for real while tracing, undone afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from braze.ir import Graph

Call = tuple[Callable[..., Any], tuple[Any, ...]]
_DEVICES = ("cpu", "cuda")


def _state() -> tuple[Any, ...]:
    autocast = tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES)
    return (torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), *autocast)


class Modes:
    """The switches of one trace, in order."""

    def __init__(self) -> None:
        self.done: list[Call] = []
        self.undo: list[Call] = []
        self.entry = _state()
        self.depth = 0

    def change(self, function: Callable[..., Any], args: tuple[Any, ...], undo: Call | None) -> Any:
        """Switch now; ``undo`` is the call that restores what was."""
        out = function(*args)
        if undo is not None:
            self.done.append((function, args))
            self.undo.append(undo)
        if function is torch.autocast_increment_nesting:
            self.depth += 1
        elif function is torch.autocast_decrement_nesting:
            self.depth -= 1
        return out

    def unbalanced(self) -> bool:
        """Whether the modes differ from those at entry (as at a break inside ``with torch.no_grad()``)."""
        return self.depth != 0 or _state() != self.entry

    def close(self, graph: Graph) -> list[Call]:
        """Write calls into the graph that restore the modes of entry; gives the calls that set the present ones."""
        if not self.unbalanced():
            return []
        for function, args in reversed(self.undo):
            graph.call(function, args)
        return list(self.done)

    def restore(self) -> None:
        """Undo every switch, last first."""
        for function, args in reversed(self.undo):
            function(*args)
        self.undo.clear()
