"""Runs one random program in eager and compiled, with several arguments, and compares all that can be seen."""

from __future__ import annotations

import contextlib
import enum
import gc
import io
import linecache
import random
import re
import sys
import time
import types
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import braze
from braze.capture.bytecode import forget_bytecode
from braze.capture.frames import reset
from braze.capture.vm import decode, resume
from braze.errors import CompileWarning

sys.path.insert(0, str(Path(__file__).parents[1] / "vm"))
from fuzz_prelude import CHANGES  # noqa: E402
from program_fuzz import generate  # noqa: E402
from vm_harness import same  # noqa: E402

MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "autocast": lambda: torch.autocast("cpu")}


@dataclass
class Call:
    """One call of the program: its arguments, the mode around it, and what happens to the module before it."""

    n: Any = 2
    items: list[int] = field(default_factory=lambda: [3, 1, 2])
    rows: int = 2
    grad: bool = False
    alias: bool = False
    mode: str = ""
    word: str = "word"
    changes: list[str] = field(default_factory=list)


def calls_of(seed: int) -> list[Call]:
    """Two calls that are alike, then others; each program has its own."""
    r = random.Random(seed + 1)
    out = [Call(), Call()]
    for _ in range(5):
        call = Call()
        for _ in range(r.randint(1, 2)):
            what = r.randrange(8)
            if what == 0:
                call.n = r.choice([3, 5, 0, -1, True, 1, 7, 2.0])
            elif what == 1:
                call.items = r.choice([[0, 4], [1], [], [5, 5, 2, 1], [2, 2, 2]])
            elif what == 2:
                call.rows = r.choice([1, 3, 4, 5])
            elif what == 3:
                call.grad = True
            elif what == 4 and r.random() < 0.3:
                call.alias = True
            elif what == 5 and r.random() < 0.4:
                call.mode = r.choice(list(MODES))
            elif what == 6 and r.random() < 0.3:
                call.word = r.choice(["w", "xx", ""])
        if r.random() < 0.7:
            call.changes = r.choices(CHANGES, k=r.randint(1, 3))
        if r.random() < 0.1:
            call.changes.append(f"set_shift({r.randint(2, 4)})")
        out.append(call)
    return out


def load(seed: int, source: str | None = None) -> types.ModuleType:
    """The program of a seed as a module whose lines tracebacks can show."""
    text = generate(seed) if source is None else source
    module = types.ModuleType(f"fuzz_{seed}")
    name = f"<fuzz {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    sys.modules[module.__name__] = module  # dataclasses look there
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def arguments(module: Any, call: Call) -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(call.rows)
    x, y, z = (torch.randn(call.rows, 3, generator=g) for _ in range(3))
    if call.grad:
        x, y = x.requires_grad_() * 1, y.requires_grad_()
    y = x if call.alias else y
    table = {"a": z, (call.n, "k"): x * 2}
    return x, y, call.n, list(call.items), table, module.Box(y * 3), module.NET, module.CONF, {1, 2}, call.word


def change(module: Any, text: str) -> None:
    torch.manual_seed(1)
    with contextlib.suppress(Exception):
        exec(text, module.__dict__)


def run(module: Any, f: Any, call: Call) -> tuple[Any, ...]:
    """(result, error, printed text, arguments and globals afterwards, gradients)."""
    for text in call.changes:
        change(module, text)
    torch.manual_seed(0)
    args = arguments(module, call)
    out = io.StringIO()
    result, error = None, None
    with contextlib.redirect_stdout(out), MODES.get(call.mode, contextlib.nullcontext)():
        try:
            result = f(*args)
        except Exception as e:
            error = e
    grad = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    if error is not None:
        error.__traceback__ = None
    state = {k: module.__dict__[k] for k in STATE} | {
        "grad": grad,
        "classes": [_class(module.__dict__[c]) for c in CLASSES],
    }
    return result, error, out.getvalue(), args, state, gradients(result, args)


def gradients(result: Any, args: Any) -> Any:
    """The gradients that the result has for the arguments; the error's type where there is one."""
    outs = [t for t in _leaves(result) if t.requires_grad and t.is_floating_point()]
    ins = [t for t in _leaves(args[:2]) if t.requires_grad]
    if not outs or not ins:
        return None
    try:
        return torch.autograd.grad(sum(t.float().sum() for t in outs), ins, allow_unused=True)
    except RuntimeError:
        return "error"


def _leaves(v: Any) -> list[torch.Tensor]:
    if isinstance(v, torch.Tensor):
        return [v]
    if isinstance(v, dict):
        v = list(v.values())
    return [t for x in v for t in _leaves(x)] if isinstance(v, (list, tuple)) else []


