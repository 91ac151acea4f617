"""Store a value that several kernels need, or recompute it in each? Decided by bytes moved, value by value.

Readers are decided before what they read (reverse program order), so the kernels in which a value is needed are known:
its own cluster, the clusters of its readers, and those in which a reader is recomputed.  A recomputed value costs what
its expression tree reads beyond what the kernel reads anyway, and its arithmetic; a stored one costs a write and a read
in every other kernel.  Reductions, gathers read at computed places and outputs are always stored.
"""

from __future__ import annotations

from braze.inductor.loops import Buffer, Compute

from .cluster import Cluster, Clusters
from .ops import Analysis, Op, nbytes
from .traits import DeviceTraits


class Placement:
    """``stored``: the buffers that exist in memory. ``sites[op id]``: the clusters that evaluate the op.
    ``inlined``: (op id, cluster id) pairs evaluated away from their own cluster. ``kept``: clusters that store."""

    def __init__(self) -> None:
        self.stored: set[Buffer] = set()
        self.sites: dict[int, set[int]] = {}
        self.inlined: set[tuple[int, int]] = set()
        self.kept: set[int] = set()

    def store(self, op: Op, home: Cluster) -> None:
        """Store the op's result, in its own cluster, which therefore becomes a kernel."""
        assert op.out is not None
        self.stored.add(op.out)
        self.kept.add(home.id)


def place(clusters: Clusters, traits: DeviceTraits) -> Placement:
    """Decide for every value, twice: readers are decided before what they read, so only the second time is known which
    of their operands are in memory anyway."""
    first = _place(clusters, traits)
    clusters.analysis.find_leaves(first.stored)
    return _place(clusters, traits)


def _place(clusters: Clusters, traits: DeviceTraits) -> Placement:
    analysis = clusters.analysis
    out = Placement()
    reads = {c.id: set(c.loads) for c in clusters.live.values()}
    for op in reversed(analysis.ops):
        if op.kind in ("extern", "fixed"):
            out.sites[op.id] = {op.id}
            out.stored.update(op.writes)
            continue
        assert op.out is not None
        needed, random = _needed(analysis, out, op)
        if op.kind == "free":
            out.sites[op.id] = needed
            if op.stored:
                out.stored.add(op.out)
            continue
        home = clusters.find(op.id)
        away = needed - {home.id}
        if op.stored:
            _recompute_stored(clusters, out, op, away - random, reads, traits)
            out.store(op, home)
            out.sites[op.id] = {home.id} | {c for i, c in out.inlined if i == op.id} if away else {home.id}
        elif not away:
            out.sites[op.id] = needed
        elif not random and (_widens(op) or _cheaper(clusters, out, op, away, home, reads, traits)):
            _inline(out, op, away, reads)
            out.sites[op.id] = needed
        else:
            out.store(op, home)
            out.sites[op.id] = {home.id}
    return out


def _needed(analysis: Analysis, out: Placement, op: Op) -> tuple[set[int], set[int]]:
    """The clusters that need the value, and those that read it at computed places."""
    needed: set[int] = set()
    random: set[int] = set()
    for user in analysis.users.get(op.out, ()):  # type: ignore[arg-type]
        sites = out.sites.get(user.id, set())
        needed |= sites
        if any(i.buffer is op.out and i.indirect for i in user.loads):
            random |= sites
    return needed, random


def _cost(op: Op, c: Cluster | None, reads: set[Buffer], traits: DeviceTraits) -> float:
    """Bytes of recomputing the op's tree in a cluster."""
    assert op.leaves is not None and op.out is not None
    own = nbytes(op.out)
    traffic = sum(min(nbytes(b), max(own, 8)) for b in op.leaves if b not in reads)
    points = op.points
    if c is not None and not c.closed and points < c.points:
        points = c.rows if c.r and points <= c.rows else c.points
    return traffic + traits.flop_bytes * op.tree_flops * points


def _site(clusters: Clusters, id: int) -> Cluster | None:
    return clusters.live.get(id)


def _cheaper(
    clusters: Clusters,
    out: Placement,
    op: Op,
    away: set[int],
    home: Cluster,
    reads: dict[int, set[Buffer]],
    traits: DeviceTraits,
) -> bool:
    """True when recomputing costs no more than a write, the reads, and a kernel where it would store nothing else."""
    if op.kind != "point" or op.leaves is None:
        return False
    assert op.out is not None
    store = float(nbytes(op.out) * (1 + len(away)))
    if home.id not in out.kept:
        store += traits.launch_bytes
    return sum(_cost(op, _site(clusters, c), reads.get(c, set()), traits) for c in away) <= store


def _recompute_stored(
    clusters: Clusters,
    out: Placement,
    op: Op,
    away: set[int],
    reads: dict[int, set[Buffer]],
    traits: DeviceTraits,
) -> None:
    """A stored value is still recomputed where a kernel reads all of its operands anyway."""
    if op.kind != "point" or op.leaves is None:
        return
    assert op.out is not None
    size = nbytes(op.out)
    cheap = {c for c in away if _cost(op, _site(clusters, c), reads.get(c, set()), traits) < size}
    _inline(out, op, cheap, reads)


def _widens(op: Op) -> bool:
    """True for a conversion to a larger dtype: its operand in memory costs less to write and to read."""
    if op.kind != "point" or len(op.loads) != 1:
        return False
    load, computes = op.loads[0], [i for i in op.kernels[0].body if isinstance(i, Compute)]
    if len(computes) != 1:
        return False
    (compute,) = computes
    wide = compute.fn == "convert" and load.buffer.type.dtype.itemsize < compute.dtype.itemsize
    return wide and load.mask is None and not load.indirect


def _inline(out: Placement, op: Op, where: set[int], reads: dict[int, set[Buffer]]) -> None:
    leaves = op.leaves if op.leaves is not None else {i.buffer for i in op.loads}
    for c in where:
        out.inlined.add((op.id, c))
        reads.setdefault(c, set()).update(leaves)
