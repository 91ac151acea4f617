"""An image classifier trained by DistributedDataParallel, compiled by braze.

    torchrun --standalone --nproc_per_node 2 examples/ddp_classifier.py            # CPU (gloo), or one GPU a process
    torchrun --standalone --nproc_per_node 2 examples/ddp_classifier.py --eager    # the same without braze

The gradients of a bucket are reduced while the rest of the compiled backward runs. ``braze.compile(DDP(model))`` and
``DDP(braze.compile(model))`` are the same; ``no_sync``, communication hooks and checkpoints work as without braze.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import braze


class Classifier(nn.Module):
    """Convolution blocks with a residual each, then a linear head."""

    def __init__(self, width: int = 32, depth: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.SiLU())
            for _ in range(depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


def batch(step: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images; the class is the brightest of ten bands."""
    g = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    x = torch.rand(size, 3, 20, 20, generator=g)
    label = torch.randint(10, (size,), generator=g)
    for i, k in enumerate(label):
        x[i, :, 2 * k : 2 * k + 2] += 1
    return x.to(device), label.to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32, help="images a process")
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(0)
    model: nn.Module = DDP(Classifier().to(device))
    if not args.eager:
        model = braze.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    start = time.perf_counter()
    for step in range(args.steps):
        x, y = batch(step, args.batch, device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step % 20 == 0 or step == args.steps - 1):
            print(f"step {step:3d}  loss {loss.item():.3f}  {time.perf_counter() - start:.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
