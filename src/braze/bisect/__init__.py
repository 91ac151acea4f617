"""Which stage made a wrong answer: run each one's interpreter on the same inputs and name the first that differs.

``bisect(fn)(*args)`` captures ``fn``, walks down the stages (``capture``, ``autograd``, then for forward and backward
``prims``, ``loops``, ``fuse``, ``plan``, ``codegen``), shrinks the graph on which the first wrong one goes wrong, and
writes a repro that runs alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from braze.api import compile as braze_compile
from braze.autograd import AotGraphs, channels_last, partition, trace_joint
from braze.autograd.masks import drop_full_masks
from braze.backends import Request
from braze.ir import Graph, interpret, load_python
from braze.runtime.autograd_node import make_autograd_callable

from . import repro
from .shrink import shrink
from .stages import STAGES, check, copies, difference, differs, primitives, seeded

__all__ = ["Diagnosis", "bisect", "check"]


@dataclass(frozen=True)
class Diagnosis:
    """The first stage that gives a wrong answer ("" when none does), on which pass of which graph, and how it differs.

    ``graph`` is the smallest part found, ``path`` the repro."""

    stage: str = ""
    side: str = ""
    said: str = ""
    graph: Graph | None = None
    path: Path | None = None
    compared: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.stage:
            return f"All stages agree ({', '.join(self.compared)})."
        lines = [f"{self.stage} is the first stage that differs ({self.side}): {self.said}"]
        lines += [f"agreed before it: {', '.join(self.compared)}"] if self.compared else []
        lines += ["", str(self.graph), ""] if self.graph is not None else []
        return "\n".join([*lines, *([f"repro: python {self.path}"] if self.path else [])])


def bisect(fn: Callable[..., Any], path: str | Path = "repro.py") -> Callable[..., Diagnosis]:
    """Call the result with the arguments for which ``fn`` (a function or module) gives a wrong answer when compiled.

    The repro is written to ``path``. Neither ``fn`` nor its arguments change.
    """

    def call(*args: Any, **kwargs: Any) -> Diagnosis:
        done: list[str] = []
        for found in _walk(fn, args, kwargs, Path(path)):
            if found.stage:
                return Diagnosis(found.stage, found.side, found.said, found.graph, found.path, tuple(done))
            done += found.compared
        return Diagnosis(compared=tuple(dict.fromkeys(done)))

    return call


def _walk(fn: Any, args: Any, kwargs: Any, path: Path) -> Iterator[Diagnosis]:
    """One diagnosis a stage and graph, in order."""
    requests: list[Request] = []
    want = _call(copy.deepcopy(fn), args, kwargs)
    twin = braze_compile(copy.deepcopy(fn), backend="eager", dynamic=False)
    twin._braze_session.pipeline._backend = _recorder(requests)
    said = difference(_flat(_call(twin, args, kwargs)), _flat(want))
    yield Diagnosis("capture" if said else "", "whole function", said, compared=("capture",))
    for n, request in enumerate(requests):
        yield from _graph(request, f"graph_{n}", path)


def _recorder(requests: list[Request]) -> Callable[[Request], Any]:
    def record(request: Request) -> Any:
        inputs = [_like(x) if isinstance(x, torch.Tensor) else x for x in request.inputs]
        requests.append(Request(request.graph, request.types, inputs, request.config, request.record))
        return load_python(request.graph)

    return record


def _like(x: torch.Tensor) -> torch.Tensor:
    """A copy that asks for a gradient where the original has one."""
    (out,) = copies([x])
    made: torch.Tensor = out.requires_grad_(x.requires_grad)
    return made


def _call(fn: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = copy.deepcopy((args, kwargs))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return fn(*args, **kwargs)


def _flat(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree.detach()]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (tuple, list)) else ()
    return [t for v in values for t in _flat(v)]


def _graph(request: Request, name: str, path: Path) -> Iterator[Diagnosis]:
    graph = drop_full_masks(request.graph)
    aot = partition(channels_last(trace_joint(graph, list(request.types))))
    if not aot.signature.random:  # compiled random numbers are others than eager's
        said = difference(
            _with_gradients(_interpreted(aot, graph), request), _with_gradients(load_python(graph), request)
        )
        yield Diagnosis("autograd" if said else "", name, said, graph if said else None, compared=("autograd",))
    sides = [("forward", aot.forward, list(request.inputs))]
    if aot.backward is not None:
        sides.append(("backward", aot.backward, _backward_inputs(aot, request.inputs)))
    for side, part, inputs in sides:
        yield from _side(part, inputs, f"{name}, {side}", path)


def _apart(got: list[Any], want: list[Any]) -> str:
    """Differences that are more than rounding beside the largest gradient."""
    largest = max((float(t.abs().max()) for t in want if t.numel() and t.dtype.is_floating_point), default=0.0)
    return difference(got, want, lambda k: 1e-5 * largest)


def _interpreted(aot: AotGraphs, graph: Graph) -> Callable[..., Any]:
    """The pair of graphs, call by call, as a differentiable function."""
    backward = aot.backward
    late = (lambda: lambda *inputs: interpret(backward, inputs)) if backward is not None else None
    made: Callable[..., Any] = make_autograd_callable(
        lambda *inputs: interpret(aot.forward, inputs), late, aot.signature, load_python(graph)
    )
    return made


def _with_gradients(run: Callable[..., Any], request: Request) -> list[Any]:
    """Outputs, and the gradients of their sum with respect to every input that wants one."""
    inputs = [_like(x) if isinstance(x, torch.Tensor) else x for x in request.inputs]
    out = _flat_with_grad(run(*[x.clone() if isinstance(x, torch.Tensor) and x.requires_grad else x for x in inputs]))
    roots = [t for t in out if t.requires_grad]
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    grads = torch.autograd.grad(roots, wanted, [torch.ones_like(t) for t in roots], allow_unused=True) if roots else ()
    return [*(t.detach() for t in out), *(g for g in grads if g is not None)]


def _flat_with_grad(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [t for v in tree for t in _flat_with_grad(v)] if isinstance(tree, (tuple, list)) else []


def _backward_inputs(aot: AotGraphs, inputs: Any) -> list[Any]:
    """What the backward gets for tangents of random numbers."""
    s = aot.signature
    out = seeded(lambda: interpret(aot.forward, copies(inputs)))
    start = s.n_results + len(s.mutated)
    rows = {"input": list(inputs), "result": out, "extra": out[start:]}
    saved = [rows[ref.kind][ref.index] for ref in s.saved]
    return [*saved, *(repro.random_input(t, 100 + k) for k, t in enumerate(s.tangents))]


def _side(aten: Graph, inputs: list[Any], side: str, path: Path) -> Iterator[Diagnosis]:
    lowered: Graph | None = None
    for stage in STAGES:
        graph = aten if stage == "prims" else lowered if lowered is not None else primitives(aten)
        lowered = graph if stage != "prims" else None
        said = differs(stage, graph, inputs)
        if said:
            yield _found(stage, graph, inputs, side, path)
            return
        yield Diagnosis(compared=(stage,))


def _found(stage: str, graph: Graph, inputs: list[Any], side: str, path: Path) -> Diagnosis:
    names = list(STAGES)
    before = names[names.index(stage) - 1] if stage not in ("prims", "loops") else None

    def wrong(part: Graph, values: Any) -> bool:
        try:
            return bool(differs(stage, part, values)) and not (before and differs(before, part, values))
        except Exception:
            return False  # the part does not run even as it is meant

    small, values = shrink(graph, inputs, wrong)
    said = differs(stage, small, values)
    repro.write(path, stage, small, values, f"{side}: {said.splitlines()[0] if said else ''}", wrong)
    return Diagnosis(stage, side, said, small, path)
