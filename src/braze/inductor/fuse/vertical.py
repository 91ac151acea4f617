"""Producers and consumers into clusters: the sweep that makes most kernels.

Ops are visited in program order; each starts as a cluster of its own and merges with the clusters of its operands, the
one that saves the most bytes first.  Column reductions wait for a second sweep: a pointwise cluster serves the row
reductions that read it first, because those allow whole-row fusion.
"""

from __future__ import annotations

from .cluster import Cluster, Clusters
from .legality import allowed, unify
from .ops import Analysis, nbytes
from .traits import DeviceTraits, Reason

Log = list[tuple[int, int, Reason]]


def grow(analysis: Analysis, traits: DeviceTraits, log: Log | None = None) -> Clusters:
    """The clusters of a program. ``log`` collects (producer op, consumer op, why they stay apart)."""
    clusters = Clusters(analysis)
    late: list[Cluster] = []
    for op in analysis.ops:
        if op.kind == "free":
            continue
        c = clusters.add(op)
        if c.closed or not c.preds:
            continue
        if c.column:
            late.append(c)
            continue
        join_producers(clusters, c, traits, log)
    for c in late:
        if c.id in clusters.live and clusters.find(c.id) is c:
            join_producers(clusters, c, traits, log)
    return clusters


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
