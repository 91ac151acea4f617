"""The launcher, with functions made here in the driver's place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("llvmlite")

from braze.runtime.cuda_kernel import GridDim, Launch, TritonKernel
from braze.runtime.cuda_launch import arguments, fast_function

KERNEL = TritonKernel(
    "k",
    "",
    (("a", "*fp32"), ("b", "*fp32"), ("n", "i32"), ("m", "i64")),
    (GridDim("n", "XBLOCK"), GridDim("m", ""), GridDim(3, "")),
    Launch((("XBLOCK", 128),)),
)
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
CURRENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))


class FakeDriver:
    def __init__(self, result: int = 0, context: int = 777) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.slow: list[tuple[Any, ...]] = []
        self.result, self.context = result, context
        self.functions = LAUNCH(self.launch), CURRENT(self.current), STREAM(self.stream)

    def launch(self, f: int, gx: int, gy: int, gz: int, tx: int, ty: int, tz: int, *rest: Any) -> int:
        shared, stream, params, _ = rest
        values = [ctypes.c_int64.from_address(params[i]).value for i in range(6)]
        self.launches.append(((f, gx, gy, gz, tx, ty, tz, shared, stream), values))
        return self.result

    def current(self, out: Any) -> int:
        out[0] = self.context
        return 0

    def stream(self, device: int, out: Any) -> int:
        out[0] = 1000 + device
        return 0

    def function(self, alignment: int = 15, kernel: TritonKernel = KERNEL) -> Callable[..., None]:
        launch, current, stream = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self.functions)
        fields = {"function": 42, "context": 777, "threads": 128, "shared": 16, "device": 2, "alignment": alignment}
        fields.update(launch=launch, current=current, stream=stream)

        def slow(*args: Any) -> None:
            self.slow.append(args)

        return fast_function(kernel, fields, slow)


A, B = torch.zeros(64), torch.nn.Parameter(torch.zeros(8))


def test_launch_arguments() -> None:
    d = FakeDriver()
    assert d.function()(A, B, 1000, 2**40 + 1 - 2**40) is None
    ((head, values),) = d.launches
    assert head == (42, 8 * 1 * 3, 1, 1, 128, 1, 1, 16, 1002)
    assert values == [A.data_ptr(), B.data_ptr(), 1000, 1, 0, 0]  # then the two scratch pointers
    assert not d.slow


def test_nothing_to_do() -> None:
    d = FakeDriver()
    d.function()(A, B, 0, 5)
    assert not d.launches and not d.slow


class Sub(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "args",
    [(A[1:], B, 8, 1), (A, B, 8), (A, 3, 8, 1), (A, B.data.as_subclass(Sub), 8, 1), (A, B, 2**40, 2**20)],
    ids=["unaligned", "count", "type", "subclass", "grid too large"],
)
def test_the_rest_takes_the_slow_path(args: tuple[Any, ...]) -> None:
    d = FakeDriver()
    d.function()(*args)
    assert not d.launches and len(d.slow) == 1 and len(d.slow[0]) == len(args)


def test_unaligned_pointers_are_fine_where_nothing_is_assumed() -> None:
    d = FakeDriver()
    d.function(alignment=0)(A[1:], B, 8, 1)
    assert d.launches and d.launches[0][1][0] == A.data_ptr() + 4


def test_another_context_and_driver_errors_take_the_slow_path() -> None:
    other = FakeDriver(context=778)
    other.function()(A, B, 8, 1)
    assert not other.launches and other.slow
    failing = FakeDriver(result=700)
    failing.function()(A, B, 8, 1)
    assert failing.launches and failing.slow


def test_errors_of_the_slow_path_are_raised() -> None:
    def slow(*args: Any) -> None:
        raise RuntimeError("illegal address")

    d = FakeDriver()
    fields = dict.fromkeys(("function", "context", "threads", "shared", "device", "alignment", "launch"), 1)
    f = fast_function(KERNEL, {**fields, "current": 1, "stream": 1}, slow)
    with pytest.raises(RuntimeError, match="illegal address"):
        f(A)
    assert not d.launches


def test_no_reference_leaks() -> None:
    import sys

    f = FakeDriver().function()
    before = sys.getrefcount(A), sys.getrefcount(B)
    for _ in range(100):
        f(A, B, 8, 1)
    assert (sys.getrefcount(A), sys.getrefcount(B)) == before


def test_many_arguments() -> None:
    n = 200
    signature = tuple((f"p{i}", "*fp32") for i in range(n))
    kernel = TritonKernel("many", "", signature, (GridDim(5, ""),), Launch(()))
    d = FakeDriver()
    tensors = [torch.zeros(1) for _ in range(n)]
    d.function(kernel=kernel)(*tensors)
    assert d.launches[0][1] == [t.data_ptr() for t in tensors[:6]]


def test_arguments_in_python() -> None:
    values, integers = arguments(KERNEL, (A, B, 8, 1))
    assert values == [A.data_ptr(), B.data_ptr(), 8, 1] and integers == {"n": 8, "m": 1}
    with pytest.raises(TypeError, match="takes 4 arguments, got 3"):
        arguments(KERNEL, (A, B, 8))
