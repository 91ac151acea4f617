"""Ranks that compile late, die, or share a cache: what each rank runs."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from ddp_cases import build
from models import Used, batches, same, train

import braze
from braze.runtime.cache import opened


def late(seconds: float) -> float:
    """Rank 1's first compile is late; the others wait in DDP's collectives. How long the steps took."""
    want = train(build(None, Used), steps=4)
    fast = build(False, Used)
    if dist.get_rank() == 1:
        pipeline = fast._braze_session.pipeline
        compile_graph = pipeline.compile_graph

        def slow(*args: Any) -> Any:
            pipeline.compile_graph = compile_graph
            time.sleep(seconds)
            return compile_graph(*args)

        pipeline.compile_graph = slow
    start = time.perf_counter()
    same(train(fast, steps=4), want)
    return time.perf_counter() - start


def fails() -> list[str]:
    """Rank 1 cannot compile: it runs in eager and says so, the others are compiled, the results agree. The warnings."""
    want = train(build(None, Used))
    fast = build(False, Used)
    if dist.get_rank() == 1:

        def refuse(*args: Any) -> Any:
            raise braze.Unsupported("no kernels on this rank")

        fast._braze_session.pipeline._backend = refuse
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(train(fast), want)
    return [str(w.message) for w in caught if issubclass(w.category, braze.CompileWarning)]


def dies(at: int) -> None:
    """Rank 1 is killed in the middle of training: the other ranks get an error, they do not hang."""
    fast = build(False, Used)

    def step(model: torch.nn.Module) -> None:
        nonlocal at
        at -= 1
        if at == 0 and dist.get_rank() == 1:
            os._exit(9)

    train(fast, steps=1000, after=step)


def differs() -> None:
    """Rank 1 sees other sizes and so compiles again where rank 0 does not: the collectives still match."""
    want, fast = build(None, Used), build(False, Used)
    for step in range(6):
        x, _ = batches(step)
        if dist.get_rank() == 1 and step >= 2:
            x = x[: 2 + step % 3]
        for model in (want, fast):
            model.zero_grad()
            model(x).square().mean().backward()
        for a, b in zip(want.parameters(), fast.parameters()):
            torch.testing.assert_close(a.grad, b.grad)


def shared_cache(kind: str) -> tuple[int, int]:
    """(entries written to the disk cache, entries found there) for one compile that all ranks start at once; ``kind``:
    of folders of this name, "" for all."""

    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(37, 41)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.lin(x).sin() * 1.2345).softmax(-1).cumsum(-1).tanh()

    def counts() -> tuple[int, int]:
        found = [c for folder, c in opened().items() if folder.endswith(kind)]
        return sum(c.written for c in found), sum(c.hits for c in found)

    before = counts()
    dist.barrier()
    braze.compile(Odd())(torch.randn(3, 37)).sum().backward()
    dist.barrier()
    after = counts()
    return after[0] - before[0], after[1] - before[1]
