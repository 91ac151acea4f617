"""What a first step costs when many ranks of one machine compile the same model at once, with one shared cache.

    python benchmarks/distributed/compile_scale.py --ranks 1,2,4,8

For each number of ranks (gloo, CPU): CPU seconds of a rank's first training step (mean, all of its threads), entries
written to and found in the cache by all ranks together, the cache's size, and the same for a second start (warm cache).
``collectives``: those that a rank issues in its first step, and those of an eager first step (braze adds none).  Counts
do not depend on how many cores the ranks share; CPU seconds do so little.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp


def rank_main(rank: int, world: int, port: int, cache: str, out: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), BRAZE_CACHE_DIR=cache, OMP_NUM_THREADS="1")
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    import braze
    from braze.bench.models import build
    from braze.runtime.cache import opened

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    case = build("bert", "tiny", 2)
    eager, model = DDP(copy.deepcopy(case.model)), braze.compile(DDP(case.model))
    plain, _ = first_step(case, eager)
    dist.barrier()
    collectives, spent = first_step(case, model)
    counts = [c for folder, c in opened().items() if folder.endswith("cpu")]
    dist.barrier()
    out.put((spent, sum(c.written for c in counts), sum(c.hits for c in counts), collectives, plain))
    dist.destroy_process_group()


def first_step(case: Any, model: Any) -> tuple[int, float]:
    """(collectives issued, CPU seconds)."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as p:
        before = time.process_time()
        case.loss(model(*case.inputs), case.target).backward()
        spent = time.process_time() - before
    return sum(e.name.startswith("c10d::") for e in p.events()), spent


def run(world: int, cache: str) -> dict[str, Any]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    out = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank_main, (world, port, cache, out), nprocs=world)
    rows = [out.get() for _ in range(world)]
    seconds = sum(r[0] for r in rows) / world
    size = sum(p.stat().st_size for p in Path(cache).rglob("*") if p.is_file())
    return {
        "cpu_s_a_rank": round(seconds, 2),
        "written": sum(r[1] for r in rows),
        "found": sum(r[2] for r in rows),
        "cache_kb": round(size / 1e3),
        "collectives": sorted({r[3] for r in rows}),
        "in_eager": sorted({r[4] for r in rows}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4,8")
    for world in map(int, parser.parse_args().ranks.split(",")):
        with tempfile.TemporaryDirectory() as cache:
            print(json.dumps({"ranks": world, "cold": run(world, cache), "warm": run(world, cache)}), flush=True)


if __name__ == "__main__":
    main()
