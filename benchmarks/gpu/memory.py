"""Peak memory of a training step, planned: what the host programs allocate and free, step by step. No card needed.

    python benchmarks/gpu/memory.py resnet50 bert hybrid [--budgets 1.0,0.95,0.8] [--precision bf16|tf32]

One JSON line a network and budget, in GiB: what the forward saves, the peak of forward and backward, and of a step with
AdamW's two moments in the default mode and under CUDA graphs. There the saved tensors and the gradients have memory of
their own, also while the optimizer runs, whose fused step needs none.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from captured import Part, training

from braze.inductor.codegen.host import last_uses
from braze.inductor.fuse.schedule import writes_of
from braze.inductor.loops import Buffer, Program
from braze.inductor.loops.interpret import buffers_in
from braze.ir import evaluate

GIB = 2**30
ROUND = 512  # the allocator's unit


def size(b: Buffer) -> int:
    """Bytes that the allocator gives."""
    n = evaluate(b.type.nbytes)
    return -(-int(n) // ROUND) * ROUND


def walk(program: Program, freed: frozenset[Buffer] = frozenset()) -> tuple[int, int]:
    """(peak, end) of the bytes that the program's buffers take, ``freed`` inputs counted until their last use."""
    given = {b for b in program.inputs if isinstance(b, Buffer)} - freed | set(program.constants)
    roots: dict[Buffer, Buffer] = {}
    held = {b: size(b) for b in freed}
    peak = sum(held.values())
    last = last_uses(program)
    for n, step in enumerate(program.steps):
        for b in writes_of(step):
            if b in given or b in roots or b in held:
                continue
            old = program.reuse.get(b)
            root = roots.get(old, old) if old is not None else None
            roots[b] = root if root is not None else b
            if root is None:
                held[b] = size(b)
        peak = max(peak, sum(held.values()))
        taken = {program.reuse[b] for b in writes_of(step) if b in program.reuse}
        for b in last.get(n, ()):
            if b not in taken and b not in given and not _passed_on(program, b):
                held.pop(roots.get(b, b), None)
    return peak, sum(held.values())


def _passed_on(program: Program, b: Buffer) -> bool:
    """Whether a later buffer lives in the memory of this one."""
    return any(old is b for old in program.reuse.values())


def planned(parts: list[Part]) -> dict[str, float]:
    """The figures of one network, in GiB."""
    forward, backward = (next(p for p in parts if p.side == s) for s in ("forward", "backward"))
    sig = forward.signature
    tensors = [t for t in forward.inputs if isinstance(t, torch.Tensor)]
    weights = sum(t.nbytes for t in tensors if t.requires_grad)
    inputs = sum(t.nbytes for t in tensors if not t.requires_grad)
    slots = [b for b, r in zip(backward.program.inputs, sig.saved) if r.kind == "extra"]
    saved = frozenset(b for b in slots if isinstance(b, Buffer))
    kept = sum(map(size, saved))
    first, _ = walk(forward.program)
    second, _ = walk(backward.program, saved)
    own = second_alone(backward.program)
    gradients = sum(size(b) for b in dict.fromkeys(buffers_in(backward.program.outputs)))
    always = 3 * weights + inputs
    step = always + max(first, second)
    recorded = always + inputs + kept + max(gradients, own)
    rows = {"saved": kept, "forward": first, "backward": second, "step": step, "step_recorded": recorded}
    return {k: round(v / GIB, 3) for k, v in rows.items()}


def second_alone(program: Program) -> int:
    """The backward's own memory where saved tensors stay."""
    return walk(program)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=["resnet50", "bert", "hybrid"])
    parser.add_argument("--budgets", default="1.0")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "tf32"))
    options = parser.parse_args()
    for name in options.networks:
        for budget in map(float, options.budgets.split(",")):
            row: dict[str, Any] = {"network": name, "budget": budget}
            print(
                json.dumps({**row, **planned(training(name, precision=options.precision, budget=budget))}), flush=True
            )


if __name__ == "__main__":
    main()
