"""Compiled programs on disk: a functional ATen graph in, its host program and kernels out, without the stages between.

The key is the graph itself (operators, arguments, types of all values, constants), what the stages below depend on
(configuration, number of threads, the machine's features) and versions, braze's own files included.  Because the graph
is what the joint trace recorded, custom ``autograd.Function``s, autocast and library code need no care: other code is
another graph.  An entry is JSON: the host function's text and each kernel's LLVM IR; object code lies beside it under
its own key (``runtime.cpu``).  Nothing is unpickled; entries are checked by digest (``runtime.cache``).

A graph that cannot be kept is compiled as usual, and :class:`Lookup` says why: ``record.cache`` has "hit", "miss" or
"bypass: reason" for each side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from braze.config import Config
from braze.inductor.codegen import CompiledProgram
from braze.inductor.codegen.program import load_program
from braze.ir import Expr, Graph, Node, Symbol, TensorType, spell_operator, to_str
from braze.prims import PRIMS
from braze.prims.after import after
from braze.prims.collective import Collective, Start, Wait, start, wait
from braze.prims.prim import Prim
from braze.prims.strided import STRIDED
from braze.runtime.cache import DiskCache, content_key
from braze.runtime.cpu import Source, host_target, versions
from braze.runtime.spelling import spell, spelled

HELPERS: dict[str, Any] = {**STRIDED, "after": after}
LARGEST = 64 << 20  # bytes of an entry
IRRELEVANT = frozenset("debug verify strict cache_dir disk_cache recompile_limit compile_workers".split())
"""Flags of the configuration that change no program."""


class Bypass(Exception):
    """Why a graph cannot be kept."""


class Lookup:
    """One look into the cache: ``found``, or the key to keep the result under, or the reason why not.

    ``rebuild()`` gives the compiled program's stages (for DDP), which an entry does not hold."""

    def __init__(self, graph: Graph, config: Config, rebuild: Callable[[], CompiledProgram]) -> None:
        self.config, self.key, self.kernels = config, "", []  # type: tuple[Config, str, list[str]]
        self.found: CompiledProgram | None = None
        self.outcome = "miss"
        try:
            if not config.disk_cache:
                raise Bypass("the disk cache is off")
            if config.max_autotune:
                raise Bypass("max-autotune measures anew")
            if config.verify or config.debug > 1:
                raise Bypass("every stage is to be checked or shown")
            self.key = graph_key(graph, config)
            data = _cache(config.cache_path).get(self.key)
            if data is not None:
                self.found, self.kernels = _loaded(json.loads(data), config, rebuild)
                self.outcome = "hit"
        except Bypass as e:
            self.outcome = f"bypass: {e}"

    def keep(self, compiled: CompiledProgram, kernels: list[str]) -> None:
        """Write what was compiled after a miss."""
        if self.outcome != "miss":
            return
        try:
            data = json.dumps({**_entry(compiled), "steps": kernels}).encode()
            if len(data) > LARGEST:
                raise Bypass(f"the program takes {len(data) >> 20} MiB")
            _cache(self.config.cache_path).put(self.key, data)
        except Bypass as e:
            self.outcome = f"bypass: {e}"


@lru_cache(maxsize=8)
def _cache(folder: Path) -> DiskCache:
    return DiskCache(folder / "programs")


# -- the key


def graph_key(graph: Graph, config: Config) -> str:
    """The content key of a graph of ATen calls. Bypass for what has no exact text."""
    numbers: dict[Node, int] = {}
    types: dict[TensorType, str] = {}
    parts: list[str] = [graph.name]
    for n in graph.nodes:
        numbers[n] = len(numbers)
        if n.op == "const":
            parts.append(f"const {_constant(n.target)}")
            continue
        target = "" if n.op == "input" else _target(n.target)
        args = _text((n.args, n.kwargs), numbers, types) if n.op == "call" else ""
        parts.append(f"{n.op} {target} {args} {_text(n.val, numbers, types)} {_text(n.tags, numbers, types)}")
    parts.append(_text(graph.outputs, numbers, types))
    parts.append(f"overwrites {graph.overwrites}")
    flags = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in IRRELEVANT}
    about = (repr(sorted(flags.items())), str(torch.get_num_threads()), host_target().key, versions(), own_files())
    return content_key("\n".join(parts), *about)


