"""Loss and every gradient of whole networks at full depth: braze and eager, each against float64 eager.

    python benchmarks/gpu/gradients.py [resnet50 bert hybrid …] [--modes default,reduce-overhead] [--precision tf32]

One JSON line a network and mode: the relative error of the loss and of all gradients together, for both, and the
parameter where braze is worst beside eager. Dropout is off. Exit code 1 where braze is off by more than twice eager's
error.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from typing import Any

import torch
from networks import NETWORKS, Network, without_dropout
from torch import nn
from train import DEVICE, compiled


def results(case: Network, model: nn.Module, run: Any, precision: str) -> dict[str, torch.Tensor]:
    """Loss and gradients of one forward and backward, in float64."""
    dtype = next(model.parameters()).dtype
    inputs = [t.to(DEVICE, dtype if t.is_floating_point() else None) for t in case.inputs]
    with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bf16"):
        out = run(*inputs)
    target = case.target.to(DEVICE)
    if precision == "exact":
        out = getattr(out, "logits", out)
        loss = exact_loss(case, out, target)
    else:
        loss = case.loss(out, target)
    loss.backward()
    found = {"loss": loss.detach(), **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}
    model.zero_grad(set_to_none=True)
    return {n: t.double().clone() for n, t in found.items()}


def exact_loss(case: Network, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The case's loss without its cast to float32."""
    plain = torch.Tensor.float
    torch.Tensor.float = lambda self: self  # type: ignore[assignment]
    try:
        return case.loss(out, target.double() if target.is_floating_point() else target)
    finally:
        torch.Tensor.float = plain  # type: ignore[method-assign]


def error(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], names: list[str]) -> float:
    """The relative error of these results together."""
    off = sum(float((got[n] - want[n]).square().sum()) for n in names)
    size = sum(float(want[n].square().sum()) for n in names)
    return (off / max(size, 1e-300)) ** 0.5


def compare(name: str, mode: str, precision: str, small: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    case = NETWORKS[name](small)
    model = without_dropout(case.model.to(DEVICE))
    wide = copy.deepcopy(model).double()
    want = results(case, wide, wide, "exact")
    del wide
    eager = results(case, model, model, precision)
    fast = compiled(model, "braze", mode)
    for _ in range(3 if DEVICE == "cuda" else 1):  # a warm-up, a recording, a replay
        mine = results(case, model, fast, precision)
    names = [n for n in want if n != "loss"]
    both = {n: (error(mine, want, [n]), error(eager, want, [n])) for n in names}
    worst = max(names, key=lambda n: both[n][0] / (both[n][1] + 1e-9))
    row = {"network": name, "mode": mode, "precision": precision, "parameters": len(names)}
    row |= {"gradients": error(mine, want, names), "gradients_eager": error(eager, want, names)}
    row |= {"loss": error(mine, want, ["loss"]), "loss_eager": error(eager, want, ["loss"])}
    return row | {"worst": worst, "worst_errors": both[worst]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=["resnet50", "bert", "hybrid"])
    parser.add_argument("--modes", default="default,reduce-overhead")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "tf32"))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    failed = False
    for name in options.networks:
        for mode in options.modes.split(","):
            row = compare(name, mode, options.precision, options.small)
            failed |= not row["gradients"] <= 2 * row["gradients_eager"] + 1e-6
            print(json.dumps(row), flush=True)
            torch.cuda.empty_cache()
    sys.exit(failed)


if __name__ == "__main__":
    main()
