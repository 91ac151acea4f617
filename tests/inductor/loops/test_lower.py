"""Every primitive, lowered alone and interpreted, against its reference on real tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from prim_graphs import G

from braze.errors import Unsupported
from braze.inductor.loops import Extern, Kernel, Strided, interpret_program, lower, verify_program
from braze.inductor.loops.rules import RULES
from braze.ir import Graph, interpret, verify
from braze.prims import PRIMS
from braze.prims.elementwise import DTYPES

SAMPLE_DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool)


def check(graph: Graph, inputs: list[torch.Tensor], rtol: float = 1e-6) -> Any:
    """Lower, verify, interpret; compare with the graph's own meaning, strides with the promised ones."""
    program = verify_program(lower(verify(graph)))
    want, got = interpret(graph, inputs), interpret_program(program, inputs)
    for w, g, node in zip(want, got, graph.outputs):
        assert w.dtype == g.dtype and w.shape == g.shape
        assert all(n == 1 or a == b for n, a, b in zip(g.shape, g.stride(), node.val.strides)), (g.stride(), node.val)
        torch.testing.assert_close(g, w, rtol=rtol, atol=1e-6, equal_nan=True)
    return program


def sample(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(1, 7, shape, dtype=dtype)
    return torch.rand(shape, dtype=torch.float64).mul(0.8).add(0.1).to(dtype)


ELEMENTWISE = [p.name for p in PRIMS.values() if p.family == "elementwise"]


@pytest.mark.parametrize("name", sorted(set(ELEMENTWISE) - {"where", "convert", "bitcast", "clone"}))
def test_elementwise(name: str) -> None:
    torch.manual_seed(0)
    for dtype in SAMPLE_DTYPES:
        if dtype not in DTYPES[name]:
            continue
        for arity in (1, 2):
            xs = [sample((3, 4), dtype) for _ in range(arity)]
            g = G()
            nodes = [g.input(f"x{k}", (3, 4), dtype) for k in range(arity)]
            try:
                out = getattr(g, name)(*nodes)
                PRIMS[name].reference(*xs)
            except TypeError:
                continue
            check(g.out(out), xs, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize("source", SAMPLE_DTYPES)
@pytest.mark.parametrize("target", SAMPLE_DTYPES)
def test_convert(source: torch.dtype, target: torch.dtype) -> None:
    g = G()
    x = g.input("x", (5,), source)
    check(g.out(g.convert(x, target)), [sample((5,), source)])


def test_scalars_take_the_operands_dtype() -> None:
    g = G()
    x, n = g.input("x", (4,), torch.bfloat16), g.input("n", (4,), torch.int32)
    check(
        g.out(g.add(x, 0.1), g.sub(1.0, x), g.mul(n, 3), g.where(g.lt(x, 0.5), x, 2.0)),
        [sample((4,), torch.bfloat16), sample((4,), torch.int32)],
    )


def test_16_bit_arithmetic_rounds_once() -> None:
    g = G()
    x = g.input("x", (64,), torch.bfloat16)
    program = check(g.out(g.mul(x, 1.0078125)), [torch.randn(64).bfloat16()])
    dtypes = [i.dtype for i in program.steps[0].body[:-1]]
    assert dtypes == [torch.bfloat16, torch.float32, torch.float32, torch.float32, torch.bfloat16]


def test_bitcast_keeps_bits() -> None:
    g = G()
    x, h = g.input("x", (4,)), g.input("h", (4,), torch.bfloat16)
    check(g.out(g.bitcast(x, torch.int32), g.bitcast(h, torch.int16)), [torch.randn(4), torch.randn(4).bfloat16()])


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin"])
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 2), (0, 1, 2), (1, 2), ()])
def test_reductions(name: str, dims: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        if name in ("any", "all"):
            dtype = torch.bool
        g = G()
        x = g.input("x", (3, 1, 5), dtype)
        check(g.out(getattr(g, name)(x, dims)), [sample((3, 1, 5), dtype)], rtol=1e-2)


def test_reduction_of_nothing() -> None:
    g = G()
    x = g.input("x", (0, 3))
    check(g.out(g.sum(x, (0,)), g.prod(x, (0,))), [torch.zeros(0, 3)])


def test_argmax_takes_the_first_best_and_nan() -> None:
    g = G()
    x = g.input("x", (2, 6))
    check(g.out(g.argmax(x, (1,))), [torch.tensor([[1, 3, 3, 0, 1, 2.0], [1, float("nan"), 9, float("nan"), 0, 0]])])


def test_views_make_no_kernels() -> None:
    g = G()
    x = g.input("x", (4, 6))
    a = g.permute(g.reshape(x, (2, 2, 6)), (2, 0, 1))
    b = g.slice(g.expand(g.reshape(x, (1, 4, 6)), (3, 4, 6)), (1, 0, 1), (3, 4, 6), (1, 1, 2))
    program = check(g.out(a, b, x), [torch.randn(4, 6)])
    assert program.steps == []
    assert all(isinstance(o, Strided) and o.buffer.name == "x" for o in program.outputs)


def test_flip_and_overlapping_views_are_copied_where_memory_shows() -> None:
    g = G()
    x = g.input("x", (4, 6))
    program = check(g.out(g.flip(x, (0, 1)), g.as_strided(x, (3, 4), (6, 2), 1)), [torch.randn(4, 6)])
    assert len(program.steps) == 1  # the flip only


def test_reshape_through_a_permutation() -> None:
    g = G()
    x = g.input("x", (4, 6, 2))
    y = g.reshape(g.permute(x, (2, 0, 1)), (12, 4))
    check(g.out(g.neg(y), g.neg(g.reshape(y, (2, 3, 8))), y), [torch.randn(4, 6, 2)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_pad_and_cat(dtype: torch.dtype) -> None:
    g = G()
    x, y = g.input("x", (3, 4), dtype), g.input("y", (3, 1), dtype)
    fill: Any = True if dtype == torch.bool else 2
    a = g.pad(x, (1, 0), (0, 2), fill)
    b = g.cat([x, y, x], 1)
    check(g.out(a, b, g.cat([x], 0), g.pad(x, (0, 0), (0, 0), fill)), [sample((3, 4), dtype), sample((3, 1), dtype)])


def test_gathers() -> None:
    g = G()
    x, i = g.input("x", (5, 4)), g.input("i", (2, 3), torch.int64)
    j = g.input("j", (2, 4), torch.int32)
    outs = (g.take(x, 0, i), g.take(x, 1, i), g.gather(x, 0, j), g.index(x, [i, i]), g.index(x, [None, i]))
    check(g.out(*outs), [torch.randn(5, 4), torch.randint(-4, 4, (2, 3)), torch.randint(-5, 5, (2, 4)).int()])


def test_an_index_out_of_range_is_an_error() -> None:
    g = G()
    x, i = g.input("x", (5, 4)), g.input("i", (3,), torch.int64)
    program = lower(g.out(g.take(x, 0, i)))
    with pytest.raises(AssertionError, match="out of"):
        interpret_program(program, [torch.randn(5, 4), torch.tensor([0, 5, 1])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_scatters(dtype: torch.dtype) -> None:
    g = G()
    x, i, src = g.input("x", (5, 4), dtype), g.input("i", (6, 4), torch.int64), g.input("s", (6, 4), dtype)
    k = g.input("k", (6,), torch.int64)
    where = torch.arange(5).repeat(2)[:6].unsqueeze(1).expand(6, 4).contiguous()
    check(
        g.out(g.scatter_add(x, 0, i, src), g.index_put(x, [k], src, True)),
        [sample((5, 4), dtype), where, sample((6, 4), dtype), torch.tensor([0, 2, 2, -1, 0, 4])],
        rtol=1e-2,
    )
    g = G()
    x, i, src = g.input("x", (5, 4), dtype), g.input("i", (3, 4), torch.int64), g.input("s", (3, 4), dtype)
    rows = torch.tensor([3, 0, -1]).unsqueeze(1).expand(3, 4).contiguous()
    check(g.out(g.scatter(x, 0, i, src)), [sample((5, 4), dtype), rows, sample((3, 4), dtype)])


def test_16_bit_scatter_sums_in_f32() -> None:
    g = G()
    x, i, src = (
        g.input("x", (1,), torch.bfloat16),
        g.input("i", (512,), torch.int64),
        g.input("s", (512,), torch.bfloat16),
    )
    program = verify_program(lower(g.out(g.scatter_add(x, 0, i, src))))
    (got,) = interpret_program(
        program, [torch.zeros(1).bfloat16(), torch.zeros(512).long(), torch.ones(512).bfloat16()]
    )
    assert got.item() == 512  # additions in bf16 stop at 256


def test_creation_and_random() -> None:
    g = G()
    cpu = torch.device("cpu")
    x = g.input("x", (3, 5))
    seed = g.input("seed", (2,), torch.int64)
    u = g.philox_uniform(seed, 3, (3, 5), cpu)
    outs = (
        g.add(x, g.full((3, 5), 2.5, torch.float32, cpu)),
        g.iota(7, 3, -2, torch.int64, cpu),
        g.where(g.lt(u, 0.5), x, u),
        u,
    )
    check(g.out(*outs), [torch.randn(3, 5), torch.tensor([-(2**40) + 7, 2**63 - 2])])


def test_scans_are_vendor_calls() -> None:
    g = G()
    x = g.input("x", (3, 5), torch.bfloat16)
    program = check(g.out(g.cumsum(x, 1), g.cumprod(x, 0)), [sample((3, 5), torch.bfloat16)], rtol=1e-2)
    assert [type(s) for s in program.steps] == [Extern, Extern]


def test_opaque_arguments_have_the_promised_strides() -> None:
    g = G()
    x = g.input("x", (4, 6))
    flipped = g.flip(x, (1,))  # no as_strided view: copied
    mm = g.aten(torch.ops.aten.mm.default, x, g.permute(flipped, (1, 0)))
    program = check(g.out(mm), [torch.randn(4, 6)])
    extern = program.steps[-1]
    assert isinstance(extern, Extern) and isinstance(program.steps[0], Kernel)
    assert extern.args[0].is_whole and extern.args[1].strides == (1, 6)


def test_channels_last_is_kept() -> None:
    g = G()
    x = g.input("x", (2, 3, 4, 5), strides=(60, 1, 15, 3))
    y = g.neg(x)
    program = check(g.out(y), [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)])
    assert program.buffers[0].type.strides == (60, 1, 15, 3)


def test_several_results_and_unused_ones() -> None:
    g = G()
    x = g.input("x", (4, 6))
    topk = g.aten(torch.ops.aten.topk.default, x, 2)
    program = check(g.out(g.neg(g.graph.getitem(topk, 0))), [torch.randn(4, 6)])
    values, indices = program.steps[0].outputs
    assert values is not None and indices is None


def test_constants_are_kept_by_the_program() -> None:
    g = G()
    x, c = g.input("x", (3,)), g.graph.const(torch.tensor([1.0, 2.0, 3.0]), g.graph.inputs[0].val)
    program = check(g.out(g.add(x, c), c), [torch.randn(3)])
    assert len(program.constants) == 1


def test_every_primitive_has_a_rule() -> None:
    missing = [
        p.name for p in PRIMS.values() if p.family not in ("elementwise", "view", "opaque") and p.name not in RULES
    ]
    assert missing == []


def test_other_dtypes_are_moved_by_vendor_calls() -> None:
    g = G()
    z = g.input("z", (3, 4), torch.complex64)
    mm = g.aten(torch.ops.aten.mm.default, z, g.permute(g.cat([z, z], 0), (1, 0)))
    program = check(g.out(g.permute(z, (1, 0)), g.cat([z, z], 1), mm), [torch.randn(3, 4, dtype=torch.complex64)])
    assert all(isinstance(s, Extern) for s in program.steps)
    with pytest.raises(Unsupported, match="complex64"):
        lower(g.out(g.pad(z, (0, 0), (1, 1), 0)))


def test_unsupported_says_what() -> None:
    g = G()
    x, i, src = g.input("x", (5,), torch.bool), g.input("i", (3,), torch.int64), g.input("s", (3,), torch.bool)
    with pytest.raises(Unsupported, match="scatter_add into bool"):
        lower(g.out(g.scatter_add(x, 0, i, src)))
