"""The whole compiler, one named line a stage: a captured graph goes in, a callable comes out.

Capture (``braze.capture``) calls :meth:`Pipeline.compile_graph` for each graph that it closes. Nothing below may stop
the user's program: a failure warns once, is recorded, and that graph runs in eager.
"""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import progress
from .backends import Request, lookup
from .config import Config
from .errors import CompileWarning, SymbolicFailure, UnsupportedDevice
from .events import CompileLog, GraphRecord, print_log
from .ir import Expr, Graph, IntLike, TensorType, load_python, verify
from .ir.pause import modes_kept, paused_gc
from .runtime.faster import pick

logger = logging.getLogger("braze")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Settings:
    """What the user asked of ``braze.compile``, checked."""

    backend: str | Callable[..., Any] = "inductor"
    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    config: Config = field(default_factory=Config.from_env)


class Pipeline:
    """Compiles the graphs of one ``braze.compile`` call, and keeps their log."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log = CompileLog(watch=progress.terminal(), debug=settings.config.debug)
        if settings.config.debug:
            print_log()
        self._backend = lookup(settings.backend)
        self._warned = False

    def compile_graph(self, graph: Graph, types: Sequence[Any], inputs: Sequence[Any]) -> Callable[..., Any]:
        """A callable over the graph's inputs. Falls back to the captured calls in eager when compiling fails, except
        under ``fullgraph=True`` or ``BRAZE_STRICT=1``, where the failure is raised. A graph with symbolic sizes does
        not fall back: SymbolicFailure asks for one without."""
        record = self.log.new_graph(graph)
        record.add_level("capture", graph)
        try:
            if self.settings.config.verify:
                verify(graph)
            if self.settings.backend == "inductor":
                check_devices(types)
            request = Request(graph, tuple(types), inputs, self.settings.config, record)
            with record.stage("backend"), paused_gc(), modes_kept(always=True):
                compiled = self._backend(request)
            if self.settings.config.never_slower:
                compiled = _faster(compiled, graph, record, inputs)
            if self.log.debug:
                calls, seconds = len(graph.calls), record.seconds["backend"]
                logger.info("%s: %d calls, %d inputs, compiled in %.2f s", record.name, calls, len(types), seconds)
            return compiled
        except Exception as e:
            if any(isinstance(t, Expr) for t in types) and not self.settings.config.strict:
                logger.info("%s", "".join(traceback.format_exception(e)))
                self.log.graphs.remove(record)
                raise SymbolicFailure(f"{type(e).__name__}: {e}") from e
            if self.settings.fullgraph or self.settings.config.strict or isinstance(e, UnsupportedDevice):
                raise
            return self._fall_back(graph, record, e)

    def _fall_back(self, graph: Graph, record: GraphRecord, error: Exception) -> Callable[..., Any]:
        record.fallback = f"{type(error).__name__}: {error}"
        logger.info("%s", "".join(traceback.format_exception(error)))
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"braze could not compile {record.name} and runs it in eager: {record.fallback}\n"
                "  (BRAZE_STRICT=1 raises this instead; braze.explain shows every such graph)",
                CompileWarning,
                stacklevel=2,
            )
        run: Callable[..., Any] = load_python(graph)
        return run


def _faster(compiled: Callable[..., Any], graph: Graph, record: GraphRecord, inputs: Sequence[Any]) -> Any:
    eager: Callable[..., Any] = load_python(graph)
    with record.stage("trial"):
        kept, record.choice = pick(compiled, eager, inputs)
    return kept


def check_devices(types: Sequence[TensorType | IntLike]) -> None:
    """UnsupportedDevice when an input is on a device without code generation."""
    for i, t in enumerate(types):
        if isinstance(t, TensorType) and t.device.type not in DEVICES:
            raise UnsupportedDevice(
                f"braze generates code for {' and '.join(DEVICES)}, but input {i} ({t}) is on {t.device.type!r}",
                hint=f"move the model and its inputs, e.g. model.to('cpu'), or use backend='eager' on {t.device.type}",
            )
    tensors = [t for t in types if isinstance(t, TensorType)]
    devices = {t.device for t in tensors if t.rank > 0 or t.device.type != "cpu"}
    if len({d for d in devices if d.type == "cuda"}) > 1:
        raise UnsupportedDevice(
            f"one graph mixes the devices {', '.join(sorted(map(str, devices)))}",
            hint="compile the parts on each device separately",
        )
    if torch.device("cpu") in devices and len(devices) > 1:
        logger.info("a graph mixes CPU and CUDA tensors")
