"""Achieved bandwidth of generated kernels against a copy and against eager, after a check of their values.

    python benchmarks/gpu/kernels.py [--cases softmax,layer_norm] [--sweep] [--json FILE]

``--sweep`` also times other block sizes.  Bytes are those that must move (each buffer once); rates in GB/s.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from zoo import CASES, Case

from braze.config import Config
from braze.inductor.codegen import triton_tiling
from braze.inductor.codegen.triton_emit import _EMITTED, Emitted, emit_triton
from braze.runtime.cuda import Loaded, driver, load_kernels_cuda, start_kernels_cuda, target
from braze.runtime.cuda_compile import compiler
from braze.runtime.cuda_kernel import Launch
from braze.runtime.cuda_launch import fast_function

BF16, F32 = torch.bfloat16, torch.float32
SIZES: list[tuple[str, int, int]] = [
    ("bias_gelu", 65536, 3072),
    ("add_relu", 65536, 3072),
    ("softmax", 131072, 128),
    ("softmax", 65536, 1024),
    ("softmax", 8192, 32768),
    ("layer_norm", 131072, 768),
    ("layer_norm", 65536, 4096),
    ("layer_norm_backward", 131072, 768),
    ("column_sum", 131072, 768),
    ("row_sum", 131072, 768),
    ("batch_norm_stats", 256, 200704),
    ("batch_norm_apply", 256, 200704),
    ("cross_entropy", 8192, 30522),
    ("transpose", 16384, 8192),
    ("channels_last", 256, 200704),
    ("embedding", 131072, 768),
    ("embedding_backward", 32768, 768),
    ("dropout", 65536, 3072),
    ("argmax", 65536, 1024),
    ("pool", 65536, 3072),
]


def milliseconds(fn: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(fn, warmup=5, rep=25, return_mode="median"))


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    want = want.double()
    return float((got.double() - want).norm() / want.norm().clamp_min(1e-300))


def memory_of(case: Case) -> tuple[dict[str, torch.Tensor], dict[Any, torch.Tensor]]:
    inputs = case.inputs("cuda")
    memory = {}
    for b in case.buffers.values():
        sizes = [int(n) for n in b.type.sizes]  # type: ignore[call-overload]
        fill = 0 if b.name in case.zeroed else 77
        memory[b] = inputs[b.name] if b.name in inputs else torch.full(sizes, fill, dtype=b.type.dtype, device="cuda")
    return inputs, memory


def copy_rate() -> float:
    a = torch.randn(2**30, device="cuda").to(BF16)
    b = torch.empty_like(a)
    return 2 * a.nbytes / milliseconds(lambda: b.copy_(a)) / 1e6


def check(name: str) -> list[str]:
    """Errors against fp64 at a small size, eager's beside them."""
    out = []
    for dtype in (F32, BF16):
        case = CASES[name](256, 1024, dtype)
        inputs, memory = memory_of(case)
        made = emit_triton(case.kernel)
        load_kernels_cuda([made.code], 0)[0](*[memory[b] for b in made.buffers])
        wide = case.eager(**{n: t.double() if t.is_floating_point() else t for n, t in inputs.items()})
        eager = case.eager(**inputs)
        for k, want in wide.items():
            mine, theirs = error(memory[case.buffers[k]], want), error(eager[k], want)
            if mine > (0 if case.exact else 2 * theirs + 1e-7):
                out.append(f"{name} {dtype} {k}: {mine:.2e} (eager {theirs:.2e})")
    return out


def variants(case: Case, sweep: bool) -> Iterator[tuple[str, Emitted]]:
    """The chosen launch, the candidates, and with ``sweep`` others."""
    made = emit_triton(case.kernel)
    yield "chosen", made
    for c in made.code.candidates:
        yield "candidate", Emitted(made.code.with_launch(c), made.buffers, made.sizes)
    if not sweep:
        return
    if made.code.assertions:
        source = "\n".join(line for line in made.code.source.split("\n") if "device_assert" not in line)
        yield "no assertion", replace(made, code=replace(made.code, source=source, assertions=False))
    makers = ("_row_launches", "_loop_launches", "_outer_launches")
    old = {n: getattr(triton_tiling, n) for n in makers}
    blocks = dict(made.code.launch.blocks)
    if "for roffset" in made.code.source or "RBLOCK" in blocks:
        if case.kernel.name == "column_sum":
            grid = [(x, b, w) for x in (32, 64, 128) for b in (16, 32, 64) for w in (4, 8)]
        elif "for roffset" in made.code.source:
            grid = [(1, b, w) for b in (1024, 2048, 4096, 8192) for w in (4, 8, 16)]
        else:
            grid = [(x, blocks["RBLOCK"], w) for x in (1, 2, 4, 8, 16) for w in (1, 2, 4, 8, 16)]
            grid = [(x, b, w) for x, b, w in grid if 4 <= x * b / (32 * w) <= 32]
        for x, b, w in grid:
            choice = [Launch((("XBLOCK", x), ("RBLOCK", b)), w)]
            for n in makers:
                setattr(triton_tiling, n, lambda *_, c=choice: c)
            _EMITTED.clear()
            yield "sweep", emit_triton(case.kernel)
        for n in makers:
            setattr(triton_tiling, n, old[n])
        _EMITTED.clear()
    elif list(blocks) == ["XBLOCK"]:
        for b, w in ((512, 2), (512, 4), (1024, 2), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8)):
            yield "sweep", replace(made, code=made.code.with_launch(Launch((("XBLOCK", b),), w)))
    elif set(blocks) == {"XBLOCK", "YBLOCK"}:
        for y, x, w in ((32, 32, 4), (32, 64, 4), (64, 32, 4), (64, 64, 4), (64, 64, 8), (128, 32, 8), (32, 128, 8)):
            yield "sweep", replace(made, code=made.code.with_launch(Launch((("YBLOCK", y), ("XBLOCK", x)), w)))


