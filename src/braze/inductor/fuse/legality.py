"""May two clusters become one kernel? ``unify`` finds the map between their domains, ``allowed`` asks the device.

Both give a :class:`Reason` when not.  Neither changes anything.
"""

from __future__ import annotations

from braze.inductor.loops import Buffer
from braze.ir import IntLike, Symbol, coefficient, symbol_of, symbols

from .cluster import Cluster, Clusters, Env, Index, awaits
from .match import complete, covers, match
from .ops import nbytes
from .split import short_axes
from .traits import (
    CYCLE,
    DIFFERENT_DEVICE,
    DIFFERENT_DOMAIN,
    DIFFERENT_REDUCTION,
    LONG_ROW,
    OTHER_POINT,
    ROWS_APART,
    SPLIT_ROW,
    TOO_BIG,
    DeviceTraits,
    Reason,
)

MAX_BUFFERS = 40


class Union:
    """How two clusters become one: ``other`` moves into ``base`` under ``env`` (empty: equal axes)."""

    __slots__ = ("base", "other", "env")

    def __init__(self, base: Cluster, other: Cluster, env: Env) -> None:
        self.base, self.other, self.env = base, other, env


def unify(a: Cluster, b: Cluster, shared: Buffer | None = None) -> Union | Reason:
    """A one-to-one map under which every value that passes between them is read where it is made.

    ``shared``: a buffer that both read, to link clusters that pass no value.
    """
    if a.points != b.points and not (a.rows == b.points or b.rows == a.points):
        return DIFFERENT_DOMAIN
    base, other = (a, b) if _outranks(a, b) else (b, a)
    unknown: list[IntLike] = []
    known: list[IntLike] = []
    same = True
    for source, reader, source_is_base in ((base, other, True), (other, base, False)):
        for buf, places in reader.loads.items():
            made = source.pos.get(buf)
            if made is None:
                continue
            for place in places:
                if place is None:
                    return OTHER_POINT
                same = same and place == made
                unknown += place if source_is_base else made
                known += made if source_is_base else place
    if not unknown and shared is not None:
        p, q = _sole(other, shared), _sole(base, shared)
        if p is not None and q is not None:
            same, unknown, known = p == q, list(p), list(q)
    env = _domain_map(base, other, unknown, known, same)
    if isinstance(env, Reason):
        return env
    return Union(base, other, env)


def unify_by_order(a: Cluster, b: Cluster) -> Union | Reason:
    """A map between clusters that pass no value: x axes onto x axes and r axes onto r axes, each in row-major order."""
    if a.points != b.points or a.rows != b.rows or bool(a.r) != bool(b.r):
        return DIFFERENT_DOMAIN
    if any(x in b.pos for x in a.loads) or any(x in a.pos for x in b.loads):
        return OTHER_POINT
    env: Env = {}
    for inner in (False, True):
        mine = {s: n for s, n in b.axes.items() if (s in b.r) == inner}
        theirs = {s: n for s, n in a.axes.items() if (s in a.r) == inner}
        part: Env = {}
        if not complete(part, mine, theirs):
            return DIFFERENT_DOMAIN
        env.update(part)
    plain = all(symbol_of(e) is s for s, e in env.items())
    return Union(a, b, {} if plain and a.axes.keys() == b.axes.keys() else env)


def _sole(c: Cluster, b: Buffer) -> tuple[IntLike, ...] | None:
    places = c.loads.get(b, [])
    return places[0] if places and all(p == places[0] for p in places) else None


def _outranks(a: Cluster, b: Cluster) -> bool:
    """True when b's axes should be expressed in a's."""
    if bool(a.r) != bool(b.r):
        return bool(a.r)
    if a.points != b.points:
        return a.points > b.points
    return len(a.axes) >= len(b.axes)


def _domain_map(
    base: Cluster, other: Cluster, unknown: list[IntLike], known: list[IntLike], same: bool
) -> Env | Reason:
    if same:
        whole = other.axes.keys() == base.axes.keys()
        if whole or (not other.r and base.r and other.axes.keys() == base.axes.keys() - set(base.r)):
            if other.r and set(other.r) != set(base.r):
                return DIFFERENT_REDUCTION
            return {}
    if not unknown:
        return DIFFERENT_DOMAIN
    env = match(unknown, known, other.axes)
    if env is None:
        return OTHER_POINT
    if not complete(env, other.axes, base.axes):
        return DIFFERENT_DOMAIN
    covered = covers(env, other.axes, base.axes)
    if covered is None:
        return DIFFERENT_DOMAIN
    return _check_rows(base, other, env, covered)


