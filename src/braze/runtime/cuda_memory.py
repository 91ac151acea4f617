"""Where a CUDA graph's memory comes from: pools that waste little and can be given back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

GROWING = "expandable_segments"
_restored: dict[str, str] = {}  # settings as left by ``growing`` -> what they were before


def settings() -> tuple[str, bool]:
    """The allocator's settings as text, and whether its segments grow."""
    now = torch.cuda.memory._snapshot()["allocator_settings"]
    return str(now["PYTORCH_CUDA_ALLOC_CONF"]), bool(now[GROWING])


def choose(text: str) -> None:
    """Set the allocator's settings; those that are not named get their defaults."""
    torch._C._accelerator_setAllocatorSettings(text)


@contextmanager
def growing() -> Iterator[None]:
    """Memory that torch asks for meanwhile is one stretch of addresses that grows, in pieces of which anything fits:
    separate segments left a fifth of ResNet-50's pool unused. No effect where the user has decided it."""
    before = switch_on()
    if before is None:
        yield
        return
    left = ",".join(filter(None, (before, f"{GROWING}:False")))
    _restored[left] = before
    if not works():
        choose(left)
    try:
        yield
    finally:
        choose(left)


def switch_on() -> str | None:
    """Let segments grow; gives the settings before, None where nothing was changed."""
    if torch.version.hip is not None or sys.platform != "linux":  # torch would warn
        return None
    try:
        text, on = settings()
        text = _restored.get(text, text)
        if on or GROWING in text or torch.cuda.get_allocator_backend() != "native":
            return None
        choose(",".join(filter(None, (text, f"{GROWING}:True"))))
        return text
    except (AttributeError, KeyError, RuntimeError, TypeError):  # another torch, or no such driver
        return None


@lru_cache(maxsize=1)
def works() -> bool:
    """Whether the driver gives such memory (virtual machines' may not), asked with the setting on."""
    try:
        apart(lambda: torch.empty(1 << 21, dtype=torch.uint8, device="cuda"))
    except RuntimeError:
        return False
    return True


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
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)
        drop_workspaces()


def drop_workspaces() -> None:
    """Let go of cuBLAS's workspaces, 32 MiB for each thread and stream, which would keep their pool's memory."""
    clear: Callable[[], None] = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    clear()
