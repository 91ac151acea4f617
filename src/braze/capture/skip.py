"""Which code is never captured as a frame of its own: torch's machinery, the standard library, braze.

Such code may still be inlined into a captured frame by the interpreter; this is about frames that Python enters.
"""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path
from types import CodeType

import torch

from braze.fake.sharded import ENABLED

_GENERATOR = 0x20 | 0x80 | 0x200  # generator, coroutine, async generator
_PSEUDO_FILES = ("<frozen", "<braze", "<attrs", "<__array_function__")


def _folder(path: str | Path) -> str:
    return os.path.realpath(path) + os.sep


@functools.cache
def _machinery() -> tuple[str, ...]:
    return _folder(Path(torch.__file__).parent), _folder(Path(__file__).parents[1])


@functools.cache
def _kept() -> tuple[str, ...]:
    """torch's Python code that is compiled like a user's: layers, functional, optimizers."""
    root = Path(torch.__file__).parent
    return _folder(root / "nn" / "modules"), _folder(root / "optim"), os.path.realpath(root / "nn" / "functional.py")


@functools.cache
def _standard() -> tuple[str, ...]:
    return tuple(_folder(p) for name in ("stdlib", "platstdlib") if (p := sysconfig.get_path(name)))


@functools.lru_cache(maxsize=4096)
def skipped_file(filename: str) -> bool:
    """Whether code from this file is machinery."""
    if filename.startswith("<"):
        return filename.startswith(_PSEUDO_FILES)
    path = os.path.realpath(filename)
    if path.startswith(_kept()):
        if path.startswith(_eager_optimizers()):
            return True
        return path.endswith(f"{os.sep}nn{os.sep}modules{os.sep}module.py")
    installed = f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path
    return path.startswith(_machinery()) or (path.startswith(_standard()) and not installed)


@functools.cache
def _wrappers() -> tuple[str, ...]:
    root = Path(torch.__file__).parent
    parts = ("nn/parallel", "distributed/fsdp", "distributed/_composable", "distributed/tensor")
    transforms = tuple(os.path.realpath(root / "_functorch" / f) for f in ("apis.py", "eager_transforms.py", "vmap.py"))
    return (*(_folder(root / p) for p in parts), *transforms, *_eager_optimizers())


@functools.cache
def _eager_optimizers() -> tuple[str, ...]:
    """Optimizers that branch on the loss, which they ask for again and again, or that work on sparse gradients."""
    root = Path(torch.__file__).parent / "optim"
    return tuple(os.path.realpath(root / name) for name in ("lbfgs.py", "sparse_adam.py", "_functional.py"))


@functools.cache
def _tensor_parallel() -> tuple[str, ...]:
    """What ``parallelize_module`` hangs on modules: hooks that move between local tensors and DTensors."""
    if not ENABLED:
        return ()
    root = Path(torch.__file__).parent / "distributed" / "tensor"
    return tuple(os.path.realpath(root / name) for name in ("_api.py", "parallel/style.py"))


@functools.lru_cache(maxsize=4096)
def wrapper_file(filename: str) -> bool:
    """Whether this is code of DDP, FSDP or DTensor, which runs collectives and changes its own state around the user's
    modules, of a transform of ``torch.func``, or of an optimizer that stays eager. It stays Python; the frames that
    DDP's kind calls are captured."""
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    return path.startswith(_wrappers()) and path not in _tensor_parallel()


def skip_reason(code: CodeType) -> str | None:
    """Why frames of this code are never captured, or None."""
    if code.co_flags & _GENERATOR:
        return "a generator or coroutine"
    if skipped_file(code.co_filename):
        return "library machinery"
    return None
