"""The order of steps: topological, each step as near to its place in the source program as its operands allow."""

from __future__ import annotations

from braze.autograd.schema import draws
from braze.inductor.loops import Buffer, Extern, Kernel, Step
from braze.inductor.loops.interpret import buffers_in


def reads_of(step: Step) -> list[Buffer]:
    """The buffers that a step reads (also those that it reads and writes)."""
    if isinstance(step, Kernel):
        return step.reads
    return buffers_in(step.args) + buffers_in(step.kwargs)


def writes_of(step: Step) -> list[Buffer]:
    """The buffers that a step writes."""
    if isinstance(step, Kernel):
        return step.writes
    return [b for b in step.outputs if b is not None]


def order(steps: list[tuple[int, Step]]) -> list[Step]:
    """Sort (position, step) pairs topologically by buffers: steps come by position, each right after what it needs.

    So a recomputed value is made where it is first used, not as soon as it could be. Several writers of a buffer keep
    their given order, and its readers come after the last.
    """
    needs = needs_of(steps)
    limit = len(steps) + sum(map(len, needs))
    done: set[int] = set()
    out: list[Step] = []
    for first in sorted(range(len(steps)), key=lambda k: steps[k][0]):
        stack = [first]
        while stack:
            k = stack[-1]
            missing = [d for d in needs[k] if d not in done]
            if k in done:
                stack.pop()
            elif missing:
                assert len(stack) <= limit, "the steps depend on each other in a circle"
                stack.extend(reversed(missing))
            else:
                stack.pop()
                done.add(k)
                out.append(steps[k][1])
    return out


def needs_of(steps: list[tuple[int, Step]]) -> list[list[int]]:
    """For each step the steps that must run before it, by position. Draws from torch's generator keep their order."""
    writers: dict[Buffer, list[int]] = {}
    drawing = []
    for k, (_, s) in enumerate(steps):
        for b in writes_of(s):
            writers.setdefault(b, []).append(k)
        if isinstance(s, Extern) and draws(s.target):
            drawing.append(k)
    drawing.sort(key=lambda k: steps[k][0])
    before = dict(zip(drawing[1:], drawing))
    out = []
    for k, (_, s) in enumerate(steps):
        need = {w for b in reads_of(s) for w in writers.get(b, ())} - {k}
        for b in writes_of(s):
            earlier = writers[b]
            need.update(earlier[: earlier.index(k)])
        if k in before:
            need.add(before[k])
        out.append(sorted(need, key=lambda w: steps[w][0]))
    return out