@lru_cache(maxsize=1)
def own_files() -> str:
    """A digest of braze's files (names, sizes and times), so that a changed compiler starts afresh."""
    h = hashlib.sha256()
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        info = path.stat()
        h.update(f"{path.relative_to(root)} {info.st_size} {info.st_mtime_ns}\n".encode())
    return h.hexdigest()


def _target(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace not in ("aten", "prims", "braze"):
            raise Bypass(f"it calls {target}, whose code is not known")
        return f"{target._schema.name}.{target._overloadname}"
    if isinstance(target, Prim) or target in HELPERS.values():
        return str(target.qualified_name)
    if isinstance(target, Collective):
        return target.spelling
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if module in ("_operator", "operator"):
        return f"operator.{name}"
    raise Bypass(f"it calls {name or target!r}, whose code is not known")


def _constant(value: Any) -> str:
    """A Python expression for a constant of a graph or of a host program."""
    text = spell(value) if isinstance(value, torch.Tensor) else None
    if isinstance(value, torch.device):
        text = f"torch.{value!r}"
    if isinstance(value, Prim) and PRIMS.get(value.name) is value:
        text = f"PRIMS[{value.name!r}]"
    if any(value is x for x in HELPERS.values()):
        text = f"HELPERS[{value.__name__!r}]"
    if isinstance(value, (Start, Wait)):
        text = value.spelling
    if isinstance(value, torch._ops.OpOverload) and value.namespace in ("aten", "braze"):
        text = spell_operator(value)
    if text is None:
        raise Bypass(f"it holds a constant {type(value).__name__} that has no text")
    return text


PLAIN = (type(None), bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format, torch.device)
_PLAIN = frozenset(PLAIN)


def _text(x: Any, numbers: dict[Node, int], types: dict[TensorType, str]) -> str:
    """An exact text of an argument or a type; ``types`` has those that were met before."""
    t = type(x)
    if t is Node:
        return f"%{numbers[x]}"
    if t in _PLAIN:
        return repr(x)
    if t is TensorType:
        known = types.get(x)
        if known is None:
            known = types[x] = _type(x, numbers, types)
        return known
    if isinstance(x, (tuple, list)):
        return f"{t.__name__}({', '.join([_text(y, numbers, types) for y in x])})"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{k!r}: {_text(v, numbers, types)}" for k, v in x.items() if k != "origin") + "}"
    if isinstance(x, slice):
        return f"slice{_text((x.start, x.stop, x.step), numbers, types)}"
    if isinstance(x, (Expr, Symbol)):
        raise Bypass("it has symbolic sizes" if not isinstance(x, Expr) else f"it has the symbolic size {to_str(x)}")
    if isinstance(x, PLAIN):
        return repr(x)
    raise Bypass(f"an argument is a {t.__name__}")


def _type(x: TensorType, numbers: dict[Node, int], types: dict[TensorType, str]) -> str:
    if x.device.type != "cpu":
        raise Bypass(f"it has tensors on {x.device.type}")
    return f"{_text((x.sizes, x.strides, x.offset), numbers, types)} {x.dtype} {x.requires_grad}"


# -- the entry


def _entry(compiled: CompiledProgram) -> dict[str, Any]:
    kernels = {}
    for name, source in compiled.made.items():
        if not isinstance(source, Source):
            raise Bypass("it has kernels for a GPU")
        kernels[name] = asdict(source)
    objects = {name: _constant(value) for name, value in compiled.objects.items()}
    calls = list(compiled.calls.items())
    return {"source": compiled.source, "kernels": kernels, "objects": objects, "calls": calls, "name": compiled.name}


def _loaded(
    entry: dict[str, Any], config: Config, rebuild: Callable[[], CompiledProgram]
) -> tuple[CompiledProgram, list[str]]:
    kernels = {name: Source(**source) for name, source in entry["kernels"].items()}
    names = {"spelled": spelled, "torch": torch, "PRIMS": PRIMS, "HELPERS": HELPERS, "start": start, "wait": wait}
    objects = {name: eval(text, names) for name, text in entry["objects"].items()}  # noqa: S307
    calls = dict(map(tuple, entry["calls"]))
    stages = lambda first, rest: rebuild().stages(first, rest)  # noqa: E731
    return load_program(entry["name"], entry["source"], kernels, objects, calls, stages, config), entry["steps"]
