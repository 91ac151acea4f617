"""Matrix products with what follows them: the vendor's call and the kernel after it against one Triton kernel.

    python benchmarks/gpu/matmul.py [--only bert] [--all] [--seconds 60] [--json out.json]

Shapes of BERT-base (b32 x 128), the hybrid (b64), ViT-B (b64 x 197) and a Llama of 1B (4 x 1024), bf16 and tf32. Each
line: microseconds and TFLOP/s of the product alone (vendor), of the vendor's product with its epilogue kernel, and of
the best template, the template's name, and the largest error of the chosen way over that of eager, both against
float64. What ``max-autotune`` keeps is the faster of the last two. ``--all`` times many tilings instead of the cost
model's few, and prints the best five.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

import braze
from braze.inductor.codegen import products
from braze.inductor.codegen.product_tiles import Tile
from braze.runtime.cuda_choice import Choice, timed

Case = tuple[str, Callable[..., Any], tuple[torch.Tensor, ...], tuple[int, int, int], torch.Tensor]
BF16, F32 = torch.bfloat16, torch.float32


def gelu(x: Any, w: Any, b: Any) -> Any:
    p = F.linear(x, w, b)
    return p, F.gelu(p)


def gelu_alone(x: Any, w: Any, b: Any) -> Any:
    return F.gelu(F.linear(x, w, b))


def gated(x: Any, w: Any, g: Any) -> Any:
    p = x @ w.t()
    return p, F.silu(g) * p


def gelu_gradient(dy: Any, w: Any, h: Any) -> Any:
    return torch.ops.aten.gelu_backward(dy @ w, h)


def gelu_backward(dy: Any, w: Any, h: Any) -> Any:
    g = torch.ops.aten.gelu_backward(dy @ w, h)
    return g, g.sum(0)


def residual(x: Any, w: Any, b: Any, r: Any) -> Any:
    return F.linear(x, w, b) + r


def weight_gradient(dy: Any, x: Any) -> Any:
    return (dy.t() @ x).float()


def cases() -> Iterator[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...], tuple[int, int, int], torch.dtype]]:
    """(name, function, sizes of its tensors, (m, n, k), dtype)"""
    for name, m, d, wide in (("bert", 4096, 768, 3072), ("hybrid", 64 * 196, 512, 2048), ("vit", 64 * 197, 768, 3072)):
        yield f"{name} gelu", gelu, ((m, d), (wide, d), (wide,)), (m, wide, d), BF16
        yield f"{name} gelu'", gelu_gradient, ((m, d), (d, wide), (m, wide)), (m, wide, d), BF16
        yield f"{name} gelu' sum", gelu_backward, ((m, d), (d, wide), (m, wide)), (m, wide, d), BF16
        yield f"{name} residual", residual, ((m, wide), (d, wide), (d,), (m, d)), (m, d, wide), BF16
        yield f"{name} dw", weight_gradient, ((m, wide), (m, d)), (wide, d, m), BF16
    m, d, wide = 4096, 2048, 5632
    yield "llama gated", gated, ((m, d), (wide, d), (m, wide)), (m, wide, d), BF16
    yield "llama dw", weight_gradient, ((m, wide), (m, d)), (wide, d, m), BF16
    yield "bert gelu alone", gelu_alone, ((4096, 768), (3072, 768), (3072,)), (4096, 3072, 768), BF16
    yield "bert gelu tf32", gelu, ((4096, 768), (3072, 768), (3072,)), (4096, 3072, 768), F32


def every_tile(shape: Any, card: Any, rows: int = 0) -> list[Tile]:
    """Many tilings: to see what the cost model misses."""
    k = 64 if shape.itemsize == 2 else 32
    out = []
    for m, n, warps, stages, residents in (
        (128, 256, 8, 4, (1,)),
        (128, 256, 8, 3, (1,)),
        (256, 128, 8, 4, (1,)),
        (128, 128, 8, 3, (1, 2)),
        (128, 128, 4, 3, (1, 2)),
        (64, 256, 4, 4, (1,)),
        (64, 128, 4, 4, (2,)),
        (128, 64, 4, 4, (2,)),
    ):
        slices = (2, 4) if m * n >= 128 * 128 else (1, 2)
        for e in slices:
            out.append(Tile(m, n, k, warps, stages, slices=e))
            out += [Tile(m, n, k, warps, stages, 8, True, True, e, r) for r in residents]
    return [t for t in out if rows in (0, t.m)]


def alone(fn: Any, tensors: tuple[torch.Tensor, ...]) -> float:
    """Seconds of the vendor's product without an epilogue."""
    a, b = tensors[0], tensors[1]
    left, right = (a.t(), b) if fn is weight_gradient else (a, b if fn in (gelu_gradient, gelu_backward) else b.t())
    return timed(lambda: torch.mm(left, right), ())


def error(got: Any, want: Any) -> float:
    """The largest difference of any result, as a share of its largest value."""
    pairs = zip(got, want) if isinstance(got, tuple) else [(got, want)]
    return max(float((x.double() - y).abs().max() / y.abs().max()) for x, y in pairs)


def measure(name: str, fn: Any, sizes: Any, mnk: Any, dtype: torch.dtype, found: list[Choice]) -> dict[str, Any]:
    torch.manual_seed(0)
    tensors = tuple((torch.randn(s, device="cuda") / s[-1] ** 0.25).to(dtype) for s in sizes)
    found.clear()
    compiled = braze.compile(fn, dynamic=False, options={"max_autotune": True, "autotune_seconds": 300.0})
    start = time.perf_counter()
    with torch.no_grad():
        got = compiled(*tensors)
        row: dict[str, Any] = {"case": name, "seconds": round(time.perf_counter() - start, 1)}
        want = fn(*(t.double() for t in tensors))
        row["error"] = round(error(got, want) / max(error(fn(*tensors), want), 1e-12), 2)
    if not found:
        return {**row, "refused": True}
    times = found[0].times
    flops = 2.0 * mnk[0] * mnk[1] * mnk[2]
    ways = sorted((t, n) for n, t in times.items() if n)
    row["us"] = {"product": alone(fn, tensors) * 1e6, "vendor": times[""] * 1e6, **{n: t * 1e6 for t, n in ways}}
    row["best"] = ways[0][1] if ways else ""
    row["us"] = {n: round(t, 1) for n, t in row["us"].items()}
    row["tflops"] = {n: round(flops / t / 1e6) for n, t in list(row["us"].items())[:3]}
    return row


def line(row: dict[str, Any], shown: int) -> str:
    if "us" not in row:
        return f"{row['case']:16} no template; error {row['error']}"
    us, rate = row["us"], row["tflops"]
    best = [f"{t:.1f} ({n})" for n, t in list(us.items())[2 : 2 + shown]]
    head = f"{row['case']:15} {us['product']:6.1f} ({rate['product']}) {us['vendor']:6.1f} ({rate['vendor']})"
    return f"{head} | {' | '.join(best)} | err {row['error']} {row['seconds']}s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    found: list[Choice] = []
    make = products.choice

    def kept(*given: Any) -> Choice:
        found.append(make(*given))
        return found[-1]

    products.choice = kept
    if args.all:
        products.tiles_for = every_tile
    start, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BRAZE_CACHE_DIR"] = folder
        for name, fn, sizes, mnk, dtype in cases():
            if args.only not in name or time.perf_counter() - start > args.seconds:
                continue
            rows.append(measure(name, fn, sizes, mnk, dtype, found))
            print(line(rows[-1], 5 if args.all else 1), flush=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"card": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
