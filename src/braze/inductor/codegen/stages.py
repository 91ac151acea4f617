"""Where a backward hands gradients over before it has ended, so that their all-reduce overlaps with the rest of it.

A gradient is ready after the last step that reads or writes its memory: whoever gets it may overwrite it.  Example:
with limits of 1 and 4 bytes, outputs of 4 bytes that are ready after the steps 2, 5, 6 and 7 leave in the stages
``[(2, (0,)), (5, (1,)), (6, (2,)), (7, (3,))]``: (step, outputs that leave after it).
"""

from __future__ import annotations

from braze.inductor.loops import Buffer, Kernel, Program, Step, Strided
from braze.ir import leaves

Stage = tuple[int, tuple[int, ...]]


def stages_of(program: Program, first: int, rest: int) -> list[Stage]:
    """(step, outputs) for each stage: the first of at least ``first`` bytes of gradients, others of ``rest``, the last
    of what is left, after the last step. Absent gradients leave with it. Symbolic sizes count as nothing."""
    ready = _ready(program)
    last = len(program.steps) - 1
    out: list[Stage] = []
    waiting: list[int] = []
    size = 0
    by_step = sorted((step, k) for k, step in ready.items())
    for n, (step, k) in enumerate(by_step):
        waiting.append(k)
        size += _nbytes(program.outputs[k])
        more = n + 1 < len(by_step)
        if size >= (rest if out else first) and more and by_step[n + 1][0] > step >= 0:
            out.append((step, tuple(waiting)))
            waiting, size = [], 0
    absent = [k for k in range(len(program.outputs)) if k not in ready]
    return [*out, (last, (*waiting, *absent))]


def _ready(program: Program) -> dict[int, int]:
    """output -> the step after which nothing touches its memory; -1 where no step does."""
    last: dict[Buffer, int] = {}
    ends = {k: end - 1 for first, end in program.groups for k in range(first, end)}
    for n, step in enumerate(program.steps):
        for b in touched(step):
            last[b] = ends.get(n, n)
    return {k: last.get(o.buffer, -1) for k, o in enumerate(program.outputs) if isinstance(o, Strided)}


def _nbytes(output: Strided) -> int:
    total = output.buffer.type.dtype.itemsize
    for n in output.sizes:
        total *= n if isinstance(n, int) else 0
    return total


def touched(step: Step) -> list[Buffer]:
    """The buffers that a step reads or writes."""
    if isinstance(step, Kernel):
        return [*step.reads, *step.writes]
    used = [s.buffer for s in leaves((step.args, step.kwargs)) if isinstance(s, Strided)]
    return used + [b for b in step.outputs if b is not None]
