"""Loss curves of mixed-precision training: is braze's within the spread that seeds give eager's?

    python benchmarks/loss_curves.py --out benchmarks/results/loss_curves_cpu.json
    python benchmarks/loss_curves.py --size full --mode reduce-overhead --seeds 3 --cases bert:bfloat16,hybrid:float16

For each case (``model:dtype``; float16 has a ``GradScaler`` that starts high enough to skip steps) and seed, eager and
braze train the same initial weights on the same batches; the seed decides weights, batches and dropout, whose numbers
are torch's own in both (``strict_random``; with ``--mode``, braze's).  Curves are means over ``WINDOW`` steps.  At each
point: ``spread``, the standard deviation over eager's seeds; ``gap``, how far the mean of braze's curves is from the
mean of eager's.
Reported: the median and the worst ``gap / spread``, the share of points where braze's mean lies within the range of
eager's seeds, the final losses by seed, and how many steps the scaler skipped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import braze
from braze.bench.models import SIZES, Case, build

WINDOW = 10
CLASSES = 2


def batches(case: Case, seed: int, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches that can be learned: the class shifts an image, or decides the range of half of the tokens."""
    g = torch.Generator().manual_seed(seed)
    shape = case.inputs[0].shape
    while True:
        y = torch.randint(CLASSES, (case.batch,), generator=g)
        at = y.view(-1, *[1] * (len(shape) - 1))
        if case.inputs[0].is_floating_point():
            x = torch.randn(shape, generator=g) + 0.3 * (2 * at - 1)
        else:
            x = torch.randint(200, shape, generator=g)
            x = torch.where(torch.rand(shape, generator=g) < 0.5, x // 2 + 100 * at, x)
        yield x.to(device), y.to(device)


def train(
    name: str, dtype: torch.dtype, seed: int, compiled: bool, args: argparse.Namespace
) -> tuple[list[float], int]:
    """(losses, skipped steps)."""
    device = torch.device(args.device)
    case = build(name, args.size, args.batch, seed=seed)
    model = case.model.to(device).train()
    how: dict[str, Any] = {"mode": args.mode} if args.mode else {"options": {"strict_random": True}}
    fast = braze.compile(model, **how) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**20, enabled=dtype is torch.float16)
    torch.manual_seed(seed)
    losses: list[float] = []
    skipped = 0
    for _, (x, y) in zip(range(args.steps), batches(case, seed, device)):
        with torch.autocast(device.type, dtype):
            loss = case.loss(fast(x), y)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipped += scaler.get_scale() < before
        losses.append(loss.item())
    return losses, skipped


def compare(case: str, args: argparse.Namespace) -> dict[str, Any]:
    name, _, dtype = case.partition(":")
    runs = {
        kind: [train(name, getattr(torch, dtype), seed, kind == "braze", args) for seed in range(args.seeds)]
        for kind in ("eager", "braze")
    }
    curves = {kind: torch.tensor([losses for losses, _ in found]) for kind, found in runs.items()}
    smooth = {kind: c.unfold(1, WINDOW, WINDOW).mean(2) for kind, c in curves.items()}  # (seeds, points)
    spread = smooth["eager"].std(0)
    mean = smooth["braze"].mean(0)
    ratio = (mean - smooth["eager"].mean(0)).abs() / spread
    inside = (mean >= smooth["eager"].amin(0)) & (mean <= smooth["eager"].amax(0))
    return {
        "median gap / spread": round(ratio.median().item(), 3),
        "worst gap / spread": round(ratio.max().item(), 3),
        "within the seeds' range": round(inside.float().mean().item(), 3),
        "first loss": round(smooth["eager"][:, 0].mean().item(), 4),
        "final loss, eager": [round(x, 4) for x in smooth["eager"][:, -1].tolist()],
        "final loss, braze": [round(x, 4) for x in smooth["braze"][:, -1].tolist()],
        "skipped, eager": [n for _, n in runs["eager"]],
        "skipped, braze": [n for _, n in runs["braze"]],
        "mean curve, eager": [round(x, 4) for x in smooth["eager"].mean(0).tolist()],
        "mean curve, braze": [round(x, 4) for x in smooth["braze"].mean(0).tolist()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="bert:bfloat16,bert:float16,hybrid:bfloat16,resnet50:bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="tiny", choices=list(SIZES))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--mode")
    parser.add_argument("--out")
    args = parser.parse_args()
    results: dict[str, Any] = {"torch": torch.__version__, **{k: v for k, v in vars(args).items() if k != "out"}}
    for case in args.cases.split(","):
        results[case] = compare(case, args)
        shown = {k: v for k, v in results[case].items() if not k.startswith("mean")}
        print(case, json.dumps(shown), flush=True)
        if args.out:
            Path(args.out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
