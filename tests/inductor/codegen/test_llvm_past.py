"""Stores past the caches: taken for large results alone, right wherever the tensors lie."""

from __future__ import annotations

import dataclasses
import mmap

import pytest
import torch
from arm import neon
from llvm_case import axis, kernel, restricted

from braze.inductor.codegen.llvm_module import emit_source
from braze.inductor.codegen.program import kernel_order
from braze.inductor.loops import Buffer, Compute, Kernel, Load, Store
from braze.ir import tensor_type
from braze.runtime.cpu import Target, host_target, load_kernels


def small_cache(cache: int, name: str = "") -> Target:
    target = restricted(name) if name else host_target()
    if not target.triple.startswith("x86"):
        pytest.skip("needs an x86 machine")
    return dataclasses.replace(target, last_cache=cache)


def add(sizes: tuple[int, ...], strides: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> Kernel:
    """out[i] = a[i] + b[i] with these strides of a, b and out."""
    axes = [axis(f"i{k}", n) for k, n in enumerate(sizes)]
    place = tuple(e for e, _ in axes)
    a, b, out = (Buffer(n, tensor_type(sizes, dtype, strides=s)) for n, s in zip("abo", strides))
    x, y = Load(a, place), Load(b, place)
    if not dtype.is_floating_point or dtype.itemsize > 2:
        z = Compute("add", (x, y), dtype)
        return kernel([a for _, a in axes], [], [x, y, z, Store(out, place, z)])
    wide = [Compute("convert", (v,), torch.float32) for v in (x, y)]
    z = Compute("add", tuple(wide), torch.float32)
    rounded = Compute("convert", (z,), dtype)
    return kernel([a for _, a in axes], [], [x, y, *wide, z, rounded, Store(out, place, rounded)])


def run(k: Kernel, target: Target, memory: dict[str, torch.Tensor]) -> None:
    (f,) = load_kernels([emit_source(k, target)], None, target)
    buffers, _ = kernel_order(k)
    f(*(memory[b.name] for b in buffers))


def goes_past(k: Kernel, target: Target) -> bool:
    return "nontemporal" in emit_source(k, target).text


@pytest.mark.parametrize("name", ["", "avx2", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8])
@pytest.mark.parametrize("sizes", [(8192,), (8191,), (16, 512), (16, 500), (3, 1024)])
def test_results_are_right_at_every_alignment(name: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    target = small_cache(4096, name)
    n = sizes[-1]
    strides = (n, 1)[-len(sizes) :]
    k = add(sizes, (strides,) * 3, dtype)
    count = n * (sizes[0] if len(sizes) > 1 else 1)
    if dtype == torch.float32 and n % 64 == 0 and name != "plain":  # else a vector may be half a line
        assert goes_past(k, target)
    torch.manual_seed(0)
    a, b = ((torch.randn(count) * 20).abs().to(dtype).view(sizes) for _ in range(2))
    for shift in (0, 1, 3, 64 // dtype.itemsize):
        memory = torch.zeros(count + 130, dtype=dtype)
        out = memory[shift : shift + count].view(sizes)
        run(k, target, {"a": a, "b": b, "o": out})
        assert torch.equal(out, a + b)
        assert not memory[:shift].any() and not memory[shift + count :].any()


def test_a_result_in_an_operands_memory() -> None:
    target = small_cache(4096)
    k = add((8192,), ((1,),) * 3, torch.float32)
    a, b = torch.randn(8192), torch.randn(8192)
    want = a + b
    run(k, target, {"a": a, "b": b, "o": a})
    assert torch.equal(a, want)


def test_a_transposed_operand() -> None:
    target = small_cache(4096)
    for rows, columns in ((64, 96), (70, 96), (96, 70)):
        k = add((rows, columns), ((1, rows), (columns, 1), (columns, 1)), torch.float32)
        a, b = torch.randn(columns, rows).t(), torch.randn(rows, columns)
        out = torch.zeros(rows, columns)
        run(k, target, {"a": a, "b": b, "o": out})
        assert torch.equal(out, a + b)


def test_only_large_results_go_past() -> None:
    k = add((8192,), ((1,),) * 3, torch.float32)  # touches 96 KiB
    assert goes_past(k, small_cache(1 << 16))
    assert not goes_past(k, small_cache(1 << 17))
    assert not goes_past(k, small_cache(0))
    assert not goes_past(k, dataclasses.replace(neon(), last_cache=1 << 16))


def test_sums_and_rows_that_begin_within_lines_stay() -> None:
    assert not goes_past(add((256, 500), ((510, 1),) * 3, torch.float32), small_cache(4096))
    e, a = axis("i", 8192)
    out = Buffer("o", tensor_type((8192,), torch.float32))
    x = Load(Buffer("a", tensor_type((8192,), torch.float32)), (e,))
    assert not goes_past(kernel([a], [], [x, Store(out, (e,), x, mode="sum")]), small_cache(4096))


def test_memory_that_is_not_mapped_yet() -> None:
    target, n = small_cache(4096), 1 << 20
    k = add((n,), ((1,),) * 3, torch.float32)
    a, b = torch.randn(n), torch.randn(n)
    fresh = torch.frombuffer(mmap.mmap(-1, 4 * n), dtype=torch.float32)
    for _ in range(2):
        run(k, target, {"a": a, "b": b, "o": fresh})
        assert torch.equal(fresh, a + b)
        fresh.zero_()
