"""DDP under braze: what each rank runs. Each case compares with eager DDP in the same process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from models import Net, Run, Used, same, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

import braze
from braze.api import log_of

SMALL = 0.004  # MiB a bucket: several buckets for these models


def build(inside: bool | None, make: Callable[[], nn.Module], hook: str = "", **ddp: Any) -> nn.Module:
    """DDP in eager (None), compiled before (True) or after (False) wrapping."""
    torch.manual_seed(0)
    model = make()
    # PowerSGD starts collectives from callbacks: with several buckets their order on gloo can differ between ranks
    cap = 25 if hook == "powersgd" else SMALL
    model = DDP(braze.compile(model) if inside else model, bucket_cap_mb=cap, **ddp)
    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return braze.compile(model) if inside is False else model


def log(model: nn.Module) -> Any:
    return log_of(model) or log_of(model.module)


FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # name -> (arguments of the model, of DDP, of the training loop)
    "plain": ({}, {}, {}),
    "unused": ({}, {"find_unused_parameters": True}, {"branch": lambda step: (step + dist.get_rank()) % 3 == 0}),
    "accumulation": ({}, {}, {"accumulate": 3, "steps": 7}),
    "checkpointing": ({"checkpointed": True}, {}, {}),
    "static graph": ({}, {"static_graph": True}, {}),
    "bucket views": ({}, {"gradient_as_bucket_view": True}, {}),
    "buffers": ({"batch_norm": True}, {}, {}),
    "fp16 hook": ({}, {"hook": "fp16"}, {}),
    "powersgd": ({}, {"hook": "powersgd"}, {}),
}


def feature(name: str, inside: bool, bf16: bool) -> list[str]:
    """Train with and without braze and compare. The reasons of graph breaks."""
    warnings.simplefilter("error", braze.CompileWarning)
    model, ddp, loop = FEATURES[name]
    kind = Net if name == "unused" else Used
    dtype = torch.bfloat16 if bf16 else None
    want = train(build(None, lambda: kind(**model), **ddp), dtype=dtype, **loop)
    fast = build(inside, lambda: kind(**model), **ddp)
    got = train(fast, dtype=dtype, **loop)
    if ddp.get("hook") == "powersgd":
        # its projection depends on the places of gradients in a bucket, which are in the order of their arrival
        torch.testing.assert_close(got.losses, want.losses, rtol=0.1, atol=0.05)
    else:
        same(got, want, exact=not bf16 and "hook" not in ddp)
    agree(got)
    assert log(fast).graphs and not any(g.fallback for g in log(fast).graphs)
    return [b.reason for b in log(fast).breaks]


def agree(run: Run) -> None:
    """All ranks hold the same gradients and parameters."""
    for name, g in [*run.grads.items(), *run.state.items()]:
        if g is None or "running" in name:
            continue
        other = g.clone()
        dist.broadcast(other, 0)
        torch.testing.assert_close(other, g, rtol=0, atol=0)


def overlap() -> tuple[list[str], int]:
    """The order of events in one backward, and the number of nodes that the compiled function became: "bucket" where
    DDP sends a bucket, "stage" where a part of the backward has run."""
    events: list[str] = []

    def hook(state, bucket):  # DDP checks the annotations, which are text here
        events.append("bucket")
        return default_hooks.allreduce_hook(dist.group.WORLD, bucket)

    fast = build(False, lambda: Used(depth=4))
    fast.register_comm_hook(None, hook)
    x = torch.randn(6, 16)
    for _ in range(3):
        loss = fast(x).square().mean()
        events.clear()
        nodes, stack, seen = 0, [loss.grad_fn], set()
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node.name().startswith(("_First", "_Later")):
                nodes += 1
                node.register_hook(lambda *_: events.append("stage"))
            stack += [f for f, _ in node.next_functions]
        loss.backward()
    return events, nodes
