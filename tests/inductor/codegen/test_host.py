"""The host program: text, memory, views, vendor calls, symbolic sizes, and agreement with the interpreter."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from llvm_case import axis, kernel

from braze.inductor.codegen import compile_program, emit_host
from braze.inductor.codegen.externs import CONTIGUOUS_RESULT, DIRECT, binding
from braze.inductor.loops import (
    Buffer,
    Compute,
    Extern,
    Kernel,
    Load,
    Program,
    Reduce,
    Store,
    Strided,
    interpret_program,
)
from braze.ir import Symbol, symbol, tensor_type

F32 = torch.float32
aten = torch.ops.aten


def whole(b: Buffer) -> Strided:
    t = b.type
    return Strided(b, t.sizes, t.strides, t.offset)


def unary(name: str, fn: str, source: Buffer, target: Buffer) -> Kernel:
    (i, ai), (j, aj) = axis("i0", source.type.sizes[0]), axis("i1", source.type.sizes[1])
    v = Load(source, (i, j))
    c = Compute(fn, (v,), F32)
    return kernel([ai, aj], [], [v, c, Store(target, (i, j), c)], name)


def chain() -> tuple[Program, list[torch.Tensor]]:
    """mm, relu-like kernel, transposed product, row sums."""
    x, w = Buffer("x", tensor_type((6, 40))), Buffer("w", tensor_type((40, 40)))
    mm, act, out = (Buffer(n, tensor_type((6, 40))) for n in ("mm", "act", "out"))
    (i, ai), (r, ar) = axis("i0", 6), axis("r0", 40)
    total = Buffer("sum", tensor_type((6,)))
    v = Load(out, (i, r))
    s = Reduce("sum", v, F32)
    steps: list[Any] = [
        Extern(aten.mm.default, (whole(x), whole(w)), {}, (mm,)),
        unary("k_tanh", "tanh", mm, act),
        Extern(aten.mm.default, (whole(act), Strided(w, (40, 40), (1, 40), 0)), {}, (out,)),
        kernel([ai], [ar], [v, s, Store(total, (i,), s)], "k_sum"),
    ]
    program = Program("forward", (x, w), steps, {"sum": whole(total), "act": (whole(act), None, 3)})
    program.buffers = [mm, act, out, total]
    return program, [torch.randn(6, 40), torch.randn(40, 40)]


def agree(program: Program, inputs: list[Any]) -> Any:
    got = compile_program(program)(inputs)
    want = interpret_program(program, inputs)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    return got


def test_a_program_runs_and_reads_well() -> None:
    program, inputs = chain()
    out = agree(program, inputs)
    assert out["act"][1:] == (None, 3)
    text = emit_host(program)
    assert "torch.mm(act, w.t())" in text
    assert "del mm" in text and "del act" not in text  # an output is kept
    compile(text, "host", "exec")


def test_the_text_runs_again_by_hand() -> None:
    program, inputs = chain()
    c = compile_program(program)
    names = dict(c.call.__globals__)
    exec(compile(c.source, "again", "exec"), names)
    torch.testing.assert_close(names["call"](list(inputs)), c(inputs))


def test_dead_tensors_are_freed_during_the_call() -> None:
    program, inputs = chain()
    seen: list[Any] = []

    def watch(t: torch.Tensor) -> torch.Tensor:
        seen.append(weakref.ref(t))
        return t

    def check(t: torch.Tensor) -> torch.Tensor:
        gc.collect()
        assert seen[0]() is None, "a dead buffer is still alive"
        return t * 1

    program.steps.insert(1, Extern(watch, (whole(program.buffers[0]),), {}, (None,)))
    done = Buffer("done", tensor_type((6, 40)))
    program.steps.insert(4, Extern(check, (whole(program.buffers[2]),), {}, (done,)))
    compile_program(program)(inputs)


def test_reused_memory() -> None:
    """b takes over a's memory (equal layout), c takes over b's as another shape, d as another dtype."""
    x = Buffer("x", tensor_type((4, 6)))
    a, b = Buffer("a", tensor_type((4, 6))), Buffer("b", tensor_type((4, 6)))
    c, d = Buffer("c", tensor_type((6, 4))), Buffer("d", tensor_type((6, 4), torch.int32))
    (i, ai), (j, aj) = axis("i0", 6), axis("i1", 4)
    v = Load(b, (j, i))
    u = Load(c, (i, j))
    w = Compute("bitcast", (u,), torch.int32)
    steps: list[Any] = [
        unary("k_a", "exp", x, a),
        unary("k_b", "neg", a, b),
        kernel([ai, aj], [], [v, Store(c, (i, j), v)], "k_c"),
        kernel([ai, aj], [], [u, w, Store(d, (i, j), w)], "k_d"),
    ]
    program = Program("p", (x,), steps, (whole(d),), [a, b, c, d], {b: a, d: c})
    out = agree(program, [torch.randn(4, 6)])
    text = emit_host(program)
    assert "b = a" in text and "d = reused(c, (6, 4), (4, 1), torch.int32)" in text
    assert out[0].dtype == torch.int32


def test_views_of_inputs_with_a_storage_offset() -> None:
    base = torch.randn(100)
    t = base[10:34].view(4, 6)
    x = Buffer("x", tensor_type((4, 6)).with_(offset=10))
    y = Buffer("y", tensor_type((4, 3)))
    steps = [Extern(aten.relu.default, (Strided(x, (4, 3), (6, 2), 11),), {}, (y,))]
    program = Program("p", (x,), steps, (whole(y), Strided(x, (6,), (1,), 16)), [y])
    out = agree(program, [t])
    assert torch.equal(out[1], t[1])
    other = base[50:74].view(4, 6)  # the same program, another offset
    assert torch.equal(compile_program(program)([other])[1], other[1])


def test_results_in_another_layout_are_copied() -> None:
    x = Buffer("x", tensor_type((4, 6)))
    y = Buffer("y", tensor_type((6, 4)))
    z = Buffer("z", tensor_type((6, 4)))
    steps: list[Any] = [Extern(lambda t: t.t(), (whole(x),), {}, (y,)), unary("k", "neg", y, z)]
    t = torch.randn(4, 6)
    program = Program("p", (x,), steps, (whole(y), whole(z)), [y, z])
    got = compile_program(program)([t])
    assert torch.equal(got[0], t.t()) and got[0].is_contiguous() and torch.equal(got[1], -t.t())


def test_calls_with_several_results() -> None:
    x = Buffer("x", tensor_type((5, 7)))
    values, indices = Buffer("v", tensor_type((5, 2))), Buffer("i", tensor_type((5, 2), torch.int64))
    topk = Extern(aten.topk.default, (whole(x), 2), {}, (values, indices))
    half = Extern(aten.topk.default, (whole(x), 2), {"largest": False}, (None, i2 := Buffer("i2", indices.type)))
    parts = Extern(
        aten.split.Tensor, (whole(x), 3, 1), {}, (None, p := Buffer("p", tensor_type((5, 3), strides=(7, 1))), None)
    )
    program = Program("p", (x,), [topk, half, parts], (whole(values), whole(indices), whole(i2), whole(p)))
    agree(program, [torch.randn(5, 7)])


def test_constants_and_scalars_and_sizes() -> None:
    n = symbol("s0", 1, 2**30, 8)
    (s,) = next(iter(n.terms))
    assert isinstance(s, Symbol)
    x, y = Buffer("x", tensor_type((n, 6))), Buffer("y", tensor_type((n, 6)))
    c = Buffer("table", tensor_type((6,)))
    (i, ai), (j, aj) = axis("i0", n), axis("i1", 6)
    v, k = Load(x, (i, j)), Load(c, (j,))
    m = Compute("mul", (v, k), F32)
    grown = Buffer("grown", tensor_type((n * 2, 6)))
    steps: list[Any] = [
        kernel([ai, aj], [], [v, k, m, Store(y, (i, j), m)], "k_scale"),
        Extern(aten.repeat.default, (whole(y), (2, 1)), {}, (grown,)),
    ]
    program = Program("p", (s, x), steps, (whole(grown), n * 2, Strided(y, (n, 3), (6, 2), 0)), [y, grown])
    program.constants[c] = torch.arange(6.0)
    compiled = compile_program(program)
    for rows in (1, 5, 300):
        t = torch.randn(rows, 6)
        got, want = compiled([rows, t]), interpret_program(program, [rows, t])
        torch.testing.assert_close(got, want)
        assert got[1] == 2 * rows


def test_nothing_is_recorded_for_autograd() -> None:
    program, inputs = chain()
    inputs = [t.requires_grad_() for t in inputs]
    out = compile_program(program)(inputs)
    assert not out["sum"].requires_grad and not out["act"][0].requires_grad
    assert torch.is_grad_enabled()


def test_an_error_in_a_kernel_leaves_autograd_as_it_was() -> None:
    program, inputs = chain()

    def fail(t: torch.Tensor) -> torch.Tensor:
        raise ValueError("from the vendor")

    program.steps.insert(1, Extern(fail, (whole(program.buffers[0]),), {}, (None,)))
    with pytest.raises(ValueError, match="from the vendor"):
        compile_program(program)(inputs)
    x = torch.ones(1, requires_grad=True)
    assert (x * 2).requires_grad


def test_names_that_python_reserves() -> None:
    x, y = Buffer("lambda", tensor_type((2, 2))), Buffer("torch", tensor_type((2, 2)))
    z = Buffer("call", tensor_type((2, 2)))
    program = Program("p", (x,), [unary("args", "neg", x, y), unary("del", "exp", y, z)], (whole(z),), [y, z])
    agree(program, [torch.randn(2, 2)])


def test_isomorphic_kernels_are_compiled_once() -> None:
    buffers = [Buffer(f"b{k}", tensor_type((3, 50))) for k in range(4)]
    steps = [unary(f"k{k}", "sigmoid", a, b) for k, (a, b) in enumerate(zip(buffers, buffers[1:]))]
    program = Program("p", (buffers[0],), steps, (whole(buffers[-1]),), buffers[1:])
    assert len(compile_program(program).kernels) == 1
    agree(program, [torch.randn(3, 50)])


def test_direct_bindings_have_the_schema_of_their_operator() -> None:
    """Each is called with positional arguments in the operator's order: the binding must accept exactly those."""
    for name in DIRECT:
        op = getattr(aten, name).default
        target, spelling, trusted = binding(op)
        assert target is getattr(torch, name) and spelling == f"torch.{name}", name
        assert trusted == (name in CONTIGUOUS_RESULT)
    op = aten.native_dropout.default
    x = torch.ones(8)
    assert torch.equal(binding(op)[0](x, 0.0, True)[0], op(x, 0.0, True)[0])
    a, b, bias = torch.randn(2, 3), torch.randn(3, 4), torch.randn(4)
    assert torch.equal(binding(aten.addmm.default)[0](bias, a, b), aten.addmm.default(bias, a, b))
    image, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    args = (image, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert torch.equal(binding(aten.convolution.default)[0](*args), aten.convolution.default(*args))
    rows = (torch.randn(9, 4), torch.randint(0, 9, (3,)), -1, False, False)
    assert torch.equal(binding(aten.embedding.default)[0](*rows), aten.embedding.default(*rows))


def test_the_callers_list_is_emptied() -> None:
    program, inputs = chain()
    compiled = compile_program(program)
    mine = list(inputs)
    compiled.call(mine)
    assert mine == []
