"""A decoder-only language model sharded by FSDP2 (fully_shard), compiled block by block by braze.

    torchrun --standalone --nproc_per_node 2 examples/fsdp_decoder.py            # CPU (gloo), or one GPU a process
    torchrun --standalone --nproc_per_node 2 examples/fsdp_decoder.py --eager    # the same without braze

FSDP's all-gathers and reduce-scatters run in Python between the compiled blocks, with its own prefetching. Checkpoints
have the keys of the eager model: a run saved with braze continues without it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import braze


class Block(nn.Module):
    """Pre-norm attention and a gated MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Token embedding, blocks, and a head of its own."""

    def __init__(self, vocabulary: int = 256, width: int = 64, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def sharded(eager: bool, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    model = Decoder().to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if not eager:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = braze.compile(block)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8, help="sequences a process")
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    model = sharded(args.eager, device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    start = time.perf_counter()
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(args.steps):
        g = torch.Generator().manual_seed(step * world + rank)
        first = torch.randint(256, (args.batch, 1), generator=g)
        ids = ((first + 3 * torch.arange(33)) % 256).to(device)  # sequences that count by threes
        logits = model(ids[:, :-1]).float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % 10 == 0 or step == args.steps - 1):
            print(f"step {step:3d}  loss {loss.item():.3f}  {time.perf_counter() - start:.1f} s", flush=True)
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder[0])
    other = sharded(eager=True, device=device)
    state = {"model": get_model_state_dict(other)}
    dcp.load(state, checkpoint_id=folder[0])
    set_model_state_dict(other, state["model"])
    again = nn.functional.cross_entropy(other(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())
    if rank == 0:
        print(f"loss of an eager model with the saved weights, same batch: {again.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
