"""A program compiled: kernels generated, built or fetched from the cache, and bound to its host function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType
from typing import Any

import torch

from braze.config import Config
from braze.inductor.loops import Buffer, Extern, Kernel, Program, canonical
from braze.ir import to_str
from braze.runtime import host
from braze.runtime.cpu import Pending, Source, prepare
from braze.runtime.cuda import load_kernels_cuda, start_kernels_cuda
from braze.runtime.cuda_group import TritonGroup
from braze.runtime.cuda_kernel import TritonKernel
from braze.runtime.resident import let_go_of_compiler

from .host import HostWriter, scope
from .llvm_depthwise import depthwise_gradient
from .llvm_group import emit_group, group_key
from .llvm_module import emit_source
from .llvm_plan import program_arguments
from .products import bind_products
from .script import script
from .stages import stages_of
from .triton_emit import emit_triton


@dataclass(frozen=True)
class CompiledProgram:
    """A callable over the program's inputs (a sequence in the program's order). ``call`` takes them as a list that it
    empties; ``source`` is the host function's text, ``kernels`` the text of each distinct kernel by name. ``made`` are
    the kernels as the runtime loads them and ``objects`` the constants, by their names in the source; ``calls`` says
    which step a line of the source (from 1) runs.

    ``stages(first, rest)`` is the same program as a generator function that yields its outputs in lists as soon as they
    are ready (:func:`stages_of`, limits in bytes), with the indices of the outputs in each list."""

    call: Callable[[list[Any]], Any]
    source: str
    kernels: dict[str, str]
    stages: Callable[[int, int], tuple[Callable[[list[Any]], Iterator[list[Any]]], list[tuple[int, ...]]]]
    made: dict[str, Source | TritonKernel | TritonGroup] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    name: str = ""

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self.call(list(inputs))

    def script(self) -> str:
        """A module that runs alone: kernels, constants and the host function, with their imports."""
        return script(self.source, self.made, self.objects)


_EMITTED: dict[str, Source] = {}
MANY = 8  # new kernels after which the compiler's pages are worth letting go


def kernel_order(kernel: Kernel) -> tuple[list[Buffer], list[str]]:
    """A kernel's arguments in call order: the program's buffers, then its sizes as text."""
    if kernel.device.type == "cuda":
        emitted = emit_triton(kernel)
        return list(emitted.buffers), [to_str(s) for s in emitted.sizes]
    buffers, sizes = program_arguments(canonical(kernel))
    return buffers, [s.name for s in sizes]


def emit_host(program: Program) -> str:
    """The host function's text."""
    return HostWriter(program, kernel_order).write()


def compile_program(program: Program, config: Config | None = None) -> CompiledProgram:
    """Generate, compile and bind. Unsupported names what the code generator cannot do."""
    return start_program(program, config)()


def start_program(program: Program, config: Config | None = None) -> Callable[[], CompiledProgram]:
    """Generate everything and have the kernels compiled in the background. The result waits for them and binds."""
    config = config or Config.from_env()
    program, shown = bind_products(program, config, compile_program)
    pending = _start_cpu(program, config)
    _start_cuda(program, config)
    writer = HostWriter(program, kernel_order)
    text = writer.write()
    if writer.groups:
        start_kernels_cuda([k for g in writer.groups.values() for k in g.kernels], _card(program), config)
    return partial(_bind, program, config, shown, pending, writer, _compile_host(program, text), text)


def _bind(
    program: Program,
    config: Config,
    shown: dict[str, Any],
    pending: dict[str, Pending],
    writer: HostWriter,
    code: CodeType,
    text: str,
) -> CompiledProgram:
    """The program, once its kernels are there."""
    compiled: Functions = {key: (p.kernel(), p.source) for key, p in pending.items()}
    if sum(p.loaded is None for p in pending.values()) >= MANY:
        let_go_of_compiler()
    compiled |= _compile_cuda(_alone(program), writer.groups, program, config)
    functions = {key: function for key, (function, _) in compiled.items()}
    names = scope(writer, functions)
    exec(code, names)  # noqa: S102
    made = {writer.kernels[key]: source for key, (_, source) in compiled.items()}
    texts = {
        name: source.text if isinstance(source, Source) else source.source for name, source in (made | shown).items()
    }
    stages = partial(_in_stages, program, functions)
    return CompiledProgram(names["call"], text, texts, stages, made, writer.objects, writer.calls, program.name)


