"""Training steps and decoding on the card: eager, torch.compile and braze by mode, each case in a fresh process.

    python benchmarks/gpu/train.py resnet50 bert hybrid llama llama-decode vit convnext unet
        [--compilers eager,torch,braze] [--modes default,reduce-overhead] [--precision bf16|tf32] [--limit 120]

One JSON line a case: samples/s (median of five times ten steps), seconds of the first two steps from empty caches (the
cold compile, library warm-up included), peak memory of a step in GiB (of tensors, and what torch held for
them: the pools of CUDA graphs too), the loss at the end. A mode may carry a memory
budget for braze ("reduce-overhead@0.95"). ``--small``: to try it out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from networks import NETWORKS, Network

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def compiled(model: Any, compiler: str, mode: str) -> Any:
    if compiler == "eager":
        return model
    mode, _, budget = mode.partition("@")
    chosen = None if mode == "default" else mode
    if compiler == "torch":
        return torch.compile(model, mode=chosen)
    import braze
    from braze.api import MODES

    if not budget:
        return braze.compile(model, mode=chosen)
    return braze.compile(model, options={**MODES[mode], "activation_memory_budget": float(budget)})


def stepper(case: Network, run: Any, precision: str) -> Callable[[], torch.Tensor]:
    inputs, target = [t.to(DEVICE) for t in case.inputs], case.target.to(DEVICE)
    cast = torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bf16")
    if case.decode:

        def decode() -> torch.Tensor:
            with torch.no_grad(), cast:
                return run(*inputs).float().logsumexp(-1).mean()  # type: ignore[no-any-return]

        return decode
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-4)

    def step() -> torch.Tensor:
        with cast:
            loss = case.loss(run(*inputs), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measure(name: str, compiler: str, mode: str, precision: str, small: bool) -> dict[str, Any]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    case = NETWORKS[name](small)
    case.model.to(DEVICE).train(not case.decode)
    step = stepper(case, compiled(case.model, compiler, mode), precision)
    firsts = []
    for _ in range(2):
        start = time.perf_counter()
        step()
        wait()
        firsts.append(time.perf_counter() - start)
    for _ in range(1 if small else 8):
        step()
    wait()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()  # what the first steps alone needed
        torch.cuda.reset_peak_memory_stats()
    times = []
    count = 1 if small else 10
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            loss = step()
        wait()
        times.append((time.perf_counter() - start) / count)
    seconds = statistics.median(times)
    peak = torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0
    held = torch.cuda.max_memory_reserved() / 2**30 if DEVICE == "cuda" else 0.0
    row: dict[str, Any] = {"network": name, "precision": precision, "compiler": compiler, "mode": mode}
    row |= {"samples_per_s": round(case.samples / seconds, 1), "ms": round(seconds * 1e3, 3)}
    row |= {"first_two_s": round(sum(firsts), 2), "peak_gib": round(peak, 2), "held_gib": round(held, 2)}
    return row | {"loss": round(float(loss), 4)}


def in_process(arguments: list[str], limit: float) -> None:
    """One case in a fresh process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        caches = ("BRAZE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        env = {**os.environ, **{v: f"{folder}/{v}" for v in caches}}
        try:
            done = subprocess.run(
                [sys.executable, __file__, "--one", *arguments], env=env, timeout=limit, capture_output=True, text=True
            )
            lines = done.stdout.strip().splitlines()
            failed = json.dumps({"failed": arguments, "error": done.stderr.strip().splitlines()[-1:]})
            print(lines[-1] if done.returncode == 0 and lines else failed, flush=True)
        except subprocess.TimeoutExpired:
            print(json.dumps({"failed": arguments, "error": f"not done in {limit} s"}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=["resnet50", "bert", "hybrid"])
    parser.add_argument("--compilers", default="eager,torch,braze")
    parser.add_argument("--modes", default="default,reduce-overhead")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "tf32"))
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a case")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--one", action="store_true", help="the case NETWORK COMPILER MODE PRECISION SMALL, here")
    options = parser.parse_args()
    if options.one:
        name, compiler, mode, precision, small = options.networks
        print(json.dumps(measure(name, compiler, mode, precision, small == "True")))
        return
    card = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(json.dumps({"card": card, "torch": torch.__version__, "command": " ".join(sys.argv)}), flush=True)
    for name in options.networks:
        for compiler in options.compilers.split(","):
            for mode in ["default"] if compiler == "eager" else options.modes.split(","):
                in_process([name, compiler, mode, options.precision, str(options.small)], options.limit)


if __name__ == "__main__":
    main()
