"""The kernels of real models: each distinct one in Triton's interpreter against the loop IR's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("transformers")
pytest.importorskip("torchvision")

from triton_interpreter import Interpreter

from braze.autograd import channels, channels_last, partition, trace_joint
from braze.bench.models import build
from braze.inductor.codegen.triton_emit import emit_triton
from braze.inductor.fuse import CUDA, fuse
from braze.inductor.loops import Kernel, Program, canonical, lower, run_kernel
from braze.inductor.loops.interpret import allocate, run_extern, view
from braze.ir import Graph, evaluate, interpret, map_leaves
from braze.prims.builder import Policy
from braze.prims.decompose import decompose

GPU = Policy(one_pass_statistics=True, max_pools=True)


class Stop(Exception):
    pass


def graphs(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Graph, list[Any]]:
    """The captured training graph of a tiny model, and its inputs."""
    import braze
    from braze.backends import inductor

    seen: list[Any] = []

    def take(request: Any, *rest: Any) -> Any:
        seen.append(request)
        raise Stop

    monkeypatch.setattr(inductor, "compile_joint", take)
    case = build(name, "tiny", None)
    case.model.train()

    def step() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return case.loss(case.model(*case.inputs), case.target)

    with pytest.raises(Stop):
        braze.compile(step, fullgraph=True)()
    return seen[0].graph, seen[0]


def run(program: Program, inputs: list[Any], interpreter: Interpreter, done: set[str]) -> Any:
    """Interpret the program; kernels not in ``done`` also run in Triton, from the same memory."""
    memory: dict[Any, torch.Tensor] = {**program.constants, **dict(zip(program.inputs, inputs))}

    def leaf(x: Any) -> Any:
        return view(x, memory, {}) if hasattr(x, "buffer") else x

    for step in program.steps:
        if not isinstance(step, Kernel):
            run_extern(step, memory, leaf)
            continue
        for b in step.writes:
            if b not in memory:
                memory[b] = allocate(b.type, {})
        key = canonical(step).key
        mine = None
        if key not in done:
            done.add(key)
            made = emit_triton(step)
            mine = {b: memory[b].detach().clone() for b in made.buffers}
            interpreter.run(made, mine, [evaluate(e) for e in made.sizes])
        run_kernel(step, memory)
        for b in step.writes if mine is not None else ():
            got, want = mine[b], memory[b]
            if want.dtype.is_floating_point:  # the interpreter truncates to bf16, also on the way to a sum
                rounds = any(getattr(i, "dtype", None) is torch.bfloat16 for i in step.body)
                norm = torch.nan_to_num(want).norm() + 1e-6 * want.numel() ** 0.5
                assert torch.nan_to_num(got - want).norm() <= (2e-2 if rounds else 2e-5) * norm, step.name
                assert torch.equal(got.isnan(), want.isnan()), step.name
            else:
                assert (got != want).float().mean() < 1e-3, step.name  # a comparison may fall on a rounding
    return map_leaves(program.outputs, leaf)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["bert", "resnet50", "hybrid"])
def test_kernels_of_a_model(name: str, triton_run: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    graph, request = graphs(name, monkeypatch)
    monkeypatch.setattr(channels, "_takes_last", lambda n: n.args[1].val.rank == 4)
    joint = channels_last(trace_joint(lambda *xs: interpret(graph, xs), list(request.types)))
    aot = partition(joint, 1.0)
    assert aot.backward is not None
    inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in request.inputs]
    done: set[str] = set()
    out = run(fuse(lower(decompose(aot.forward, GPU)), CUDA), inputs, triton_run, done)
    sig = aot.signature
    extras = out[sig.n_results + len(sig.mutated) :]
    places = {"input": inputs, "result": out, "extra": extras}
    saved = [places[r.kind][r.index] for r in sig.saved]
    tangents = [torch.randn(t.sizes).to(t.dtype).as_strided(t.sizes, t.strides) for t in sig.tangents]  # type: ignore[arg-type]
    run(fuse(lower(decompose(aot.backward, GPU)), CUDA), [*saved, *tangents], triton_run, done)
    assert len(done) > 20
