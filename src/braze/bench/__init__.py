"""Measure eager, braze and torch.compile side by side: one process a contender, rounds interleaved, medians.

``models`` builds the cases and ``target`` the user's own, ``worker`` runs one contender in its own process, ``runner``
drives the workers round by round, ``result`` and ``plot`` show what came out.  The package is callable:
``braze.bench(model, inputs, loss)`` measures a model that is already in memory, in this process.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


def bench(
    model: Any,
    inputs: Any = None,
    loss: Callable[[Any], Any] | None = None,
    *,
    train: bool = True,
    modes: Sequence[str] = ("default",),
    precision: str = "fp32",
    peer: str | None = None,
    rounds: int = 5,
    steps: int = 3,
    warmup: int = 2,
    quiet: bool = False,
) -> Any:
    """Training steps (forward, loss, backward, AdamW) or forward passes of a model with and without braze.

    ``inputs``: a tensor, a tuple of arguments or a dict of keyword arguments, on the model's device. ``loss(output)``
    gives a scalar. Works on copies of the model. ``peer="torch"`` measures torch.compile too. Prints a table unless
    ``quiet``; returns :class:`~braze.bench.result.Results` (``.rows``, ``.json()``, ``.markdown()``, ``.plot(path)``).
    An interrupt ends it with what was measured. Peak memory on the CPU is the whole process's.
    """
    from .local import bench as run
    from .runner import Plan

    plan = Plan(rounds, steps, warmup)
    return run(model, inputs, loss, train, modes, precision, peer, plan, quiet)


class _Callable(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return bench(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
