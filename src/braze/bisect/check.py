"""How a stage differs from what a graph means, and the exit status of a repro."""

from __future__ import annotations

from braze.ir import Graph

from .gradients import gradients_differ
from .stages import Inputs, difference, reference, run_stage, spread


def differs(stage: str, graph: Graph, inputs: Inputs) -> str:
    """How a stage's outputs differ from the graph's meaning, "" when they agree. An exception is a difference."""
    want = reference(graph, inputs)
    try:
        if stage == "autograd":
            return gradients_differ(graph, inputs)
        return difference(run_stage(stage, graph, inputs), want, spread(graph, inputs))
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def check(stage: str, graph: Graph, inputs: Inputs) -> int:
    """Say whether a stage keeps a graph's meaning; the exit status of a repro: 1 when it does not."""
    said = differs(stage, graph, inputs)
    print(f"{stage} differs: {said}" if said else f"{stage} agrees with what the graph means")
    return 1 if said else 0
