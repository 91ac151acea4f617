"""Loop nests on the CPU against the reference interpreter: layouts, reductions, masks, indirection, sizes, threads."""

from __future__ import annotations

import random

import pytest
import torch
from llvm_case import axis, buffer, built, clone, compare, kernel, restricted, same

from braze.errors import Unsupported
from braze.inductor.loops import Compute, Const, Index, Kernel, Load, Reduce, Store, run_kernel
from braze.inductor.loops.ir import Axis, Buffer
from braze.ir import symbol, tensor_type
from braze.runtime.cpu import Target, host_target

F32, I64 = torch.float32, torch.int64


TARGETS = ["host", "avx2", "plain"]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return host_target() if request.param == "host" else restricted(request.param)


def softmax(
    rows: int, columns: int, strides: tuple[int, int] | None = None
) -> tuple[Kernel, dict[Buffer, torch.Tensor]]:
    i, ai = axis("i0", rows)
    r, ar = axis("r0", columns)
    x = (
        torch.randn(rows, columns)
        if strides is None
        else torch.randn(rows * columns).as_strided((rows, columns), strides)
    )
    out = torch.zeros(rows, columns)
    bx, bo = buffer("x", x), buffer("out", out)
    v0 = Load(bx, (i, r))
    v1 = Reduce("max", v0, F32)
    v2 = Compute("sub", (v0, v1), F32)
    v3 = Compute("exp", (v2,), F32)
    v4 = Reduce("sum", v3, F32)
    v5 = Compute("div", (v3, v4), F32)
    return kernel([ai], [ar], [v0, v1, v2, v3, v4, v5, Store(bo, (i, r), v5)]), {bx: x, bo: out}


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 64), (4, 100), (2, 1000), (3, 9001)], ids=str)
def test_softmax(shape: tuple[int, int], target: Target) -> None:
    k, memory = softmax(*shape)
    same(compare(k, memory, target=target), rtol=4e-7, atol=1e-9)


def test_softmax_over_the_outer_dim(target: Target) -> None:
    k, memory = softmax(150, 33, (1, 150))
    same(compare(k, memory, target=target), rtol=4e-7, atol=1e-9)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"])
@pytest.mark.parametrize("inner", ["r", "x"])
def test_reductions(kind: str, inner: str, target: Target) -> None:
    for dtype in (torch.bool,) if kind in ("any", "all") else (F32, torch.float64, torch.int32, I64, torch.uint8):
        for rows, columns in ((1, 1), (5, 3), (37, 131)):
            i, ai = axis("i0", rows)
            r, ar = axis("r0", columns)
            if dtype == torch.bool:
                data = torch.rand(rows, columns) < (0.02 if kind == "any" else 0.98)
            elif dtype.is_floating_point:
                data = torch.randn(rows, columns, dtype=dtype)
                data = data.round() if kind.startswith("arg") else 1 + data / 50 if kind == "prod" else data
            else:
                data = torch.randint(0 if dtype == torch.uint8 else -3, 4, (rows, columns)).to(dtype)
            if inner == "x":
                data = data.t().contiguous().t()
            result = I64 if kind.startswith("arg") else dtype
            out = torch.zeros(rows, dtype=result)
            bx, bo = buffer("x", data), buffer("out", out)
            v = Load(bx, (i, r))
            red = Reduce(kind, v, result)
            k = kernel([ai], [ar], [v, red, Store(bo, (i,), red)])
            tolerance = {F32: 2e-6, torch.float64: 1e-13}.get(dtype, 0.0) if kind in ("sum", "prod") else 0.0
            same(compare(k, {bx: data, bo: out}, target=target), rtol=tolerance, atol=tolerance * 30)


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin", "sum"])
@pytest.mark.parametrize("inner", ["r", "x"])
def test_reductions_keep_nan_and_infinities(kind: str, inner: str, target: Target) -> None:
    inf, nan = float("inf"), float("nan")
    rows = torch.randn(9, 150)
    for n, values in enumerate([(nan, 3.0), (-inf, -inf), (inf, nan), (inf, inf), (-inf, inf)]):
        rows[n, 60], rows[n, 147] = values
    rows[5], rows[6], rows[7] = -inf, inf, nan
    data = rows.t().contiguous().t() if inner == "x" else rows
    i, ai = axis("i0", 9)
    r, ar = axis("r0", 150)
    result = I64 if kind.startswith("arg") else F32
    out = torch.zeros(9, dtype=result)
    bx, bo = buffer("x", data), buffer("out", out)
    v = Load(bx, (i, r))
    red = Reduce(kind, v, result)
    same(compare(kernel([ai], [ar], [v, red, Store(bo, (i,), red)]), {bx: data, bo: out}, target=target), 1e-5, 1e-5)


