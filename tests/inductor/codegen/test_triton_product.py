"""Matrix products with epilogues: values in Triton's interpreter against float64, refusals, the choice."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from triton_interpreter import Interpreter

import braze
from braze.backends import inductor
from braze.inductor.codegen import compile_program, products
from braze.inductor.codegen.product_tiles import FORMS, MOST, Shape, Tile, cost, tiles_for
from braze.inductor.codegen.triton_product import emit_product
from braze.inductor.codegen.triton_tiling import H200
from braze.inductor.fuse import CUDA, contract, fuse
from braze.inductor.loops import Kernel, interpret_program, lower
from braze.runtime import cuda, cuda_choice
from braze.runtime.cache import DiskCache
from braze.runtime.cuda_choice import Choice, Way
from braze.runtime.cuda_compile import Pool, request
from braze.runtime.cuda_tune import Budget

sys.path.insert(0, str(Path(__file__).parents[1] / "loops"))

from prim_graphs import G  # noqa: E402

contraction = sys.modules["braze.inductor.fuse.contract"]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
PLAIN = Tile(32, 16, 16, 4, 2, 2)
PERSISTENT = Tile(16, 32, 32, 4, 2, 4, True)
TMA = Tile(32, 32, 16, 4, 2, 8, True, True)
SLICED = Tile(16, 64, 32, 4, 2, 8, slices=4)
TMA_SLICED = Tile(32, 32, 32, 4, 2, 8, True, True, 2, 2)
TILES = {"plain": PLAIN, "persistent": PERSISTENT, "tma": TMA, "sliced": SLICED, "tma sliced": TMA_SLICED}


class Templates:
    """braze.compile on CPU tensors where products run as templates in Triton's interpreter."""

    def __init__(self, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.interpreter, self.calls, self.made = interpreter, 0, []
        self.tiles = [PLAIN]
        monkeypatch.setattr(inductor, "on_gpu", lambda request: True)
        monkeypatch.setattr(inductor, "warm_up", lambda config: None)
        monkeypatch.setattr(cuda_choice, "agree", lambda first, other, args: True)  # the tests compare, and count calls
        monkeypatch.setattr(products, "start_kernels_cuda", lambda *args: [])
        monkeypatch.setattr(products, "load_later", self.later)
        monkeypatch.setattr(products, "tiles_for", lambda shape, card, rows: self.tiles)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "none")
        monkeypatch.setattr(products, "budget_of", lambda config: (DiskCache(None), Budget(100.0)))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(products, "Choice", self.choice)

    def later(self, code: Any, device: Any, config: Any) -> Any:
        self.code = code

        def run(*args: Any) -> None:
            self.calls += 1
            self.interpreter.call(code, list(args[: code.pointers]), list(args[code.pointers :]))

        return lambda seconds: run

    def choice(self, *args: Any, **more: Any) -> Choice:
        """Takes the first template, whatever it costs, also for exact products."""
        name, first, others, key, cache, budget, _ = args
        made = Choice(name, first, others, key, cache, budget, False, lambda run, _: float(run is first), **more)
        self.made.append(made)
        return made

    def source(self) -> str:
        return self.code.source  # type: ignore[no-any-return]

    def run(self, fn: Any, *args: Any, dynamic: bool | None = None) -> Any:
        options = {"disk_cache": False, "max_autotune": True, "strict": True}
        return braze.compile(fn, dynamic=dynamic, options=options)(*args)


@pytest.fixture
def templates(triton_run: Interpreter, monkeypatch: pytest.MonkeyPatch) -> Templates:
    return Templates(triton_run, monkeypatch)


def check(got: Any, want: Any, dtype: torch.dtype) -> None:
    pairs = zip(got, want) if isinstance(got, tuple) else [(got, want)]
    rounding = {BF16: 2**-8, F16: 2**-11, F32: 2e-6}[dtype]
    for x, y in pairs:
        assert x.shape == y.shape and x.dtype is dtype or x.dtype is F32
        assert float((x.double() - y).abs().max()) <= 2 * rounding * max(1.0, float(y.abs().max()))


def linear_gelu(x: Any, w: Any, b: Any, r: Any) -> Any:
    return F.gelu(F.linear(x, w, b))


def saved(x: Any, w: Any, b: Any, r: Any) -> Any:
    p = F.linear(x, w, b)
    return p, F.silu(p) + r


def residual(x: Any, w: Any, b: Any, r: Any) -> Any:
    return F.relu(x @ w.t()) + r


