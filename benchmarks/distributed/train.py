"""Data-parallel training with eager, torch.compile and braze in one run, and what the communication costs.

    torchrun --standalone --nproc_per_node 2 benchmarks/distributed/train.py --out results.json
    torchrun --standalone --nproc_per_node 2 benchmarks/distributed/train.py --size tiny   # CPU (gloo)

For each case and contender: samples/s of all ranks with gradient reduction (``sync``), and with ``no_sync`` (``local``:
every rank on its own, the speed of one device).  ``reduce_ms`` is the time of the same all-reduces with nothing beside
them, ``host_ms`` the time in which the host issues a step to an idle device (near the step's time: the host bounds it).
Derived: ``scaling`` = ranks * local step / sync step, ``hidden`` = 1 - (sync step - local step) / reduce: the
share of communication that compute hides.  FSDP cases have no local form: only ``sync``.  Rounds of the contenders are
interleaved; a figure is the median of its rounds.  On GPUs a profile of one step adds ``nccl_ms``, the share of it
during which other kernels run (``overlapped``), and ``busy_ms``: the time in which any kernel runs.

A case may name its batch (``bert:64``), a contender its mode (``braze:reduce-overhead``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

import braze
from braze.bench.models import Case, build

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from fsdp_decoder import Decoder  # noqa: E402

CONTENDERS: dict[str, Callable[..., Any]] = {
    "eager": lambda m, mode: m,
    "torch.compile": torch.compile,
    "braze": braze.compile,
}
DECODER = {"tiny": (256, 64, 2, 4, 2, 32), "full": (32000, 2048, 24, 16, 4, 1024)}  # …, heads, batch, tokens


def decoder_case(size: str) -> Case:
    """A decoder: 1.4e9 parameters in the full size."""
    vocabulary, width, depth, heads, batch, tokens = DECODER[size]
    torch.manual_seed(0)
    model = Decoder(vocabulary, width, depth, heads)
    ids = torch.randint(vocabulary, (batch, tokens))

    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(out.flatten(0, 1).float(), target.flatten())

    return Case(model, (ids,), ids.roll(-1, 1), loss, batch)


class Trainer:
    """One contender on one case."""

    def __init__(self, case: Case, contender: str, device: torch.device, shard: bool) -> None:
        self.case, self.device = case, device
        self.inputs = [x.to(device) for x in case.inputs]
        self.target = case.target.to(device)
        self._inner: DDP | None = None
        kind, _, mode = contender.partition(":")
        make = partial(CONTENDERS[kind], mode=mode or None)
        model = case.model.to(device)
        self.model = self._sharded(model, make) if shard else make(self._replicated(model))
        self.ddp = None if shard else self._inner
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, fused=device.type == "cuda")
        self.cast = nullcontext() if shard else torch.autocast(device.type, torch.bfloat16)

    def _replicated(self, model: nn.Module) -> nn.Module:
        ids = [self.device.index] if self.device.type == "cuda" else None
        self._inner = DDP(model, device_ids=ids, gradient_as_bucket_view=True)
        return self._inner

    def _sharded(self, model: nn.Module, make: Callable[[nn.Module], nn.Module]) -> nn.Module:
        mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        for i, block in enumerate(model.blocks):
            model.blocks[i] = make(block)
        return model

    def step(self, sync: bool) -> None:
        with nullcontext() if sync or self.ddp is None else self.ddp.no_sync():
            with self.cast:
                out = self.model(*self.inputs, **self.case.kwargs)
                loss = self.case.loss(out, self.target)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def time(self, steps: int, sync: bool) -> float:
        """Seconds a step, the slowest rank's."""
        finish(self.device)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self.step(sync)
        finish(self.device)
        taken = torch.tensor((time.perf_counter() - start) / steps, device=self.device)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        return taken.item()

    def host_seconds(self, steps: int) -> float:
        """The least time in which the host issues a synchronised step to an idle device."""
        times = []
        for _ in range(steps):
            finish(self.device)
            dist.barrier()
            start = time.perf_counter()
            self.step(True)
            times.append(time.perf_counter() - start)
        return min(times)


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reduce_seconds(model: nn.Module, device: torch.device, steps: int) -> float:
    """The all-reduces of one step (buckets of 25 MiB) with nothing beside them."""
    left = sum(p.numel() for p in model.parameters() if p.requires_grad)
    buckets = []
    while left > 0:
        buckets.append(torch.ones(min(left, 25 * 2**18), device=device))
        left -= buckets[-1].numel()
    for timed in (False, True):
        finish(device)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps if timed else 2):
            for work in [dist.all_reduce(b, async_op=True) for b in buckets]:
                work.wait()
        finish(device)
    return (time.perf_counter() - start) / steps


