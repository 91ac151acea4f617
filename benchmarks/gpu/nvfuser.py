"""The nvfuser backend on a GPU: the bench models against eager in values, and against inductor in speed.

    python benchmarks/gpu/nvfuser.py --out results.json

For each model: the loss and gradients of one step in float32 (tiny size) against eager; training steps/s in bf16
autocast (full size) for eager, inductor and nvfuser; cold compile seconds; how many fusions there are, how many
distinct ones, and how many of them nvFuser refused at run time.  Each measurement
has a process of its own.

Seen on one H200 (torch 2.11, the wheel for torch 2.10, a shim for the one symbol that differs): BERT (tiny, float32):
loss equal, worst of 41 gradients off by 4.0e-6.  The hybrid crashed in an ATen call of its backward (cause not
found); ResNet-50 and the speeds are not measured.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
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


def check(name: str) -> dict[str, float]:
    """Largest relative error (norm) of the loss and of any gradient, tiny model in float32 without dropout."""
    case = build(name, "tiny", 4)
    inputs, target = on_gpu(case)
    plain = case.model.to(DEVICE).train()
    for m in plain.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0
    got: list[list[torch.Tensor]] = []
    for model in (plain, braze.compile(copy.deepcopy(plain), backend="nvfuser")):
        loss = case.loss(model(*inputs, **case.kwargs), target)
        loss.backward()
        got.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    errors = [((a - b).norm() / (b.norm() + 1e-6)).item() for a, b in zip(got[1], got[0])]
    return {"loss": errors[0], "worst gradient": max(errors[1:]), "gradients": len(errors) - 1}


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


def apart(what: str, name: str, args: argparse.Namespace) -> Any:
    """One measurement in a process of its own: a crash of nvFuser ends only that."""
    command = [sys.executable, "-X", "faulthandler", __file__, "--one", what, "--cases", name]
    command += ["--steps", str(args.steps), "--rounds", str(args.rounds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
    except subprocess.TimeoutExpired:
        return f"not finished in {args.limit} s"
    if done.returncode:
        return f"exit {done.returncode}: {done.stderr[-1500:]}"
    sys.stderr.write("\n".join(line for line in done.stderr.splitlines() if "nvFuser cannot" in line))
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="bert,hybrid,resnet50")
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
    for what in ("errors", "speed"):
        for name in args.cases.split(","):
            row = results.setdefault(name, {})
            row[what] = apart(what, name, args)
            print(name, what, json.dumps(row[what]), flush=True)
            if args.out:
                Path(args.out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
