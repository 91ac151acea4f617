"""Short spellings: where they are used, and that rounding to 16 bits hides what they lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton_cases import Body
from triton_interpreter import Interpreter

from braze.inductor.codegen.triton_emit import Emitted, emit_triton

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def pointwise(
    make: Callable[[Body, Any], Any], n: int, given: torch.dtype, stored: torch.dtype
) -> tuple[Body, Emitted]:
    k = Body({"i": n})
    x, y = k.buffer("x", (n,), given), k.buffer("y", (n,), stored)
    k.store(y, (k["i"],), make(k, k.load(x, k["i"])))
    return k, emit_triton(k.kernel("k"))


def gelu(k: Body, x: Any) -> Any:
    return k.compute(
        "mul", k.compute("mul", x, 0.5), k.compute("add", k.compute("erf", k.compute("mul", x, 0.5**0.5)), 1.0)
    )


def silu(k: Body, x: Any) -> Any:
    return k.compute("mul", x, k.compute("sigmoid", x))


def quotient(k: Body, x: Any) -> Any:
    return k.compute("div", x, k.compute("add", k.compute("exp", k.compute("neg", x)), 1.0))


EXACT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "quotient": torch.nn.functional.silu,
}


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("make", [gelu, silu, quotient], ids=lambda f: f.__name__)
def test_every_value(make: Any, dtype: torch.dtype, triton_run: Interpreter) -> None:
    """All 65536 values: the nearest 16-bit value or its neighbour, as exactly spelled; NaN, infinities."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    k, made = pointwise(make, len(x), dtype, dtype)
    assert any(w in made.code.source for w in ("bz_erf_short", "fast_expf("))
    y = torch.zeros_like(x)
    kernel_buffers = {b.name: b for b in made.buffers}
    triton_run.run(made, {kernel_buffers["x"]: x, kernel_buffers["y"]: y})
    want = EXACT[make.__name__](x.double())
    if make is quotient:  # -inf / inf
        want[x == float("-inf")] = float("nan")
    assert torch.equal(y.isnan(), want.isnan() | (x.isneginf() & y.isnan()))
    inside = want.isfinite() & x.isfinite()
    step = {BF16: 2**-8, F16: 2**-11}[dtype]
    least = {BF16: 1e-38, F16: 6e-8}[dtype]
    error = (y.double() - want).abs()[inside]
    assert bool(
        (error <= 1.01 * step * want.abs()[inside] + 3e-7 * x.double().abs()[inside].clamp(max=6) + least).all()
    )


@pytest.mark.parametrize("make", [gelu, silu, quotient], ids=lambda f: f.__name__)
def test_what_is_stored_in_32_bits_is_exact(make: Any) -> None:
    _, made = pointwise(make, 100, BF16, F32)
    assert "short" not in made.code.source and "fast_expf(" not in made.code.source


def test_erf_alone_is_exact() -> None:
    """Near zero its relative error would show."""
    _, made = pointwise(lambda k, x: k.compute("erf", x), 100, BF16, BF16)
    assert "short" not in made.code.source


def test_what_is_compared_is_exact() -> None:
    _, made = pointwise(
        lambda k, x: k.to(k.compute("lt", k.compute("exp", x), 1.0, dtype=torch.bool), F32), 99, BF16, BF16
    )
    assert "fast_expf(" not in made.code.source


SUMS: dict[str, Callable[[Body, Any], Any]] = {
    "of what may cancel": lambda k, e: k.fold("sum", k.compute("sub", e, 1.0)),
    "then its logarithm": lambda k, e: k.compute("log", k.fold("sum", e)),
    "a maximum": lambda k, e: k.fold("max", e),
}


@pytest.mark.parametrize("make", list(SUMS.values()), ids=list(SUMS))
def test_what_is_folded_is_exact(make: Callable[[Body, Any], Any]) -> None:
    k = Body({"i": 64}, {"j": 128})
    x, y = k.buffer("x", (64, 128), BF16), k.buffer("y", (64,), BF16)
    k.store(y, (k["i"],), make(k, k.compute("exp", k.load(x, k["i"], k["j"]))))
    assert "fast_expf(" not in emit_triton(k.kernel("k")).code.source


@pytest.mark.parametrize("n", [96, 20000], ids=["in registers", "in loops"])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_softmax(dtype: torch.dtype, n: int, triton_run: Interpreter) -> None:
    """Sums of exponentials in short form: as near to float64 as the rounding allows; masked elements, infinities."""
    k = Body({"i": 6}, {"j": n})
    x, y = k.buffer("x", (6, n), dtype), k.buffer("y", (6, n), dtype)
    v = k.load(x, k["i"], k["j"])
    e = k.compute("exp", k.compute("sub", v, k.fold("max", v)))
    k.store(y, (k["i"], k["j"]), k.compute("div", e, k.fold("sum", e)))
    made = emit_triton(k.kernel("k"))
    assert "fast_expf(" in made.code.source and "libdevice.exp" not in made.code.source
    data = (torch.randn(6, n) * 8).to(dtype)
    data[1, : n // 2] = float("-inf")
    data[2] = float("-inf")
    data[3, 0], data[4, 0], data[5] = float("inf"), 4e4, 0.0
    out = torch.zeros_like(data)
    triton_run.run(made, {b: data if b.name == "x" else out for b in made.buffers})
    want = torch.softmax(data.double(), 1)
    assert torch.equal(out.isnan(), want.isnan())
    inside = want.isfinite()
    step, least = (2**-8, 1e-38) if dtype is BF16 else (2**-11, 6e-8)
    error = (out.double() - want).abs()[inside]
    assert bool((error <= (step + 2e-5) * want[inside] + least).all())


@pytest.mark.parametrize("n", [100, 17000])
@pytest.mark.parametrize("given", [BF16, F32], ids=str)
def test_logarithm_of_a_sum(given: torch.dtype, n: int, triton_run: Interpreter) -> None:
    """Of exponentials below 1 of 16-bit values: short, in 32 bits too. Of 32-bit values: exact."""
    k = Body({"i": 4}, {"j": n})
    x, y = k.buffer("x", (4, n), given), k.buffer("y", (4,), F32)
    v = k.load(x, k["i"], k["j"])
    most = k.fold("max", v)
    total = k.fold("sum", k.compute("exp", k.compute("sub", v, most)))
    k.store(y, (k["i"],), k.compute("add", k.compute("log", total), most))
    made = emit_triton(k.kernel("k"))
    assert ("fast_expf(" in made.code.source) == (given is BF16)
    data = (torch.randn(4, n) * 3).to(given)
    data[1], data[2, 1:], data[3, 5] = float("-inf"), -40.0, float("inf")
    out = torch.zeros(4)
    triton_run.run(made, {b: data if b.name == "x" else out for b in made.buffers})
    want = torch.logsumexp(data[[0, 2]].double(), 1)
    assert bool(((out[[0, 2]] - want).abs() <= 2e-6 * want.abs().clamp(min=1)).all())
    assert bool(out[[1, 3]].isnan().all())  # exp(-inf - -inf), exp(inf - inf)


def test_another_use_counts() -> None:
    """The same value, stored in 16 and in 32 bits."""
    k = Body({"i": 64})
    x, y, z = k.buffer("x", (64,), BF16), k.buffer("y", (64,), BF16), k.buffer("z", (64,), F32)
    v = k.compute("exp", k.load(x, k["i"]))
    k.store(y, (k["i"],), v)
    k.store(z, (k["i"],), v)
    assert "fast_expf(" not in emit_triton(k.kernel("k")).code.source