def load_program(
    name: str,
    source: str,
    kernels: Mapping[str, Source],
    objects: Mapping[str, Any],
    calls: dict[int, int],
    stages: Callable[[int, int], Any],
    config: Config,
) -> CompiledProgram:
    """A program from its parts as ``CompiledProgram`` holds them, made by an earlier ``compile_program``."""
    pending = {k: prepare(s, config) for k, s in kernels.items()}
    code = compile(source, f"<braze host {name}>", "exec")
    names = {"torch": torch, **host.NAMES, **objects, **{k: p.kernel() for k, p in pending.items()}}
    exec(code, names)  # noqa: S102
    if sum(p.loaded is None for p in pending.values()) >= MANY:
        let_go_of_compiler()
    texts = {k: s.text for k, s in kernels.items()}
    return CompiledProgram(names["call"], source, texts, stages, dict(kernels), dict(objects), calls, name)


def _compile_host(program: Program, text: str) -> CodeType:
    return compile(text, f"<braze host {program.name}>", "exec")


def _in_stages(
    program: Program, functions: dict[str, Any], first: int, rest: int
) -> tuple[Callable[[list[Any]], Iterator[list[Any]]], list[tuple[int, ...]]]:
    stages = stages_of(program, first, rest)
    writer = HostWriter(program, kernel_order)
    code = _compile_host(program, writer.write(stages))
    names = scope(writer, functions)
    exec(code, names)  # noqa: S102
    return names["call"], [outputs for _, outputs in stages]


Code = Source | TritonKernel | TritonGroup
Functions = dict[str, tuple[Any, Code]]  # canonical key -> (function, what it was loaded from)


def launches(program: Program) -> Iterator[list[Kernel]]:
    """What each launch of a CPU kernel runs: one kernel, or the members of a group."""
    groups = dict(program.groups)
    n = 0
    while n < len(program.steps):
        end = groups.get(n, n + 1)
        found = [k for k in program.steps[n:end] if isinstance(k, Kernel) and k.device.type != "cuda"]
        if found:
            yield found
        n = end


def _start_cpu(program: Program, config: Config) -> dict[str, Pending]:
    """Emit each distinct kernel and let a thread compile it while the rest is emitted."""
    pending: dict[str, Pending] = {}
    for kernels in launches(program):
        key = group_key(kernels) if len(kernels) > 1 else canonical(kernels[0]).key
        if key not in pending:
            if key not in _EMITTED:
                made = emit_group(kernels) if len(kernels) > 1 else emit_source(canonical(kernels[0]).kernel)
                _EMITTED[key] = replace(made, name=kernels[0].name)
            pending[key] = prepare(_EMITTED[key], config)
    for d in filter(None, [depthwise_gradient(s) for s in program.steps if isinstance(s, Extern)]):
        key, source = d.source()
        if key not in pending:
            pending[key] = prepare(source, config)
    return pending


def _alone(program: Program) -> list[Kernel]:
    """The card's kernels that are launches of their own."""
    grouped = {k for first, end in program.groups for k in range(first, end)}
    return [
        k for n, k in enumerate(program.steps) if isinstance(k, Kernel) and n not in grouped and k.device.type == "cuda"
    ]


def _card(program: Program) -> torch.device:
    return next(s.device for s in program.steps if isinstance(s, Kernel) and s.device.type == "cuda")


def _start_cuda(program: Program, config: Config) -> None:
    """Emit the card's distinct kernels, each on its way to a compiler as soon as it is there: the longest first, since
    the last one to be ready is waited for."""
    distinct = {canonical(k).key: k for k in _alone(program)}
    for k in sorted(distinct.values(), key=lambda k: -len(k.body)):
        start_kernels_cuda([emit_triton(k).code], k.device, config)


def _compile_cuda(kernels: list[Kernel], groups: dict[str, TritonGroup], program: Program, config: Config) -> Functions:
    """Kernels and groups of the card; all are compiled at the same time."""
    if not kernels and not groups:
        return {}
    codes = {canonical(k).key: emit_triton(k).code for k in kernels}
    members = [k for g in groups.values() for k in g.kernels]
    functions = load_kernels_cuda([*codes.values(), *members], _card(program), config)
    rest = iter(functions[len(codes) :])
    out: Functions = {key: (f, code) for (key, code), f in zip(codes.items(), functions)}
    return out | {key: (g.bound([next(rest) for _ in g.kernels]), g) for key, g in groups.items()}
