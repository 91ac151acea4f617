"""Clusters that read the same big buffers over the same domain become one kernel, when neither feeds the other.

Examples: the column sums of a normalisation's backward (weight and bias gradients), a softmax's backward and the
dropout that reads the same probabilities.  Each buffer's readers are tried in order against the last one that they
could have merged with: linear in the edges.

Two more groups save only kernels, not traffic: pointwise work at the program's edges (step counters, casts of weights)
and, where a kernel costs much (``traits.launch_bytes``), column reductions that stand close together.
"""

from __future__ import annotations

from collections import Counter

from braze.inductor.loops import Buffer, Compute

from .cluster import Cluster, Clusters
from .group import LEAST
from .legality import allowed, unify, unify_by_order
from .ops import nbytes
from .traits import NO_GAIN, DeviceTraits, Reason

MIN_BYTES = 1 << 12
TINY = 64  # elements
NEAR = 300  # ops between the first and the last of a group
MAX_GROUP_READS = 8
MAX_COLUMN_READS = 4  # each sum holds a block of registers: eight in one kernel run at a fifth of the copy rate
COSTLY = 1 << 20  # bytes that a kernel is worth where launches count


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
        heads: dict[tuple[int, int], int] = {}
        for id in ids:
            c = clusters.find(id)
            key = (c.points, c.rows if c.r else 0)
            for other in (key, (c.points, 0)) if c.r else [k for k in heads if k[0] == c.points]:
                head = heads.get(other)
                if head is not None and clusters.find(head) is not clusters.find(id):
                    _try(clusters, clusters.find(head), clusters.find(id), b, traits)
            heads[key] = id


def _try(clusters: Clusters, a: Cluster, b: Cluster, shared: Buffer, traits: DeviceTraits) -> Reason | None:
    if 4 * nbytes(shared) < min(_reads(a), _reads(b)):
        return NO_GAIN
    if bool(a.r) != bool(b.r) and (a.column or b.column):
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


def merge_edges(clusters: Clusters, traits: DeviceTraits) -> None:
    """Merge pointwise clusters at the program's edges, which read only its inputs or make only its outputs (casts of
    weights and gradients, step counters): of a few elements everywhere, of any size where a kernel costs much."""
    owner, users = clusters.analysis.owner, clusters.analysis.users
    costly = traits.launch_bytes >= COSTLY
    heads: dict[tuple[object, ...], int] = {}
    edges: list[tuple[Cluster, bool, object]] = []
    for c in sorted(clusters.live.values(), key=lambda c: c.id):
        if c.closed or c.r or (c.points > TINY and not (costly and len(c.loads) <= 2)):
            continue
        last = not any(users.get(op.out) for op in c.ops)  # type: ignore[arg-type]
        first = not any(b in owner for b in c.loads)
        if (first or last) and all(b.type.is_contiguous for b in (*c.loads, *c.pos)):
            edges.append((c, first, None if costly else _look(c)))
    alike = Counter(look for _, _, look in edges)
    for c, first, look in edges:
        if costly or alike[look] < LEAST:
            _chain(clusters, c, heads, (c.points, first), traits)


def _look(c: Cluster) -> tuple[object, ...]:
    """What clusters have in common that will be members of one group: those are left to it."""
    ops = tuple([tuple([(i.fn, i.dtype) for i in op.kernels[0].body if isinstance(i, Compute)]) for op in c.ops])
    return (c.points > 1, len(c.loads), ops)


def merge_columns(clusters: Clusters, traits: DeviceTraits) -> None:
    """Merge independent column reductions of one shape that stand close together in the program."""
    if traits.launch_bytes < COSTLY:
        return
    heads: dict[tuple[object, ...], int] = {}
    for c in sorted(clusters.live.values(), key=lambda c: c.id):
        if c.column:
            _chain(clusters, c, heads, (c.points, c.rows), traits)


def _chain(
    clusters: Clusters, c: Cluster, heads: dict[tuple[object, ...], int], key: tuple[object, ...], traits: DeviceTraits
) -> None:
    """Merge ``c`` into the group at ``key``, or let it head the next group."""
    head = heads.get(key)
    if head is not None:
        a = clusters.find(head)
        tiny = c.points <= TINY and not c.r
        most = MAX_COLUMN_READS if c.r else MAX_GROUP_READS
        if a is not c and (tiny or (c.id - head < NEAR and len(a.loads) + len(c.loads) <= most)):
            u = unify_by_order(a, c)
            if not isinstance(u, Reason) and allowed(u, clusters, traits) is None:
                clusters.absorb(u.base, u.other, u.env)
                return
    heads[key] = c.id
