"""Choice among several ways to do the same step, by timing them on the first call's tensors (``max_autotune`` only).

Every way is a function ``f(*inputs) -> tuple of fresh tensors``, so timing has no effect.  The first is the vendor's:
it needs nothing that may fail, and it serves while a choice cannot be made.  Ways are timed as they will run, recorded
in a CUDA graph, so that the time of the host does not count.  Choices are remembered on disk by name; what is left of
``Config.autotune_seconds`` bounds both the waiting for compilers and the timing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .cache import DiskCache
from .cuda_kernel import Unaligned
from .cuda_tune import Budget

logger = logging.getLogger("braze")
Run = Callable[..., Any]
CALLS, REPLAYS = 8, 3
GAIN = 0.97  # what is not faster by this factor is noise: the vendor's stays


@dataclass(frozen=True)
class Way:
    """``ready(seconds)`` waits so long for the function; None where it will not come or cannot be loaded."""

    name: str
    ready: Callable[[float], Run | None]


@dataclass(frozen=True)
class Parts:
    """A way as text: its host function ``call(args)`` and the kernels that this names."""

    text: str
    kernels: dict[str, Any]


def timed(run: Run, args: Sequence[Any]) -> float:
    """Seconds of one run on the device, without the host's."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    best = float("inf")
    with torch.cuda.stream(stream):
        run(*args)
        run(*args)
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(CALLS):
                run(*args)
        finally:
            graph.capture_end()
        graph.replay()
        for _ in range(REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            best = min(best, float(start.elapsed_time(end)) / CALLS / 1e3)
    torch.cuda.current_stream().wait_stream(stream)
    return best


class Choice:
    """A step that settles on one of its ways at the first call. ``exact``: float32 products, for which only the first
    way is right unless the user has allowed TF32 (asked at every call)."""

    several = True
    trusted = True  # the ways allocate their results with the strides that the program wants

    def __init__(
        self,
        name: str,
        first: Run,
        others: Sequence[Way],
        key: str,
        cache: DiskCache,
        budget: Budget,
        exact: bool = False,
        timer: Callable[[Run, Sequence[Any]], float] = timed,
        parts: Mapping[str, Parts] | None = None,
    ) -> None:
        self.__name__ = name
        self.parts = dict(parts or {})
        self.first, self.others, self.key, self.cache, self.budget = first, others, key, cache, budget
        self.exact, self.timer = exact, timer
        self.best: Run | None = None
        self.chosen = ""
        self.times: dict[str, float] = {}  # seconds by way, "" the first's; empty where a remembered choice is used

    def __call__(self, *args: Any) -> Any:
        if self.exact and not tf32_allowed():
            return self.first(*args)
        if self.best is None:
            if torch.cuda.is_current_stream_capturing():  # no timing inside a recording: decide later
                return self.first(*args)
            self.best = self._choose(args)
        try:
            return self.best(*args)
        except Unaligned:
            return self.first(*args)

    def _choose(self, args: Sequence[Any]) -> Run:
        known = self.cache.get(self.key)
        if known is not None:
            return self._remembered(known.decode())
        if self.budget.seconds <= 0:
            return self.first
        start = time.perf_counter()
        runs = {"": self.first}
        try:
            self.times[""] = self.timer(self.first, args)
        except RuntimeError as e:  # no memory to spare, or nothing that can be recorded
            logger.debug("%s is not timed: %s", self.__name__, e)
            return self.first
        for way in self.others:
            left = self.budget.seconds - (time.perf_counter() - start)
            run = way.ready(max(left, 0.0))
            if run is None or left <= 0:
                continue
            try:
                if not agree(self.first, run, args):
                    logger.warning("%s as %s gives other values than the vendor: left out", self.__name__, way.name)
                    continue
                self.times[way.name] = self.timer(run, args)
                runs[way.name] = run
            except RuntimeError as e:
                logger.debug("%s as %s: %s", self.__name__, way.name, e)
        self.budget.seconds -= time.perf_counter() - start
        best = min(self.times, key=lambda n: self.times[n] * (1.0 if n else GAIN))
        if self.budget.seconds > 0:  # all were timed
            self.cache.put(self.key, best.encode())
        self.chosen = best
        return runs[best]

    def _remembered(self, name: str) -> Run:
        for way in self.others:
            if way.name == name:
                run = way.ready(60.0)
                if run is not None:
                    self.chosen = name
                    return run
        return self.first


def agree(first: Run, other: Run, args: Sequence[Any]) -> bool:
    """Whether two ways gave the same up to rounding: a compiler's bug must not win for being fast."""
    want, got = first(*args), other(*args)
    for a, b in zip(want, got):
        x, y = a.float(), b.float()
        if not torch.allclose(x, y, rtol=0.05, atol=0.02 * float(x.abs().nan_to_num(0.0, 0.0).max()), equal_nan=True):
            return False
    return True


def tf32_allowed() -> bool:
    """Whether the user lets float32 products use TF32."""
    return bool(torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32")
