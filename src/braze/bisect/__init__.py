"""Which stage made a wrong answer: run each one's interpreter on the same inputs and name the first that differs.

``bisect(fn)(*args)`` captures ``fn``, walks down the stages (``capture``, ``autograd``, then for forward and backward
``prims``, ``loops``, ``fuse``, ``plan``, ``codegen``), shrinks the graph on which the first wrong one goes wrong, and
writes a repro that runs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from braze.autograd import AotGraphs
from braze.backends import Request
from braze.ir import Graph, Loc, interpret

from . import captured, repro
from .check import check, differs
from .gradients import trace, trainable
from .shrink import shrink
from .stages import STAGES, copies, primitives, seeded

__all__ = ["Diagnosis", "bisect", "check"]


@dataclass(frozen=True)
class Diagnosis:
    """The first stage that gives a wrong answer ("" when none does), on which pass of which graph, and how it differs.

    ``graph`` is the smallest part found, ``loc`` the user's line where capture went wrong, ``path`` the repro."""

    stage: str = ""
    side: str = ""
    said: str = ""
    graph: Graph | None = None
    path: Path | None = None
    loc: Loc | None = None
    compared: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.stage:
            return f"All stages agree ({', '.join(self.compared)})."
        lines = [f"{self.stage} is the first stage that differs ({self.side}): {self.said}"]
        lines += [f"agreed before it: {', '.join(self.compared)}"] if self.compared else []
        lines += [f"first at {self.loc}"] if self.loc is not None else []
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
                return replace(found, compared=tuple(dict.fromkeys(done)))
            done += found.compared
        return Diagnosis(compared=tuple(dict.fromkeys(done)))

    return call


def _walk(fn: Any, args: Any, kwargs: Any, path: Path) -> Iterator[Diagnosis]:
    """One diagnosis a stage and graph, in order."""
    said, requests = captured.requests_of(fn, args, kwargs)
    if said:
        where = captured.first_wrong(fn, args, kwargs, requests)
        made = captured.write(path, fn, args, kwargs, said.splitlines()[0])
        yield Diagnosis("capture", "whole function", said, path=made, loc=where)
    yield Diagnosis(compared=("capture",))
    for n, request in enumerate(requests):
        yield from _graph(request, f"graph_{n}", path)


def _graph(request: Request, name: str, path: Path) -> Iterator[Diagnosis]:
    graph = request.graph
    for n, t in zip(graph.inputs, request.types):
        n.val = t
    if differs("autograd", graph, request.inputs):
        yield _found("autograd", graph, list(request.inputs), name, path)
    yield Diagnosis(compared=("autograd",))
    aot = trace(graph, request.types)
    sides = [("forward", aot.forward, list(request.inputs))]
    if aot.backward is not None:
        sides.append(("backward", aot.backward, _backward_inputs(aot, request.inputs)))
    for side, part, inputs in sides:
        yield from _side(part, inputs, f"{name}, {side}", path)


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
    before = names[names.index(stage) - 1] if stage not in ("autograd", "prims", "loops") else None

    def wrong(part: Graph, values: Any) -> bool:
        try:
            if stage == "autograd" and part is not graph:
                part = trainable(part)
            return bool(differs(stage, part, values)) and not (before and differs(before, part, values))
        except Exception:
            return False  # the part does not run even as it is meant

    small, values = shrink(graph, inputs, wrong)
    said = differs(stage, small, values)
    repro.write(path, stage, small, values, f"{side}: {said.splitlines()[0] if said else ''}", wrong)
    return Diagnosis(stage, side, said, small, path)
