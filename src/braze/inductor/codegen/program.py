"""A program compiled: kernels generated, built or fetched from the cache, and bound to its host function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from braze.config import Config
from braze.inductor.loops import Buffer, Kernel, Program, canonical
from braze.runtime.cpu import Source, load_kernels

from .host import HostWriter, scope
from .llvm_module import emit_source
from .llvm_plan import arguments


@dataclass(frozen=True)
class CompiledProgram:
    """A callable over the program's inputs (a sequence in the program's order). ``source`` is the host function's text,
    ``kernels`` the text of each distinct kernel by name."""

    call: Callable[[Sequence[Any]], Any]
    source: str
    kernels: dict[str, str]

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self.call(inputs)


_EMITTED: dict[str, Source] = {}


def kernel_order(kernel: Kernel) -> tuple[list[Buffer], list[str]]:
    """A kernel's arguments in call order: the program's buffers, then names of sizes."""
    form = canonical(kernel)
    own = {b: original for b, original in zip(_first_use(form.kernel), form.buffers)}
    buffers, sizes = arguments(form.kernel)
    return [own[b] for b in buffers], [s.name for s in sizes]


def _first_use(kernel: Kernel) -> list[Buffer]:
    return list(dict.fromkeys(i.buffer for i in kernel.body if hasattr(i, "buffer")))


def emit_host(program: Program) -> str:
    """The host function's text."""
    return HostWriter(program, kernel_order).write()


def compile_program(program: Program, config: Config | None = None) -> CompiledProgram:
    """Generate, compile and bind. Unsupported names what the code generator cannot do."""
    config = config or Config.from_env()
    writer = HostWriter(program, kernel_order)
    text = writer.write()
    sources = {key: _EMITTED.get(key) for key in writer.kernels}
    for step in program.steps:
        if isinstance(step, Kernel):
            form = canonical(step)
            if sources[form.key] is None:
                made = replace(emit_source(form.kernel), name=writer.kernels[form.key])
                sources[form.key] = _EMITTED[form.key] = made
    ready = {k: s for k, s in sources.items() if s is not None}
    functions = dict(zip(ready, load_kernels(list(ready.values()), config)))
    names = scope(writer, functions)
    exec(compile(text, f"<braze host {program.name}>", "exec"), names)  # noqa: S102
    return CompiledProgram(names["call"], text, {writer.kernels[k]: s.text for k, s in ready.items()})
