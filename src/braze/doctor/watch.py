"""Run a script and note what it does to its own speed: syncs, copies, loaders, optimizers, modules, compiles.

A script is run twice: in eager, with public entry points of torch wrapped, and then, where it compiles anything, with
``braze.compile`` (also in place of ``torch.compile``) and nothing wrapped that a compiled function calls.  The checks
then read the :class:`Observation`.  ``assume`` is the device that the checks take the script to run on: a script can
be looked over for a GPU on a machine that has none.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import braze.api
from braze.capture.frames import Session
from braze.events import CompileLog
from braze.pipeline import Pipeline

from .script import Enough, hooked, patched, run_script

Where = tuple[str, int]  # file, line
_ROOTS = [*sysconfig.get_paths().values(), str(Path(torch.__file__).parents[1]), str(Path(__file__).parents[1])]
_LIBRARIES = tuple(str(Path(p).resolve()) for p in dict.fromkeys(_ROOTS))
_TENSORS = ("torch/_tensor.py", "torch/_tensor_str.py")  # methods of a tensor that call others
READS = ("item", "tolist", "__bool__", "__float__", "__int__", "__repr__", "__format__", "numpy")
UNFUSED = ("eager", "aot_eager")  # backends that generate no code


@dataclass
class Event:
    """How often something happened at one line, and the seconds that it took."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds


@dataclass
class OptimizerNote:
    """One optimizer: its class, switches, parameters, and the time of its steps."""

    name: str
    where: Where | None
    foreach: Any
    fused: Any
    tensors: int
    steps: Event = field(default_factory=Event)
    owner: Any = None  # kept alive: its id is its key


@dataclass
class Layer:
    """What convolutions and linear layers saw."""

    kind: str
    where: Where | None
    dtype: torch.dtype
    autocast: bool
    channels_last: bool
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    calls: int = 0


@dataclass
class Observation:
    """All that the checks know. Times in seconds; ``device`` is the script's, or the one assumed."""

    device: str = "cpu"
    assumed: bool = False  # the device, so that no time says what it costs there
    gpu: bool = False  # there is one, used or not
    seconds: float = 0.0
    steps: int = 0
    syncs: dict[tuple[str, Where], Event] = field(default_factory=lambda: defaultdict(Event))
    copies: dict[tuple[str, Where], Event] = field(default_factory=lambda: defaultdict(Event))
    loaders: dict[Where, Event] = field(default_factory=lambda: defaultdict(Event))
    loader_options: dict[Where, dict[str, Any]] = field(default_factory=dict)
    optimizers: dict[int, OptimizerNote] = field(default_factory=dict)
    layers: dict[tuple[str, Any], Layer] = field(default_factory=dict)
    root_devices: dict[str, set[str]] = field(default_factory=dict)
    batches: Counter[int] = field(default_factory=Counter)
    eval_with_grad: Event = field(default_factory=Event)
    backwards: int = 0
    module_calls: int = 0
    anomaly: bool = False
    zeroed: Event = field(default_factory=Event)
    zeroed_where: Where | None = None
    benchmark: bool = False
    tf32: bool = False
    compiled: Counter[Where] = field(default_factory=Counter)
    compiled_calls: int = 0
    plain: dict[Where, str] = field(default_factory=dict)  # where compile is told to generate no code, and how
    compiled_seconds: float = 0.0  # of the second run
    logs: list[CompileLog] = field(default_factory=list)
    error: str = ""

    @property
    def step_seconds(self) -> float:
        """Mean seconds a step."""
        return self.seconds / max(self.steps, 1)


def user_line(skip: int = 2) -> Where | None:
    """The innermost line of the script itself, or of modules beside it."""
    frame = sys._getframe(skip)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith("<") and not in_library(file):
            return file, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def in_library(file: str) -> bool:
    """Whether a file belongs to Python, an installed package or braze."""
    return str(Path(file).resolve()).startswith(_LIBRARIES)


