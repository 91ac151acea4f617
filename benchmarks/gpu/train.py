"""Training steps of the three models: eager, compiled, and compiled with CUDA graphs.

    python benchmarks/gpu/train.py [bert resnet50 hybrid] [--batch 32] [--steps 30]

Prints milliseconds a step (median), host milliseconds a step without waiting, the loss after the steps, peak memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import braze
from braze.backends import aot
from braze.bench.models import build
from braze.runtime.cuda_graphs import Recordings, graph_pair

PAIRS: list[Recordings] = []


def use_graphs(on: bool) -> None:
    """Put CUDA graphs around compiled pairs, or not."""
    make = ORIGINAL

    def with_graphs(forward: Any, backward: Any, signature: Any, fallback: Any = None, *rest: Any, **more: Any) -> Any:
        forward, backward, pair = graph_pair(forward, backward, signature)
        PAIRS.append(pair)
        return make(forward, backward, signature, fallback, *rest, **more)

    aot.make_autograd_callable = with_graphs if on else make


ORIGINAL = aot.make_autograd_callable


def stepper(model: Any, case: Any) -> Callable[[], torch.Tensor]:
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-4, fused=True)
    inputs = [t.cuda() for t in case.inputs]
    target = case.target.cuda()

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = case.loss(model(*inputs), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def measure(name: str, kind: str, batch: int, steps: int) -> None:
    case = build(name, "full", batch)
    case.model.cuda().train()
    use_graphs(kind == "graphs")
    PAIRS.clear()
    start = time.perf_counter()
    step = stepper(case.model if kind == "eager" else braze.compile(case.model, fullgraph=True), case)
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times, host = [], []
    for _ in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss = step()
        host.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    ms, mine = statistics.median(times) * 1e3, statistics.median(host) * 1e3
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(
        f"{name:9} {kind:8} {ms:8.2f} ms {batch / ms * 1e3:8.0f} samples/s  host {mine:7.2f} ms  first {first:6.2f} s"
        f"  loss {float(loss):.4f}  peak {peak:.2f} GiB (reserved {torch.cuda.memory_reserved() / 2**30:.2f})",
        flush=True,
    )
    for p in PAIRS:
        if p.notes:
            print(f"   {p.notes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["bert"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kinds", default="eager,compiled,graphs")
    options = parser.parse_args()
    for name in options.models:
        for kind in options.kinds.split(","):
            torch.manual_seed(0)
            try:
                measure(name, kind, options.batch, options.steps)
            except Exception as e:
                print(f"{name:9} {kind:8} failed: {type(e).__name__}: {str(e)[:1500]}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
