"""Collectives run beside what does not depend on them: starts move up, waits move down.

Before::

    k0 (makes a); k1; k2; s = start(a); y = wait(s, a); k3; k4 (reads y)

After: ``k0; s = start(a); k1; k2; k3; y = wait(s, a); k4``.

A start runs as soon as its operands are there, but for results that would be pending beside :data:`IN_FLIGHT` bytes of
others: gathers of many parameters are issued one ahead of their use, not all at once.  Starts keep their order.
"""

from __future__ import annotations

from braze.inductor.loops import Extern, Step
from braze.ir import Expr

from .schedule import needs_of, reads_of, writes_of

IN_FLIGHT = 256 << 20
"""Bytes of results that may be pending at a time beside the one that is needed next."""


def is_start(step: Step) -> bool:
    """Whether a step issues a collective."""
    return isinstance(step, Extern) and getattr(step.target, "pending", False)


def is_wait(step: Step) -> bool:
    """Whether a step waits for a collective, and so shows its first operand's memory."""
    return isinstance(step, Extern) and getattr(step.target, "shows_first", False)


def overlap(steps: list[Step]) -> list[Step]:
    """The steps in an order with more room between starts and waits."""
    if not any(map(is_start, steps)):
        return steps
    return _raise(_lower(steps))


def _lower(steps: list[Step]) -> list[Step]:
    """Each wait right before the first step that reads its result, at the end where none does."""
    waiting: list[Step] = []
    out: list[Step] = []
    for step in steps:
        if is_wait(step):
            waiting.append(step)
            continue
        reads = set(reads_of(step))
        needed = [w for w in waiting if not reads.isdisjoint(writes_of(w))]
        waiting = [w for w in waiting if w not in needed]
        out += [*needed, step]
    return out + waiting


def _raise(steps: list[Step]) -> list[Step]:
    """Each start as early as its operands and the bytes in flight allow."""
    needs = needs_of(list(enumerate(steps)))
    starts = [k for k, s in enumerate(steps) if is_start(s)]
    done: set[int] = set()
    pending: dict[int, int] = {}  # start -> the bytes of its results
    out: list[Step] = []

    def run(k: int) -> None:
        done.add(k)
        out.append(steps[k])
        if is_start(steps[k]):
            pending[k] = _bytes(steps[k])
        elif is_wait(steps[k]):
            for n in needs[k]:
                pending.pop(n, None)

    for k in range(len(steps)):
        while starts and done.issuperset(needs[starts[0]]):
            first = starts[0]
            if first not in done:
                if len(pending) > 1 and sum(pending.values()) + _bytes(steps[first]) > IN_FLIGHT:
                    break
                run(first)
            starts.pop(0)
        if k not in done:
            run(k)
    return out


def _bytes(step: Step) -> int:
    sizes = [b.type.nbytes for b in writes_of(step)]
    return sum(n for n in sizes if not isinstance(n, Expr))