@pytest.mark.parametrize("shape", [(1, 3_000_001), (4, 100_003), (20_011, 3)], ids=str)
def test_sums_are_as_accurate_as_eager(shape: tuple[int, int]) -> None:
    for inner in ("r", "x"):
        data = torch.rand(shape) + 0.1
        data = data.t().contiguous().t() if inner == "x" else data
        i, ai = axis("i0", shape[0])
        r, ar = axis("r0", shape[1])
        out = torch.zeros(shape[0])
        bx, bo = buffer("x", data), buffer("out", out)
        v = Load(bx, (i, r))
        red = Reduce("sum", v, F32)
        built([kernel([ai], [ar], [v, red, Store(bo, (i,), red)])])[0]({bx: data, bo: out})
        exact = data.double().sum(1)
        error = ((out - exact).abs() / exact).max()
        eager = ((data.sum(1) - exact).abs() / exact).max()
        assert error <= 2 * eager + 6e-8, f"{inner}: {error} against {eager}"


def test_sum_over_two_axes_of_a_strided_input(target: Target) -> None:
    """Batch-norm statistics: channels stay, batch and pixels are summed."""
    x = torch.randn(6, 5, 77)
    c, ac = axis("i0", 5)
    n, an = axis("r0", 6)
    p, ap = axis("r1", 77)
    out, out2 = torch.zeros(5), torch.zeros(5)
    bx, bo, b2 = buffer("x", x), buffer("out", out), buffer("out2", out2)
    v = Load(bx, (n, c, p))
    mean = Compute("mul", (s := Reduce("sum", v, F32), Const(1 / (6 * 77), F32)), F32)
    d = Compute("sub", (v, mean), F32)
    q = Reduce("sum", Compute("mul", (d, d), F32), F32)
    const = mean.args[1]
    k = kernel([ac], [an, ap], [v, s, const, mean, d, q.value, q, Store(bo, (c,), mean), Store(b2, (c,), q)])
    same(compare(k, {bx: x, bo: out, b2: out2}, target=target), rtol=1e-5, atol=1e-6)


def test_pointwise_layouts(target: Target) -> None:
    """Broadcast, transposed, sliced, expanded and channels-last operands in one kernel."""
    sizes = (3, 20, 35)
    i, j, k = (axis(f"i{n}", s) for n, s in enumerate(sizes))
    loads = [
        torch.randn(sizes),
        torch.randn(3, 35, 20).transpose(1, 2),
        torch.randn(3, 40, 70)[:, ::2, ::2],
        torch.randn(35).expand(sizes),
        torch.randn(3, 1, 1).expand(sizes),
        torch.randn(20, 35, 3).permute(2, 0, 1),
    ]
    for out in (torch.zeros(sizes), torch.zeros(20, 35, 3).permute(2, 0, 1), torch.zeros(35, 20, 3).permute(2, 1, 0)):
        memory = {buffer(f"b{n}", t): t for n, t in enumerate(loads)}
        body = [Load(b, (i[0], j[0], k[0])) for b in memory]
        total = body[0]
        for v in body[1:6]:
            total = Compute("add", (total, v), F32)
            body.append(total)
        bo = buffer("out", out)
        body.append(Store(bo, (i[0], j[0], k[0]), total))
        memory[bo] = out
        same(compare(kernel([i[1], j[1], k[1]], [], body), memory, target=target))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int8, I64], ids=str)
