"""CPU kernels that users write with llvmlite's builder (``@braze.primitive(..., llvm=...)``)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from braze.api import log_of
from braze.ir import TensorType, contiguous_strides
from braze.runtime import cpu_user

seen: list[str] = []


def emit_decay(k: Any, out: Any, x: Any, rate: Any) -> None:
    """out[i] = rate * out[i - 1] + x[i] along each row."""
    seen.append("decay")
    out, x = out.row(k.unit), x.row(k.unit)
    rate, last = k.value(rate, x.type), k.variable(k.value(0.0, x.type))
    with k.loop(x.sizes[-1]) as i:
        last.set(k.b.fadd(k.b.fmul(rate, last.get()), x.load(i)))
        out.store(last.get(), i)


def decayed(x: torch.Tensor, rate: float = 0.5) -> torch.Tensor:
    wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
    last, out = wide.new_zeros(x.shape[:-1]), []
    for piece in wide.unbind(-1):
        last = rate * last + piece
        out.append(last)
    return torch.stack(out, -1).to(x.dtype) if out else x.clone()


@braze.primitive(
    "test_llvm::decay(Tensor x, float rate=0.5) -> Tensor",
    llvm=emit_decay,
    derivative=lambda grad, x, rate: (decay(grad.flip(-1), rate).flip(-1), None),
)
def decay(x: Any, rate: float = 0.5) -> Any:
    seen.append("python")
    return decayed(x, rate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_in_eager_and_in_a_graph(dtype: torch.dtype) -> None:
    seen.clear()
    x = torch.randn(7, 9, dtype=dtype)
    fast = braze.compile(lambda x: decay(x * 2, 0.25) - 1, fullgraph=True)
    torch.testing.assert_close(fast(x), decayed(x * 2, 0.25) - 1)
    torch.testing.assert_close(decay(x.t()), decayed(x.t()))  # made contiguous first
    assert "python" not in seen
    log = log_of(fast)
    assert log is not None and not log.graphs[0].fallback


def test_made_once_for_all_sizes_numbers_and_threads() -> None:
    x = torch.randn(3, 5)
    decay(x)
    seen.clear()
    for sizes in ((1, 8), (40, 2), (0, 4), (4, 0), (17,)):
        y = torch.randn(sizes)
        torch.testing.assert_close(decay(y, 0.75), decayed(y, 0.75))
    assert seen in ([], ["decay"])  # of one dim: another form
    many = torch.randn(300, 400)
    threads = torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            torch.testing.assert_close(decay(many), decayed(many))
    finally:
        torch.set_num_threads(threads)


def test_derivative_and_symbolic_sizes() -> None:
    fast = braze.compile(lambda x: (decay(x.sin(), 0.5) * x).sum(), fullgraph=True, dynamic=True)
    for n in (4, 6, 9):
        x = torch.randn(n, 5, dtype=torch.float64, requires_grad=True)
        want = torch.autograd.grad((decayed(x.sin()) * x).sum(), x)[0]
        torch.testing.assert_close(torch.autograd.grad(fast(x), x)[0], want)
    log = log_of(fast)
    assert log is not None and len(log.graphs) == 1


def test_what_kernels_cannot_hold_runs_the_implementation() -> None:
    seen.clear()
    x = torch.randn(2, 3, dtype=torch.complex64)
    torch.testing.assert_close(decay(x), decayed(x))
    assert seen == ["python"]


def _columns(x: TensorType, limit: int) -> tuple[TensorType, TensorType]:
    sizes = x.sizes[1:]
    return (
        TensorType(sizes, contiguous_strides(sizes), x.dtype, x.device),
        TensorType(sizes, contiguous_strides(sizes), torch.int64, x.device),
    )


def emit_first(k: Any, value: Any, at: Any, x: Any, limit: Any) -> None:
    """The first element over ``limit`` of each column, and where it is: a loop that data ends."""
    rows, columns = x.sizes
    found, place = k.variable(k.value(0, x.type)), k.variable(k.index(-1))
    i = k.variable(k.index(0))
    head, body, after = (k.b.append_basic_block(n) for n in ("scan", "look", "found"))
    k.b.branch(head)
    k.b.position_at_end(head)
    k.b.cbranch(k.b.icmp_signed("<", i.get(), rows), body, after)
    k.b.position_at_end(body)
    element = x.load(k.b.add(k.b.mul(i.get(), columns), k.unit))
    is_it = k.b.icmp_signed(">", element, k.value(limit, x.type))
    with k.b.if_then(is_it):
        found.set(element)
        place.set(i.get())
        k.b.branch(after)
        k.b.position_at_end(k.b.append_basic_block("never"))
    i.set(k.b.add(i.get(), k.index(1)))
    k.b.branch(head)
    k.b.position_at_end(after)
    value.store(found.get(), k.unit)
    at.store(place.get(), k.unit)


@braze.primitive(
    "test_llvm::first_over(Tensor x, int limit) -> (Tensor, Tensor)",
    shape=_columns,
    llvm=emit_first,
    units=lambda x, limit: x.sizes[1],
)
def first_over(x: Any, limit: int) -> Any:
    over = x > limit
    at = torch.where(over.any(0), over.int().argmax(0), -1)
    return torch.where(at >= 0, x.gather(0, at.clamp(min=0)[None])[0], 0), at


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8])
def test_several_results_integers_and_units(dtype: torch.dtype) -> None:
    x = torch.randint(-9, 9, (6, 50), dtype=dtype)
    over = x > 5
    at = torch.where(over.any(0), over.int().argmax(0), -1)
    value = torch.where(at >= 0, x.gather(0, at.clamp(min=0)[None])[0], 0)
    fast = braze.compile(lambda x: first_over(x, 5), fullgraph=True)
    for got in (first_over(x, 5), fast(x)):
        torch.testing.assert_close(got, (value.to(dtype), at))


def emit_convert(k: Any, out: Any, x: Any, how: str) -> None:
    seen.append(how)
    with k.loop(x.sizes[0]) as i:
        value = x.load(i)
        out.store(k.call("exp", value) if how == "exp" else k.call("sqrt", value) if how == "sqrt" else value, i)


@braze.primitive(
    "test_llvm::convert(Tensor x, str how, ScalarType? dtype=None) -> Tensor",
    shape=lambda x, how, dtype=None: TensorType(x.sizes, x.strides, dtype or x.dtype, x.device),
    llvm=lambda k, out, x, how, dtype: emit_convert(k, out, x, how),
    units=lambda *args: 1,
)
def convert(x: Any, how: str, dtype: Any = None) -> Any:
    raise AssertionError("the kernel runs")


def test_sixteen_bit_floats_round_as_torchs() -> None:
    bits = torch.randint(-(2**31), 2**31, (20000,), dtype=torch.int32)
    x = torch.cat([bits.view(torch.float32), torch.tensor([float("nan"), float("inf"), -0.0, 1 + 2**-9, 3.0e38])])
    for dtype in (torch.bfloat16, torch.float16):
        torch.testing.assert_close(convert(x, "", dtype), x.to(dtype), rtol=0, atol=0, equal_nan=True)
        y = x.to(dtype)
        torch.testing.assert_close(convert(y, "", torch.float32), y.float(), rtol=0, atol=0, equal_nan=True)
    flags = torch.tensor([True, False, True])
    torch.testing.assert_close(convert(flags, "", torch.float32), flags.float())
    torch.testing.assert_close(convert(torch.tensor([3.0, -2.5]), "", torch.int64), torch.tensor([3, -2]))
    assert convert(flags, "").tolist() == [True, False, True]


def test_functions_of_the_mathematical_library_and_constants() -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.rand(100, dtype=dtype)
        torch.testing.assert_close(convert(x, "exp"), x.exp())
        torch.testing.assert_close(convert(x, "sqrt"), x.sqrt())
    with pytest.raises(ValueError, match="no function nonsensef of float"):
        kernel = cpu_user.UserKernel("test::bad", lambda k, out, x: k.call("nonsense", x.load(0)))
        kernel(1, [torch.empty(2)], [torch.ones(2)])


def test_wrong_code_is_said() -> None:
    def emit(k: Any, out: Any, x: Any) -> None:
        k.b.branch(k.b.append_basic_block("empty"))
        k.b.position_at_end(k.b.append_basic_block("lost"))

    kernel = cpu_user.UserKernel("test::wrong", emit)
    with pytest.raises(ValueError, match="LLVM kernel of test::wrong is not valid"):
        kernel(1, [torch.empty(2)], [torch.ones(2)])


def test_loops_without_a_recurrence_are_vectorised() -> None:
    def emit(k: Any, out: Any, x: Any) -> None:
        out, x = out.row(k.unit), x.row(k.unit)
        with k.loop(x.sizes[-1]) as i:
            out.store(k.b.fmul(x.load(i), x.load(i)), i)

    form = ("tensor", torch.float32, 2)
    text = cpu_user._optimised("test::square", str(cpu_user._module(emit, (form,), (form,))))
    assert " x float>" in text
