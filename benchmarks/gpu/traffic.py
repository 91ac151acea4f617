"""Kernels and bytes of a training step, without a card: the bench models compiled as if on one.

    python benchmarks/gpu/traffic.py resnet50 bert hybrid [--precision bf16] [--top 12] [--source DIR]

Bytes are those that must move: every buffer that a step reads or writes, once a step. Vendor calls count likewise.
``--source`` writes the host programs and the Triton text there; ``--compile`` also compiles each kernel for the target.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch
from captured import CUDA, training

from braze.bench.models import build
from braze.config import Config
from braze.inductor.codegen.program import HostWriter, kernel_order
from braze.inductor.codegen.triton_emit import emit_triton
from braze.inductor.fuse.schedule import reads_of, writes_of
from braze.inductor.loops import Buffer, Kernel, Load, Program, Step, Store
from braze.ir import symbols
from braze.runtime.cuda_compile import compiler
from braze.runtime.cuda_kernel import TritonKernel

__all__ = ["CUDA", "build", "describe", "nbytes", "programs", "step_of"]


def step_of(case: Any, precision: str) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The training step's loss as a function of parameters, buffers, inputs and target."""
    model = case.model.train()
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names, k, n = list(state), len(state), len(case.inputs)

    def loss(*xs: torch.Tensor) -> tuple[torch.Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            out = torch.func.functional_call(model, dict(zip(names, xs[:k])), tuple(xs[k : k + n]))
        return (case.loss(out, xs[-1]),)

    return loss, [*state.values(), *case.inputs, case.target]


def nbytes(step: Step) -> int:
    """Bytes that the step must move: of a kernel's buffers, what its indices reach."""
    if isinstance(step, Kernel):
        return sum(max(sizes) for sizes in _reached(step).values())
    return sum(int(b.type.nbytes) for b in dict.fromkeys([*reads_of(step), *writes_of(step)]))


def _reached(k: Kernel) -> dict[Buffer, list[int]]:
    out: dict[Buffer, list[int]] = {}
    for i in k.body:
        if isinstance(i, (Load, Store)):
            used = symbols(*i.index)
            points = prod(int(a.size) for a in (*k.x, *k.r) if i.indirect or a.index in used)
            t = i.buffer.type
            out.setdefault(i.buffer, []).append(min(points, int(t.numel)) * t.dtype.itemsize)
    return out


def describe(step: Step) -> str:
    if isinstance(step, Kernel):
        code = emit_triton(step).code
        axes = " ".join(str(a.size) for a in step.x) + (" r " + " ".join(str(a.size) for a in step.r) if step.r else "")
        return f"{step.name:44} [{axes}] {dict(code.launch.blocks)} {code.launch.num_warps}w"
    outs = [b.type for b in step.outputs if b is not None]
    return f"{step.target} -> {', '.join(f'{t.sizes}{t.strides}' for t in outs)}"[:150]


def show(program: Program, top: int) -> None:
    """One line in all, then the heaviest steps."""
    kernels = [s for s in program.steps if isinstance(s, Kernel)]
    mine = sum(map(nbytes, kernels))
    distinct = len({emit_triton(k).code for k in kernels})
    small = sum(nbytes(k) < 1 << 20 for k in kernels)
    vendor = [s for s in program.steps if not isinstance(s, Kernel)]
    print(
        f"{program.name}: {len(kernels)} kernels ({distinct} distinct, {small} under 1 MiB) move {mine / 1e9:.2f} GB, "
        f"{len(vendor)} vendor calls {sum(map(nbytes, vendor)) / 1e9:.2f} GB"
    )
    for s in sorted(program.steps, key=nbytes, reverse=True)[:top]:
        print(f"   {nbytes(s) / 1e6:8.1f} MB  {describe(s)}")


def programs(name: str, precision: str) -> tuple[list[Program], int]:
    """A network's forward and backward as planned programs, and the bytes that the backward keeps of the forward."""
    forward, backward = training(name, precision=precision)
    kept = zip(backward.graph.inputs, backward.signature.saved)
    saved = sum(int(n.val.nbytes) for n, r in kept if r.kind == "extra")
    return [forward.program, backward.program], saved


def report(name: str, options: argparse.Namespace) -> None:
    start = time.perf_counter()
    made, saved = programs(name, options.precision)
    print(f"{name}: planned in {time.perf_counter() - start:.2f} s, saves {saved / 1e9:.3f} GB")
    for program in made:
        show(program, options.top)
        codes = {emit_triton(s).code: s for s in program.steps if isinstance(s, Kernel)}
        if options.source:
            folder = Path(options.source)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}_{program.name}_host.py").write_text(HostWriter(program, kernel_order).write())
            listing = "\n\n".join(f"# {k.name} {c.launch}\n{c.source}" for c, k in codes.items())
            (folder / f"{name}_{program.name}_kernels.py").write_text(listing)
        if options.compile:
            start = time.perf_counter()
            bad = failures(list(codes), options.compile)
            seconds = time.perf_counter() - start
            print(f"   {len(codes)} compiled for {options.compile} in {seconds:.1f} s, {len(bad)} fail")
            for text in bad[:3]:
                print(text)


def failures(codes: list[TritonKernel], target: str) -> list[str]:
    """What the kernels that do not compile say."""
    make = compiler(target, Config())
    errors = [(c, f.exception()) for c, f in [(c, make.submit(c)) for c in codes]]
    return [f"{c.name}: {str(e)[:500]}" for c, e in errors if e is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["resnet50", "bert", "hybrid"])
    parser.add_argument("--precision", default="bf16", choices=("bf16", "tf32"))
    parser.add_argument("--top", type=int, default=12)
    parser.add_argument("--source", default="")
    parser.add_argument("--compile", default="", help='a target such as "cuda:90" or "hip:gfx942"')
    options = parser.parse_args()
    for name in options.models:
        report(name, options)


if __name__ == "__main__":
    main()
