"""Vectors put together from elements of several vectors."""

from __future__ import annotations

from collections.abc import Sequence

from .llvm_builder import Builder, V


def weave(b: Builder, parts: Sequence[V]) -> list[V]:
    """Vectors whose elements, one after the other, are element 0 of each part, element 1 of each part, ..."""
    count, lanes = len(parts), parts[0].lanes
    return [_pick(b, parts, [(e % count, e // count) for e in range(j * lanes, (j + 1) * lanes)]) for j in range(count)]


def _pick(b: Builder, parts: Sequence[V], wanted: Sequence[tuple[int, int]]) -> V:
    """A vector of elements (part, lane), by shuffles of two vectors each."""
    n = len(wanted)
    used = sorted({p for p, _ in wanted})
    out, placed = parts[used[0]], {used[0]}
    if len(used) == 1:
        used = [used[0], used[0]]
    done = False
    for p in used[1:]:
        picks = []
        for at, (part, lane) in enumerate(wanted):
            if part == p and p not in placed:
                picks.append(f"i32 {n + lane}")
            elif part in placed:
                picks.append(f"i32 {at if done else lane}")
            else:
                picks.append("i32 poison")
        out = b.let(out.elem, n, f"shufflevector {out.typed}, {parts[p].typed}, <{n} x i32> <{', '.join(picks)}>")
        placed.add(p)
        done = True
    return out


def strided(b: Builder, parts: Sequence[V], step: int) -> V:
    """Every ``step``-th element of what ``step`` vectors hold; the last vector ends with the last such element."""
    n = parts[0].lanes
    last = (n - 1) * step + 1 - n  # where the last vector begins
    wanted = []
    for k in range(n):
        at = k * step
        wanted.append((at // n, at % n) if at < (step - 1) * n else (step - 1, at - last))
    return _pick(b, parts, wanted)
