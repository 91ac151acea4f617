"""Whole training steps of the three models: eager, the model compiled alone, and the whole step as one region.

    python benchmarks/gpu/step.py [bert resnet50 hybrid] [--batch N] [--steps 30] [--only whole] [--json out.json]

Contenders: ``eager`` and ``eager-fused`` (AdamW with foreach, and fused), ``module[:mode]`` (the model under
braze.compile, AdamW fused) and ``whole[:mode]`` (forward, loss, backward and AdamW in one compiled function). Each runs
in a process of its own with a time limit, so that one which fails or hangs costs no other. Prints samples/s (median),
host milliseconds a step, seconds of the first two steps, peak GiB, the loss after the steps, and what CUDA graphs
refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

CONTENDERS = (
    "eager",
    "eager-fused",
    "module",
    "module:reduce-overhead",
    "whole",
    "whole:reduce-overhead",
    "whole:max-autotune",
)
BATCH = {"bert": 32, "resnet50": 64, "hybrid": 64}


def build_step(model_name: str, contender: str, batch: int, precision: str, device: str) -> tuple[Any, Any]:
    """(step() -> loss, the compiled object or None)."""
    import torch

    import braze
    from braze.bench.models import build

    kind, _, mode = contender.partition(":")
    case = build(model_name, "full" if device == "cuda" else "tiny", batch)
    model = case.model.to(device).train()
    inputs, target = [x.to(device) for x in case.inputs], case.target.to(device)
    fused = {"fused": True} if kind in ("eager-fused", "module") else {}
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, **fused)
    compiled = braze.compile(model, mode=mode or None) if kind == "module" else None
    forward = model if compiled is None else compiled

    def train_step(*args: Any) -> Any:
        *xs, y = args
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = case.loss(forward(*xs), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    step: Callable[..., Any] = train_step
    if kind == "whole":
        step = compiled = braze.compile(train_step, mode=mode or None, fullgraph=True)
    return (lambda: step(*inputs, target)), compiled


def measure(model_name: str, contender: str, batch: int, steps: int, precision: str, device: str) -> dict[str, Any]:
    import torch

    from braze.api import log_of

    torch.manual_seed(0)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
        torch.backends.cudnn.benchmark = True
    sync = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    step, compiled = build_step(model_name, contender, batch, precision, device)
    sync()
    start = time.perf_counter()
    for _ in range(2):
        step()
    sync()
    first = time.perf_counter() - start
    for _ in range(5):
        step()
    sync()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times, host = [], []
    loss = None
    for _ in range(steps):
        sync()
        start = time.perf_counter()
        loss = step()
        host.append(time.perf_counter() - start)
        sync()
        times.append(time.perf_counter() - start)
    ms = statistics.median(times) * 1e3
    out: dict[str, Any] = {
        "ms": ms,
        "samples_per_s": batch / ms * 1e3,
        "host_ms": statistics.median(host) * 1e3,
        "first_s": first,
        "loss": float(loss.detach()),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0,
    }
    log = log_of(compiled) if compiled is not None else None
    if log is not None:
        out |= {
            "graphs": len(log.graphs),
            "kernels": sum(len(g.kernels) for g in log.graphs),
            "breaks": [f"{b.loc}: {b.reason}" for b in log.breaks],
            "recompiles": [r.reason for r in log.recompiles],
            "fallbacks": [g.fallback for g in log.graphs if g.fallback],
            "notes": [n for g in log.graphs for n in g.notes],
            "seconds": {k: round(v, 2) for g in log.graphs for k, v in g.seconds.items()},
        }
    return out


def child(options: argparse.Namespace) -> None:
    """Measure one contender; the last line of stdout is the answer."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            out = measure(
                options.models[0], options.child, options.batch, options.steps, options.precision, options.device
            )
    except BaseException as e:
        out = {"error": f"{type(e).__name__}: {str(e)[:1500]}", "traceback": traceback.format_exc()[-3000:]}
    print(json.dumps(out), flush=True)


def run(model: str, contender: str, options: argparse.Namespace) -> dict[str, Any]:
    """One contender in a process of its own, ended with all its children at the time limit."""
    batch = options.batch or BATCH[model]
    command = [sys.executable, os.path.abspath(__file__), model, "--child", contender, "--batch", str(batch)]
    command += ["--steps", str(options.steps), "--precision", options.precision, "--device", options.device]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=options.limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"error": f"not finished in {options.limit} s"}
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if lines:
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer
    return {"error": f"ended with {process.returncode}: {err[-1500:]}"}


def show(model: str, contender: str, r: dict[str, Any]) -> None:
    if "error" in r:
        print(f"{model:9} {contender:22} failed: {r['error']}", flush=True)
        if r.get("traceback"):
            print("    " + r["traceback"][-1200:].replace("\n", "\n    "), flush=True)
        return
    print(
        f"{model:9} {contender:22} {r['ms']:8.2f} ms {r['samples_per_s']:8.0f} samples/s  host {r['host_ms']:7.2f} ms"
        f"  first {r['first_s']:6.2f} s  peak {r['peak_gib']:.2f} GiB  loss {r['loss']:.4f}"
        + (f"  {r['graphs']} graphs, {r['kernels']} kernels" if "graphs" in r else ""),
        flush=True,
    )
    for key in ("breaks", "recompiles", "fallbacks", "notes"):
        for text in r.get(key, ()):
            print(f"    {key}: {text[:300]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(BATCH))
    parser.add_argument("--batch", type=int, default=0, help="samples a step; 0: each model's own")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--precision", choices=("bf16", "tf32", "fp32"), default="bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="contenders whose names contain one of these words (a,b)")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for one contender")
    parser.add_argument("--json", default="", help="also write all answers to this file")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    words = [w for w in options.only.split(",") if w]
    answers: dict[str, dict[str, Any]] = {}
    for model in options.models:
        for contender in CONTENDERS:
            if words and not any(w in contender for w in words):
                continue
            answers.setdefault(model, {})[contender] = r = run(model, contender, options)
            show(model, contender, r)
            if options.json:
                with open(options.json, "w") as f:
                    json.dump(answers, f, indent=1)


if __name__ == "__main__":
    main()
