"""Where a CUDA graph's memory comes from: pools that waste little and can be given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

GROWING = "expandable_segments"
_restored: dict[str, str] = {}  # settings as left by ``growing`` -> what they were before


def settings() -> tuple[str, bool]:
    """The allocator's settings as text, and whether its segments grow."""
    now = torch.cuda.memory._snapshot()["allocator_settings"]  # type: ignore[no-untyped-call]
    return str(now["PYTORCH_CUDA_ALLOC_CONF"]), bool(now[GROWING])


def choose(text: str) -> None:
    """Set the allocator's settings; those that are not named get their defaults."""
    torch._C._accelerator_setAllocatorSettings(text)


@contextmanager
def growing() -> Iterator[None]:
    """Memory that torch asks for meanwhile is one stretch of addresses that grows, in pieces of which anything fits:
    separate segments left a fifth of ResNet-50's pool unused. No effect where the user has decided it."""
    try:
        text, on = settings()
        text = _restored.get(text, text)
        if on or GROWING in text or torch.cuda.get_allocator_backend() != "native":
            yield
            return
        choose(",".join(filter(None, (text, f"{GROWING}:True"))))
    except (AttributeError, KeyError, RuntimeError, TypeError):  # another torch, or no such driver
        yield
        return
    try:
        yield
    finally:
        left = ",".join(filter(None, (text, f"{GROWING}:False")))
        choose(left)
        _restored[left] = text


def apart(fn: Callable[[], Any]) -> Any:
    """Run ``fn`` with a pool of its own, whose memory is given back as its tensors go, when a recording begins."""
    begin = getattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool", None)
    if begin is None:
        return fn()
    index, pool = torch.cuda.current_device(), torch.cuda.graph_pool_handle()
    begin(index, pool)
    try:
        return fn()
    finally:
        torch._C._cuda_endAllocateToPool(index, pool)  # type: ignore[attr-defined]
        torch._C._cuda_releasePool(index, pool)  # type: ignore[attr-defined]
        drop_workspaces()


def drop_workspaces() -> None:
    """Let go of cuBLAS's workspaces, 32 MiB for each thread and stream, which would keep their pool's memory."""
    clear: Callable[[], None] = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    clear()
