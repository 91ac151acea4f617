"""The ``inductor`` backend: primitives, loops, fusion, code generation, one named line a stage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from braze.autograd import channels_last
from braze.events import Deferred, GraphRecord
from braze.inductor.codegen import CompiledProgram, compile_program, start_program
from braze.inductor.fuse import Reason, apart, contract, fuse, plan
from braze.inductor.loops import Kernel, Program, lower, to_text, verify_program
from braze.ir import Expr, Graph, TensorType, verify
from braze.prims.builder import Policy
from braze.prims.decompose import decompose
from braze.runtime.cuda import warm_up

from .aot import compile_joint
from .freeze import freeze
from .program_cache import Lookup
from .registry import Compiled, Request, Started, built_in


def policy_of(graph: Graph) -> Policy:
    """How ATen calls become primitives on the graph's device. A GPU reads memory too slowly to look twice at a batch
    for its statistics. Maxima over windows are faster in generated code everywhere: 13x on a CPU. A CPU's library
    takes 2 to 4 times as long for a convolution of few single pixels as for the product that it is."""
    on_gpu = any(n.val.device.type == "cuda" for n in graph.nodes if isinstance(n.val, TensorType))
    return Policy(one_pass_statistics=on_gpu, max_pools=True, pixel_products=not on_gpu)


def compile_side(graph: Graph, request: Request, side: str) -> Started:
    """One functional ATen graph to a callable over its inputs: from the disk cache, or compiled."""
    record, config = request.record, request.config

    def rebuild() -> tuple[Program, CompiledProgram]:
        program = to_program(
            decompose(graph, policy_of(graph)), Request(graph, request.types, (), config, unseen), side
        )
        return program, compile_program(program, config)

    unseen = GraphRecord(record.name, graph)
    with record.stage("cache"):
        looked = Lookup(graph, config, lambda: rebuild()[1])
    record.cache[side] = looked.outcome
    if looked.found is not None:
        record.programs.later(side, lambda: rebuild()[0])
        _show_on_demand(record, graph, side)
        record.add_level(f"{side}: kernels", Deferred(lambda: to_text(record.programs[side])))
        found = _finish(looked.found, looked.kernels, request, side)
        return lambda: found
    _start_compilers(request)
    with record.stage("prims"):
        prims = decompose(graph, policy_of(graph))
    record.add_level(f"{side}: prims", prims)
    if config.verify:
        verify(prims)
    started = compile_primitives(prims, request, side)
    if not any(isinstance(t, Expr) for t in request.types):  # a symbolic graph's are shown as they were decided
        _show_on_demand(record, graph, side)

    def finish() -> Callable[..., Any]:
        call = started()
        with record.stage("cache"):
            looked.keep(record.compiled[side], kernel_names(record.programs[side]))
        record.cache[side] = looked.outcome
        return call

    return finish


def _show_on_demand(record: GraphRecord, graph: Graph, side: str) -> None:
    """The levels before fusion, made again when somebody looks: they would hold megabytes."""
    record.levels[f"{side}: prims"] = Deferred(lambda: str(decompose(graph, policy_of(graph))))
    record.levels[f"{side}: loops"] = Deferred(lambda: to_text(lower(decompose(graph, policy_of(graph)))))
    record.levels[f"{side}: apart"] = Deferred(lambda: apart(lower(decompose(graph, policy_of(graph)))))


def compile_primitives(graph: Graph, request: Request, side: str) -> Started:
    """A graph of primitives and library calls (any callable counts as one) to a callable over its inputs."""
    record, config = request.record, request.config
    program = to_program(graph, request, side)
    record.add_level(f"{side}: kernels", Deferred(partial(to_text, program)))
    with record.stage("codegen"):
        started = start_program(program, config)
    record.programs[side] = program

    def finish() -> Callable[..., Any]:
        with record.stage("codegen"):
            compiled = started()
        return _finish(compiled, kernel_names(program), request, side)

    return finish


def to_program(graph: Graph, request: Request, side: str) -> Program:
    """A graph of primitives, lowered, fused and planned."""
    record, config = request.record, request.config
    with record.stage("loops"):
        program = lower(graph)
    if config.verify:
        verify_program(program)
    record.add_level(f"{side}: loops", Deferred(partial(to_text, program)))
    with record.stage("fuse"):
        program = fuse(program)
        if config.max_autotune and on_gpu(request):
            refused: list[tuple[str, Reason]] = []
            program = contract(program, refused)
            record.add_level(f"{side}: products alone", "\n".join(f"{name}: {why}" for name, why in refused))
    with record.stage("plan"):
        program = plan(program)
    if config.verify:
        verify_program(program)
    return program


def kernel_names(program: Program) -> list[str]:
    """The name of each launch's (first) kernel, in order."""
    late = {k for first, end in program.groups for k in range(first + 1, end)}
    return [s.name for k, s in enumerate(program.steps) if isinstance(s, Kernel) and k not in late]


def _finish(compiled: CompiledProgram, kernels: list[str], request: Request, side: str) -> Callable[..., Any]:
    record = request.record
    record.compiled[side] = compiled
    record.add_level(f"{side}: host", compiled.source)
    record.add_level(f"{side}: code", Deferred(compiled.script))
    record.kernels += kernels
    call = compiled.call
    call.boxed = True  # type: ignore[attr-defined]
    if side == "backward":
        call.stages = compiled.stages  # type: ignore[attr-defined]
    return call


@built_in("inductor")
def inductor(request: Request) -> Compiled:
    """Fused kernels: LLVM on CPU, Triton on CUDA."""
    config = request.config
    if not (config.disk_cache and (config.cache_path / "programs").exists()):
        _start_compilers(request)  # while the graph is traced; with a cache, only if it has no such program
    return compile_joint(request, compile_side, channels_last, freeze, on_gpu(request))


def _start_compilers(request: Request) -> None:
    """Start the processes that compile GPU kernels, when the graph will need them."""
    if on_gpu(request):
        warm_up(request.config)


def on_gpu(request: Request) -> bool:
    """Whether a graph takes tensors on a GPU."""
    return any(isinstance(t, TensorType) and t.device.type == "cuda" for t in request.types)