SLOW = 2.0  # seconds in eager: a program whose lists or strings double in nested loops, and fill the memory


def difference(seed: int, source: str | None = None, calls: list[Call] | None = None) -> str | None:
    """What differs between eager and compiled for a seed; None if nothing does."""
    _forget()
    plain, other = load(seed, source), load(seed, source)
    compiled = braze.compile(other.f, backend="eager")
    for k, call in enumerate(calls_of(seed) if calls is None else calls):
        start = time.perf_counter()
        want = run(plain, plain.f, call)
        if time.perf_counter() - start > SLOW:
            return None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CompileWarning)
            got = run(other, compiled, call)
        caught = [w for w in caught if issubclass(w.category, CompileWarning)]
        where = f"call {k} ({call})"
        if caught:
            return f"{where}: {caught[0].message}"
        w, g = want[1], got[1]
        if type(w).__name__ != type(g).__name__ or _text(w) != _text(g):
            return f"{where}: error {w!r} != {g!r}"
        if want[2] != got[2]:
            return f"{where}: printed {want[2]!r} != {got[2]!r}"
        for what, a, b in zip(
            ("result", "arguments", "globals", "gradients"), (want[0], *want[3:]), (got[0], *got[3:])
        ):
            p, q = _plain(a), _plain(b)
            if not same(p, q):
                return f"{where}: {what} {_first(p, q)}"
        alike = [_identities([side[0], side[3]]) for side in (want, got)]
        if alike[0] != alike[1]:
            return f"{where}: which objects are the same: {alike[0]} != {alike[1]}"
        if w is not None and _chain(w) != _chain(g):
            return f"{where}: chain {_chain(w)} != {_chain(g)}"
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


def _text(e: Any) -> str:
    """What an error says, without the addresses of objects."""
    return re.sub(r"0x[0-9a-f]+", "", str(e))


def _chain(e: BaseException | None) -> list[str]:
    return [] if e is None else [_text(repr(e)), *_chain(e.__cause__), "context", *_chain(e.__context__)]


STATE = ("COUNTER", "SEEN", "SCALE", "TABLE", "NAMES", "KIND", "CONF", "NET")
CLASSES = ("Box", "Base", "Derived", "Conf")


def _class(cls: type) -> dict[str, Any]:
    return {k: v for k, v in vars(cls).items() if isinstance(v, (int, float, str))}


def _plain(v: Any, seen: tuple[int, ...] = ()) -> Any:
    """The value with instances of the program's classes as plain data, since the two modules have their own."""
    if id(v) in seen:
        return f"<{len(seen) - seen.index(id(v))} up>"
    below = (*seen, id(v))
    if isinstance(v, dict):
        return [(_plain(k, below), _plain(x, below)) for k, x in v.items()]
    if isinstance(v, (list, tuple)):
        return [type(v).__name__, *(_plain(x, below) for x in v)]
    if isinstance(v, set):
        return sorted(map(repr, v))
    if isinstance(v, enum.Enum):
        return str(v)
    if isinstance(v, nn.Module):
        own = {k: x for k, x in vars(v).items() if isinstance(x, (int, float, str, torch.Tensor))}
        tensors = [*v._parameters.items(), *v._buffers.items()]
        return [type(v).__name__, _plain(own), tensors, [(k, _plain(m, below)) for k, m in v._modules.items()]]
    if type(v).__module__.startswith("fuzz_"):
        return [type(v).__name__, _plain(vars(v), below)]
    if callable(v):
        return getattr(v, "__name__", type(v).__name__)
    return v


def _first(a: Any, b: Any) -> str:
    """Where two plain values differ."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        for x, y in zip(a, b):
            if not same(x, y):
                return f"{str(a[0])[:30]}: {_first(x, y)}"
    return f"{a} != {b}"


def _identities(v: Any, seen: dict[int, int] | None = None) -> list[Any]:
    """Which of the mutable objects and tensors in a value are the same: the number of each in order of appearance."""
    seen = {} if seen is None else seen
    if isinstance(v, (torch.Tensor, list, dict, set)) or type(v).__module__.startswith("fuzz_"):
        known = id(v) in seen
        out = [seen.setdefault(id(v), len(seen))]
        if known or isinstance(v, (torch.Tensor, set, nn.Module, enum.Enum)):
            return out
    elif isinstance(v, tuple):
        out = []
    else:
        return []
    parts = v.values() if isinstance(v, dict) else v if isinstance(v, (list, tuple)) else vars(v).values()
    return [*out, *(_identities(x, seen) for x in parts)]
