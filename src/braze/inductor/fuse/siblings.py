"""Clusters that read the same big buffers over the same domain become one kernel, when neither feeds the other.

Examples: the column sums of a normalisation's backward (weight and bias gradients), several casts of one tensor.
Each buffer's readers are tried in order against the last one that they could have merged with: linear in the edges.
"""

from __future__ import annotations

from braze.inductor.loops import Buffer

from .cluster import Cluster, Clusters
from .legality import allowed, unify
from .ops import nbytes
from .traits import NO_GAIN, DeviceTraits, Reason

MIN_BYTES = 1 << 12


def merge_siblings(clusters: Clusters, traits: DeviceTraits) -> None:
    """Merge siblings in place."""
    readers: dict[Buffer, list[int]] = {}
    for c in list(clusters.live.values()):
        if not c.closed:
            for b in deep_reads(clusters, c):
                if nbytes(b) >= MIN_BYTES:
                    readers.setdefault(b, []).append(c.id)
    for b, ids in readers.items():
        if len(ids) < 2:
            continue
        heads: dict[tuple[int, int, bool], int] = {}
        for id in ids:
            c = clusters.find(id)
            key = (c.points, c.rows, bool(c.r))
            head = heads.get(key)
            if head is not None and clusters.find(head) is not c:
                _try(clusters, clusters.find(head), c, b, traits)
            heads[key] = id


def _try(clusters: Clusters, a: Cluster, b: Cluster, shared: Buffer, traits: DeviceTraits) -> Reason | None:
    if 4 * nbytes(shared) < min(_reads(a), _reads(b)):
        return NO_GAIN
    u = unify(a, b, shared)
    if isinstance(u, Reason):
        return u
    reason = allowed(u, clusters, traits)
    if reason is None:
        clusters.absorb(u.base, u.other, u.env)
    return reason


def _reads(c: Cluster) -> int:
    return sum(map(nbytes, c.loads))


def deep_reads(clusters: Clusters, c: Cluster) -> set[Buffer]:
    """What the cluster reads when the pointwise values that it gets from elsewhere are recomputed."""
    owner = clusters.analysis.owner
    out: set[Buffer] = set()
    for b in c.loads:
        o = owner.get(b)
        if o is not None and o.leaves is not None and not o.stored:
            out |= o.leaves
        else:
            out.add(b)
    return out