def test_element_types_in_memory(dtype: torch.dtype, target: Target) -> None:
    for n in (1, 5, 64, 999):
        x = (torch.randn(n) * 20).to(dtype)
        (i, a), out, out2 = axis("i0", n), torch.zeros(n, dtype=dtype), torch.zeros(2 * n, dtype=dtype)
        bx, bo, b2 = buffer("x", x), buffer("out", out), buffer("out2", out2)
        v = Load(bx, (n - 1 - i,))
        w = Compute("convert", (v,), F32)
        u = Compute("convert", (w,), dtype)
        k = kernel([a], [], [v, w, u, Store(bo, (i,), u), Store(b2, (2 * i,), u)])
        same(compare(k, {bx: x, bo: out, b2: out2}, target=target))


def test_masked_loads_do_not_touch_memory(target: Target) -> None:
    """Padding: rows and columns outside of the input read ``other``."""
    x = torch.randn(5, 40)
    (i, ai), (j, aj) = axis("i0", 9), axis("i1", 47)
    out = torch.zeros(9, 47)
    bx, bo = buffer("x", x), buffer("out", out)
    row, column = Index(i), Index(j)
    tests = []
    for v, low, high in ((row, 2, 7), (column, 3, 43)):
        lo, hi = Const(low, I64), Const(high, I64)
        a, b = Compute("ge", (v, lo), torch.bool), Compute("lt", (v, hi), torch.bool)
        tests += [lo, hi, a, b, Compute("bitwise_and", (a, b), torch.bool)]
    mask = Compute("bitwise_and", (tests[4], tests[9]), torch.bool)
    v = Load(bx, (i - 2, j - 3), mask=mask, other=-1.5)
    k = kernel([ai, aj], [], [row, column, *tests, mask, v, Store(bo, (i, j), v)])
    same(compare(k, {bx: x, bo: out}, target=target))


def test_indirect_rows_and_elements(target: Target) -> None:
    table, index = torch.randn(50, 33), torch.randint(-50, 50, (17,))
    (i, ai), (j, aj) = axis("i0", 17), axis("i1", 33)
    t = symbol("t0", 0, 49)
    (s,) = next(iter(t.terms))
    out, out2 = torch.zeros(17, 33), torch.zeros(17)
    bt, bi, bo, b2 = buffer("t", table), buffer("i", index), buffer("out", out), buffer("out2", out2)
    raw = Load(bi, (i,))
    checked = Compute("check_index", (raw,), I64, (("size", 50),))
    v = Load(bt, (t, j), ((s, checked),))
    same(
        compare(
            kernel([ai, aj], [], [raw, checked, v, Store(bo, (i, j), v)]),
            {bt: table, bi: index, bo: out},
            target=target,
        )
    )
    w = Load(bt, (t, 7), ((s, checked),))
    same(
        compare(
            kernel([ai], [], [raw, checked, w, Store(b2, (i,), w)]), {bt: table, bi: index, b2: out2}, target=target
        )
    )


def test_an_index_out_of_range_is_an_error() -> None:
    table, index = torch.randn(50), torch.tensor([1] * 30 + [50])
    i, ai = axis("i0", 31)
    t = symbol("t0", 0, 49)
    (s,) = next(iter(t.terms))
    out = torch.zeros(31)
    bt, bi, bo = buffer("t", table), buffer("i", index), buffer("out", out)
    raw = Load(bi, (i,))
    checked = Compute("check_index", (raw,), I64, (("size", 50),))
    v = Load(bt, (t,), ((s, checked),))
    run = built([kernel([ai], [], [raw, checked, v, Store(bo, (i,), v)])])[0]
    memory = {bt: table, bi: index, bo: out}
    with pytest.raises(IndexError, match="out of range"):
        run(memory)
    index[-1] = -50
    run(memory)
    assert out[-1] == table[0]


