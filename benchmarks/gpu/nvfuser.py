"""The nvfuser backend on a GPU: the bench models against eager in values, and against inductor in speed.

    python benchmarks/gpu/nvfuser.py --out results.json

For each model: the loss and gradients of one step in float32 (tiny size) against eager; training steps/s in bf16
autocast (full size) for eager, inductor and nvfuser; cold compile seconds; how many fusions there are, how many
distinct ones, and how many of them nvFuser refused at run time.  Each measurement has a process of its own; they
compile side by side (``cold_s`` is therefore an upper bound) and are timed one after the other.
"""

from __future__ import annotations

import argparse
import copy
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

import braze
from braze.api import log_of
from braze.backends.nvfuser import backend
from braze.bench.models import Case, build

DEVICE = torch.device("cuda")


def on_gpu(case: Case) -> tuple[list[torch.Tensor], torch.Tensor]:
    return [x.to(DEVICE) for x in case.inputs], case.target.to(DEVICE)


def check(name: str) -> dict[str, Any]:
    """Largest relative error (norm) of the loss and of any gradient, tiny model in float32 without dropout; with
    dropout, whether every gradient is finite."""
    case = build(name, "tiny", 4)
    inputs, target = on_gpu(case)
    dropping = case.model.to(DEVICE).train()
    plain = copy.deepcopy(dropping)
    for m in plain.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0
        elif isinstance(m, torch.nn.MultiheadAttention):
            m.dropout = 0.0

    def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
        loss = case.loss(model(*inputs, **case.kwargs), target)
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    start = time.perf_counter()
    got = [gradients(m) for m in (plain, braze.compile(copy.deepcopy(plain), backend="nvfuser"))]
    errors = [((a - b).norm() / (b.norm() + 1e-6)).item() for a, b in zip(got[1], got[0])]
    out = {"loss": errors[0], "worst gradient": max(errors[1:]), "gradients": len(errors) - 1}
    out |= {"seconds": round(time.perf_counter() - start, 1), "fusions": len(backend._fusions)}
    print(json.dumps(out), flush=True)
    dropped = gradients(braze.compile(dropping, backend="nvfuser"))
    return out | {"finite with dropout": all(bool(g.isfinite().all()) for g in dropped)}


class Trainer:
    def __init__(self, name: str, kind: str) -> None:
        self.case = build(name, "full", None)
        self.inputs, self.target = on_gpu(self.case)
        model = self.case.model.to(DEVICE)
        self.model = model if kind == "eager" else braze.compile(model, backend=kind)
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step(self) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.case.loss(self.model(*self.inputs, **self.case.kwargs), self.target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self, steps: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps


def speed(name: str, steps: int, rounds: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    trainers = {}
    for kind in ("eager", "inductor", "nvfuser"):
        start = time.perf_counter()
        trainers[kind] = Trainer(name, kind)
        trainers[kind].seconds(3)
        out[kind] = {"cold_s": round(time.perf_counter() - start, 2)}
        print(json.dumps(out), flush=True)
    print("ready", flush=True)
    sys.stdin.readline()  # its turn
    times: dict[str, list[float]] = {kind: [] for kind in trainers}
    for _ in range(rounds):
        for kind, trainer in trainers.items():
            times[kind].append(trainer.seconds(steps))
    for kind, trainer in trainers.items():
        out[kind]["samples_per_s"] = round(trainer.case.batch / statistics.median(times[kind]), 1)
    log = log_of(trainers["nvfuser"].model)
    names = [k for g in log.graphs for k in g.kernels if str(k).startswith("nvfuser")]
    out["fusions"], out["distinct"] = len(names), len(backend._fusions)
    out["fell back"] = [g.fallback for g in log.graphs if g.fallback]
    return out


class Apart:
    """One measurement in a process of its own: a crash of nvFuser ends only that."""

    def __init__(self, what: str, name: str, args: argparse.Namespace) -> None:
        self.what, self.name, self.limit = what, name, args.limit
        command = [sys.executable, "-X", "faulthandler", __file__, "--one", what, "--cases", name]
        command += ["--steps", str(args.steps), "--rounds", str(args.rounds)]
        self.seen = ""  # its last line
        self.errors = tempfile.TemporaryFile("w+")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=self.errors)
        self.timer = threading.Timer(self.limit, self.process.kill)
        self.timer.start()

    def ready(self) -> None:
        """Wait until everything is compiled (or it has ended)."""
        assert self.process.stdout is not None
        if self.what == "speed":
            for line in self.process.stdout:
                if line.startswith("ready"):
                    break
                self.seen = line

    def result(self) -> Any:
        out = self.process.communicate("go\n")[0]
        self.timer.cancel()
        self.errors.seek(0)
        text = self.errors.read()
        lines = [self.seen, *out.splitlines()]
        if self.process.returncode == -signal.SIGKILL:
            return f"not finished in {self.limit} s: {lines[-1]}"
        if self.process.returncode:
            return f"exit {self.process.returncode}: {lines[-1]} {text[-1500:]}"
        sys.stderr.write("\n".join(line for line in text.splitlines() if "nvFuser cannot" in line))
        return json.loads(lines[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="bert,hybrid,resnet50")
    parser.add_argument("--what", default="errors,speed")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a measurement")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(check(args.cases) if args.one == "errors" else speed(args.cases, args.steps, args.rounds)))
        return
    results: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    for what in args.what.split(","):
        running = [Apart(what, name, args) for name in args.cases.split(",")]
        for one in running:
            one.ready()
        for one in running:
            results.setdefault(one.name, {})[what] = one.result()
            print(one.name, what, json.dumps(results[one.name][what]), flush=True)
            if args.out:
                Path(args.out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
