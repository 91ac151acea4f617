"""Where the time of the first two steps goes, from empty caches, each case in a fresh process.

    python benchmarks/gpu/cold.py resnet50 bert hybrid [--compilers eager,braze] [--modes default,reduce-overhead]
    python benchmarks/gpu/cold.py --without resnet50 bert hybrid      # without a card

On a card, one line a case: seconds of the parts of each step (forward, backward, optimizer; the device is waited for
after each), and braze's stages in order, with when they began. Without one: seconds of every stage up to the kernels'
text, and what ``cuda:90`` machine code takes of one core and of sixteen, from one worker's time for each kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

CORES = 16


class Clock:
    """Seconds by name, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, f: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter()
        out = f(*args)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        return out

    def rounded(self) -> dict[str, float]:
        return {k: round(v, 3) for k, v in self.seconds.items()}


# ---- on a card


def measure(name: str, compiler: str, mode: str) -> dict[str, Any]:
    """Two steps, part by part."""
    from networks import NETWORKS
    from train import compiled

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    case, clock = NETWORKS[name](False), Clock()
    clock("context", lambda: case.model.to("cuda").train())
    run = clock("compile()", compiled, case.model, compiler, mode)
    inputs, target = [t.to("cuda") for t in case.inputs], case.target.to("cuda")
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-4)

    def forward() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return case.loss(run(*inputs), target)  # type: ignore[no-any-return]

    start = time.perf_counter()
    for n in (1, 2):
        loss = clock(f"forward {n}", forward)
        clock(f"backward {n}", loss.backward)
        clock(f"optimizer {n}", optimizer.step)
        optimizer.zero_grad(set_to_none=True)
    row = {"network": name, "compiler": compiler, "mode": mode, "two steps": round(time.perf_counter() - start, 2)}
    return {**row, **clock.rounded(), **(stages(run, start) if compiler == "braze" else {})}


def stages(run: Any, start: float) -> dict[str, Any]:
    """braze's stages: when each began, and its seconds."""
    from braze.api import log_of

    log = log_of(run)
    assert log is not None
    spans = sorted([*log.spans, *(s for g in log.graphs for s in g.spans)], key=lambda s: s.start)
    text = [f"{s.start - start:.2f} {s.stage} {s.end - s.start:.2f}" for s in spans if s.end - s.start > 0.01]
    return {"stages": text, "kernels": sum(len(g.kernels) for g in log.graphs)}


def in_process(arguments: Sequence[str]) -> None:
    """One case in a fresh process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        caches = ("BRAZE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        env = {**os.environ, **{v: f"{folder}/{v}" for v in caches}}
        subprocess.run([sys.executable, __file__, "--one", *arguments], env=env, check=False)


# ---- without a card


def planned(name: str) -> dict[str, Any]:
    """Stages and kernels of a network on meta tensors."""
    import captured

    clock, counts = Clock(), {}  # type: tuple[Clock, dict[str, int]]
    case = captured.on_meta(name)
    case.model.train()
    start = time.perf_counter()
    codes: dict[Any, None] = {}

    def then(request: Any) -> None:
        clock.seconds["capture"] = time.perf_counter() - start
        for side, program in sides(request, clock):
            found = emitted(side, program, clock)
            counts[side] = len(found)
            codes.update(found)

    captured.capture(captured._loss(case, "bf16"), (*case.inputs, case.target), then, None)
    total = time.perf_counter() - start
    row = {"network": name, "stages": round(total, 2), **clock.rounded(), "kernels": counts}
    return {**row, **machine_code(list(codes))}


def sides(request: Any, clock: Clock) -> list[tuple[str, Any]]:
    """The planned forward and backward, each stage timed."""
    import captured
    import torch.nn.functional as F

    from braze.autograd import channels_last, partition, trace_joint
    from braze.backends.inductor import policy_of
    from braze.fake.questions import deciding
    from braze.inductor.fuse import fuse, plan
    from braze.inductor.loops import lower
    from braze.ir.pause import paused_gc
    from braze.prims.decompose import decompose

    graph = captured.typed(request.graph)
    plain, F.scaled_dot_product_attention = F.scaled_dot_product_attention, captured.attention
    out = []
    with paused_gc(), deciding(graph.decide):
        try:
            joint = clock("joint trace", trace_joint, graph, list(map(captured.there, request.types)))
            joint = clock("layouts", channels_last, joint)
        finally:
            F.scaled_dot_product_attention = plain
        aot = clock("partition", partition, joint, 1.0)
        for side, g in (("forward", aot.forward), ("backward", aot.backward)):
            made: Any = clock(f"{side}: prims", decompose, g, policy_of(g))
            for stage, f in (("loops", lower), ("fuse", fuse), ("plan", plan)):
                made = clock(f"{side}: {stage}", f, made)
            out.append((side, made))
    return out


def emitted(side: str, program: Any, clock: Clock) -> dict[Any, None]:
    """The distinct kernels' code."""
    from braze.inductor.codegen.host import HostWriter
    from braze.inductor.codegen.program import kernel_order
    from braze.inductor.codegen.triton_emit import emit_triton
    from braze.inductor.loops import Kernel

    steps = [s for s in program.steps if isinstance(s, Kernel) and s.device.type == "cuda"]
    codes = clock(f"{side}: kernels", lambda: {emit_triton(k).code: None for k in steps})
    clock(f"{side}: host", lambda: HostWriter(program, kernel_order).write())
    return codes  # type: ignore[no-any-return]


def machine_code(codes: list[Any]) -> dict[str, Any]:
    """Processor seconds of the kernels' compilation, and how long sixteen cores take for them, the longest first."""
    from braze.runtime.cuda_compile import request
    from braze.runtime.cuda_worker import compile_source, configure, first_request

    configure()
    compile_source(first_request("cuda:90"))
    times = {}
    for code in codes:
        before = sum(os.times()[:4])
        compile_source(request(code, "cuda:90"))
        times[code.name, len(times)] = sum(os.times()[:4]) - before
    busy = [0.0] * CORES
    for t in sorted(times.values(), reverse=True):
        busy[busy.index(min(busy))] += t
    longest = sorted(times.items(), key=lambda x: -x[1])[:3]
    return {
        "machine code, one core": round(sum(times.values()), 2),
        "sixteen cores": round(max(busy), 2),
        "longest": [f"{name} {t:.2f}" for (name, _), t in longest],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=["resnet50", "bert", "hybrid"])
    parser.add_argument("--compilers", default="eager,braze")
    parser.add_argument("--modes", default="default,reduce-overhead")
    parser.add_argument("--without", action="store_true", help="without a card")
    parser.add_argument("--one", action="store_true", help="the case NETWORK COMPILER MODE, here")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.networks)), flush=True)
    elif options.without:
        for name in options.networks:
            print(json.dumps(planned(name)), flush=True)
    else:
        for name in options.networks:
            for compiler in options.compilers.split(","):
                for mode in ["default"] if compiler == "eager" else options.modes.split(","):
                    in_process([name, compiler, mode])


if __name__ == "__main__":
    main()
