"""The order of steps: topological, each step as near to its place in the source program as its operands allow."""

from __future__ import annotations

import heapq

from braze.inductor.loops import Buffer, Kernel, Step
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
    """Sort (position, step) pairs topologically by buffers, then by position. Several writers of a buffer keep their
    given order, and its readers come after the last."""
    writers: dict[Buffer, list[int]] = {}
    for k, (_, s) in enumerate(steps):
        for b in writes_of(s):
            writers.setdefault(b, []).append(k)
    after: list[list[int]] = [[] for _ in steps]
    waits = [0] * len(steps)
    for k, (_, s) in enumerate(steps):
        need = {w for b in reads_of(s) for w in writers.get(b, ())} - {k}
        for b in writes_of(s):
            earlier = writers[b]
            need.update(earlier[: earlier.index(k)])
        waits[k] = len(need)
        for w in need:
            after[w].append(k)
    ready = [(p, k) for k, (p, _) in enumerate(steps) if not waits[k]]
    heapq.heapify(ready)
    out: list[Step] = []
    while ready:
        _, k = heapq.heappop(ready)
        out.append(steps[k][1])
        for n in after[k]:
            waits[n] -= 1
            if not waits[n]:
                heapq.heappush(ready, (steps[n][0], n))
    assert len(out) == len(steps), "the steps depend on each other in a circle"
    return out
