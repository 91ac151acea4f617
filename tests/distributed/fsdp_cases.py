"""FSDP2 and tensor parallelism under braze: what each rank runs, compared with eager in the same process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from models import Block, Net, Run, Used, batches, full, same, train
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import braze
from braze.api import log_of


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def build(how: str, make: Callable[[], nn.Module], **fsdp: Any) -> nn.Module:
    """Sharded block by block. ``how``: "eager"; blocks compiled "before" or "after" sharding; "whole": the root."""
    torch.manual_seed(0)
    model = make()
    if how == "before":
        compile_blocks(model)
    for block in model.blocks:
        fully_shard(block, mesh=mesh(), **fsdp)
    fully_shard(model, mesh=mesh(), **fsdp)
    if how == "after":
        compile_blocks(model)
    return braze.compile(model) if how == "whole" else model


def compile_blocks(model: nn.Module) -> None:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = braze.compile(block, fullgraph=True)


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # name -> (arguments of the model, of fully_shard, of the training loop)
    "plain": ({}, {}, {}),
    "unused": ({}, {}, {"branch": lambda step: step % 3 == 0}),
    "accumulation": ({}, {}, {"accumulate": 3, "steps": 7}),
    "checkpointing": ({"checkpointed": True}, {}, {}),
    "mixed precision": ({}, {"mp_policy": BF16}, {}),
    "not resharded": ({}, {"reshard_after_forward": False}, {}),
    "clipped": ({}, {}, {"after": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5)}),
}


def feature(name: str, how: str, bf16: bool) -> list[str]:
    """Train with and without braze and compare. The reasons of graph breaks."""
    warnings.simplefilter("error", braze.CompileWarning)
    model, fsdp, loop = FEATURES[name]
    kind = Net if name == "unused" else Used
    dtype = torch.bfloat16 if bf16 else None
    want = train(build("eager", lambda: kind(**model), **fsdp), dtype=dtype, **loop)
    fast = build(how, lambda: kind(**model), **fsdp)
    got = train(fast, dtype=dtype, **loop)
    same(got, want, exact=not bf16 and name != "mixed precision")
    logs = [log_of(m) for m in ([fast] if how == "whole" else fast.blocks)]
    assert all(log.graphs and not any(g.fallback for g in log.graphs) for log in logs)
    assert how == "whole" or all(len(log.graphs) <= 2 for log in logs), [len(log.graphs) for log in logs]
    return [f"{b.reason} | {b.hint}" for log in logs for b in log.breaks]


def checkpoint_round_trip(folder: str) -> None:
    """state_dict keys are eager's; a distributed checkpoint of a compiled model continues in an eager one alike."""
    eager, fast = build("eager", Used), build("after", Used)
    assert list(fast.state_dict()) == list(eager.state_dict())
    train(fast, steps=5)
    path = Path(folder)
    dcp.save({"model": get_model_state_dict(fast)}, checkpoint_id=path)
    state = {"model": get_model_state_dict(eager)}
    dcp.load(state, checkpoint_id=path)
    set_model_state_dict(eager, state["model"])
    same(train(fast, steps=5), train(eager, steps=5))


def tensor_parallel(compiled: bool) -> tuple[Run, list[str]]:
    torch.manual_seed(0)
    model: nn.Module = Block(16)
    parallelize_module(model, mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if compiled:
        model = braze.compile(model)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    x = batches(0)[0]
    dist.broadcast(x, 0)
    for _ in range(8):
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    run = Run(losses, {}, {n: full(p) for n, p in model.state_dict().items()})
    return run, [b.reason for b in log_of(model).breaks] if compiled else []


def tensor_parallel_equals_eager() -> list[str]:
    (want, _), (got, reasons) = tensor_parallel(False), tensor_parallel(True)
    same(got, want)
    return reasons
