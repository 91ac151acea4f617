"""Kernels made for symbolic sizes against kernels made for the very sizes: time of a call, interleaved in one process.

    python benchmarks/dynamic.py [--check] [--only NAME]

``static`` was compiled with ``dynamic=False``; ``dynamic`` with every size symbolic. The medians of alternating rounds
count; ``--check`` fails where the geometric mean of the ratios is over the gate.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import braze

GATE = 1.15
R = torch.randn


def layer_norm(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x + y, (x.shape[-1],), w, b))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def norm_relu(x: Tensor, m: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, m, v, w, b, False))


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
    "gelu": (F.gelu, lambda: (R(64, 128, 256),)),
    "bias, dropout-free residual": (lambda x, b, r: x + b + r, lambda: (R(2048, 768), R(768), R(2048, 768))),
    "softmax": (lambda x: F.softmax(x, -1), lambda: (R(2048, 512),)),
    "layer norm, residual, gelu": (layer_norm, lambda: (R(1024, 768), R(1024, 768), R(768), R(768))),
    "column sum": (lambda x: x.sum(0), lambda: (R(2048, 768),)),
    "mean of rows": (lambda x: x.mean(-1), lambda: (R(2048, 768),)),
    "transpose": (lambda x: x.transpose(1, 2).contiguous() * 2, lambda: (R(16, 256, 256),)),
    "split heads": (
        lambda x: x.view(*x.shape[:2], 8, -1).transpose(1, 2).contiguous(),
        lambda: (R(8, 256, 512),),
    ),
    "cat": (lambda x, y: torch.cat([x, y], 1) * 2, lambda: (R(512, 512), R(512, 512))),
    "batch norm, relu": (norm_relu, lambda: (R(16, 64, 28, 28), R(64), R(64).abs(), R(64), R(64))),
    "attention": (attention, lambda: (R(4, 8, 128, 64), R(4, 8, 128, 64), R(4, 8, 128, 64))),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, lambda: (R(1000, 256), torch.randint(0, 1000, (16, 128)))),
    "mask": (
        lambda x: x.masked_fill(torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool).triu(1), -1.0),
        lambda: (R(32, 128, 128),),
    ),
}


def measure(static: Any, dynamic: Any, args: tuple[Tensor, ...], rounds: int) -> tuple[float, float]:
    """(static, dynamic) median ms of a call."""
    for f in (static, dynamic):
        f(*args), f(*args)
    start = time.perf_counter()
    static(*args)
    repeat = max(1, int(2e-3 / (time.perf_counter() - start)))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for f, out in zip((static, dynamic), times):
            start = time.perf_counter()
            for _ in range(repeat):
                f(*args)
            out.append((time.perf_counter() - start) / repeat * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help=f"fail over {GATE}")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=25)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ratios = []
    for name, (f, make) in CASES.items():
        if args.only not in name:
            continue
        inputs = make()
        static, dynamic = braze.compile(f, dynamic=False), braze.compile(lambda *xs, f=f: f(*xs), dynamic=True)
        torch.testing.assert_close(dynamic(*inputs), static(*inputs))
        a, b = measure(static, dynamic, inputs, args.rounds)
        ratios.append(b / a)
        print(f"{name:30} static {a:8.3f} ms, dynamic {b:8.3f} ms, {b / a:5.2f}x")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean {mean:.3f}x, most {max(ratios):.2f}x, gate {GATE}")
    return int(args.check and mean > GATE)


if __name__ == "__main__":
    sys.exit(main())
