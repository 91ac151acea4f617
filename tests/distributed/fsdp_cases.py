"""FSDP2 and tensor parallelism under braze: what each rank runs, compared with eager in the same process."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from models import Block, Net, Run, Used, full, same, train
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

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


PLANS: dict[str, dict[str, Any]] = {
    "columns and rows": {"up": ColwiseParallel(), "down": RowwiseParallel()},
    "columns gathered": {
        "up": ColwiseParallel(output_layouts=Replicate()),
        "down": ColwiseParallel(output_layouts=Replicate()),
    },
    "sequence": {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    },
}


def tensor_parallel(plan: str, compiled: bool, bf16: bool, sharded: bool) -> tuple[Run, list[str], int]:
    """Eight steps of a block: (run, reasons of breaks, calls in the graphs). ``sharded``: FSDP2 over the other dim of
    a two-dimensional mesh."""
    torch.manual_seed(0)
    ranks = dist.get_world_size()
    every = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    model: nn.Module = Block(16)
    parallelize_module(model, every["tensor"], PLANS[plan])
    if sharded:
        fully_shard(model, mesh=every["data"])
    if compiled:
        model = braze.compile(model)
    opt = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for step in range(8):
        x = torch.randn(6, 16, generator=torch.Generator().manual_seed(step + every["data"].get_local_rank()))
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(x).float().square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    grads = {n: full(p.grad) for n, p in model.named_parameters()}
    run = Run(losses, grads, {n: full(p) for n, p in model.state_dict().items()})
    log = log_of(model)
    return run, [b.reason for b in log.breaks] if log else [], sum(len(g.graph.calls) for g in log.graphs) if log else 0


def tensor_parallel_equals_eager(plan: str, bf16: bool, sharded: bool) -> tuple[list[str], int]:
    warnings.simplefilter("error", braze.CompileWarning)
    want, _, _ = tensor_parallel(plan, False, bf16, sharded)
    got, reasons, calls = tensor_parallel(plan, True, bf16, sharded)
    same(got, want, exact=not bf16)
    return reasons, calls