def profiled(step: Callable[[], None]) -> dict[str, float]:
    """One step's NCCL kernels: their milliseconds on the GPU, and the share during which another kernel runs too."""
    from torch.profiler import ProfilerActivity, profile, schedule

    # ranks that start their profilers at different times wait for each other in the first steps
    with profile(activities=[ProfilerActivity.CUDA], schedule=schedule(wait=0, warmup=2, active=1, repeat=1)) as p:
        for _ in range(3):
            step()
            torch.cuda.synchronize()
            p.step()
    kernels = [e for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA and "Mem" not in e.name]
    comm = [(e.time_range.start, e.time_range.end) for e in kernels if "nccl" in e.name.lower()]
    other = [(e.time_range.start, e.time_range.end) for e in kernels if "nccl" not in e.name.lower()]
    total, beside, both = (length(spans) for spans in (comm, other, comm + other))
    hidden = (total + beside - both) / total if total else 0.0
    return {"nccl_ms": round(total / 1e3, 2), "overlapped": round(hidden, 3), "busy_ms": round(both / 1e3, 2)}


def length(spans: list[tuple[float, float]]) -> float:
    """How long at least one of the spans lasts."""
    out, end = 0.0, float("-inf")
    for a, b in sorted(spans):
        out += max(0.0, b - max(a, end))
        end = max(end, b)
    return out


def measure(which: str, args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    name, _, batch = which.partition(":")
    shard = name == "decoder"
    rows: dict[str, dict[str, Any]] = {}
    trainers: dict[str, Trainer] = {}
    for contender in args.contenders.split(","):
        case = decoder_case(args.size) if shard else build(name, args.size, int(batch) if batch else None)
        start = time.perf_counter()
        trainers[contender] = t = Trainer(case, contender, device, shard)
        for _ in range(3):
            t.step(True)
        finish(device)
        rows[contender] = {"cold_s": round(time.perf_counter() - start, 2), "sync": [], "local": []}
        if not shard:
            t.step(False)
            t.step(False)
    for _ in range(args.rounds):
        for contender, t in trainers.items():
            rows[contender]["sync"].append(t.time(args.steps, True))
            if not shard:
                rows[contender]["local"].append(t.time(args.steps, False))
    world = dist.get_world_size()
    reduce = 0.0 if shard else reduce_seconds(case.model, device, args.steps)
    for contender, row in rows.items():
        row["host_ms"] = round(trainers[contender].host_seconds(args.steps) * 1e3, 2)
        sync = statistics.median(row["sync"])
        row["samples_per_s"] = round(case.batch * world / sync, 1)
        row["step_ms"] = round(sync * 1e3, 2)
        if not shard:
            local = statistics.median(row["local"])
            row["local_step_ms"], row["reduce_ms"] = round(local * 1e3, 2), round(reduce * 1e3, 2)
            row["scaling"] = round(world * local / sync, 3)
            row["hidden"] = round(1 - (sync - local) / reduce, 3)
        del row["sync"], row["local"]
    if device.type == "cuda":
        for contender, t in trainers.items():
            rows[contender] |= profiled(lambda t=t: t.step(True))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="full" if torch.cuda.is_available() else "tiny")
    parser.add_argument("--cases", default="resnet50,bert,decoder")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    about = {"torch": torch.__version__, "ranks": dist.get_world_size(), "size": args.size}
    about["device"] = torch.cuda.get_device_name(device) if gpu else "cpu"
    results: dict[str, Any] = {"about": about}
    for name in args.cases.split(","):
        try:
            results[name] = measure(name, args, device)
        except Exception as e:  # one case's failure leaves the others' figures
            results[name] = {"error": f"{type(e).__name__}: {e}"[:500]}
        if dist.get_rank() == 0:
            print(*[f"{name} {k}: {json.dumps(v)}" for k, v in results[name].items()], sep="\n", flush=True)
            if args.out:
                Path(args.out).write_text(json.dumps(results, indent=1) + "\n")
        if gpu:
            torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
