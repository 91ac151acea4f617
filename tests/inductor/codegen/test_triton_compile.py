"""Generated Triton source compiles to machine code for NVIDIA and AMD cards; no card needed. And it is what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from triton_cases import CASES, Body, every_primitive

from braze.inductor.codegen.triton_emit import emit_triton
from braze.inductor.codegen.triton_ops import OPS, template
from braze.ir import symbol
from braze.prims import PRIMS
from braze.prims.elementwise import DTYPES
from braze.runtime.cuda_compile import Pool, request
from braze.runtime.cuda_kernel import TritonKernel

F32, BF16 = torch.float32, torch.bfloat16
TARGETS = ("cuda:90", "hip:gfx942")


@pytest.fixture(scope="module")
def compile_pool() -> Any:
    pool = Pool(2)
    pool.warm(2)
    yield pool
    pool.close()


def compile_all(pool: Pool, kernels: list[TritonKernel], target: str) -> list[tuple[dict[str, Any], bytes]]:
    jobs = [pool.submit(request(k, target)) for k in kernels]
    out = [j.result(timeout=240) for j in jobs]
    for kernel, (answer, _) in zip(kernels, out):
        assert "error" not in answer, f"{kernel.name} for {target}: {answer['error']}\n{kernel.source}"
    return out


@pytest.mark.parametrize("target", TARGETS)
def test_zoo_compiles(compile_pool: Pool, target: str) -> None:
    kernels = [emit_triton(f(96, 200, BF16).kernel).code for f in CASES.values()]
    kernels += [emit_triton(CASES[n](4, 40000, BF16).kernel).code for n in ("layer_norm", "cross_entropy", "argmax")]
    for answer, image in compile_all(compile_pool, kernels, target):
        assert image[:4] == b"\x7fELF"
        assert not answer["global_scratch_size"] and not answer["profile_scratch_size"]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_launch_of_the_zoo_compiles(compile_pool: Pool, target: str) -> None:
    kernels = []
    for f in CASES.values():
        for columns in (1024, 3000, 30000):
            code = emit_triton(f(4096, columns, BF16).kernel).code
            kernels += [code, code.unaligned(), *(code.with_launch(c) for c in code.candidates)]
    compile_all(compile_pool, kernels, target)


@pytest.mark.parametrize("target", TARGETS)
def test_every_primitive_compiles(compile_pool: Pool, target: str) -> None:
    kernels = [emit_triton(every_primitive(t, 1000)[0]).code for t in (F32, torch.int32, torch.bool)]
    compile_all(compile_pool, kernels, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_primitive_compiles_for_other_types(compile_pool: Pool, target: str) -> None:
    types = (torch.float64, torch.int8, torch.int16, torch.int64, torch.uint8)
    compile_all(compile_pool, [emit_triton(every_primitive(t, 1000)[0]).code for t in types], target)


def test_no_primitive_lacks_a_spelling() -> None:
    """Every elementwise primitive, on every dtype that it takes (16-bit floats compute in f32)."""
    missing = []
    for name, prim in PRIMS.items():
        if prim.family == "elementwise" and name != "convert":
            for dtype in DTYPES.get(name, ()):
                if dtype not in (BF16, torch.float16):
                    try:
                        template(name, dtype)
                    except Exception:
                        missing.append((name, dtype))
    assert not missing
    assert set(OPS) <= set(PRIMS) | {"philox"}


@pytest.mark.parametrize(
    "name", ["bias_gelu", "softmax", "layer_norm_backward", "column_sum", "channels_last", "dropout"]
)
def test_golden_source(golden: Any, name: str) -> None:
    golden(f"triton/{name}.py", emit_triton(CASES[name](4096, 1024, BF16).kernel).code.source)


def test_golden_looped_source(golden: Any) -> None:
    golden("triton/softmax_looped.py", emit_triton(CASES["softmax"](64, 50000, BF16).kernel).code.source)


def test_wide_loads() -> None:
    """Contiguous bf16 moves 16 bytes at a time, and a row's value is loaded once a thread, not once a column."""
    from braze.runtime.cuda_worker import compile_source, configure

    configure()
    for name, rows, columns, wide, narrow in (("add_relu", 4096, 1024, 4, 0), ("layer_norm_backward", 8192, 128, 4, 5)):
        code = emit_triton(CASES[name](rows, columns, BF16).kernel).code
        _, text = compile_source({**request(code, "cuda:90"), "until": "ptx"})
        ptx = text.decode()
        assert (ptx.count("ld.global.v4"), ptx.count("ld.global.b32")) == (wide, narrow), name


@pytest.mark.parametrize("n, width, loads", [(768, 4, 2), (100, 2, 4)])
def test_symbolic_sizes_load_whole_vectors(n: int, width: int, loads: int, compile_pool: Pool) -> None:
    """What the shapes prove to divide a size is told to Triton, so that masked loads of bf16 stay wide."""
    rows = symbol("s0", 2, 2**20, hint=4096)
    k = Body({"i": rows, "j": n})
    x, y = k.buffer("x", (rows, n), BF16), k.buffer("y", (rows, n), BF16)
    k.store(y, (k["i"], k["j"]), k.compute("exp", k.load(x, k["i"], k["j"])))
    code = emit_triton(k.kernel("k")).code
    blind = replace(code, divisible=())
    asked = [{**request(c, "cuda:90"), "until": "ptx"} for c in (code, blind)]
    told, untold = (compile_pool.submit(r).result(timeout=240)[1].decode() for r in asked)
    assert f"ld.global.v{width}" in told and told.count("ld.global") == loads
    assert untold.count("ld.global") == 16
    assert blind.key("t") != code.key("t")
