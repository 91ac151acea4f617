"""GradScaler with DDP and FSDP2: what each rank runs."""

from __future__ import annotations

from typing import Any

import ddp_cases
import fsdp_cases
import torch
import torch.distributed as dist
from models import Used, batches, full
from torch import nn


def scaled(model: nn.Module, dtype: torch.dtype) -> tuple[list[float], list[float], dict[str, Any]]:
    """(losses, scales, state) of eight steps; one rank's loss overflows in step 3: all ranks skip it."""
    opt = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    losses, scales = [], []
    for step in range(8):
        x, y = batches(step)
        with torch.autocast("cpu", dtype):
            loss = (model(x).float() - y).square().mean()
        losses.append(loss.item())
        if step == 3 and dist.get_rank() == 1:
            loss = loss * float("inf")
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        scales.append(scaler.get_scale())
    return losses, scales, {k: full(v) for k, v in model.state_dict().items()}


def grad_scaler(kind: str, dtype: str) -> list[float]:
    """Compare with eager. The scales."""
    build = ddp_cases.build if kind == "ddp" else fsdp_cases.build
    eager, fast = (None, False) if kind == "ddp" else ("eager", "after")
    want = scaled(build(eager, Used), getattr(torch, dtype))
    got = scaled(build(fast, Used), getattr(torch, dtype))
    assert got[1] == want[1], (got[1], want[1])
    torch.testing.assert_close(got[0], want[0], rtol=2e-2, atol=2e-2)
    for k, w in want[2].items():
        assert got[2][k].isfinite().all() and (got[2][k] - w).norm() <= 0.03 * w.norm() + 0.01, k
    return got[1]