def _check_rows(base: Cluster, other: Cluster, env: Env, covered: frozenset[Symbol]) -> Env | Reason:
    r = set(base.r)
    if covered != base.axes.keys():
        return env if not other.r and base.r and covered == base.axes.keys() - r else DIFFERENT_DOMAIN
    if other.r:
        moved = {symbol_of(env[s]) for s in other.r}
        return env if moved == r else DIFFERENT_REDUCTION
    return env


def needs_split(c: Cluster, traits: DeviceTraits) -> bool:
    """True when the cluster's rows are too few to fill the machine and its work is worth two kernels."""
    if not c.r or c.points <= traits.split_points:
        return False
    units = max(c.rows // (traits.split_columns or traits.line_elems), 1) if c.column else c.rows
    return units < traits.parallel_rows


def row_fits(c: Cluster, traits: DeviceTraits) -> bool:
    """True when what a row reads stays in fast memory until the second pass."""
    if c.points <= traits.split_points:
        return True
    length = c.points // max(c.rows, 1)
    wide = max(sum(nbytes(b) > 8 * c.rows for b in c.loads), 1)
    return length * 4 * wide * (traits.line_elems if c.column else 1) <= traits.row_bytes


def rows_apart(c: Cluster, traits: DeviceTraits) -> bool:
    """True when the rows are short runs with other rows' in between (a group of channels of pixels in channels_last):
    they are read well only together, and summed apart (``split_short_axis``)."""
    if not traits.short_axis or c.column or c.points <= traits.split_points or len(c.r) < 2:
        return False
    sizes = {s: n for s, n in c.axes.items() if s in c.r and isinstance(n, int)}
    if len(sizes) < len(c.r):
        return False
    for b, places in c.loads.items():
        if nbytes(b) < c.points:
            continue
        for place in places:
            if place is not None:
                steps = {s: _step(place, b, s) for s in c.axes}
                rows = [n for s, n in steps.items() if s not in sizes]
                return bool(short_axes(sizes, {s: steps[s] for s in sizes}, rows, traits))
    return False


def _step(place: Index, b: Buffer, s: Symbol) -> int:
    out: IntLike = 0
    for e, stride in zip(place, b.type.strides):
        k = coefficient(e, s)
        out = out + (k if k is not None else 0) * stride
    return abs(out) if isinstance(out, int) else 0


def allowed(u: Union, clusters: Clusters, traits: DeviceTraits) -> Reason | None:
    """Order, device limits and parallelism of a union."""
    base, other = u.base, u.other
    if clusters.cyclic(base, other):
        return CYCLE
    if base.ops[0].device != other.ops[0].device:
        return DIFFERENT_DEVICE
    if len(base.loads) + len(other.loads) + len(base.pos) // 4 + len(other.pos) // 4 > MAX_BUFFERS:
        return TOO_BIG
    if base.r:
        return _second_pass(base, other, u.env, traits)
    return None


def _second_pass(base: Cluster, other: Cluster, env: Env, traits: DeviceTraits) -> Reason | None:
    """What one side computes from the other's finished reductions is another pass over the rows."""
    for first, second, second_is_base in ((base, other, False), (other, base, True)):
        late = awaits(first, second)
        points = not second.r and _at_point_level(base, second, env, second_is_base)
        if not any(points or op.r or (second.r and op.points == second.points) for op in late):
            continue
        if needs_split(base, traits):
            return SPLIT_ROW
        if rows_apart(base, traits):
            return ROWS_APART
        if not row_fits(base, traits):
            return LONG_ROW
    return None


def _at_point_level(base: Cluster, c: Cluster, env: Env, is_base: bool) -> bool:
    """True when some value of ``c`` is made at every point of base's domain."""
    if is_base or c.points == base.points:
        return True
    r = set(base.r)
    return bool(r & symbols(*env.values())) if env else False
