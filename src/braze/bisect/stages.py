"""Every stage as a function from (graph, inputs) to outputs: its interpreter, or for the last one the compiled code.

Two levels of graphs go in: functional ATen graphs (stage ``prims``) and primitive graphs (the stages after it).  The
meaning of a graph is ``ir.interpret``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.backends.inductor import policy_of
from braze.config import Config
from braze.inductor.codegen import compile_program
from braze.inductor.fuse import fuse, plan
from braze.inductor.loops import interpret_program, lower
from braze.ir import Graph, interpret
from braze.prims import decompose

Inputs = Sequence[Any]
Run = Callable[[Graph, Inputs], Any]

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Largest error of a stage, relative to a tensor's largest value."""


def primitives(graph: Graph) -> Graph:
    """The primitive graph of an ATen graph."""
    return decompose(graph, policy_of(graph))


def _prims(graph: Graph, inputs: Inputs) -> Any:
    return interpret(primitives(graph), copies(inputs))


def _loops(graph: Graph, inputs: Inputs) -> Any:
    return interpret_program(lower(graph), copies(inputs), reuse=False)


def _fuse(graph: Graph, inputs: Inputs) -> Any:
    return interpret_program(fuse(lower(graph)), copies(inputs), reuse=False)


def _plan(graph: Graph, inputs: Inputs) -> Any:
    values = copies(inputs)
    return _written(interpret_program(plan(fuse(lower(graph))), values), graph, values)


def _codegen(graph: Graph, inputs: Inputs) -> Any:
    values = copies(inputs)
    made = compile_program(plan(fuse(lower(graph))), Config.from_env())
    return _written(made.call(list(values)), graph, values)


def _written(outputs: Any, graph: Graph, values: Inputs) -> Any:
    """Outputs that a program has written into the inputs themselves, in their places."""
    out = list(outputs)
    for k, i in graph.overwrites:
        out[k] = values[i] if out[k] is None else out[k]
    return tuple(out)


STAGES: dict[str, Run] = {"prims": _prims, "loops": _loops, "fuse": _fuse, "plan": _plan, "codegen": _codegen}
"""In order. ``prims`` takes an ATen graph, the others a primitive graph."""


def copies(inputs: Inputs) -> list[Any]:
    """Inputs that a run may overwrite, in the layouts of the originals."""
    return [_copy(x) if isinstance(x, torch.Tensor) else x for x in inputs]


def _copy(t: torch.Tensor) -> torch.Tensor:
    out = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
    return out.copy_(t.detach())


def reference(graph: Graph, inputs: Inputs) -> Any:
    """What the graph means."""
    return seeded(lambda: interpret(graph, copies(inputs)))


def seeded(run: Callable[[], Any]) -> Any:
    """Run with fixed random numbers and without autograd."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        return run()


def run_stage(stage: str, graph: Graph, inputs: Inputs) -> Any:
    """A stage's outputs."""
    return seeded(lambda: STAGES[stage](graph, inputs))


def _nothing(k: int) -> float:
    return 0.0


def difference(got: Any, want: Any, allowed: Callable[[int], float] = _nothing) -> str:
    """How two flat outputs differ, "" when they agree within the tolerance of their dtypes. ``allowed(k)``: an error of
    output ``k`` that is no difference either; asked only when needed."""
    if not isinstance(want, (tuple, list)):
        got, want = (got,), (want,)
    if not isinstance(got, (tuple, list)) or len(want) != len(got):
        return f"other outputs: {type(got).__name__} instead of {len(want)} outputs"
    said = []
    for k, (g, w) in enumerate(zip(got, want)):
        if isinstance(w, torch.Tensor):
            text, error = _difference(g, w)
            if text and not error <= allowed(k):
                said.append(f"output {k}: {text}")
        elif w is not None and g != w:
            said.append(f"output {k}: {g!r} instead of {w!r}")
    return "; ".join(said)


def _difference(got: Any, want: torch.Tensor) -> tuple[str, float]:
    """(text, size of the error); the error of integers is the share of elements that differ."""
    none = float("inf")
    if not isinstance(got, torch.Tensor):
        return f"{type(got).__name__} instead of a tensor", none
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}", none
    if not want.numel():
        return "", 0.0
    if not want.dtype.is_floating_point:
        wrong = (got != want).double().mean().item()
        return (f"{100 * wrong:.2f}% of the elements differ", wrong) if wrong > 1e-3 else ("", 0.0)
    a, b = got.detach().double(), want.detach().double()
    if bool((a.isnan() != b.isnan()).any()):
        return f"NaN in {int(a.isnan().sum())} elements instead of {int(b.isnan().sum())}", none
    a, b = a.nan_to_num(0.0, 0.0, 0.0), b.nan_to_num(0.0, 0.0, 0.0)
    scale, error = float(b.abs().max()), float((a - b).abs().max())
    if error <= TOLERANCE.get(want.dtype, 1e-4) * scale:
        return "", 0.0
    return f"an error of {error:.3g} where the largest value is {scale:.3g}", error


def spread(graph: Graph, inputs: Inputs) -> Callable[[int], float]:
    """How far an output moves, many times over, when the inputs move by one rounding: sums that cancel and comparisons
    of nearly equal values move far, and a stage may round otherwise than the reference does."""
    made: list[Any] = []

    def of(k: int) -> float:
        if not made:
            make = torch.Generator().manual_seed(0)
            made.append(reference(graph, inputs))
            made.append(reference(graph, [_nudged(x, make) for x in inputs]))
        a, b = (m[k] for m in made)
        if not a.dtype.is_floating_point:
            return 4 * float((a != b).double().mean())
        same = (a == b) | (a.isnan() & b.isnan())
        moved = (a.double() - b.double()).abs().nan_to_num(float("inf"))
        return 64 * float(torch.where(same, 0.0, moved).max())

    return of


def _nudged(x: Any, make: torch.Generator) -> Any:
    if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point:
        return x
    noise = torch.randint(-1, 2, x.shape, generator=make).to(x.device, torch.float64)
    out = x.detach().double() * (1 + torch.finfo(x.dtype).eps * noise)
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(out)
