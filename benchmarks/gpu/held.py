"""What torch holds of the card's memory after some training steps, and where: by pool, free pieces, largest segments.

    python benchmarks/gpu/held.py resnet50 [--compilers eager,braze] [--modes default,reduce-overhead]

One JSON line a case, GiB. ``reserved`` is the most that torch held in a step, ``pools`` what each pool holds and how
much of that is in use after the last step; pool 0.0 is what is not a CUDA graph's. ``pieces``: the segments of pool 0.0
with the most unused memory, in MiB (held, used).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from typing import Any

import torch
from networks import NETWORKS
from train import compiled, stepper

GIB = 2**30


def measure(name: str, compiler: str, mode: str) -> dict[str, Any]:
    """Ten steps, what they left given back, then two more."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    case = NETWORKS[name](False)
    case.model.to("cuda").train()
    step = stepper(case, compiled(case.model, compiler, mode), "bf16")
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    pools: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    pieces = []
    for s in torch.cuda.memory_snapshot():
        pool = ".".join(map(str, s["segment_pool_id"]))
        pools[pool][0] += s["total_size"] / GIB
        pools[pool][1] += s["allocated_size"] / GIB
        if pool == "0.0":
            pieces.append((s["total_size"] >> 20, s["allocated_size"] >> 20))
    weights = sum(p.nbytes for p in case.model.parameters()) / GIB
    row = {"network": name, "compiler": compiler, "mode": mode, "weights": round(weights, 3)}
    row["allocated"] = round(torch.cuda.max_memory_allocated() / GIB, 3)
    row["reserved"] = round(torch.cuda.max_memory_reserved() / GIB, 3)
    row["pools"] = {k: [round(x, 3) for x in v] for k, v in pools.items()}
    return {**row, "pieces": sorted(pieces, key=lambda p: p[1] - p[0])[:8]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network")
    parser.add_argument("--compilers", default="eager,braze")
    parser.add_argument("--modes", default="default,reduce-overhead")
    options = parser.parse_args()
    for compiler in options.compilers.split(","):
        for mode in ["default"] if compiler == "eager" else options.modes.split(","):
            print(json.dumps(measure(options.network, compiler, mode)), flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
