"""Producers and consumers into clusters: the sweep that makes most kernels.

Ops are visited in program order; each starts as a cluster of its own and merges with the clusters of its operands, the
one that saves the most bytes first.  Column reductions come later: a pointwise cluster serves the row reductions that
read it, because those allow whole-row fusion.
"""

from __future__ import annotations

from .cluster import Cluster, Clusters, Index
from .legality import allowed, row_fits, unify
from .ops import Analysis, nbytes
from .traits import STORED_ANYWAY, DeviceTraits, Reason

Log = list[tuple[int, int, Reason]]
MOST_LOADS = 8  # of a pointwise cluster that column sums take in: more would leave the sums no registers


def grow(analysis: Analysis, traits: DeviceTraits, log: Log | None = None) -> Clusters:
    """The clusters of a program, column reductions apart. ``log`` collects (producer op, consumer op, why not one)."""
    clusters = Clusters(analysis)
    for op in analysis.ops:
        if op.kind == "free":
            continue
        c = clusters.add(op)
        if c.closed or not c.preds or (c.column and (c.step > traits.far_step or not row_fits(c, traits))):
            continue
        join_producers(clusters, c, traits, log)
    return clusters


def join_columns(clusters: Clusters, traits: DeviceTraits, log: Log | None = None) -> None:
    """Merge column reductions with the pointwise clusters that serve nothing else.

    Without ``traits.column_stores`` a pointwise result that is also stored stays in its own kernel: written along its
    rows and summed along its columns, it would walk memory badly, and the sum finds it in cache.
    """
    for c in list(clusters.live.values()):
        if c.column and c.id in clusters.live:
            for p in list(clusters.predecessors(c)):
                joins = _stores_columns(p) if traits.column_stores else _serves_only(clusters, p, c)
                reason = try_merge(clusters, p, c, traits) if joins else STORED_ANYWAY
                if reason is not None and log is not None:
                    log.append((p.id, c.id, reason))
                if c.id not in clusters.live:
                    break


def _stores_columns(p: Cluster) -> bool:
    if p.closed or (p.r and not p.column):
        return False
    loads = [i for b, places in p.loads.items() if 8 * nbytes(b) >= p.points for i in _distinct(places)]
    return len(loads) <= MOST_LOADS


def _distinct(places: list[Index | None]) -> list[Index | None]:
    """The places, each once; masked and indirect ones (None) count one by one."""
    return [*{p for p in places if p is not None}, *(p for p in places if p is None)]


def _serves_only(clusters: Clusters, p: Cluster, c: Cluster) -> bool:
    if p.closed or p.r:
        return False
    users = clusters.analysis.users
    for op in p.ops:
        if op.stored:
            return False
        for u in users.get(op.out, ()):  # type: ignore[arg-type]
            at = clusters.at[u.id]
            if at is not p and at is not c:
                return False
    return True


def join_producers(clusters: Clusters, c: Cluster, traits: DeviceTraits, log: Log | None) -> None:
    """Merge ``c`` with every producer cluster that allows it."""
    owner = clusters.analysis.owner
    gain: dict[int, int] = {}
    for b in c.loads:
        o = owner.get(b)
        if o is not None and o.kind != "free":
            p = clusters.find(o.id)
            if not p.closed:
                gain[p.id] = gain.get(p.id, 0) + nbytes(b)
    for id in sorted(gain, key=lambda i: -gain[i]) if len(gain) > 1 else gain:
        reason = try_merge(clusters, clusters.find(id), clusters.find(c.ops[0].id), traits)
        if reason is not None and log is not None:
            log.append((id, c.ops[0].id, reason))


def try_merge(clusters: Clusters, a: Cluster, b: Cluster, traits: DeviceTraits) -> Reason | None:
    """Merge two clusters, or say why not."""
    if a is b:
        return None
    u = unify(a, b)
    if isinstance(u, Reason):
        return u
    reason = allowed(u, clusters, traits)
    if reason is None:
        clusters.absorb(u.base, u.other, u.env)
    return reason
