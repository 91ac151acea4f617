"""What the CPU benchmarks share: contenders in processes of their own, timing in turns, the peer's kept results.

A script that uses this calls :func:`run` with ``make(name) -> Entry``.  The process of the contender "braze" measures
eager and braze in turns, that of "torch" eager and torch.compile; speeds relative to eager are then compared.  With
``--together`` one process measures all three in turns: what else the machine does then hits all of them.  Records are
JSON lines on standard output.  The allocator's settings decide how many page faults a large output costs, so that
all contenders run with them fixed.
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
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
    "MALLOC_TOP_PAD_": "67108864",
}


@dataclass
class Entry:
    """One thing to measure. ``eager()`` and ``compiled(compiler)()`` run once and return tensors to compare."""

    eager: Callable[[], Any]
    compiled: Callable[[Callable[..., Any]], Callable[[], Any]]


def measure(functions: list[Callable[[], Any]], seconds: float, least: int = 5) -> list[float]:
    """Median microseconds of each, in turns. Short functions are timed in batches of a few calls."""
    calls = []
    for f in functions:
        f()
        start = time.perf_counter()
        f()
        calls.append(max(1, min(50, int(50e-6 / max(time.perf_counter() - start, 1e-7)))))
    times: list[list[float]] = [[] for _ in functions]
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times[0]) < least:
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
            a, b = a.detach().double(), b.detach().double()
            same = torch.isfinite(b) | (a != b)
            if same.any():
                worst = max(worst, float((a - b)[same].abs().max() / b[same].abs().max().clamp_min(1e-30)))
    return worst


def cpu_seconds() -> float:
    """CPU time of this process and of all that it started, alive or waited for: what a compile costs on a busy machine
    as on an idle one. 0.0 where there is no /proc."""
    ticks: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended
            continue
        ticks[pid] = (int(rest[1]), sum(map(int, rest[11:15])))
    mine, found = {os.getpid()}, 0
    while len(mine) != found:
        found = len(mine)
        mine |= {pid for pid, (parent, _) in ticks.items() if parent in mine}
    return sum(ticks[pid][1] for pid in mine if pid in ticks) / os.sysconf("SC_CLK_TCK")


def contend(make: Callable[[str], Entry], names: list[str], seconds: float, kind: str) -> None:
    """Measure one compiler beside eager, a JSON line a name on standard output."""
    import torch

    if kind == "torch":
        compiler = torch.compile
    else:
        from braze import compile as compiler  # type: ignore[assignment]
    for name in names:
        torch.manual_seed(0)
        record: dict[str, Any] = {"name": name}
        try:
            if kind == "torch":
                torch.compiler.reset()
            entry = make(name)
            want = entry.eager()
            random = error(entry.eager(), want) > 1e-5
            start, used = time.perf_counter(), cpu_seconds()
            call = entry.compiled(compiler)
            got = call()
            record["cold_s"], record["cold_cpu_s"] = time.perf_counter() - start, cpu_seconds() - used
            record["error"] = 0.0 if random else error(got, want)
            del got, want
            calls = [entry.eager, call]
            if kind == "both":
                torch.compiler.reset()
                calls.append(entry.compiled(torch.compile))
            record["eager_us"], record["us"], *theirs = measure(calls, seconds)
            if theirs:
                record["peer"] = {"eager_us": record["eager_us"], "us": theirs[0]}
        except Exception as e:  # one failure must not end the run
            record["failed"] = f"{type(e).__name__}: {str(e)[:300]}"
        print(json.dumps(record), flush=True)


def ask(kind: str, names: list[str], args: argparse.Namespace, show: Callable[[dict[str, Any]], None]) -> None:
    """Run a contender in a process of its own; ``show`` gets each record as it comes."""
    command = [sys.executable, sys.argv[0], "--contender", kind, "--only", ",".join(names)]
    command += ["--seconds", str(args.seconds)]
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


def ratio(record: dict[str, Any]) -> float:
    """Speed relative to eager."""
    return float(record["eager_us"] / record["us"])


def line(record: dict[str, Any], peer: dict[str, Any] | None) -> str:
    name = record["name"]
    if "failed" in record:
        return f"{name:30s} failed: {record['failed']}"
    text = f"{name:30s} {record['eager_us']:10.1f} {record['us']:10.1f} {ratio(record):6.2f}x"
    if peer and "us" in peer:
        text += f" {ratio(peer):6.2f}x {ratio(record) / ratio(peer):6.2f}x"
    else:
        text += f" {'':7s} {'':7s}"
    return text + f" {record['cold_s']:7.2f} {record['error']:8.1e}"


def run(make: Callable[[str], Entry], groups: dict[str, list[str]], doc: str | None) -> None:
    """The command line of a benchmark; ``groups``: kind -> names."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="names, by commas")
    parser.add_argument("--kind", default="", help=", ".join(groups))
    parser.add_argument("--seconds", type=float, default=0.5, help="for each")
    parser.add_argument("--peer", default="", help="JSON of torch.compile's times; missing ones are measured")
    parser.add_argument("--together", action="store_true", help="torch.compile in the same process and turns")
    parser.add_argument("--out", default="", help="JSON of all results")
    parser.add_argument("--add", action="store_true", help="to the results that the file has: a run in parts")
    parser.add_argument("--contender", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = args.only.split(",") if args.only else groups.get(args.kind) or [n for g in groups.values() for n in g]
    if args.contender:
        contend(make, names, args.seconds, args.contender)
        return
    theirs = peers(names, args) if args.peer and not args.together else {}
    heads = ("eager us", "braze us", "braze", "peer", "of peer", "cold s")
    print(f"{'':30s} {heads[0]:>10s} {heads[1]:>10s} {' '.join(f'{h:>7s}' for h in heads[2:])} error")
    records: list[dict[str, Any]] = []

    def show(record: dict[str, Any]) -> None:
        if "peer" in record:
            theirs[record["name"]] = record.pop("peer")
        records.append(record)
        print(line(record, theirs.get(record["name"])), flush=True)

    ask("both" if args.together else "braze", names, args, show)
    speed = {x["name"]: ratio(x) for x in records if "us" in x}
    against = [s / ratio(theirs[n]) for n, s in speed.items() if "us" in theirs.get(n, {})]
    print(f"{len(speed)}, geomean: {geomean(list(speed.values())):.2f}x of eager", end="")
    print(f", {geomean(against):.2f}x of torch.compile" if against else "")
    if args.out:
        about = {"threads": args.threads, "machine": platform.machine(), "torch": version("torch")}
        about["command"] = " ".join(["python", *sys.argv])
        rows = [{**x, "peer": theirs.get(x["name"])} for x in records]
        path = Path(args.out)
        if args.add and path.exists():
            old = json.loads(path.read_text())
            about["command"] = old["about"]["command"]
            new = {x["name"] for x in rows}
            rows = [x for x in old["results"] if x["name"] not in new] + rows
        path.write_text(json.dumps({"about": about, "results": rows}, indent=1))