def widened(x: Any, w: Any, b: Any, r: Any) -> Any:
    return (x @ w.t()).float() * 2


def scaled(x: Any, w: Any, b: Any, r: Any) -> Any:
    return torch.addmm(r, x, w.t(), beta=0.5, alpha=2.0).sigmoid()


def heads(x: Any, w: Any, b: Any, r: Any) -> Any:
    p = F.linear(x, w, b)
    n = p.shape[-1] // 8
    return (p.view(3, -1, 8, n).transpose(1, 2) * 2).contiguous()


def rows(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Values of rows alone, of columns alone, and of the whole."""
    p = x @ w.t()
    return p * x[:, :1] + b * 2, p.float() + torch.arange(p.shape[0])[:, None]


EPILOGUES = [linear_gelu, saved, residual, widened, scaled, heads, rows]


def operands(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x, w, b, r = torch.randn(m, k), torch.randn(n, k) / k**0.5, torch.randn(n), torch.randn(m, n)
    return tuple(t.to(dtype) for t in (x, w, b, r))


@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
@pytest.mark.parametrize("fn", EPILOGUES, ids=lambda f: f.__name__)
def test_epilogues(fn: Any, tile: Tile, templates: Templates) -> None:
    templates.tiles = [tile]
    args = operands(48, 40, 72, BF16)
    got = templates.run(fn, *args)
    assert templates.calls == 1 and templates.made[0].chosen
    check(got, fn(*(t.double() for t in args)), BF16)


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("m, n, k", [(16, 16, 16), (33, 47, 65), (64, 32, 96), (17, 128, 24)])
def test_shapes(m: int, n: int, k: int, dtype: torch.dtype, templates: Templates) -> None:
    args = operands(m, n, k, dtype)
    got = templates.run(saved, *args)
    assert templates.calls == 1
    check(got, saved(*(t.double() for t in args)), dtype)


@pytest.mark.parametrize("tile", [PLAIN, PERSISTENT, TMA], ids=["plain", "persistent", "tma"])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_transposed_operands(left: bool, right: bool, tile: Tile, templates: Templates) -> None:
    templates.tiles = [tile]

    def fn(x: Any, y: Any) -> Any:
        return ((x.t() if left else x) @ (y.t() if right else y)).relu()

    x = torch.randn(*((40, 48) if left else (48, 40))).to(BF16)
    y = torch.randn(*((56, 40) if right else (40, 56))).to(BF16)
    got = templates.run(fn, x, y)
    assert templates.calls == 1
    check(got, fn(x.double(), y.double()), BF16)


@pytest.mark.parametrize("shared", [False, True])
def test_batches(shared: bool, templates: Templates) -> None:
    def fn(x: Any, y: Any) -> Any:
        return torch.tanh(torch.bmm(x, y.expand(3, 24, 32) if shared else y))

    x, y = torch.randn(3, 40, 24).to(BF16), torch.randn(1 if shared else 3, 24, 32).to(BF16)
    got = templates.run(fn, x, y)
    assert templates.calls == 1
    check(got, fn(x.double(), y.double()), BF16)


def test_sizes_that_change(templates: Templates) -> None:
    compiled = braze.compile(
        linear_gelu, dynamic=True, options={"disk_cache": False, "max_autotune": True, "strict": True}
    )
    for m in (20, 50):
        args = operands(m, 40, 24, F16)
        check(compiled(*args), linear_gelu(*(t.double() for t in args)), F16)
    assert templates.calls == 2 and len(templates.made) == 1


# ---- what is joined, and what is not ----

MM = torch.ops.aten.mm.default


def product_of(g: G, m: int = 48, n: int = 32, k: int = 64, dtype: torch.dtype = BF16, left: str = "x") -> Any:
    x, w = g.input(left, (m, k), dtype), g.input(f"w_{left}", (k, n), dtype)
    return g.graph.call(MM, (x, w), val=x.val.with_(sizes=(m, n), strides=(n, 1)))


def contracted(*outputs: Any, g: G) -> tuple[list[Any], list[str]]:
    """The steps after joining, and the reasons against it. The meaning must stay."""
    before = fuse(lower(g.out(*outputs)))
    log: list[Any] = []
    after = contract(before, log)
    inputs = [torch.randn(b.type.sizes).to(b.type.dtype) for b in before.inputs]
    for a, b in zip(interpret_program(before, inputs), interpret_program(after, inputs)):
        assert torch.equal(a, b)
    return after.steps, [str(r) for _, r in log]


def wide(g: G, x: Any) -> Any:
    return g.convert(x, F32)


def test_a_product_joins_its_reader() -> None:
    g = G()
    steps, reasons = contracted(g.exp(wide(g, product_of(g))), g=g)
    assert len(steps) == 1 and not reasons


def test_two_products_in_one_kernel_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel widens both; each product takes its own store."""
    monkeypatch.setattr(contraction, "SLICED", 0)
    g = G()
    a, b = product_of(g), product_of(g, left="y")
    steps, reasons = contracted(g.exp(wide(g, a)), g.sin(wide(g, b)), g=g)
    assert len(steps) == 2 and not reasons and not any(isinstance(s, Kernel) for s in steps)


def cast_weight(x: Any, w: Any) -> Any:
    return x @ w.to(BF16).t()


def cast_both(x: Any, w: Any) -> Any:
    return (x.float() * 0.5).relu().to(BF16) @ w.to(BF16).t() + 1


def cast_rows(x: Any, w: Any) -> Any:
    """A three-dimensional factor seen as a matrix, scaled by rows."""
    s = x[:, :1].float().view(4, -1, 1)
    return (x.view(4, -1, x.shape[1]).float() * s).to(BF16).view(-1, x.shape[1]) @ w.to(BF16).t()


def offset_factor(x: Any, w: Any) -> Any:
    """0 + 1 is 1: what lies beyond the end of the inner size must not count."""
    return (x.float() + 1).to(BF16) @ (w + 1).to(BF16).t()


@pytest.mark.parametrize("k", [32, 37])
@pytest.mark.parametrize("fn", [cast_weight, cast_both, cast_rows, offset_factor], ids=lambda f: f.__name__)
def test_prologues(fn: Any, k: int, templates: Templates) -> None:
    x, w = torch.randn(36, k).to(BF16), torch.randn(40, k) / k**0.5
    got = templates.run(fn, x, w)
    assert templates.calls == 1
    check(got, fn(x, w).double(), BF16)
    assert ".to(tl.bfloat16)" in templates.source().split("tl.dot")[0]  # inside of the loop


def gelu_gradient(dy: Any, w: Any, h: Any) -> Any:
    """As a linear layer's backward: the gradient before it, and its bias' gradient."""
    g = torch.ops.aten.gelu_backward(dy @ w, h)
    return g, g.sum(0)


def two_sums(dy: Any, w: Any, h: Any) -> Any:
    """The product is wanted, too; sums of two things."""
    p = dy @ w
    v = p.float() * h
    return p, v.sum(0), (v * v).sum(0)


@pytest.mark.parametrize("tile", [Tile(64, 32, 16, 4, 2), Tile(64, 32, 32, 4, 2, 8, True, True, 2)], ids=str)
@pytest.mark.parametrize("n", [64, 40])
@pytest.mark.parametrize("fn", [gelu_gradient, two_sums], ids=lambda f: f.__name__)
def test_column_sums(fn: Any, n: int, tile: Tile, templates: Templates, monkeypatch: pytest.MonkeyPatch) -> None:
    traits = replace(CUDA, split_points=64, min_chunk=16, parallel_rows=16, line_elems=16)
    monkeypatch.setattr(inductor, "fuse", lambda p: fuse(p, traits))
    templates.tiles = [tile]
    dy, w, h = torch.randn(192, 48).to(BF16), (torch.randn(48, n) / 7).to(BF16), torch.randn(192, n).to(BF16)
    got = templates.run(fn, dy, w, h)
    assert templates.calls == 1 and "tl.sum(" in templates.source()
    for a, b in zip(got, fn(dy.double(), w.double(), h.double())):
        assert float((a.double() - b).abs().max()) <= 2**-6 * float(b.abs().max())


def test_a_product_of_two_products() -> None:
    g = G()
    a, b = product_of(g), product_of(g, left="y")
    steps, reasons = contracted(g.mul(wide(g, a), g.exp(wide(g, b))), g=g)
    assert len(steps) == 2 and not any(isinstance(s, Kernel) for s in steps)
    assert reasons == ["no kernel reads the product"]  # the other one's step does


def test_refused_rows() -> None:
    g = G()
    p = wide(g, product_of(g))
    _, reasons = contracted(g.sum(p, (1,)), g=g)
    assert "needs whole rows" in reasons[0]


def test_refused_small() -> None:
    g = G()
    _, reasons = contracted(g.exp(wide(g, product_of(g, n=8))), g=g)
    assert "below 16" in reasons[0]


def test_refused_dtype() -> None:
    g = G()
    _, reasons = contracted(g.exp(product_of(g, dtype=torch.float64)), g=g)
    assert "no template" in reasons[0]


def test_refused_part() -> None:
    """A kernel that reads only some of the product is no epilogue."""
    g = G()
    part = g.slice(product_of(g), (0, 0), (24, 32), (1, 1))
    _, reasons = contracted(g.exp(wide(g, part)), g=g)
    assert reasons and "no one-to-one map" in reasons[0]


def test_refused_alone() -> None:
    g = G()
    _, reasons = contracted(product_of(g), g=g)
    assert reasons == ["no kernel reads the product"]


def test_refused_circle() -> None:
    """The kernel also reads what a library call made of the product."""
    g = G()
    p = product_of(g, n=48)
    again = g.graph.call(
        torch.ops.aten.sort.stable, (p,), {"stable": True}, val=(p.val, p.val.with_(dtype=torch.int64))
    )
    first = g.graph.call(operator.getitem, (again, 0), val=p.val)
    _, reasons = contracted(g.mul(wide(g, p), wide(g, first)), g=g)
    assert "depends on one and feeds the other" in reasons[0]


# ---- machine code ----


def big(m: int, n: int, k: int, dtype: torch.dtype) -> Kernel:
    """A product with silu, of which the product is wanted, too."""
    g = G()
    p = product_of(g, m, n, k, dtype)
    v = wide(g, p) if dtype is not F32 else p
    (step,) = contract(fuse(lower(g.out(p, g.mul(v, g.sigmoid(v)))))).steps
    return step.target.kernel  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def compile_pool() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


def text(pool: Pool, kernel: Kernel, tile: Tile, target: str, until: str) -> str:
    job = pool.submit({**request(emit_product(kernel, tile, H200).code, target), "until": until})
    answer, out = job.result(timeout=240)
    assert "error" not in answer, answer["error"]
    return out.decode()


@pytest.mark.parametrize("tma", [False, True])
def test_tensor_cores_of_hopper(tma: bool, compile_pool: Pool) -> None:
    ptx = text(compile_pool, big(512, 512, 256, BF16), Tile(128, 128, 64, 4, 3, 8, tma, tma), "cuda:90", "ptx")
    assert "wgmma.mma_async" in ptx and "st.global.v4" in ptx
    assert ("cp.async.bulk.tensor" in ptx) is tma


def test_tf32(compile_pool: Pool) -> None:
    ptx = text(compile_pool, big(256, 256, 128, F32), Tile(64, 64, 32, 4, 3), "cuda:90", "ptx")
    assert "tf32" in ptx


@pytest.mark.parametrize("n", [512, 200])
def test_amd(n: int, compile_pool: Pool) -> None:
    code = text(compile_pool, big(512, n, 256, BF16), Tile(128, 64, 32, 4, 2), "hip:gfx942", "amdgcn")
    assert "v_mfma_f32" in code


# ---- choice ----


def test_few_tilings_are_tried() -> None:
    for shape in (Shape(1, 4096, 3072, 768, 2), Shape(1, 32, 768, 768, 2), Shape(12, 128, 64, 128, 2)):
        tiles = tiles_for(shape, H200)
        assert 1 <= len(tiles) <= MOST and len(set(tiles)) == len(tiles)
    large = tiles_for(Shape(1, 8192, 8192, 8192, 2), H200)[0]
    assert large.m * large.n >= 2**15
    few = Shape(1, 256, 256, 4096, 2)  # a large tile would leave most of the card idle
    small, wide_tile = Tile(64, 64, 64, 4, 4, resident=4), next(iter(FORMS))
    assert cost(few, small, FORMS[small], H200) < cost(few, wide_tile, FORMS[wide_tile], H200)
    assert {t.m for t in tiles_for(Shape(1, 4096, 3072, 768, 2), H200, 64)} == {64}
    assert {t.k for t in tiles_for(Shape(1, 4096, 3072, 768, 4), H200)} == {32}


class Ways:
    """A choice with made-up times; ``calls`` says which ways ran."""

    def __init__(self, times: list[float], seconds: float = 10.0, folder: Path | None = None, **more: Any) -> None:
        self.calls: list[int] = []
        self.timed = 0
        runs = [lambda *args, n=n: self.calls.append(n) or n for n in range(len(times))]

        def timer(run: Any, args: Any) -> float:
            self.timed += 1
            if times[runs.index(run)] < 0:
                raise RuntimeError("refused by the driver")
            return times[runs.index(run)]

        ways = [Way(f"way {n}", lambda seconds, n=n: runs[n]) for n in range(1, len(times))]
        self.choice = Choice("c", runs[0], ways, "key", DiskCache(folder), Budget(seconds), timer=timer, **more)


@pytest.fixture(autouse=True)
def no_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    real = cuda_choice.agree
    monkeypatch.setattr(cuda_choice, "agree", lambda f, g, args: not args or real(f, g, args))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_the_fastest_stays() -> None:
    w = Ways([3.0, 2.0, 1.0, 4.0])
    assert [w.choice(), w.choice()] == [2, 2]
    assert w.timed == 4 and w.choice.chosen == "way 2"


def test_noise_does_not_count() -> None:
    assert Ways([1.0, 0.98]).choice() == 0


def test_what_gives_other_values_is_left_out() -> None:
    x = torch.randn(8)
    agree = cuda_choice.agree
    assert agree(lambda a: (a,), lambda a: (a * 1.001,), (x,))
    assert not agree(lambda a: (a,), lambda a: (a + a.abs().max(),), (x,))
    assert not agree(lambda a: (a,), lambda a: (a * float("nan"),), (x,))


def test_what_fails_is_left_out() -> None:
    assert Ways([3.0, -1.0, 2.0]).choice() == 2


def test_no_seconds_no_choice() -> None:
    w = Ways([3.0, 1.0], seconds=0.0)
    assert w.choice() == 0 and w.timed == 0


def test_a_choice_is_remembered(tmp_path: Path) -> None:
    assert Ways([3.0, 1.0], folder=tmp_path).choice() == 1
    again = Ways([1.0, 3.0], folder=tmp_path)
    assert again.choice() == 1 and again.timed == 0


def test_float32_stays_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Ways([3.0, 1.0], exact=True)
    monkeypatch.setattr(cuda_choice, "tf32_allowed", lambda: False)
    assert w.choice() == 0 and w.timed == 0
    monkeypatch.setattr(cuda_choice, "tf32_allowed", lambda: True)
    assert w.choice() == 1


def test_nothing_is_decided_inside_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Ways([3.0, 1.0])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert w.choice() == 0 and w.choice.best is None


def test_a_program_with_a_choice_is_a_script(templates: Templates, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of the whole program runs alone, with the way that was chosen."""
    made: list[Any] = []

    def compiled(*args: Any) -> Any:
        made.append(compile_program(*args))
        return lambda: made[-1]

    monkeypatch.setattr(inductor, "start_program", compiled)
    args = operands(48, 40, 72, BF16)
    want = templates.run(saved, *args)
    text = made[0].script()
    assert text.count("tl.dot(") == 1 and "chosen among 2 ways" in text
    assert any("tl.dot(" in source for source in made[0].kernels.values())
    load = templates.later
    monkeypatch.setattr(cuda, "load_kernels_cuda", lambda codes, device: [load(c, 0, None)(0.0) for c in codes])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    scope: dict[str, Any] = {}
    exec(text, scope)
    for a, b in zip(scope["call"](list(args)), want):
        assert torch.equal(a, b)
    assert templates.calls == 2


def test_a_report_of_a_product(templates: Templates) -> None:
    """Named by what it does; its work and bytes count once."""
    compiled = braze.compile(saved, options={"disk_cache": False, "max_autotune": True, "strict": True})
    explained = braze.explain(compiled)(*operands(48, 40, 72, BF16))
    (side,) = explained.report.sides
    (step,) = side.steps
    assert step.name.startswith("addmm_")
    assert step.nbytes == 2 * (48 * 72 + 40 * 72 + 40 + 3 * 48 * 40)
    assert step.flops >= 2 * 48 * 40 * 72
    assert explained.source("forward: products alone").endswith("products alone\n")  # none is


def test_what_cannot_be_timed_is_not_chosen_from() -> None:
    w = Ways([-1.0, 1.0])
    assert w.choice() == 0 and w.timed == 1


def test_tf32_is_asked() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        for setting in ("tf32", "ieee"):
            matmul.fp32_precision = setting
            assert cuda_choice.tf32_allowed() is (setting == "tf32")
    finally:
        matmul.fp32_precision = before
