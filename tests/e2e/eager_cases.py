"""Cases that call what ``wrap`` makes of a function: run in eager and compiled, the results compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import braze
from braze.api import log_of


def as_in_eager(case: Callable[[Any], Any], one_graph: bool) -> None:
    """The case gives what it gives in eager, and is compiled without breaks or falling back where ``one_graph``."""
    compiled = []

    def wrap(f: Any, **options: Any) -> Any:
        compiled.append(braze.compile(f, **options))
        return compiled[-1]

    want = case(lambda f, **_: f)
    got = case(wrap)
    same(got, want)
    logs = [log for f in compiled if (log := log_of(f)) is not None]
    whole = not any(log.breaks or any(g.fallback for g in log.graphs) for log in logs)
    assert whole == one_graph


def same(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got.detach(), want.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for a, b in zip(got, want):
            same(a, b)
    else:
        assert got == want
