"""Matrix products with epilogues: values in Triton's interpreter against float64, refusals, the choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from triton_interpreter import Interpreter

import braze
from braze.backends import inductor
from braze.inductor.codegen import products
from braze.inductor.codegen.product_tiles import Tile
from braze.runtime.cache import DiskCache
from braze.runtime.cuda_choice import Choice
from braze.runtime.cuda_tune import Budget

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
PLAIN = Tile(32, 16, 16, 4, 2, 2)
PERSISTENT = Tile(16, 32, 32, 4, 2, 4, True)
TMA = Tile(32, 32, 16, 4, 2, 8, True, True)


@pytest.fixture(scope="module")
def triton_run() -> Iterator[Interpreter]:
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()


class Templates:
    """braze.compile on CPU tensors where products run as templates in Triton's interpreter."""

    def __init__(self, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.interpreter, self.calls, self.made = interpreter, 0, []
        self.tiles = [PLAIN]
        monkeypatch.setattr(inductor, "on_gpu", lambda request: True)
        monkeypatch.setattr(inductor, "warm_up", lambda config: None)
        monkeypatch.setattr(products, "start_kernels_cuda", lambda *args: [])
        monkeypatch.setattr(products, "load_later", self.later)
        monkeypatch.setattr(products, "tiles_for", lambda shape, card: self.tiles)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "none")
        monkeypatch.setattr(products, "budget_of", lambda config: (DiskCache(None), Budget(100.0)))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(products, "Choice", self.choice)

    def later(self, code: Any, device: Any, config: Any) -> Any:
        def run(*args: Any) -> None:
            self.calls += 1
            self.interpreter.call(code, list(args[: code.pointers]), list(args[code.pointers :]))

        return lambda seconds: run

    def choice(self, *args: Any) -> Choice:
        """Takes the first template, whatever it costs, also for exact products."""
        name, first, others, key, cache, budget, _ = args
        made = Choice(name, first, others, key, cache, budget, False, lambda run, _: float(run is first))
        self.made.append(made)
        return made

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


EPILOGUES = [linear_gelu, saved, residual, widened, scaled, heads]


def operands(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x, w, b, r = torch.randn(m, k), torch.randn(n, k) / k**0.5, torch.randn(n), torch.randn(m, n)
    return tuple(t.to(dtype) for t in (x, w, b, r))


@pytest.mark.parametrize("tile", [PLAIN, PERSISTENT, TMA], ids=["plain", "persistent", "tma"])
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