def _asked_by_script(skip: int = 2) -> bool:
    """Whether the script itself, not a library, called the method of a tensor that is running."""
    frame = sys._getframe(skip)
    while frame.f_back is not None and frame.f_code.co_filename.endswith(_TENSORS):
        frame = frame.f_back
    return not in_library(frame.f_code.co_filename)


class Observer:
    """Wraps torch's entry points and fills an observation."""

    def __init__(self, assume: str | None, most_steps: int) -> None:
        self.seen = Observation(device=assume or "cpu", assumed=assume is not None, gpu=torch.cuda.is_available())
        self.assume, self.most_steps = assume, most_steps
        self.depth = 0
        self.roots = 0
        self.started = 0.0
        self.quiet = False  # inside one of our own wrappers
        self.models: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # those that are compiled
        self.moved: dict[int, weakref.ref[torch.Tensor]] = {}

    # -- wrappers

    def read(self, kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """For methods that give a tensor's value to Python."""

        def wrap(old: Callable[..., Any]) -> Callable[..., Any]:
            def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if self.quiet or torch._C._len_torch_dispatch_stack():
                    return old(tensor, *args, **kwargs)
                waits = tensor.device.type != "cpu" or self._stands_in() and _asked_by_script()
                where, start = user_line() if waits else None, time.perf_counter()
                self.quiet = True
                try:
                    return old(tensor, *args, **kwargs)
                finally:
                    self.quiet = False
                    if where is not None:
                        self.seen.syncs[kind, where].add(time.perf_counter() - start)

            return run

        return wrap

    def _stands_in(self) -> bool:
        """Tensors on the CPU stand for tensors on the device that is assumed."""
        return self.assume not in (None, "cpu")

    def move(self, kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """For methods that move a tensor: each move to the host, and to a device those of one tensor again."""

        def wrap(old: Callable[..., Any]) -> Callable[..., Any]:
            def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if self.quiet or torch._C._len_torch_dispatch_stack():
                    return old(tensor, *args, **kwargs)
                start = time.perf_counter()
                out = old(tensor, *args, **kwargs)
                crosses = out.device != tensor.device or kind == "cpu" and self._stands_in() and _asked_by_script()
                if crosses and (out.device.type == "cpu" or self._again(tensor)):
                    where = user_line()
                    if where is not None:
                        self.seen.copies[kind, where].add(time.perf_counter() - start)
                return out

            return run

        return wrap

    def _again(self, tensor: torch.Tensor) -> bool:
        known = self.moved.get(id(tensor))
        if known is not None and known() is tensor:
            return True
        self.moved[id(tensor)] = weakref.ref(tensor)
        return False

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self.seen.optimizers:
            group = optimizer.param_groups[0]
            tensors = sum(len(g["params"]) for g in optimizer.param_groups)
            switches = group.get("foreach"), group.get("fused")
            self.seen.optimizers[id(optimizer)] = OptimizerNote(
                type(optimizer).__name__, user_line(), *switches, tensors, owner=optimizer
            )
        self.started = time.perf_counter()

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.seen.optimizers[id(optimizer)].steps.add(time.perf_counter() - self.started)
        self.seen.steps += 1
        self._settings()
        if self.seen.steps >= self.most_steps:
            raise Enough

    def zero_grad(self, old: Callable[..., Any]) -> Callable[..., Any]:
        def run(optimizer: Any, set_to_none: bool = True) -> Any:
            start = time.perf_counter()
            out = old(optimizer, set_to_none)
            if not set_to_none:
                self.seen.zeroed.add(time.perf_counter() - start)
                self.seen.zeroed_where = user_line()
            return out

        return run

    def loader(self, old: Callable[..., Any]) -> Callable[..., Any]:
        def run(loader: Any) -> Iterator[Any]:
            where = user_line() or ("", 0)
            options = {"num_workers": loader.num_workers, "pin_memory": loader.pin_memory}
            self.seen.loader_options[where] = options
            return self._iterate(old(loader), self.seen.loaders[where], skip=loader.num_workers > 0)

        return run

    def _iterate(self, iterator: Any, event: Event, skip: bool) -> Iterator[Any]:
        """Times the batches, less the first one where that waits for workers to start."""
        while True:
            start = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            if not skip:
                event.add(time.perf_counter() - start)
            skip = False
            yield item

    def backward(self, old: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.seen.backwards += 1
            return old(*args, **kwargs)

        return run

    def call(self, old: Callable[..., Any]) -> Callable[..., Any]:
        def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self.seen.module_calls += 1
            self.seen.compiled_calls += module in self.models
            if not self.depth:
                self._root(module, [*args, *kwargs.values()])
            self._layer(module, args)
            self.depth += 1
            try:
                return old(module, *args, **kwargs)
            finally:
                self.depth -= 1

        return run

    def eager_compile(self, old: Callable[..., Any]) -> Callable[..., Any]:
        """Counts the calls, and those of what it gives, and compiles nothing."""

        def run(model: Any = None, **kwargs: Any) -> Any:
            if model is None:
                return lambda m: run(m, **kwargs)
            where = user_line()
            if where is not None:
                self.seen.compiled[where] += 1
                if kwargs.get("disable"):
                    self.seen.plain[where] = "disable=True"
                elif kwargs.get("backend") in UNFUSED:
                    self.seen.plain[where] = f'backend="{kwargs["backend"]}"'
            if isinstance(model, nn.Module):
                self.models.add(model)
                return model
            return self._counted(model)

        return run

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.seen.compiled_calls += 1
            return function(*args, **kwargs)

        return call

    def pipeline(self, old: Callable[..., Any]) -> Callable[..., Any]:
        def run(pipeline: Any, *args: Any, **kwargs: Any) -> None:
            old(pipeline, *args, **kwargs)
            self.seen.logs.append(pipeline.log)

        return run

    # -- what modules do

    def _settings(self) -> None:
        self.seen.anomaly |= torch.is_anomaly_enabled()
        self.seen.benchmark = torch.backends.cudnn.benchmark
        self.seen.tf32 = torch.get_float32_matmul_precision() != "highest"

    def _root(self, module: nn.Module, args: list[Any]) -> None:
        devices = {str(p.device) for p in module.parameters()}
        self.seen.root_devices.setdefault(type(module).__name__, set()).update(devices)
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if self.assume is None and (any(t.is_cuda for t in tensors) or any(d.startswith("cuda") for d in devices)):
            self.seen.device = "cuda"
        if tensors and tensors[0].dim():
            self.seen.batches[tensors[0].shape[0]] += 1
        if not module.training and torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()):
            self.seen.eval_with_grad.add(0.0)
        self._settings()
        self.roots += 1
        if self.roots > 50 * self.most_steps:
            raise Enough

    def _layer(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not isinstance(module, (nn.Linear, nn.Conv2d)) or not args or not isinstance(args[0], torch.Tensor):
            return
        x, kind = args[0], "convolution" if isinstance(module, nn.Conv2d) else "linear"
        if torch._C._len_torch_dispatch_stack() or type(x) not in (torch.Tensor, nn.Parameter):
            return
        last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        autocast = torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
        layer = self.seen.layers.get((kind, autocast))
        if layer is None:
            layer = self.seen.layers[kind, autocast] = Layer(kind, user_line(), module.weight.dtype, autocast, last)
        layer.channels_last |= last
        layer.shapes.add(tuple(x.shape))
        layer.calls += 1

    def eager_patches(self) -> list[Any]:
        """The context managers of the first run."""
        tensor = torch.Tensor
        out = [patched(tensor, n, self.read(n)) for n in READS]
        out += [patched(tensor, n, self.move(n)) for n in ("cpu", "cuda", "to")]
        out += [patched(owner, "compile", self.eager_compile) for owner in (braze.api, sys.modules["braze"], torch)]
        return [
            *out,
            patched(tensor, "backward", self.backward),
            patched(torch.utils.data.DataLoader, "__iter__", self.loader),
            patched(nn.Module, "__call__", self.call),
            patched(torch.optim.Optimizer, "zero_grad", self.zero_grad),
            hooked(register_optimizer_step_pre_hook, self.before_step),
            hooked(register_optimizer_step_post_hook, self.after_step),
        ]

    def compiled_patches(self, most_calls: int) -> list[Any]:
        """The context managers of the second run, which ends after so many calls of what is compiled."""
        return [*compiling(CallLimit(most_calls).wrap), patched(Pipeline, "__init__", self.pipeline)]


def compiling(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Any]:
    """``torch.compile`` in a script is ``braze.compile``; ``wrap`` is put around calls of what is compiled."""
    return [patched(torch, "compile", _torch_compile), patched(Session, "call", wrap)]


def _torch_compile(old: Callable[..., Any]) -> Callable[..., Any]:
    def run(model: Any = None, *, backend: Any = "inductor", mode: Any = None, options: Any = None, **kw: Any) -> Any:
        backend = backend if backend in ("inductor", *UNFUSED) else "inductor"
        return braze.api.compile(model, backend=backend, mode=mode, **kw)  # its options are not ours

    return run


class CallLimit:
    """Ends a script at the outermost call of compiled code after the first ``most`` ones. A hook of the optimizer would
    not do: inside of a compiled training step it would be compiled too."""

    def __init__(self, most: int) -> None:
        self.most, self.calls, self.inside = most, 0, False

    def enough(self) -> bool:
        return self.calls >= self.most

    def wrap(self, old: Callable[..., Any]) -> Callable[..., Any]:
        def run(session: Any, *args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return old(session, *args, **kwargs)
            if self.enough():
                raise Enough
            self.calls += 1
            self.inside = True
            try:
                return self.call(old, session, args, kwargs)
            finally:
                self.inside = False

        return run

    def call(self, old: Callable[..., Any], session: Any, args: Any, kwargs: Any) -> Any:
        return old(session, *args, **kwargs)


class StepLimit(CallLimit):
    """Ends a script after so many optimizer steps; where no step is made outside of compiled code, after four times as
    many calls."""

    def __init__(self, steps: int) -> None:
        super().__init__(4 * steps)
        self.steps, self.made = steps, 0
        self.handle: Any = None

    def enough(self) -> bool:
        return self.made >= self.steps or not self.made and self.calls >= self.most

    def step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.made += 1

    def call(self, old: Callable[..., Any], session: Any, args: Any, kwargs: Any) -> Any:
        self.__exit__()  # compiled code must not see the hook
        try:
            return old(session, *args, **kwargs)
        finally:
            self.__enter__()

    def __enter__(self) -> None:
        self.handle = register_optimizer_step_post_hook(self.step)

    def __exit__(self, *error: Any) -> None:
        self.handle.remove()


def observe(script: Path, arguments: list[str], assume: str | None = None, most_steps: int = 30) -> Observation:
    """Run a script as ``__main__`` until it ends, fails, or has made ``most_steps`` optimizer steps; again compiled."""
    observer = Observer(assume, most_steps)
    seen = observer.seen
    seen.error, seen.seconds = run_script(script, arguments, observer.eager_patches())
    seen.steps = seen.steps or observer.roots
    if seen.compiled and not seen.error:
        patches = observer.compiled_patches(seen.compiled_calls)
        seen.error, seen.compiled_seconds = run_script(script, arguments, patches)
    return seen


def warm(script: Path, arguments: list[str], most_steps: int) -> str:
    """Run a script compiled for a few optimizer steps; how it failed, or ""."""
    limit = StepLimit(most_steps)
    return run_script(script, arguments, [limit, *compiling(limit.wrap)])[0]
