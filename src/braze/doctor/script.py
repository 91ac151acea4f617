"""Run a user's script in this process and leave the process as it was."""

from __future__ import annotations

import os
import random
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

INTERRUPTED = "it was interrupted"


class Enough(BaseException):
    """The script has shown enough: ends it. Not an Exception, so that its own handlers let it pass."""


# What a script may switch for the whole process: how to read it, how to set it back.
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_rng_state, torch.set_rng_state),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (lambda: torch.backends.cudnn.benchmark, lambda v: setattr(torch.backends.cudnn, "benchmark", v)),
    (lambda: torch.backends.cudnn.deterministic, lambda v: setattr(torch.backends.cudnn, "deterministic", v)),
    (random.getstate, random.setstate),
    (os.getcwd, os.chdir),
)


@contextmanager
def _settings_kept() -> Iterator[None]:
    old = [read() for read, _ in _SETTINGS]
    try:
        yield
    finally:
        for value, (read, write) in zip(old, _SETTINGS):
            if isinstance(value, torch.Tensor) or value != read():
                write(value)


def run_script(script: Path, arguments: list[str], patches: list[AbstractContextManager[Any]]) -> tuple[str, float]:
    """Run a script as ``__main__`` under patches: (how it failed or "", seconds). Settings of torch, the working
    folder, ``sys.argv`` and ``sys.path`` are afterwards as before."""
    argv, path, error = sys.argv, list(sys.path), ""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    start = time.perf_counter()
    try:
        with _settings_kept(), ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            runpy.run_path(str(script), run_name="__main__")
    except Enough:
        pass
    except KeyboardInterrupt:
        error = INTERRUPTED
    except SystemExit as e:
        error = f"it ended with status {e.code}" if e.code not in (None, 0) else ""
    except Exception as e:
        error = _last_words(e, script)
    finally:
        sys.argv, sys.path[:] = argv, path
    return error, time.perf_counter() - start


def _last_words(e: Exception, script: Path) -> str:
    """The exception in one line, with the line of the script that it left."""
    text = traceback.format_exception_only(e)[-1].strip()
    frames = [f for f in traceback.extract_tb(e.__traceback__) if f.filename == str(script)]
    lines = [f.lineno for f in frames] or ([e.lineno] if isinstance(e, SyntaxError) else [])
    return f"{text} (line {lines[-1]})" if lines else text


@contextmanager
def patched(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """``owner.name`` is ``wrap(owner.name)`` for a while."""
    missing = object()
    own = vars(owner).get(name, missing)
    setattr(owner, name, wrap(getattr(owner, name)))
    try:
        yield
    finally:
        if own is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


@contextmanager
def hooked(register: Callable[..., Any], hook: Callable[..., None]) -> Iterator[None]:
    """A hook for a while."""
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()
