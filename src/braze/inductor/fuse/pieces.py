"""A stored concatenation becomes one kernel a piece, each writing its slice of the result without masks.

Before: ``out[i] = a[i] if i < 100 else b[i - 100]`` for i < 300.  After: ``out[i] = a[i]`` for i < 100 and
``out[100 + i] = b[i]`` for i < 200.  The masks vanish because each piece's range decides them, and no piece computes
another's values.  Only worth it where there is much to compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from braze.inductor.loops import Axis, Compute, Const, Index, Kernel
from braze.ir import Expr, IntLike, Symbol, substitute, symbol, symbol_of, symbols

from .cluster import Cluster
from .ops import COSTS

MAX_PIECES = 8
HEAVY = 24  # instructions a point; cheaper bodies run faster in one pass over the result, with masks


@dataclass(frozen=True)
class Cuts:
    """The axis to cut and the half-open ranges of the pieces."""

    axis: Axis
    pieces: tuple[tuple[int, int], ...]


def cat_cuts(kernel: Kernel) -> Cuts | None:
    """Where a kernel that evaluates a concatenation changes from piece to piece; None when it does not do so simply."""
    if not any(name == "prims.cat" for name, _ in kernel.origin):
        return None
    work = [i.fn for i in kernel.body if isinstance(i, Compute) and i.fn != "where" and i.dtype != torch.bool]
    if sum(COSTS.get(fn, 1) for fn in work) < HEAVY:
        return None
    places: dict[Symbol, set[int]] = {}
    for i in kernel.body:
        if isinstance(i, Compute) and i.fn in ("lt", "ge"):
            at, end = i.args
            if isinstance(at, Index) and isinstance(end, Const) and isinstance(at.expr, Expr):
                s = next(iter(symbols(at.expr)))
                shift = at.expr - Expr({(s,): 1})
                if not isinstance(shift, int):
                    return None
                places.setdefault(s, set()).add(int(end.value) - shift)
    if len(places) != 1:
        return None
    ((s, found),) = places.items()
    axis = next((a for a in kernel.x if a.index is s), None)
    if axis is None or not isinstance(axis.size, int):
        return None
    n = axis.size
    bounds = [0, *sorted(p for p in found if 0 < p < n), n]
    if not 2 < len(bounds) <= MAX_PIECES + 1:
        return None
    return Cuts(axis, tuple(zip(bounds, bounds[1:])))


def piece_env(
    c: Cluster, axis: Axis, low: int, high: int
) -> tuple[dict[int, dict[Symbol, IntLike] | None], list[Axis]]:
    """The maps of a cluster's ops with the axis confined to [low, high), and its new axis."""
    n = high - low
    inner: IntLike = 0 if n == 1 else symbol(f"{axis.index.name}_p", 0, n - 1)
    change: dict[Symbol, IntLike] = {axis.index: low + inner}
    out: dict[int, dict[Symbol, IntLike] | None] = {}
    for op in c.ops:
        old = c.env[op.id]
        out[op.id] = dict(change) if old is None else {s: substitute(e, change) for s, e in old.items()}
    s = symbol_of(inner)
    return out, [] if s is None else [Axis(s, n)]
