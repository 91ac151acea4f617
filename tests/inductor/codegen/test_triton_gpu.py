"""Generated kernels on a card: compiled, launched by the fast launcher, compared with eager in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton_cases import CASES, Body, arguments, every_primitive, operands, reference

from braze.inductor.codegen.triton_emit import Emitted, emit_triton
from braze.ir import evaluate, symbol
from braze.runtime.cuda import load_kernels_cuda

pytestmark = pytest.mark.gpu
F32, BF16 = torch.float32, torch.bfloat16


def load(*made: Emitted) -> list[Callable[..., None]]:
    return load_kernels_cuda([m.code for m in made], 0)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    want = want.double()
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-300))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_zoo_is_as_accurate_as_eager(dtype: torch.dtype) -> None:
    made = []
    for name, f in CASES.items():
        for shape in ((256, 1024), (192, 768), (96, 200), (32, 20000)):
            case = f(*shape, dtype)
            made.append((name, shape, case, emit_triton(case.kernel)))
    for (name, shape, case, code), run in zip(made, load(*[m[-1] for m in made])):
        torch.manual_seed(0)
        inputs, memory = arguments(case, "cuda")
        run(*[memory[b] for b in code.buffers])
        wide = case.eager(**{n: t.double() if t.is_floating_point() else t for n, t in inputs.items()})
        eager = case.eager(**inputs)
        for out, want in wide.items():
            mine, theirs = error(memory[case.buffers[out]], want), error(eager[out], want)
            limit = 0.0 if case.exact else 2 * theirs + 1e-7
            assert mine <= limit, (
                f"{name} {shape}: {out} is off by {mine:.2e}, eager by {theirs:.2e}\n{code.code.source}"
            )


@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool], ids=str)
def test_every_primitive(dtype: torch.dtype) -> None:
    a, b = (t.cuda() for t in operands(dtype))
    b = b if dtype.is_floating_point or dtype is torch.bool else torch.where(b == 0, b + 1, b)
    kernel, k, names = every_primitive(dtype, a.numel())
    memory: dict[Any, torch.Tensor] = {
        v: torch.zeros(v.type.sizes, dtype=v.type.dtype, device="cuda")  # type: ignore[arg-type]
        for v in k.buffers.values()
    }
    memory[k.buffers["a"]], memory[k.buffers["b"]] = a, b
    made = emit_triton(kernel)
    (run,) = load(made)
    run(*[memory[v] for v in made.buffers])
    count, wrong = dict(names), []
    for name, buffer in k.buffers.items():
        if name.startswith("o_") and (dtype.is_floating_point or name != "o_pow"):
            got, want = memory[buffer], reference(name[2:], count.get(name[2:], 1), a, b)
            tight = 3e-6 if dtype is F32 else 1e-12
            tolerance = {"rtol": tight, "atol": tight} if dtype.is_floating_point else {"rtol": 0, "atol": 0}
            if name in ("o_to_bfloat16", "o_to_float16"):
                tolerance = {"rtol": 0, "atol": 0}
            try:
                torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
            except AssertionError as e:
                wrong.append(f"{name}: {e}")
    assert not wrong, "\n".join(wrong)


def test_unaligned_inputs_take_the_other_variant() -> None:
    case = CASES["add_relu"](64, 256, F32)
    made = emit_triton(case.kernel)
    (run,) = load(made)
    a = torch.randn(64 * 256 + 1, device="cuda")[1:].view(64, 256)
    c, o = torch.randn(64, 256, device="cuda"), torch.empty(64, 256, device="cuda")
    memory = {case.buffers["a"]: a, case.buffers["c"]: c, case.buffers["o"]: o}
    run(*[memory[b] for b in made.buffers])
    assert torch.equal(o, torch.relu(a + c))


def test_symbolic_sizes_and_current_stream() -> None:
    m, n = symbol("s0", 1, 4000, hint=30), symbol("s1", 1, 5000, hint=70)
    k = Body({"i": m}, {"j": n})
    a, o = k.buffer("a", (m, n), F32), k.buffer("o", (m, n), F32)
    v = k.load(a, k["i"], k["j"])
    k.store(o, (k["i"], k["j"]), v - k.fold("max", v))
    made = emit_triton(k.kernel("dynamic"))
    (run,) = load(made)
    for rows, columns in ((5, 7), (333, 1290)):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.randn(rows, columns, device="cuda")
            memory = {a: x, o: torch.zeros(rows, columns, device="cuda")}
            sizes = [evaluate(e, {"s0": rows, "s1": columns}) for e in made.sizes]
            run(*[memory[b] for b in made.buffers], *sizes)
            assert torch.equal(memory[o], x - x.amax(1, keepdim=True))
        torch.cuda.synchronize()


def test_a_thread_without_a_context() -> None:
    import threading

    case = CASES["add_relu"](64, 256, F32)
    made = emit_triton(case.kernel)
    (run,) = load(made)
    inputs, memory = arguments(case, "cuda")
    thread = threading.Thread(target=lambda: run(*[memory[b] for b in made.buffers]))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(memory[case.buffers["o"]], case.eager(**inputs)["o"])


def test_launch_inside_a_cuda_graph() -> None:
    case = CASES["add_relu"](64, 256, F32)
    made = emit_triton(case.kernel)
    (run,) = load(made)
    inputs, memory = arguments(case, "cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(*[memory[b] for b in made.buffers])
    inputs["a"].copy_(torch.randn(64, 256, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(memory[case.buffers["o"]], case.eager(**inputs)["o"])
