"""Run a script and note what it does to its own speed: syncs, copies, loaders, optimizers, modules, compiles.

A script is run twice: in eager, with public entry points of torch wrapped, and then, where it compiles anything, with
``braze.compile`` (also in place of ``torch.compile``) and nothing wrapped that a compiled function calls.  The checks
then read the :class:`Observation`.  ``assume`` is the device that the checks take the script to run on: a script can
be looked over for a GPU on a machine that has none.
"""

from __future__ import annotations

import runpy
import sys
import sysconfig
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import braze.api
from braze.events import CompileLog
from braze.pipeline import Pipeline

Where = tuple[str, int]  # file, line
_ROOTS = [*sysconfig.get_paths().values(), str(Path(torch.__file__).parents[1]), str(Path(__file__).parents[1])]
_LIBRARIES = tuple(str(Path(p).resolve()) for p in dict.fromkeys(_ROOTS))


class Enough(BaseException):
    """The script has shown enough: ends it. Not an Exception, so that its own handlers let it pass."""


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
        if not file.startswith("<") and not str(Path(file).resolve()).startswith(_LIBRARIES):
            return file, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


@contextmanager
def _patched(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
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


class Observer:
    """Wraps torch's entry points and fills an observation."""

    def __init__(self, assume: str | None, most_steps: int) -> None:
        self.seen = Observation(device=assume or "cpu")
        self.assume, self.most_steps = assume, most_steps
        self.depth = 0
        self.roots = 0
        self.compiled_steps = 0
        self.started = 0.0
        self.quiet = False  # inside one of our own wrappers

    # -- wrappers

    def timed(self, table: dict[Any, Event], kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(old: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                if self.quiet or torch._C._len_torch_dispatch_stack():
                    return old(*args, **kwargs)
                where, start = user_line(), time.perf_counter()
                self.quiet = True
                try:
                    return old(*args, **kwargs)
                finally:
                    self.quiet = False
                    if where is not None:
                        table[kind, where].add(time.perf_counter() - start)

            return run

        return wrap

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
            return self._iterate(old(loader), self.seen.loaders[where])

        return run

    def _iterate(self, iterator: Any, event: Event) -> Iterator[Any]:
        while True:
            start = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            event.add(time.perf_counter() - start)
            yield item

    def backward(self, old: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.seen.backwards += 1
            return old(*args, **kwargs)

        return run

    def call(self, old: Callable[..., Any]) -> Callable[..., Any]:
        def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self.seen.module_calls += 1
            if not self.depth:
                self._root(module, args)
            self._layer(module, args)
            self.depth += 1
            try:
                return old(module, *args, **kwargs)
            finally:
                self.depth -= 1

        return run

    def eager_compile(self, old: Callable[..., Any]) -> Callable[..., Any]:
        """Counts the calls and compiles nothing."""

        def run(model: Any = None, **kwargs: Any) -> Any:
            if model is None:
                return lambda m: run(m, **kwargs)
            where = user_line()
            if where is not None:
                self.seen.compiled[where] += 1
            return model

        return run

    def torch_compile(self, old: Callable[..., Any]) -> Callable[..., Any]:
        """torch.compile(...) in the script becomes braze.compile(...)."""

        def run(model: Any = None, *, backend: Any = "inductor", **kwargs: Any) -> Any:
            backend = backend if backend in ("inductor", "eager", "aot_eager") else "inductor"
            return braze.api.compile(model, backend=backend, **kwargs)

        return run

    def after_compiled_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.compiled_steps += 1
        if self.compiled_steps >= self.most_steps:
            raise Enough

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

    def _root(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        devices = {str(p.device) for p in module.parameters()}
        self.seen.root_devices.setdefault(type(module).__name__, set()).update(devices)
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if self.assume is None and any(t.is_cuda for t in tensors):
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
        tensor, seen = torch.Tensor, self.seen
        names = ("item", "tolist", "__bool__", "__float__", "__int__", "__repr__", "numpy")
        out = [_patched(tensor, n, self.timed(seen.syncs, n)) for n in names]
        out += [_patched(tensor, n, self.timed(seen.copies, n)) for n in ("cpu", "cuda")]
        out += [_patched(owner, "compile", self.eager_compile) for owner in (braze.api, sys.modules["braze"], torch)]
        return [
            *out,
            _patched(tensor, "backward", self.backward),
            _patched(torch.utils.data.DataLoader, "__iter__", self.loader),
            _patched(nn.Module, "__call__", self.call),
            _patched(torch.optim.Optimizer, "zero_grad", self.zero_grad),
            _hooked(register_optimizer_step_pre_hook, self.before_step),
            _hooked(register_optimizer_step_post_hook, self.after_step),
        ]

    def compiled_patches(self) -> list[Any]:
        """The context managers of the second run."""
        return [
            _patched(torch, "compile", self.torch_compile),
            _patched(Pipeline, "__init__", self.pipeline),
            _hooked(register_optimizer_step_post_hook, self.after_compiled_step),
        ]


@contextmanager
def _hooked(register: Callable[..., Any], hook: Callable[..., None]) -> Iterator[None]:
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()


def observe(script: Path, arguments: list[str], assume: str | None = None, most_steps: int = 30) -> Observation:
    """Run a script as ``__main__`` until it ends, fails, or has made ``most_steps`` optimizer steps; again compiled."""
    observer = Observer(assume, most_steps)
    seen = observer.seen
    seen.error, seen.seconds = _run(script, arguments, observer.eager_patches())
    seen.steps = seen.steps or observer.roots
    if seen.compiled and not seen.error:
        seen.error, seen.compiled_seconds = _run(script, arguments, observer.compiled_patches())
    return seen


def _run(script: Path, arguments: list[str], patches: list[Any]) -> tuple[str, float]:
    """(how it failed or "", seconds)."""
    argv, path, error = sys.argv, list(sys.path), ""
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    anomaly, start = torch.is_anomaly_enabled(), time.perf_counter()
    try:
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            runpy.run_path(str(script), run_name="__main__")
    except Enough:
        pass
    except SystemExit as e:
        error = f"it ended with status {e.code}" if e.code not in (None, 0) else ""
    except Exception as e:
        error = "".join(traceback.format_exception_only(e)).strip()
    finally:
        torch.autograd.set_detect_anomaly(anomaly)
        sys.argv, sys.path[:] = argv, path
    return error, time.perf_counter() - start


def warm(script: Path, arguments: list[str], most_steps: int) -> str:
    """Run a script compiled until it has made ``most_steps`` optimizer steps; how it failed, or ""."""
    return _run(script, arguments, Observer(None, most_steps).compiled_patches())[0]
