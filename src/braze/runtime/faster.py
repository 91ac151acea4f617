"""``never_slower``: run eager and compiled beside each other before the first call, and keep the faster one.

Both run a few times in turns on the inputs of the first call, forward and, where results require grad, backward with
gradients of ones.  The trial leaves no trace: inputs are detached, those that do not require grad are copied (a program
may write to them), random numbers continue as if nothing had run.  A program with effects outside of its tensors (a
hook that counts its calls, a print) would show them more often: the option is for programs without.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

WARM_UP, RUNS = 2, 5
CLOSE = 0.98
"""Compiled is kept when it takes at most 1 / CLOSE of eager's time: less is noise."""

Run = Callable[..., Any]


def pick(
    compiled: Run, eager: Run, inputs: Sequence[Any], seconds: Callable[..., list[float]] | None = None
) -> tuple[Run, str]:
    """(the faster of the two, a line that says so). ``seconds(runs, inputs)`` measures; what raises loses."""
    try:
        mine, theirs = (seconds or measure)((compiled, eager), inputs)
    except Exception as e:
        return compiled, f"kept compiled: the trial run failed ({type(e).__name__}: {e})"
    kept = compiled if mine * CLOSE <= theirs else eager
    name = "compiled" if kept is compiled else "eager"
    return kept, f"kept {name}: compiled takes {mine * 1e3:.3f} ms, eager {theirs * 1e3:.3f} ms"


def measure(runs: Sequence[Run], inputs: Sequence[Any]) -> list[float]:
    """Median seconds of each, in turns."""
    cuda = [x.device for x in inputs if isinstance(x, torch.Tensor) and x.is_cuda]
    times: list[list[float]] = [[] for _ in runs]
    with torch.random.fork_rng(devices=sorted({d.index or 0 for d in cuda})):
        for n in range(WARM_UP + RUNS):
            for run, spent in zip(runs, times):
                took = _once(run, [_copy(x) for x in inputs], bool(cuda))
                if n >= WARM_UP:
                    spent.append(took)
    return [statistics.median(t) for t in times]


def _copy(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    if x.requires_grad:
        return x.detach().requires_grad_()
    with torch.no_grad():
        return torch.empty_like(x).copy_(x) if x._is_view() or not x.is_contiguous() else x.clone()


def _once(run: Run, inputs: list[Any], cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    outs = run(*inputs)
    heads = [o for o in outs if isinstance(o, torch.Tensor) and o.requires_grad] if torch.is_grad_enabled() else []
    leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if heads and leaves:
        ones = [torch.ones_like(o) for o in heads]
        torch.autograd.grad(heads, leaves, ones, allow_unused=True)
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
