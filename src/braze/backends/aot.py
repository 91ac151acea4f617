"""The shared half of ``aot_eager`` and ``inductor``: joint trace, partition, and the autograd node around the pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from braze.autograd import Joint, budget_curve, curve_text, partition, trace_joint, verify_aot, verify_joint
from braze.autograd.masks import drop_full_masks
from braze.events import Deferred
from braze.fake.questions import deciding
from braze.ir import Expr, Graph, TensorType, load_python
from braze.ir.pause import paused_gc
from braze.prims.collective import Collective
from braze.runtime.autograd_node import make_autograd_callable
from braze.runtime.host import below_autograd

from .registry import Compiled, Request, Started, built_in
from .whole import CompileSide, Whole, start_whole


def compile_joint(
    request: Request,
    compile_side: CompileSide,
    arrange: Callable[[Joint], Joint] | None = None,
    freeze: Callable[[Graph], Graph] | None = None,
    both: bool = False,
) -> Compiled:
    """Trace forward and backward, split them, compile the forward now and the backward on its first use.

    ``compile_side(graph, request, "forward" | "backward")`` begins to compile one functional ATen graph; ``arrange``
    may change the joint graph first, ``freeze`` (with the flag of its name) the forward of a program without gradients.
    ``both``: begin with the backward, too, while the forward's kernels are compiled in other processes (not with
    symbolic sizes, where the backward may still decide something).
    """
    request = replace(request, inputs=())  # what waits for the backward must not keep the user's tensors
    record, config = request.record, request.config
    graph = drop_full_masks(request.graph)
    with record.stage("joint trace"):
        joint = trace_joint(graph, list(request.types), strict_random=config.strict_random)
    if arrange is not None:
        with record.stage("layouts"):
            joint = arrange(joint)
    record.add_level("joint", joint.graph)
    with deciding(graph.decide):
        with record.stage("partition"):
            aot = partition(joint, config.activation_memory_budget)
        record.add_level("forward", aot.forward)
        if aot.backward is not None:
            record.add_level("backward", aot.backward)
            record.add_level("memory", Deferred(lambda: curve_text(budget_curve(joint))))
        if config.verify:
            verify_joint(joint)
            verify_aot(aot)
        inference = freeze is not None and config.freeze and aot.backward is None
        ready = freeze(aot.forward) if inference and freeze is not None else aot.forward
        waiting = start_whole(compile_side, ready, request, "forward")
        lazy: Callable[[], Compiled] | None = None
        if aot.backward is not None:
            start = partial(start_whole, compile_side, aot.backward, request, "backward")
            if both and not any(isinstance(t, Expr) for t in request.types):
                started = start()
                lazy = _once(lambda: started().call)
            else:
                lazy = _once(partial(_compile_late, start, aot.backward, request))
        whole = waiting()
    forward = whole.call
    if config.cudagraphs and any(isinstance(t, TensorType) and t.device.type == "cuda" for t in request.types):
        if _talks(aot.forward) or aot.backward is not None and _talks(aot.backward):
            record.notes = ["not recorded as CUDA graphs: the graph has collectives"]
        else:
            forward, lazy, record.notes = whole.recorded(lazy, aot.signature)
    eager = _once(partial(load_python, request.graph))  # rarely needed, and its source is long
    compiled: Compiled = make_autograd_callable(forward, lazy, aot.signature, lambda *inputs: eager()(*inputs))
    return compiled


def _talks(graph: Graph) -> bool:
    """Whether a graph has collectives."""
    return any(isinstance(n.target, Collective) for n in graph.nodes)


def _compile_late(start: Callable[[], Callable[[], Whole]], graph: Graph, request: Request) -> Compiled:
    """The backward compiled; a symbolic one that cannot be runs call by call."""
    with paused_gc(), deciding(request.graph.decide):
        try:
            return start()().call
        except Exception as e:
            if request.graph.decide is None or request.config.strict:
                raise
            request.record.notes.append(f"the backward runs in eager: {type(e).__name__}: {e}")
            return load_python(graph)  # type: ignore[no-any-return]


def _once(make: Callable[[], Callable[..., Any]]) -> Callable[[], Callable[..., Any]]:
    made: list[Callable[..., Any]] = []

    def get() -> Callable[..., Any]:
        if not made:
            made.append(make())
        return made[0]

    return get


@built_in("aot_eager")
def aot_eager(request: Request) -> Compiled:
    """Forward and backward graphs of ATen calls, run call by call in eager."""
    return compile_joint(request, _run_resolved)


def _run_resolved(graph: Graph, _request: Request, _side: str) -> Started:
    run = load_python(graph)

    def call(*inputs: Any) -> Any:
        with below_autograd():
            return run(*inputs)

    return lambda: call
