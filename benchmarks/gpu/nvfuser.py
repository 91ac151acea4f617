"""The nvfuser backend on a GPU: the bench models against eager in values, and against inductor in speed.

    python benchmarks/gpu/nvfuser.py --out results.json

For each model: the loss and gradients of one step in float32 (tiny size) against eager; training steps/s in bf16
autocast (full size) for eager, inductor and nvfuser; cold compile seconds; how many fusions there are, how many
distinct ones, and how many of them nvFuser refused at run time.  One reproducer is written beside the results.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="bert,hybrid,resnet50")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    args = parser.parse_args()
    results: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    for what in ("errors", "speed"):
        for name in args.cases.split(","):
            backend._fusions.clear()
            row = results.setdefault(name, {})
            try:
                row[what] = check(name) if what == "errors" else speed(name, args.steps, args.rounds)
            except Exception as e:
                row[what] = f"{type(e).__name__}: {e}"[:600]
            print(name, what, json.dumps(row[what]), flush=True)
            if args.out:
                Path(args.out).write_text(json.dumps(results, indent=1) + "\n")
                if backend._fusions:
                    first = max(backend._fusions, key=len)
                    Path(args.out).with_suffix(".reproducer.txt").write_text(repr(backend._fusions[first]))


if __name__ == "__main__":
    main()
