"""CPU kernels: eager against braze and torch.compile.

    python benchmarks/cpu_kernels.py [--threads 2] [--only gelu,softmax] [--kind norms] [--peer FILE] [--out FILE]

Eager and braze are timed in turns in one process; figures are medians in microseconds.  torch.compile is measured in
turns with eager in a process of its own (``--peer``), and its times are kept in FILE by threads and kernel, so that
later runs measure only what is not there.  Between the two processes, speeds relative to eager are compared.

The allocator's settings decide how many page faults a large output costs: all contenders run with them fixed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
    "MALLOC_TOP_PAD_": "67108864",
}


def measure(functions: list[Callable[[], Any]], seconds: float) -> list[float]:
    """Median microseconds of each, in turns. Short functions are timed in batches of a few calls."""
    calls = []
    for f in functions:
        f(), f()
        start = time.perf_counter()
        f()
        calls.append(max(1, min(50, int(50e-6 / max(time.perf_counter() - start, 1e-7)))))
    times: list[list[float]] = [[] for _ in functions]
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times[0]) < 5:
        for f, n, t in zip(functions, calls, times):
            a = time.perf_counter()
            for _ in range(n):
                f()
            t.append((time.perf_counter() - a) / n)
    return [statistics.median(t) * 1e6 for t in times]


def error(got: Any, want: Any) -> float:
    """Largest difference relative to the largest value."""
    import torch

    pairs = zip(got, want) if isinstance(got, (tuple, list)) else [(got, want)]
    worst = 0.0
    for a, b in pairs:
        if isinstance(a, torch.Tensor) and a.numel():
            a, b = a.double(), b.double()
            same = torch.isfinite(b) | (a != b)
            worst = max(
                worst, float((a - b)[same].abs().max() / b[same].abs().max().clamp_min(1e-30)) if same.any() else 0.0
            )
    return worst


def contender(names: list[str], seconds: float, kind: str) -> None:
    """Measure one compiler beside eager, a JSON line a kernel on standard output."""
    import torch
    from cpu_cases import CASES, RANDOM

    torch.set_grad_enabled(False)
    if kind == "braze":
        from braze import compile as compiler
    else:
        compiler = torch.compile  # type: ignore[assignment]
    for name in names:
        torch.manual_seed(0)
        fn, args = CASES[name]()
        record: dict[str, Any] = {"name": name}
        try:
            if kind != "braze":
                torch.compiler.reset()
            compiled = compiler(fn)
            start = time.perf_counter()
            got = compiled(*args)
            record["cold_s"] = time.perf_counter() - start
            record["error"] = 0.0 if name in RANDOM else error(got, fn(*args))
            del got
            call: list[Callable[[], Any]] = [lambda: fn(*args), lambda: compiled(*args)]  # noqa: B023
            record["eager_us"], record["us"] = measure(call, seconds)
        except Exception as e:  # one kernel must not end the run
            record["failed"] = f"{type(e).__name__}: {str(e)[:300]}"
        print(json.dumps(record), flush=True)


def ask(kind: str, names: list[str], args: argparse.Namespace, show: Callable[[dict[str, Any]], None]) -> None:
    """Run a contender in a process of its own; ``show`` gets each record as it comes."""
    command = [sys.executable, __file__, "--contender", kind, "--only", ",".join(names), "--seconds", str(args.seconds)]
    env = {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": str(args.threads), "BRAZE_DISK_CACHE": "0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                show(json.loads(line))


def peers(names: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """torch.compile's records, from the file where it has them."""
    path = Path(args.peer)
    known: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    mine = known.setdefault(f"{args.threads} threads", {})
    missing = [n for n in names if n not in mine]

    def keep(record: dict[str, Any]) -> None:
        mine[record.pop("name")] = record
        path.write_text(json.dumps(known, indent=1))

    if missing:
        ask("torch", missing, args, keep)
    return mine


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def line(record: dict[str, Any], peer: dict[str, Any] | None) -> str:
    name = record["name"]
    if "failed" in record:
        return f"{name:26s} failed: {record['failed']}"
    text = f"{name:26s} {record['eager_us']:10.1f} {record['us']:10.1f} {record['eager_us'] / record['us']:6.2f}x"
    if peer and "us" in peer:
        theirs = peer["eager_us"] / peer["us"]
        text += f" {theirs:6.2f}x {record['eager_us'] / record['us'] / theirs:6.2f}x"
    else:
        text += f" {'':7s} {'':7s}"
    return text + f" {record['cold_s']:7.2f} {record['error']:8.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--kind", default="")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each kernel")
    parser.add_argument("--peer", default="", help="JSON of torch.compile's times; missing ones are measured")
    parser.add_argument("--out", default="", help="JSON of all results")
    parser.add_argument("--contender", default="")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    from cpu_cases import CASES, KINDS

    names = args.only.split(",") if args.only else list(KINDS[args.kind] if args.kind else CASES)
    if args.contender:
        contender(names, args.seconds, args.contender)
        return
    theirs = peers(names, args) if args.peer else {}
    heads = ("eager us", "braze us", "braze", "peer", "of peer", "cold s")
    print(f"{'kernel':26s} {heads[0]:>10s} {heads[1]:>10s} {' '.join(f'{h:>7s}' for h in heads[2:])} error")
    records: list[dict[str, Any]] = []

    def show(record: dict[str, Any]) -> None:
        records.append(record)
        print(line(record, theirs.get(record["name"])), flush=True)

    ask("braze", names, args, show)
    speed = {x["name"]: x["eager_us"] / x["us"] for x in records if "us" in x}
    against = [s / (theirs[n]["eager_us"] / theirs[n]["us"]) for n, s in speed.items() if "us" in theirs.get(n, {})]
    print(f"{len(speed)} kernels, geomean: {geomean(list(speed.values())):.2f}x of eager", end="")
    print(f", {geomean(against):.2f}x of torch.compile" if against else "")
    if args.out:
        about = {"threads": args.threads, "machine": platform.machine(), "command": " ".join(sys.argv)}
        rows = [{**x, "peer": theirs.get(x["name"])} for x in records]
        Path(args.out).write_text(json.dumps({"about": about, "results": rows}, indent=1))


if __name__ == "__main__":
    main()