def test_atomic_adds_into_rows_and_elements(target: Target) -> None:
    """Embedding backward (rows may meet) and a histogram (lanes may meet); twice, with equal bits."""
    index = torch.randint(0, 6, (300,))
    grad = torch.randn(300, 40)
    (i, ai), (j, aj) = axis("i0", 300), axis("i1", 40)
    t = symbol("t0", 0, 5)
    (s,) = next(iter(t.terms))
    bi, bg = buffer("i", index), buffer("g", grad)
    out, count = torch.zeros(6, 40), torch.zeros(6, dtype=I64)
    bo, bc = buffer("out", out), buffer("count", count)
    raw, v, one = Load(bi, (i,)), Load(bg, (i, j)), Const(1, I64)
    rows = kernel([ai, aj], [], [raw, v, Store(bo, (t, j), v, "atomic_add", ((s, raw),))])
    same(compare(rows, {bi: index, bg: grad, bo: out}, target=target), 1e-5, 1e-5)
    elements = kernel([ai], [], [raw, one, Store(bc, (t,), one, "atomic_add", ((s, raw),))])
    same(compare(elements, {bi: index, bc: count}, target=target))
    run = built([rows], target)[0]
    a, b = torch.zeros(6, 40), torch.zeros(6, 40)
    run({bi: index, bg: grad, bo: a})
    run({bi: index, bg: grad, bo: b})
    assert torch.equal(a, b)


@pytest.mark.parametrize("n", [1, 64, 4099])
def test_philox(n: int, target: Target) -> None:
    seed = torch.tensor([-(2**62) + 12345, 2**40 + 7])
    i, ai = axis("i0", n)
    out, shifted = torch.zeros(n), torch.zeros(n)
    bs, bo, b2 = buffer("s", seed), buffer("out", out), buffer("out2", shifted)
    key, base, stream = Load(bs, (0,)), Load(bs, (1,)), Const(3, I64)
    offset = Compute("add", (base, stream), I64)
    at, at1 = Index(i), Index(i + 1)
    u, w = Compute("philox", (key, offset, at), F32), Compute("philox", (key, offset, at1), F32)
    k = kernel([ai], [], [key, base, stream, offset, at, at1, u, w, Store(bo, (i,), u), Store(b2, (i,), w)])
    same(compare(k, {bs: seed, bo: out, b2: shifted}, target=target))


def test_symbolic_sizes(target: Target) -> None:
    s = symbol("s0", 1, 2**40, 8)
    t = symbol("s1", 1, 2**40, 8)
    (i, ai), (r, ar) = axis("i0", s), axis("r0", t)
    bx, bo = Buffer("x", tensor_type((s, t))), Buffer("out", tensor_type((s, t)))
    v = Load(bx, (i, r))
    m = Reduce("sum", v, F32)
    d = Compute("div", (v, m), F32)
    k = kernel([ai], [ar], [v, m, d, Store(bo, (i, r), d)])
    p = kernel([ai, ar], [], [v, Store(bo, (i, r), v)])
    for rows, columns in ((1, 1), (3, 50), (7, 1000), (300, 129)):
        x = torch.rand(rows, columns) + 0.5
        for case in (k, p):
            pairs = compare(case, {bx: x, bo: torch.zeros_like(x)}, {"s0": rows, "s1": columns}, target)
            same(pairs, 1e-6, 1e-6)


def test_an_output_may_take_over_an_input(target: Target) -> None:
    k, memory = softmax(6, 777)
    (bx, x), (bo, _) = memory.items()
    want = torch.softmax(x, 1)
    shared = clone(x)
    built([k], target)[0]({bx: shared, bo: shared})
    torch.testing.assert_close(shared, want)


def test_threads_give_the_same_bits() -> None:
    k, memory = softmax(301, 1000)
    (bx, x), (bo, _) = memory.items()
    run = built([k])[0]
    before = torch.get_num_threads()
    results = []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            out = torch.zeros_like(x)
            run({bx: x, bo: out})
            results.append(out)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_zero_sizes() -> None:
    (i, ai), (r, ar) = axis("i0", 3), axis("r0", 0)
    x, out = torch.zeros(3, 0), torch.ones(3)
    bx, bo = buffer("x", x), buffer("out", out)
    v = Load(bx, (i, r))
    red = Reduce("sum", v, F32)
    same(compare(kernel([ai], [ar], [v, red, Store(bo, (i,), red)]), {bx: x, bo: out}))