def host_time() -> tuple[float, float]:
    """Microseconds of host time a launch, and without the driver's part."""
    case = CASES["add_relu"](32, 64, F32)
    _, memory = memory_of(case)
    made = emit_triton(case.kernel)
    run = load_kernels_cuda([made.code], 0)[0]
    args = [memory[b] for b in made.buffers]
    make = compiler(target(0), Config.from_env())
    loaded = Loaded(made.code, 0, make, make.submit(made.code).result())
    spare = ctypes.c_void_p()  # cuCtxGetCurrent in the launch's place writes here and returns 0
    fields = {**loaded.fields(), "function": ctypes.addressof(spare), "launch": driver().address("cuCtxGetCurrent")}
    out = []
    for f in (run, fast_function(made.code, fields, loaded)):
        best = 1e9
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(500):  # below the depth of the launch queue
                f(*args)
            best = min(best, (time.perf_counter() - start) / 500)
        out.append(best * 1e6)
    torch.cuda.synchronize()
    return out[0], out[1]


def compile_time(made: list[Emitted]) -> tuple[int, float, float]:
    """(kernels, seconds cold, seconds from disk) for distinct kernels."""
    import tempfile

    codes = list({m.code: None for m in made})
    config = replace(Config(), cache_dir=tempfile.mkdtemp())
    start = time.perf_counter()
    for f in start_kernels_cuda(codes, 0, config):
        f.exception()
    cold = time.perf_counter() - start
    compiler.cache_clear()
    start = time.perf_counter()
    for f in start_kernels_cuda(codes, 0, config):
        f.exception()
    return len(codes), cold, time.perf_counter() - start


def measure(name: str, m: int, n: int, sweep: bool, copy: float) -> list[dict[str, Any]]:
    case = CASES[name](m, n, BF16)
    inputs, memory = memory_of(case)
    made = [v for v in variants(case, sweep)]
    functions = []
    for kind, v in made:
        try:
            functions.append((kind, v, load_kernels_cuda([v.code], 0)[0]))
        except Exception as e:
            print(f"  {name} {v.code.launch} does not compile: {str(e)[:200]}")
    eager = milliseconds(lambda: case.eager(**inputs))
    rows = []
    for kind, v, run in functions:
        args = [memory[b] for b in v.buffers]
        ms = milliseconds(partial(run, *args))
        launch = v.code.launch
        rate = case.nbytes / ms / 1e6
        rows.append(
            {"case": name, "size": [m, n], "kind": kind, "blocks": dict(launch.blocks), "warps": launch.num_warps}
            | {"ms": ms, "rate": rate, "of_copy": rate / copy, "over_eager": eager / ms}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    wanted = options.cases.split(",") if options.cases else list(CASES)
    print(f"{torch.cuda.get_device_name()} {target(0)}, torch {torch.__version__}")
    bench = [emit_triton(CASES[c](m, n, BF16).kernel) for c, m, n in SIZES]
    bench += [emit_triton(f(4096, n, BF16).kernel) for f in CASES.values() for n in (768, 1024)]
    count, cold, warm = compile_time(bench)
    print(f"compile: {count} kernels, {cold:.2f} s cold, {warm:.4f} s from disk")
    wrong = [line for name in wanted for line in check(name)]
    print("\n".join(["wrong values:", *wrong]) if wrong else "values: all within twice eager's error")
    whole, own = host_time()
    print(f"host time of a launch: {whole:.2f} us, without the driver's call {own:.2f} us")
    copy = copy_rate()
    print(f"copy: {copy:.0f} GB/s")
    rows = []
    for name, m, n in SIZES:
        if name in wanted:
            now = measure(name, m, n, options.sweep, copy)
            rows += now
            chosen, best = now[0], max(now, key=lambda r: r["rate"])
            text = f"{name:20} {m:6} x {n:6} {chosen['ms']:7.3f} ms {chosen['rate']:6.0f} GB/s"
            text += f" {chosen['of_copy']:5.2f} of copy {chosen['over_eager']:6.2f}x eager"
            text += f"   {chosen['blocks']} {chosen['warps']}w"
            for r in now:
                if r["kind"] == "no assertion":
                    text += f"   {r['of_copy']:.2f} without assertions"
            if best["rate"] > 1.03 * chosen["rate"]:
                text += f"   best {best['of_copy']:.2f}: {best['blocks']} {best['warps']}w"
            print(text, flush=True)
            torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
