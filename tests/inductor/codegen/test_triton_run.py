"""Generated Triton source gives the right values, in Triton's interpreter on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton_cases import CASES, Body, arguments, bound, every_primitive, operands, reference
from triton_interpreter import Interpreter

from braze.inductor.codegen.triton_emit import emit_triton
from braze.inductor.fuse import CUDA, fuse
from braze.inductor.loops import Kernel, lower, run_kernel
from braze.ir import Graph, symbol, tensor_type
from braze.prims.decompose import decompose

F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    want = want.double()
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-300))


SHAPES = [(32, 96), (12, 200)]


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("name", [n for n in CASES if n != "argmax"])
def test_zoo(triton_run: Interpreter, name: str, dtype: torch.dtype) -> None:
    for rows, columns in SHAPES:
        torch.manual_seed(0)
        chunks = {"chunks": 4} if name == "column_sum" else {}
        case = CASES[name](rows, columns, dtype, **chunks)  # type: ignore[call-arg]
        inputs, memory = arguments(case)
        triton_run.run(emit_triton(case.kernel), memory)
        wide = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
        for out, want in case.eager(**wide).items():
            got = memory[case.buffers[out]]
            limit = 0.0 if case.exact else 5e-3 if got.dtype is BF16 else 3e-7
            assert error(got, want) <= limit, (name, out, rows, columns)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "layer_norm_backward", "cross_entropy", "batch_norm_stats"])
def test_long_rows_are_looped(triton_run: Interpreter, name: str) -> None:
    case = CASES[name](2, 33000, F32)
    made = emit_triton(case.kernel)
    assert "for roffset in range" in made.code.source
    inputs, memory = arguments(case)
    triton_run.run(made, memory)
    wide = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
    for out, want in case.eager(**wide).items():
        torch.testing.assert_close(memory[case.buffers[out]].double(), want.double(), rtol=2e-6, atol=1e-6)


def test_argmax_takes_the_first_best_and_nan(triton_run: Interpreter) -> None:
    rows = [[1.0, 5.0, 5.0, 2.0], [float("nan"), 9.0, float("nan"), 1.0], [-float("inf")] * 4, [3.0, 3.0, 3.0, 3.0]]
    data = torch.tensor(rows).repeat(1, 3)
    for m, n in ((4, 12), (4, 11)):
        k = Body({"i": m}, {"j": n})
        a = k.load(k.buffer("a", (m, n), F32), k["i"], k["j"])
        for kind in ("argmax", "argmin", "max", "min"):
            k.store(k.buffer(kind, (m,), I64 if kind[0] == "a" else F32), (k["i"],), k.fold(kind, a))
        x = data[:, :n].contiguous()
        memory = {k.buffers["a"]: x, **{b: torch.zeros(m, dtype=b.type.dtype) for b in list(k.buffers.values())[1:]}}
        triton_run.run(emit_triton(k.kernel("best")), memory)
        for kind, fn in (("argmax", torch.argmax), ("argmin", torch.argmin), ("max", torch.amax), ("min", torch.amin)):
            torch.testing.assert_close(memory[k.buffers[kind]], fn(x, 1), equal_nan=True, rtol=0, atol=0)


def test_argmax_over_long_rows(triton_run: Interpreter) -> None:
    case = CASES["argmax"](1, 33000, F32)
    inputs, memory = arguments(case)
    inputs["a"][0, 9000] = inputs["a"][0, 12000] = 50.0
    made = emit_triton(case.kernel)
    assert "for roffset" in made.code.source
    triton_run.run(made, memory)
    assert memory[case.buffers["o"]].item() == 9000


@pytest.mark.parametrize(
    "dtype", [F32, torch.float64, torch.int8, torch.int16, torch.int32, I64, torch.uint8, torch.bool], ids=str
)
def test_every_primitive(triton_run: Interpreter, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    a, b = operands(dtype)
    divisible = b if dtype.is_floating_point or dtype is torch.bool else torch.where(b == 0, b + 1, b)
    kernel, k, ops = every_primitive(dtype, a.numel())
    memory: dict[Any, torch.Tensor] = {
        v: torch.zeros(v.type.sizes, dtype=v.type.dtype)  # type: ignore[arg-type]
        for v in k.buffers.values()
    }
    memory[k.buffers["a"]], memory[k.buffers["b"]] = a, divisible
    triton_run.run(emit_triton(kernel), memory)
    count = dict(ops)
    for name, buffer in k.buffers.items():
        if name.startswith("o_"):
            got, want = memory[buffer], reference(name[2:], count.get(name[2:], 1), a, divisible)
            tolerance = {"rtol": 2e-6, "atol": 1e-6} if dtype.is_floating_point else {"rtol": 0, "atol": 0}
            if name == "o_to_bfloat16":
                tolerance = {"rtol": 8e-3, "atol": 0.0}  # the interpreter truncates
            if name == "o_pow" and not dtype.is_floating_point:
                got, want = got[divisible >= 0], want[divisible >= 0]  # ATen's negative exponents: below
            torch.testing.assert_close(got, want, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}", **tolerance)


def test_integer_power_of_negative_exponents(triton_run: Interpreter) -> None:
    a, b = torch.tensor([1, -1, -1, 2, 0, -3]), torch.tensor([-3, -3, -2, -1, -2, -1])
    k = Body({"i": 6})
    x, y = (k.load(k.buffer(s, (6,), I64), k["i"]) for s in "ab")
    k.store(k.buffer("o", (6,), I64), (k["i"],), x.pow(y))
    memory = {k.buffers["a"]: a, k.buffers["b"]: b, k.buffers["o"]: torch.zeros(6, dtype=I64)}
    triton_run.run(emit_triton(k.kernel("power")), memory)
    assert memory[k.buffers["o"]].tolist() == [1, -1, 1, 0, 0, 0]


def test_signed_zeros(triton_run: Interpreter) -> None:
    k = Body({"i": 4})
    x = k.load(k.buffer("a", (4,), F32), k["i"])
    k.store(k.buffer("o", (4,), F32), (k["i"],), x.neg())
    a = torch.tensor([0.0, -0.0, 1.0, -1.0])
    memory = {k.buffers["a"]: a, k.buffers["o"]: torch.zeros(4)}
    triton_run.run(emit_triton(k.kernel("zeros")), memory)
    assert torch.equal(torch.signbit(memory[k.buffers["o"]]), torch.signbit(-a))


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "any", "all"])
@pytest.mark.parametrize("dtype", [F32, I64, torch.int32, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(6, 100), (2, 33000), (300, 3)], ids=str)
def test_folds(triton_run: Interpreter, kind: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    if (kind in ("any", "all")) != (dtype is torch.bool):
        pytest.skip("bool has any and all, numbers the rest")
    if shape[1] > 1000 and (kind in ("prod", "max", "min") or dtype is torch.uint8):
        pytest.skip("slow in the interpreter")
    torch.manual_seed(0)
    m, n = shape
    data = torch.randn(m, n) > 1.5 if dtype is torch.bool else (torch.randn(m, n) * 3 + 1).abs().to(dtype)
    if dtype is torch.bool:
        data[0], data[-1] = False, True
    k = Body({"i": m}, {"j": n})
    k.store(k.buffer("o", (m,), dtype), (k["i"],), k.fold(kind, k.load(k.buffer("a", (m, n), dtype), k["i"], k["j"])))
    memory = {k.buffers["a"]: data, k.buffers["o"]: torch.zeros(m, dtype=dtype)}
    kernel = k.kernel("fold")
    triton_run.run(emit_triton(kernel), memory)
    want = {k.buffers["a"]: data, k.buffers["o"]: torch.zeros(m, dtype=dtype)}
    run_kernel(kernel, want)
    torch.testing.assert_close(memory[k.buffers["o"]], want[k.buffers["o"]], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("sizes", [(3, 64), (2, 101), (1, 33000)], ids=str)
def test_philox_bits(triton_run: Interpreter, sizes: tuple[int, int]) -> None:
    """The same draws as the reference, also where one Philox serves four elements."""
    from braze.prims import PRIMS

    m, n = sizes
    seed = torch.tensor([-(2**62) + 12345, 2**63 - 2])
    want = PRIMS["philox_uniform"](seed, 5, (m, n), torch.device("cpu"))
    for reduced in (False, True):
        k = Body({"i": m}, {"j": n}) if reduced else Body({"i": m, "j": n})
        s = k.buffer("s", (2,), I64)
        u = k.compute("philox", k.load(s, 0), k.load(s, 1) + 5, k.index(k["i"] * n + k["j"]), dtype=F32)
        k.store(k.buffer("o", (m, n), F32), (k["i"], k["j"]), u)
        if reduced:
            k.store(k.buffer("t", (m,), F32), (k["i"],), k.fold("sum", u))
        made = emit_triton(k.kernel("draw"))
        assert ("bz_uniform4" in made.code.source) == (n % 4 == 0 or not reduced)
        memory = {b: torch.zeros([int(d) for d in b.type.sizes]) for b in k.buffers.values()}  # type: ignore[call-overload]
        memory[s] = seed
        triton_run.run(made, memory)
        assert torch.equal(memory[k.buffers["o"]], want)


def test_symbolic_sizes(triton_run: Interpreter) -> None:
    from importlib.metadata import version

    if version("triton").startswith("3.6"):
        pytest.skip("Triton 3.6's interpreter cannot loop up to an argument (its compiler can)")
    m, n = symbol("s0", 1, 4000, hint=30), symbol("s1", 1, 5000, hint=70)
    k = Body({"i": m}, {"j": n})
    k.axis["i"], k.axis["j"] = k["i"], k["j"]
    a, o = k.buffer("a", (m, n), F32), k.buffer("o", (m, n), F32)
    v = k.load(a, k["i"], k["j"])
    k.store(o, (k["i"], k["j"]), v - k.fold("sum", v))
    made = emit_triton(k.kernel("dynamic"))
    assert "tl.int64" not in made.code.source
    for rows, columns in ((5, 7), (33, 129)):
        x = torch.randn(rows, columns)
        memory = {a: x, o: torch.zeros(rows, columns)}
        env = {"s0": rows, "s1": columns}
        from braze.ir import evaluate

        triton_run.run(made, memory, [evaluate(e, env) for e in made.sizes])
        torch.testing.assert_close(memory[o], x - x.sum(1, keepdim=True), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_symbolic_sizes_of_pointwise_kernels(triton_run: Interpreter, transposed: bool) -> None:
    from braze.ir import evaluate

    m, n = symbol("s0", 1, 400, hint=300), symbol("s1", 1, 500, hint=300)
    k = Body({"i": m, "j": n})
    a = k.buffer("a", (n, m) if transposed else (m, n), F32)
    c, o = k.buffer("c", (n,), F32), k.buffer("o", (m, n), F32)
    v = k.load(a, k["j"], k["i"]) if transposed else k.load(a, k["i"], k["j"])
    k.store(o, (k["i"], k["j"]), v + k.load(c, k["j"]))
    made = emit_triton(k.kernel("dynamic"))
    for rows, columns in ((5, 7), (33, 129), (1, 1)):
        x, y = torch.randn(columns, rows) if transposed else torch.randn(rows, columns), torch.randn(columns)
        memory = {a: x, c: y, o: torch.zeros(rows, columns)}
        triton_run.run(made, memory, [evaluate(e, {"s0": rows, "s1": columns}) for e in made.sizes])
        assert torch.equal(memory[o], (x.t() if transposed else x) + y)


def test_wide_indices_where_int32_does_not_do() -> None:
    """Offsets beyond 2**31, or a dividend that would overflow on the way to a small index."""
    for size, e in ((2**31 + 64, lambda i: i), (1000, lambda i: (i * (2**28 + 1)) // 2**20)):
        k = Body({"i": 1000})
        k.store(k.buffer("o", (1000,), I64), (k["i"],), k.index(e(k["i"])))
        k.store(k.buffer("big", (size,), I64), (k["i"],), k.index(k["i"]))
        assert "tl.program_id(0).to(tl.int64)" in emit_triton(k.kernel("wide")).code.source


def test_a_row_value_stored_where_it_came_from_waits_for_all_threads() -> None:
    k = Body({"i": 2048}, {"j": 64})
    v = k.load(k.buffer("a", (2048, 64), F32), k["i"], k["j"])
    old = k.load(k.buffer("s", (2048,), F32), k["i"])
    k.store(k.buffer("t", (2048,), F32), (k["i"],), old + k.fold("sum", v))
    assert "debug_barrier" in emit_triton(k.kernel("running")).code.source


def test_negative_dividends_round_down(triton_run: Interpreter) -> None:
    """Index expressions use floor division; Triton's rounds to zero."""
    k = Body({"i": 40})
    for name, e in (("q", (k["i"] - 20) // 7), ("m", (k["i"] - 20) % 7)):
        k.store(k.buffer(name, (40,), I64), (k["i"],), k.index(e))
    memory = {b: torch.zeros(40, dtype=I64) for b in k.buffers.values()}
    triton_run.run(emit_triton(k.kernel("floor")), memory)
    x = torch.arange(40) - 20
    assert torch.equal(memory[k.buffers["q"]], x // 7) and torch.equal(memory[k.buffers["m"]], x % 7)


def test_strided_and_masked_access(triton_run: Interpreter) -> None:
    """Columns of a transposed input, padded on both sides."""
    k = Body({"i": 5, "j": 70})
    a = k.buffer("a", (5, 66), F32, strides=(1, 5))
    inside = k.compute("bitwise_and", k.index(k["j"]).ge(2), k.index(k["j"]).lt(68), dtype=torch.bool)
    o = k.buffer("o", (5, 70), F32)
    k.store(o, (k["i"], k["j"]), k.load(a, k["i"], k["j"] - 2, mask=inside, other=-1.5))
    x = torch.randn(66, 5).t()
    memory = {a: x, o: torch.zeros(5, 70)}
    triton_run.run(emit_triton(k.kernel("pad")), memory)
    assert torch.equal(memory[o], torch.nn.functional.pad(x, (2, 2), value=-1.5))


def test_atomic_add_counts_every_point(triton_run: Interpreter) -> None:
    """Points that share an element all add, also when the value is the same for all of them."""
    k = Body({"i": 6, "j": 128})
    t = k.buffer("t", (6,), I64)
    e, s = bound("at", 4)
    at = k.load(t, k["i"])
    one = k.load(k.buffer("w", (1,), F32), 0)
    o = k.buffer("o", (4,), F32)
    k.store(o, (e,), one, "atomic_add", indirect=[(s, at.value)])
    memory = {t: torch.tensor([0, 1, 1, 3, 3, 3]), k.buffers["w"]: torch.tensor([2.0]), o: torch.zeros(4)}
    triton_run.run(emit_triton(k.kernel("count")), memory)
    assert memory[o].tolist() == [256.0, 512.0, 0.0, 768.0]


def test_output_in_the_memory_of_an_input(triton_run: Interpreter) -> None:
    """A looped softmax in place: all reads of the row come before the stores."""
    case = CASES["softmax"](2, 33000, F32)
    inputs, memory = arguments(case)
    want = inputs["a"].softmax(1)
    memory[case.buffers["o"]] = memory[case.buffers["a"]]
    made = emit_triton(case.kernel)
    source = made.code.source
    assert source.rindex("tl.load") < source.index("tl.store")
    assert error(want, inputs["a"].double().softmax(1)) < 1e-6


def test_column_reductions_are_tiles(triton_run: Interpreter) -> None:
    case = CASES["column_sum"](512, 64, F32, chunks=2)  # type: ignore[call-arg]
    made = emit_triton(case.kernel)
    assert made.code.launch.block("XBLOCK") >= 32 and "for roffset" in made.code.source
    inputs, memory = arguments(case)
    triton_run.run(made, memory)
    want = case.eager(a=inputs["a"].double())["o"]
    assert error(memory[case.buffers["o"]], want) < 1e-6


def test_equal_layers_give_equal_code() -> None:
    codes = {emit_triton(CASES["layer_norm"](64, 96, BF16).kernel).code for _ in range(3)}
    assert len(codes) == 1


def test_a_row_value_masked_along_the_row(triton_run: Interpreter) -> None:
    """The address varies along one block dim, its mask along the other."""
    g = Graph("masked")
    x, y = g.input("x", tensor_type((2048, 1), F32)), g.input("y", tensor_type((2048, 40), F32))
    wide = g.call(torch.ops.aten.constant_pad_nd.default, (x, [0, 39], 2.0), val=y.val)
    product = g.call(torch.ops.aten.mul.Tensor, (wide, y), val=y.val)
    g.outputs = (g.call(torch.ops.aten.sum.dim_IntList, (product, [1]), val=tensor_type((2048,), F32)),)
    program = fuse(lower(decompose(g)), CUDA)
    (kernel,) = program.steps
    assert isinstance(kernel, Kernel)
    a, b = torch.randn(2048, 1), torch.randn(2048, 40)
    memory = dict(zip(program.inputs, (a, b)))
    memory[kernel.writes[0]] = torch.full((2048,), 77.0)
    triton_run.run(emit_triton(kernel), memory)
    want = (torch.nn.functional.pad(a.double(), (0, 39), value=2.0) * b).sum(1)
    assert error(memory[kernel.writes[0]], want) < 1e-6


def test_patches_share_a_program(triton_run: Interpreter) -> None:
    """Pixels of a patch by colours are 12 elements: a program takes many patches, not one."""
    k = Body({"n": 5, "h": 3, "w": 7, "y": 4, "x": 4, "c": 3})
    image, out = k.buffer("image", (5, 3, 12, 28), F32), k.buffer("out", (5, 3, 7, 4, 4, 3), BF16)
    n, h, w, y, x, c = (k[a] for a in "nhwyxc")
    k.store(out, (n, h, w, y, x, c), k.to(k.load(image, n, c, 4 * h + y, 4 * w + x), BF16))
    made = emit_triton(k.kernel("patches"))
    assert made.code.launch.block("YBLOCK") * made.code.launch.block("XBLOCK") >= 512
    pixels = torch.randn(5, 3, 12, 28)
    memory = {image: pixels, out: torch.zeros(5, 3, 7, 4, 4, 3, dtype=BF16)}
    triton_run.run(made, memory)
    want = pixels.view(5, 3, 3, 4, 7, 4).permute(0, 2, 4, 3, 5, 1)
    torch.testing.assert_close(memory[out].float(), want, rtol=1e-2, atol=1e-6)