def test_unknown_primitives_are_unsupported() -> None:
    i, ai = axis("i0", 3)
    x = torch.zeros(3)
    b = buffer("x", x)
    v = Load(b, (i,))
    c = Compute("no_such_thing", (v,), F32)
    with pytest.raises(Unsupported, match="no_such_thing"):
        built([kernel([ai], [], [v, c, Store(b, (i,), c)])])
    z = buffer("z", torch.zeros(3, dtype=torch.complex64))
    w = Load(z, (i,))
    with pytest.raises(Unsupported, match="complex64"):
        built([kernel([ai], [], [w, Store(z, (i,), w)])])
    again = Load(b, (i,))
    other = buffer("other", x)
    with pytest.raises(Unsupported, match="after writing"):
        built([kernel([ai], [], [v, Store(b, (i,), v), again, Store(other, (i,), again)])])


def _random_kernel(rng: random.Random) -> tuple[Kernel, dict[Buffer, torch.Tensor]]:
    rank, cut = rng.randint(1, 4), 0
    sizes = [rng.choice([1, 2, 3, 7, 16, 33, 70]) for _ in range(rank)]
    cut = rng.randint(0, rank)
    axes = [axis(f"{'i' if n < cut else 'r'}{n}", s) for n, s in enumerate(sizes)]
    body: list = []
    memory: dict[Buffer, torch.Tensor] = {}
    for n in range(rng.randint(1, 3)):
        dims = [d for d in range(rank) if rng.random() < 0.8]
        order = rng.sample(dims, len(dims))
        t = torch.randn([sizes[d] for d in order])
        b = buffer(f"in{n}", t)
        memory[b] = t
        body.append(Load(b, tuple(axes[d][0] for d in order)))
    values = list(body)
    for _ in range(rng.randint(1, 5)):
        choice = rng.random()
        if choice < 0.25 and cut < rank:
            v = Reduce(rng.choice(["sum", "max", "min"]), rng.choice(values), F32)
        elif choice < 0.5:
            v = Compute(rng.choice(["tanh", "neg", "abs", "sigmoid"]), (rng.choice(values),), F32)
        else:
            v = Compute(rng.choice(["add", "sub", "mul", "maximum"]), (rng.choice(values), rng.choice(values)), F32)
        values.append(v)
        body.append(v)
    order = rng.sample(range(rank), rank)
    out = torch.zeros([sizes[d] for d in order])
    bo = buffer("out", out)
    memory[bo] = out
    body.append(Store(bo, tuple(axes[d][0] for d in order), values[-1]))
    return kernel([a for _, a in axes[:cut]], [a for _, a in axes[cut:]], body), memory


@pytest.mark.parametrize("seed", range(4))
def test_random_kernels(seed: int, target: Target) -> None:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    cases = [_random_kernel(rng) for _ in range(12)]
    for (k, memory), run in zip(cases, built([k for k, _ in cases], target)):
        mine = {b: clone(t) for b, t in memory.items()}
        theirs = {b: clone(t) for b, t in memory.items()}
        run(mine)
        run_kernel(k, theirs)
        for b in k.writes:
            scale = theirs[b].abs().max().clamp_min(1e-3)
            torch.testing.assert_close(mine[b] / scale, theirs[b] / scale, rtol=1e-5, atol=3e-6)


def test_axis_helper() -> None:
    assert isinstance(axis("i0", 3)[1], Axis)


@pytest.mark.parametrize("inner", ["r", "x", "tile"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.bool], ids=str)
def test_a_rest_of_one_lane_writes_one_element(inner: str, dtype: torch.dtype, target: Target) -> None:
    """Narrow elements at the end of a row: the neighbouring row must stay as it is."""
    for columns in (17, 33, 65, 129):
        x = torch.randn(40, columns)
        x = x.t().contiguous().t() if inner == "tile" else x
        out = torch.zeros(40, columns, dtype=dtype)
        (i, ai), (j, aj) = axis("i0", 40), axis("r0" if inner == "r" else "i1", columns)
        bx, bo = buffer("x", x), buffer("out", out)
        v = Load(bx, (i, j))
        body = [v]
        w = v
        if inner == "r":
            m = Reduce("max", v, F32)
            w = Compute("add", (v, m), F32)
            body += [m, w]
        c = Compute("convert", (w,), dtype)
        body += [c, Store(bo, (i, j), c)]
        k = kernel([ai], [aj], body) if inner == "r" else kernel([ai, aj], [], body)
        same(compare(k, {bx: x, bo: out}, target=target))
