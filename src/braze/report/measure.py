"""Time each step of the compiled programs while the user's function runs.

The host function's code is replaced, for a few calls, by the same text with a mark after every step.  On CUDA a mark is
an event in the stream, so steps are timed on the device.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from braze.events import CompileLog
from braze.inductor.codegen import CompiledProgram
from braze.inductor.loops import Kernel

Key = tuple[str, str]  # graph, side


class _Marks:
    """Where the clock stood: (step or -1, time or event) in the order in which they were passed."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.seen: list[tuple[int, Any]] = []

    def __call__(self, step: int) -> None:
        if self.cuda and torch.cuda.is_current_stream_capturing():
            return  # a CUDA graph's own replays are not timed
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self.seen.append((step, event))
        else:
            self.seen.append((step, time.perf_counter()))

    def seconds(self) -> dict[int, float]:
        """The median of each step."""
        if self.cuda:
            torch.cuda.synchronize()
        took: dict[int, list[float]] = {}
        for (_, before), (step, after) in zip(self.seen, self.seen[1:]):
            if step >= 0:
                spent = before.elapsed_time(after) / 1e3 if self.cuda else after - before
                took.setdefault(step, []).append(spent)
        return {step: statistics.median(times) for step, times in took.items()}


def marked(compiled: CompiledProgram) -> str:
    """The host function's text with marks around each step."""
    lines = compiled.source.split("\n")
    out = []
    for number, line in enumerate(lines, 1):
        if number in compiled.calls:
            out += ["        _mark(-1)", line, f"        _mark({compiled.calls[number]})"]
        else:
            out.append(line)
    return "\n".join(out)


@contextmanager
def _instrumented(compiled: CompiledProgram, marks: _Marks) -> Iterator[None]:
    function: Any = compiled.call
    scope = function.__globals__
    made: dict[str, Any] = {}
    exec(compile(marked(compiled), "<braze measured host>", "exec"), scope, made)  # noqa: S102
    old = function.__code__
    scope["_mark"] = marks
    function.__code__ = made["call"].__code__
    try:
        yield
    finally:
        function.__code__ = old
        del scope["_mark"]


def measure_steps(log: CompileLog, run: Callable[[], Any], times: int = 3) -> dict[Key, dict[int, float]]:
    """Seconds of each step, by graph and side, while ``run`` is called ``times`` times. Programs that did not run (or
    that a CUDA graph replays) have none."""
    programs = {
        (record.name, side): compiled
        for record in log.graphs
        for side, compiled in record.compiled.items()
        if hasattr(compiled.call, "__code__")
    }
    marks = {key: _Marks(_on_cuda(log, key)) for key in programs}
    with ExitStack() as stack:
        for key, compiled in programs.items():
            stack.enter_context(_instrumented(compiled, marks[key]))
        for _ in range(times):
            run()
        return {key: m.seconds() for key, m in marks.items()}


def _on_cuda(log: CompileLog, key: Key) -> bool:
    """Whether any step of a program runs on a GPU. Vendor calls are where their results are."""
    program = next(r.programs[key[1]] for r in log.graphs if r.name == key[0])
    types = [b.type for s in program.steps for b in (s.writes if isinstance(s, Kernel) else s.outputs) if b is not None]
    return any(t.device.type == "cuda" for t in types)


def memory_over_time(run: Callable[[], Any], cuda: bool) -> list[tuple[float, int]]:
    """(seconds, bytes) after each allocation and release of tensor memory during one call, both counted from its start.
    Empty where this torch cannot tell."""
    try:
        from torch.autograd import profiler_legacy

        legacy: Any = torch.autograd
        stop = legacy._disable_profiler_legacy
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            profiler_legacy.profile(profile_memory=True).__enter__()  # type: ignore[no-untyped-call]
    except (ImportError, AttributeError, RuntimeError):  # RuntimeError: the program is being profiled already
        return []
    try:
        run()
    finally:
        threads = stop()
    events: list[Any] = [e for thread in threads for e in thread]
    if not events:
        return []
    start, held, out = events[0], 0, []
    sizes = [
        (start.cpu_elapsed_us(e) / 1e6, e.cuda_memory_usage() if cuda else e.cpu_memory_usage())
        for e in events
        if e.kind() == "memory_alloc"
    ]
    for seconds, nbytes in sorted(sizes, key=lambda s: s[0]):
        if nbytes:
            held += nbytes
            out.append((seconds, held))
    return out


def leaves_of(outputs: Any) -> list[torch.Tensor]:
    """The tensors that a backward pass from these outputs would give gradients to."""
    found: dict[int, torch.Tensor] = {}
    stack = [t.grad_fn for t in tensors_in(outputs) if t.grad_fn is not None]
    seen = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found[id(variable)] = variable
        stack += [n for n, _ in node.next_functions if n is not None]
    return list(found.values())


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Tensors in nested tuples, lists, dicts and objects such as model outputs."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [t for v in tree.values() for t in tensors_in(v)]
    if isinstance(tree, (list, tuple)):
        return [t for v in tree for t in tensors_in(v)]
    return []


def backward_of(outputs: Any) -> None:
    """Run a backward pass of the sum of all floating outputs; no ``.grad`` changes."""
    roots = [t for t in tensors_in(outputs) if t.requires_grad]
    wrt = leaves_of(roots)
    if roots and wrt:
        torch.autograd.grad(roots, wrt, [torch.ones_like(t) for t in roots], allow_unused=True)


@contextmanager
def unchanged(fn: Any) -> Iterator[None]:
    """Random state and a module's buffers are afterwards as before."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    buffers = [(b, b.detach().clone()) for b in fn.buffers()] if isinstance(fn, torch.nn.Module) else []
    with torch.random.fork_rng(devices=devices):
        yield
    with torch.no_grad():
        for b, old in buffers:
            b.copy_(old)
