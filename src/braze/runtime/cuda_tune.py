"""Choice among a kernel's launches by timing them on the first call's tensors (``max_autotune`` only).

The tensors that a kernel writes are replaced by fresh ones while it is timed, so that timing has no effect; a kernel
that reads what it writes, or adds atomically, keeps its first launch.  Choices are remembered on disk.  The seconds
spent are counted against ``Config.autotune_seconds``; when they are used up, first launches stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .cache import DiskCache
from .cuda_kernel import TritonKernel

Kernel = Callable[..., None]
REPEATS = 20


@dataclass
class Budget:
    """Seconds left for timing."""

    seconds: float


def repeatable(kernel: TritonKernel) -> bool:
    """True when running the kernel twice is running it once."""
    return "tl.atomic_" not in kernel.source and not any(n.startswith("in_out_ptr") for n, _ in kernel.signature)


def timed(f: Kernel, args: Sequence[Any]) -> float:
    """Seconds of one run on the device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    for _ in range(3):
        f(*args)
    start.record()
    for _ in range(REPEATS):
        f(*args)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / REPEATS / 1e3


def spare(kernel: TritonKernel, args: Sequence[Any]) -> list[Any]:
    """The call's arguments with other memory for what is written."""
    names = [n for n, _ in kernel.signature]
    return [
        torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device) if n.startswith("out_ptr") else a
        for n, a in zip(names, args)
    ]


class Tuned:
    """A kernel that settles on one of its launches at the first call. ``options[0]`` is the model's choice."""

    def __init__(
        self,
        kernel: TritonKernel,
        options: Callable[[], list[Kernel]],
        key: str,
        cache: DiskCache,
        budget: Budget,
        timer: Callable[[Kernel, Sequence[Any]], float] = timed,
    ) -> None:
        self.kernel, self.options, self.key, self.cache = kernel, options, key, cache
        self.budget, self.timer = budget, timer
        self.best: Kernel | None = None
        self.times: list[float] = []

    def __call__(self, *args: Any) -> None:
        if self.best is None:
            if torch.cuda.is_current_stream_capturing():  # no timing inside a recording: decide later
                self.options()[0](*args)
                return
            self.best = self._choose(args)
        self.best(*args)

    def _choose(self, args: Sequence[Any]) -> Kernel:
        options = self.options()
        if len(options) == 1 or not repeatable(self.kernel):
            return options[0]
        known = self.cache.get(self.key)
        if known is not None and known[0] < len(options):
            return options[known[0]]
        if self.budget.seconds <= 0:
            return options[0]
        start = time.perf_counter()
        mine = spare(self.kernel, args)
        self.times = [self.timer(f, mine) for f in options]
        self.budget.seconds -= time.perf_counter() - start
        best = self.times.index(min(self.times))
        if self.times[best] > 0.97 * self.times[0]:
            best = 0  # within the noise: what the model says
        self.cache.put(self.key, bytes([best]))
        return options[best]
