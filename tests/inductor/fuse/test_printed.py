"""Every program prints as Python that runs and gives what the interpreter gives: hand-built patterns, fused models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import fused, sample
from test_golden import MADE

sys.path.insert(0, str(Path(__file__).parent.parent / "loops"))

import braze  # noqa: E402
from braze.backends import inductor  # noqa: E402
from braze.bench.models import CASES, build  # noqa: E402
from braze.inductor.codegen import CompiledProgram, compile_program  # noqa: E402
from braze.inductor.fuse import DeviceTraits  # noqa: E402
from braze.inductor.loops import Program, interpret_program, load_text, lower  # noqa: E402
from braze.ir import Graph  # noqa: E402


def values(graph: Graph) -> list[Any]:
    """Samples of a graph's inputs; a symbolic size takes its hint."""
    sizes = [n.val for n in graph.inputs if not hasattr(n.val, "dtype")]
    if not sizes:
        return sample(graph)
    shapes = [
        [s if isinstance(s, int) else 8 for s in n.val.sizes] if hasattr(n.val, "sizes") else None for n in graph.inputs
    ]
    return [8 if shape is None else torch.rand(shape) for shape in shapes]


def agree(program: Program, inputs: list[Any], rtol: float = 1e-5) -> None:
    def copies() -> list[Any]:
        return [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]

    torch.manual_seed(1)
    want = interpret_program(program, copies())
    torch.manual_seed(1)
    got = load_text(program)(*copies())
    for w, g in zip(want, got, strict=True):
        if isinstance(w, torch.Tensor):
            torch.testing.assert_close(g, w, rtol=rtol, atol=rtol, equal_nan=True)
            assert g.stride() == w.stride()
        else:
            assert g == w


@pytest.mark.parametrize("make, traits", MADE, ids=lambda v: getattr(v, "__name__", ""))
def test_patterns(make: Callable[[], Graph], traits: DeviceTraits) -> None:
    for program in (lower(make()), fused(make(), traits)):
        torch.manual_seed(0)
        agree(program, values(make()))


@pytest.mark.parametrize("name", list(CASES))
def test_bench_models(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The models' fused programs, forward and backward, run as their text says and as the interpreter does."""
    seen: list[str] = []

    def start_program(program: Program, config: Any) -> Any:
        def call(args: list[Any]) -> Any:
            inputs = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
            seen.append(program.name)
            with torch.no_grad():
                agree(program, inputs, 1e-4)
                return interpret_program(program, inputs)

        return lambda: CompiledProgram(call, "", {}, [])

    monkeypatch.setattr(inductor, "start_program", start_program)
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))  # a program in the cache would not be compiled
    case = build(name, "tiny", None)
    case.loss(braze.compile(case.model, options={"strict": True})(*case.inputs), case.target).backward()
    assert len(seen) == 2


def test_constants_and_names() -> None:
    """A constant tensor is part of the text; a buffer named like a primitive or a keyword does not hide it."""
    table = torch.arange(12.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * torch.tensor([1.0, 2.0, 3.0])) + table[:3]

    log = braze.explain(f)(torch.randn(2, 3)).log
    text = str(log.graphs[0].levels["forward: kernels"])
    scope: dict[str, Any] = {}
    exec(text, scope)  # noqa: S102
    x = torch.randn(2, 3)
    inputs = [table if n.val.sizes == (12,) else x for n in log.graphs[0].graph.inputs]
    torch.testing.assert_close(scope["forward"](*inputs)[0], f(x))
    assert "_c" not in text


@pytest.mark.parametrize("name", ["bert", "hybrid"])
def test_host_programs_run_alone(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The text of what the host runs, kernels included, gives what the compiled program gives."""
    ran: list[tuple[str, list[Any], Any]] = []

    def recording(program: Program, config: Any) -> Any:
        compiled = compile_program(program, config)

        def call(args: list[Any]) -> Any:
            inputs = list(args)
            out = compiled.call(args)
            ran.append((compiled.script(), inputs, out))
            return out

        return lambda: replace(compiled, call=call)

    monkeypatch.setattr(inductor, "start_program", recording)
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    case = build(name, "tiny", 2)
    case.model.eval()
    case.loss(braze.compile(case.model, options={"strict": True})(*case.inputs), case.target).backward()
    assert len(ran) == 2
    for text, inputs, want in ran:
        scope: dict[str, Any] = {}
        exec(text, scope)  # noqa: S102
        for w, g in zip(want, scope["call"](list(inputs)), strict=True):
            if isinstance(w, torch.Tensor):
                torch.testing.assert_close(g, w, rtol=0, atol=0)
