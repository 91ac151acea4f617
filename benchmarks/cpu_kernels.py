"""CPU kernels: eager against braze (and, with --peer, torch.compile in a process of its own).

    python benchmarks/cpu_kernels.py [--threads 1] [--only gelu,softmax] [--peer] [--seconds 1.0]

Contenders are timed interleaved in one process; figures are medians.  The allocator's settings decide how many page
faults a large output costs, so the script restarts itself with them fixed, for every contender alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
    "MALLOC_TOP_PAD_": "67108864",
}


def cases() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """name -> (function, arguments)."""
    import torch
    import torch.nn.functional as F

    aten = torch.ops.aten
    rows, columns = torch.randn(4096, 768), torch.randn(768)
    other = torch.randn(4096, 768)
    wide = torch.randn(2048, 3072)
    grad = torch.randn(2048, 3072)
    scores = torch.randn(16, 12, 128, 128)
    image, gradient = torch.randn(16, 64, 56, 56), torch.randn(16, 64, 56, 56)
    channel = [torch.rand(64) + 0.5 for _ in range(4)]
    flat = [torch.rand(1 << 22) for _ in range(4)]

    def layer_norm(x: Any, w: Any, b: Any) -> Any:
        return aten.native_layer_norm(x, (768,), w, b, 1e-5)

    mean, rstd = layer_norm(rows, columns, columns)[1:]

    def layer_norm_backward(g: Any, x: Any, m: Any, r: Any, w: Any, b: Any) -> Any:
        return aten.native_layer_norm_backward(g, x, (768,), m, r, w, b, [True, True, True])

    def bn_relu(x: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        return F.relu(F.batch_norm(x, m, v, w, b, training=False))

    def bn_stats(x: Any) -> Any:
        return torch.var_mean(x, (0, 2, 3), correction=0)

    def bn_backward(g: Any, x: Any, w: Any, m: Any, r: Any) -> Any:
        return aten.native_batch_norm_backward(g, x, w, None, None, m, r, True, 1e-5, [True, True, True])

    def adamw(p: Any, g: Any, m: Any, v: Any) -> Any:
        m2 = m * 0.9 + g * 0.1
        v2 = v * 0.999 + g * g * 0.001
        return p * 0.9999 - 1e-3 * m2 / (v2.sqrt() + 1e-8), m2, v2

    return {
        "gelu": (lambda x: F.gelu(x), (wide,)),
        "bias+gelu": (lambda x, b: F.gelu(x + b), (wide, wide[0].clone())),
        "gelu backward": (lambda g, x: aten.gelu_backward(g, x), (grad, wide)),
        "gelu bf16": (lambda x: F.gelu(x), (wide.bfloat16(),)),
        "softmax": (lambda x: torch.softmax(x, -1), (scores,)),
        "softmax backward": (
            lambda g, y: aten._softmax_backward_data(g, y, -1, torch.float32),
            (scores, torch.softmax(scores, -1)),
        ),
        "layer norm": (layer_norm, (rows, columns, columns)),
        "residual+layer norm": (lambda x, y, w, b: layer_norm(x + y, w, b), (rows, other, columns, columns)),
        "layer norm backward": (layer_norm_backward, (other, rows, mean, rstd, columns, columns)),
        "column sum": (lambda x: x.sum(0), (rows,)),
        "full sum": (lambda x: x.sum(), (wide,)),
        "batch norm stats": (bn_stats, (image,)),
        "batch norm+relu": (bn_relu, (image, *channel)),
        "batch norm backward": (bn_backward, (gradient, image, channel[0], channel[1], channel[2])),
        "adamw": (adamw, tuple(flat)),
        "dropout": (lambda x: F.dropout(x, 0.1, True), (wide,)),
        "transpose": (lambda x: x.t().contiguous(), (wide,)),
        "split heads": (lambda x: x.view(32, 128, 12, 64).transpose(1, 2).contiguous(), (rows,)),
    }


def measure(functions: list[Callable[[], Any]], seconds: float) -> list[float]:
    """Median milliseconds of each, interleaved."""
    times: list[list[float]] = [[] for _ in functions]
    for f in functions:
        f(), f()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times[0]) < 5:
        for f, t in zip(functions, times):
            a = time.perf_counter()
            f()
            t.append(time.perf_counter() - a)
    return [statistics.median(t) * 1e3 for t in times]


def peer(names: list[str], seconds: float) -> dict[str, float]:
    """torch.compile's milliseconds, from its own process."""
    command = [sys.executable, __file__, "--peer-child", "--only", ",".join(names), "--seconds", str(seconds)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(out.stdout.splitlines()[-1]))


def peer_child(names: list[str], seconds: float) -> None:
    import torch

    torch.set_grad_enabled(False)
    result = {}
    for name in names:
        fn, args = cases()[name]
        compiled = torch.compile(fn)
        result[name] = measure([lambda c=compiled, a=args: c(*a)], seconds)[0]
    print(json.dumps(result))


def error(got: Any, want: Any) -> float:
    """Largest difference relative to the largest value."""
    import torch

    pairs = zip(got, want) if isinstance(got, tuple) else [(got, want)]
    worst = 0.0
    for a, b in pairs:
        if isinstance(a, torch.Tensor) and a.numel():
            worst = max(worst, float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30)))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--peer-child", action="store_true")
    args = parser.parse_args()
    if any(os.environ.get(k) != v for k, v in ALLOCATOR.items()):
        os.environ.update(ALLOCATOR, OMP_NUM_THREADS=str(args.threads))
        os.execv(sys.executable, [sys.executable, *sys.argv])
    import torch

    import braze

    names = args.only.split(",") if args.only else list(cases())
    if args.peer_child:
        peer_child(names, args.seconds)
        return
    theirs = peer(names, args.seconds) if args.peer else {}
    torch.set_grad_enabled(False)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    print(
        f"{'kernel':22s} {'eager ms':>9s} {'braze ms':>9s} {'ratio':>6s} {'peer ms':>9s} {'cold s':>9s} {'error':>8s}"
    )
    for name in names:
        fn, inputs = cases()[name]
        compiled = braze.compile(fn)
        start = time.perf_counter()
        wrong = error(compiled(*inputs), fn(*inputs)) if name != "dropout" else 0.0
        cold = time.perf_counter() - start
        eager, mine = measure([lambda: fn(*inputs), lambda: compiled(*inputs)], args.seconds)  # noqa: B023
        other = f"{theirs[name]:9.3f}" if name in theirs else f"{'':>9s}"
        print(f"{name:22s} {eager:9.3f} {mine:9.3f} {eager / mine:5.2f}x {other} {cold:9.2f} {wrong:8.1e}", flush=True)


if __name__ == "__main__":
    main()
