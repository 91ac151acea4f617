"""Runs one random program in eager and compiled, with several arguments, and compares all that can be seen."""

from __future__ import annotations

import contextlib
import gc
import io
import linecache
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import torch

import braze
from braze.capture.bytecode import forget_bytecode
from braze.capture.frames import reset
from braze.capture.vm import decode, resume
from braze.errors import CompileWarning

sys.path.insert(0, str(Path(__file__).parents[1] / "vm"))
from program_fuzz import generate  # noqa: E402
from vm_harness import same  # noqa: E402

CALLS = [(2, [3, 1, 2]), (2, [3, 1, 2]), (3, [0, 4]), (5, [1]), (0, [])]


def load(seed: int, source: str | None = None) -> types.ModuleType:
    """The program of a seed as a module whose lines tracebacks can show."""
    text = generate(seed) if source is None else source
    module = types.ModuleType(f"fuzz_{seed}")
    name = f"<fuzz {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def arguments(module: Any, n: int, items: list[int]) -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(n)
    x, y, z = (torch.randn(2, 3, generator=g) for _ in range(3))
    return x, y, n, list(items), {"a": z, (n, "k"): x * 2}, module.Box(y * 3)


def run(module: Any, f: Any, n: int, items: list[int]) -> tuple[Any, ...]:
    """(result, error, printed text, arguments and globals afterwards)."""
    args = arguments(module, n, items)
    out = io.StringIO()
    result, error = None, None
    with contextlib.redirect_stdout(out):
        try:
            result = f(*args)
        except Exception as e:
            error = e
    grad = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    if error is not None:
        error.__traceback__ = None
    return result, error, out.getvalue(), args, (module.COUNTER, list(module.SEEN), grad)


def difference(seed: int, source: str | None = None) -> str | None:
    """What differs between eager and compiled for a seed; None if nothing does."""
    _forget()
    plain, other = load(seed, source), load(seed, source)
    compiled = braze.compile(other.f, backend="eager")
    for k, (n, items) in enumerate(CALLS):
        want = run(plain, plain.f, n, items)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CompileWarning)
            got = run(other, compiled, n, items)
        if caught:
            return f"call {k}: {caught[0].message}"
        w, g = want[1], got[1]
        unbound = isinstance(w, NameError) and isinstance(g, NameError)  # a continuation's cells are free variables
        if not unbound and (type(w) is not type(g) or str(w) != str(g)):
            return f"call {k}: error {w!r} != {g!r}"
        if want[2] != got[2]:
            return f"call {k}: printed {want[2]!r} != {got[2]!r}"
        for what, a, b in zip(("result", "arguments", "globals"), (want[0], *want[3:]), (got[0], *got[3:])):
            if not _same(a, b):
                return f"call {k}: {what} {a} != {b}"
        if w is not None and not unbound and _chain(w) != _chain(g):
            return f"call {k}: chain {_chain(w)} != {_chain(g)}"
    del want, got, w, g, a, b
    gc.collect()
    if plain.CLOSED != other.CLOSED:
        return f"closed {plain.CLOSED} != {other.CLOSED} generators"
    return None


def _forget() -> None:
    """Start as a fresh process does: nothing compiled, no decoded code."""
    reset()
    forget_bytecode()
    for table in (resume._CACHE, resume._ORIGINS, resume._ANALYSES, decode._DECODED):
        table.clear()
    linecache.cache.clear()


def _chain(e: BaseException | None) -> list[str]:
    return [] if e is None else [repr(e), *_chain(e.__cause__), "context", *_chain(e.__context__)]


def _same(a: Any, b: Any) -> bool:
    return same(_plain(a), _plain(b))


def _plain(v: Any) -> Any:
    """The value with instances of the program's classes as plain data, since the two modules have their own."""
    if isinstance(v, dict):
        return [(_plain(k), _plain(x)) for k, x in v.items()]
    if isinstance(v, (list, tuple)):
        return [_plain(x) for x in v]
    if type(v).__name__ == "Box":
        return ["box", _plain(v.v), _plain(v.log)]
    return v
