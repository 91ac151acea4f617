"""Column sums made by the kernel that walks the same rows: whole-row norms backward, bias gradients.

A kernel that visits rows i in memory order (pointwise, or reducing along them) can also add up its columns j: it keeps
partial sums of a few dozen rows, which a small second kernel folds.  What the column reduction read again is then read
once; what the first kernel stores is summed from registers.

Before::

    for i, j:  dx[i, j] = f(g[i, j], x[i, j])
    for j:     db[j] = sum over i of dx[i, j]

After (64 rows a part)::

    for c, i, j:  dx[64*c + i, j] = f(…);  part[c, j] = sum over i of dx[64*c + i, j]
    for j:        db[j] = sum over c of part[c, j]

Only float sums, along rows of at least LINE neighbouring elements.  Partial sums are short: the result is as accurate
as a cascaded sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from braze.inductor.loops import (
    Axis,
    Buffer,
    Compute,
    Const,
    Index,
    Instr,
    Kernel,
    Load,
    Reduce,
    Step,
    Store,
    Value,
    operands,
    point_level,
)
from braze.inductor.loops.ref import remap
from braze.ir import Expr, IntLike, Symbol, coefficient, product, substitute, symbol, symbol_of, symbols, tensor_type

from .match import complete, match
from .passes import in_passes
from .schedule import reads_of, writes_of
from .split import rebound
from .traits import DeviceTraits

LINE = 16  # columns that make walking along rows worth while
MAX_COLUMNS = 4096  # whose partial sums stay in the first-level cache
MIN_ROWS = 128
MIN_PART = 8  # rows
MAX_SUMS = 4  # partial sums that one kernel keeps
Env = dict[Symbol, IntLike]
Positioned = list[tuple[int, Step]]


@dataclass
class Host:
    """A kernel that will make column sums: which (their kernels' numbers, and their axes over the host's)."""

    rows: frozenset[Symbol]
    guests: list[tuple[int, Env]]
    sums: int = 0


def fold_columns(steps: Positioned, traits: DeviceTraits) -> Positioned:
    """The steps with column sums moved into the kernels that walk the same rows."""
    if not traits.fold_rows:
        return steps
    guests = [k for k, (_, s) in enumerate(steps) if isinstance(s, Kernel) and _is_column_sum(s)]
    if not guests:
        return steps
    touching: dict[Buffer, list[int]] = {}
    for k, (_, s) in enumerate(steps):
        if isinstance(s, Kernel):
            for b in dict.fromkeys([*s.reads, *s.writes]):
                touching.setdefault(b, []).append(k)
    order = _Order(steps)
    hosts: dict[int, Host] = {}
    for g in guests:
        guest = steps[g][1]
        assert isinstance(guest, Kernel)
        loads = [i.buffer for i in _big_loads(guest)]
        near = {k for b in loads for k in touching[b]} - set(guests)
        for h in sorted(near, key=lambda k: (-_shared(loads, steps[k][1]), -k)):
            if _admit(hosts, order, steps, g, h, traits):
                order.merge(h, g)
                break
    return _rebuild(steps, hosts, traits) if hosts else steps


# -- legality


def _is_column_sum(k: Kernel) -> bool:
    """True for a kernel that only sums floats over the rows of what it reads, along neighbouring columns."""
    if not k.r or not k.x or any(not isinstance(a.size, int) for a in (*k.x, *k.r)):
        return False
    rows, columns = product([a.size for a in k.r]), product([a.size for a in k.x])
    assert isinstance(rows, int) and isinstance(columns, int)
    if rows < MIN_ROWS or not LINE <= columns <= MAX_COLUMNS:
        return False
    point = point_level(k)
    late: set[Any] = set()
    for i in k.body:
        if any(v in late for v in operands(i)) or isinstance(i, Reduce):
            if i in point or (isinstance(i, Reduce) and any(v in late for v in operands(i))):
                return False
            late.add(i)
        if isinstance(i, Reduce) and (i.kind != "sum" or not i.dtype.is_floating_point):
            return False
        if isinstance(i, Store) and (i in point or i.mode != "set" or i.indirect):
            return False
    loads = _big_loads(k)
    return bool(loads) and all(_along(i, k.x) for i in loads)


def _big_loads(k: Kernel) -> list[Load]:
    """The direct loads that touch another element at every point."""
    axes = {a.index for a in (*k.x, *k.r)}
    return [i for i in k.body if isinstance(i, Load) and _direct(i) and axes <= symbols(*i.index)]


def _direct(i: Load | Store) -> bool:
    return not i.indirect and i.mask is None


def _along(i: Load | Store, axes: tuple[Axis, ...]) -> bool:
    """True when one of the axes walks neighbouring elements."""
    dims = [e for e, s in zip(i.index, i.buffer.type.strides) if s == 1 and isinstance(e, Expr)]
    return any(coefficient(e, a.index) == 1 for e in dims for a in axes)


def _shared(loads: list[Buffer], host: Step) -> int:
    """Loads of the guest that the host makes anyway or has in registers."""
    if not isinstance(host, Kernel):
        return 0
    writes = host.writes
    mine = {*host.reads, *writes}
    return sum(1 + (b in writes) for b in loads if b in mine)


def _admit(hosts: dict[int, Host], order: _Order, steps: Positioned, g: int, h: int, traits: DeviceTraits) -> bool:
    """Note the guest with the host if that is right and worth while."""
    guest, host = steps[g][1], steps[h][1]
    assert isinstance(guest, Kernel) and isinstance(host, Kernel)
    if host.device != guest.device or any(isinstance(i, Store) and i.mode != "set" for i in host.body):
        return False
    loads = _big_loads(guest)
    mine = {*host.reads, *host.writes}
    if 2 * sum(i.buffer in mine for i in loads) < len(loads) or not order.allows(h, g):
        return False
    env = _map(guest, host)
    if env is None:
        return False
    rows = frozenset(s for a in guest.r for s in [symbol_of(env[a.index])] if s is not None)
    if host.r and rows != {a.index for a in host.x}:
        return False
    old = hosts.get(h)
    sums = sum(isinstance(i, Reduce) for i in guest.body)
    if (old is not None and (old.rows != rows or old.sums + sums > MAX_SUMS)) or sums > MAX_SUMS:
        return False
    if old is None:
        if _parts(host, rows, traits) is None or not _row_major(host, rows):
            return False
        old = hosts[h] = Host(rows, [])
    old.guests.append((g, env))
    old.sums += sums
    return True


def _map(guest: Kernel, host: Kernel) -> Env | None:
    """The guest's axes as axes of the host, one to one, from a buffer that both touch."""
    places: dict[Buffer, tuple[IntLike, ...]] = {}
    for i in host.body:
        if isinstance(i, (Load, Store)) and _direct(i) and places.setdefault(i.buffer, i.index) != i.index:
            return None
    axes = {a.index: a.size for a in (*guest.x, *guest.r)}
    known = {a.index: a.size for a in (*host.x, *host.r)}
    for i in _big_loads(guest):
        if i.buffer in places:
            env = match(i.index, places[i.buffer], axes)
            if env is None or not complete(env, axes, known):
                return None
            images = [symbol_of(e) for e in env.values()]
            plain = all(s in known and known[s] == axes[a] for a, s in zip(env, images) if s is not None)
            if plain and None not in images and set(images) == known.keys() and len(images) == len(known):
                return env
            return None
    return None


def _row_major(host: Kernel, rows: frozenset[Symbol]) -> bool:
    """True when the host's big accesses are along the columns."""
    columns = tuple([a for a in (*host.x, *host.r) if a.index not in rows])
    axes = {a.index for a in (*host.x, *host.r)}
    big = [i for i in host.body if isinstance(i, (Load, Store)) and _direct(i) and axes <= symbols(*i.index)]
    return all(_along(i, columns) for i in big)


def _parts(host: Kernel, rows: frozenset[Symbol], traits: DeviceTraits) -> tuple[list[Axis], Axis | None, int] | None:
    """How the row axes are cut: (the axes that number the parts, the axis to split if any, its rows a part). None when
    they do not divide well."""
    axes = [a for a in host.x if a.index in rows]
    total = 1
    for a in axes:
        assert isinstance(a.size, int)
        total *= a.size
    want = max(min(traits.fold_rows, total // (4 * traits.parallel_rows)), MIN_PART)
    inside = 1
    while axes:
        n = axes[-1].size
        assert isinstance(n, int)
        if inside * n > 4 * want:
            break
        inside *= n
        axes = axes[:-1]
        if inside >= want:
            break
    if inside >= want // 2:
        return (axes, None, inside) if axes else None
    if not axes:
        return None
    n = axes[-1].size
    assert isinstance(n, int)
    best = min((d for d in range(2, n) if n % d == 0), key=lambda d: abs(d * inside - want), default=0)
    if not want // 2 <= best * inside <= 4 * want:
        return None
    return axes, axes[-1], best


class _Order:
    """Which steps must come before which, as bit sets."""

    def __init__(self, steps: Positioned) -> None:
        writers: dict[Buffer, list[int]] = {}
        for k, (_, s) in enumerate(steps):
            for b in writes_of(s):
                writers.setdefault(b, []).append(k)
        self.needs = [{w for b in reads_of(s) for w in writers.get(b, ()) if w != k} for k, (_, s) in enumerate(steps)]
        for made in writers.values():
            for first, second in zip(made, made[1:]):
                self.needs[second].add(first)
        self.before = [0] * len(steps)
        for k in self._sorted():
            for n in self.needs[k]:
                self.before[k] |= self.before[n] | 1 << n

    def _sorted(self) -> list[int]:
        out: list[int] = []
        done: set[int] = set()
        for first in range(len(self.needs)):
            stack = [first]
            while stack:
                k = stack[-1]
                missing = [n for n in self.needs[k] if n not in done]
                if missing and k not in done:
                    stack += missing
                else:
                    stack.pop()
                    if k not in done:
                        done.add(k)
                        out.append(k)
        return out

    def allows(self, h: int, g: int) -> bool:
        """True when the guest's work may happen in the host: no step between them, nor g before h."""
        if self.before[h] >> g & 1:
            return False
        return not any(self.before[n] >> h & 1 for n in self.needs[g] if n != h)

    def merge(self, h: int, g: int) -> None:
        """The host now also needs what the guest needs, and the guest needs the host."""
        self.needs[h] |= self.needs[g] - {h}
        self.needs[g] = {h}
        new = self.before[h]
        for n in self.needs[h]:
            new |= self.before[n] | 1 << n
        for k in range(len(self.before)):
            if k == h or self.before[k] >> h & 1:
                self.before[k] |= new
            elif k == g or self.before[k] >> g & 1:
                self.before[k] |= new | 1 << h


# -- the new kernels


def _rebuild(steps: Positioned, hosts: dict[int, Host], traits: DeviceTraits) -> Positioned:
    out: dict[int, Step] = {}
    for h, host in hosts.items():
        kernel = steps[h][1]
        assert isinstance(kernel, Kernel)
        writer = _Writer(kernel, host.rows, traits)
        for g, env in host.guests:
            guest = steps[g][1]
            assert isinstance(guest, Kernel)
            out[g] = writer.add(guest, env)
        out[h] = writer.kernel()
    return [(at, out.get(k, s)) for k, (at, s) in enumerate(steps)]


class _Writer:
    """The host's new body, and each guest's second kernel."""

    def __init__(self, host: Kernel, rows: frozenset[Symbol], traits: DeviceTraits) -> None:
        cut = _parts(host, rows, traits)
        assert cut is not None
        self.host = host
        parts, split, length = cut
        self.env: Env = {}
        self.x: list[Axis] = []
        self.parts: list[Axis] = []
        for a in host.x:
            if split is not None and a is split:
                assert isinstance(a.size, int)
                c = symbol(f"{a.index.name}_c", 0, a.size // length - 1)
                inner = symbol(f"{a.index.name}_r", 0, length - 1)
                self.env[a.index] = c * length + inner
                made = Axis(_sym(c), a.size // length)
                self.x += [made, Axis(_sym(inner), length)]
                self.parts.append(made)
            else:
                self.x.append(a)
                if any(a is p for p in parts):
                    self.parts.append(a)
        self.seen: dict[Any, Any] = {}
        self.body: list[Instr] = []
        self.kept: dict[tuple[Buffer, tuple[IntLike, ...]], Value] = {}
        self.origin = list(host.origin)
        self._copy(host, self.env, whole=True)

    def _copy(self, k: Kernel, env: Env, whole: bool) -> dict[Any, Any]:
        """The point-level instructions of a kernel (``whole``: all) over the new axes, shared by structure."""
        new: dict[Any, Any] = {}
        late = set() if whole else _late(k)
        for i in k.body:
            if isinstance(i, Store) and whole:
                store = rebound(i, new, env)
                assert isinstance(store, Store)
                self.body.append(store)
                if _direct(i):
                    self.kept[i.buffer, store.index] = new[i.value]
            elif i not in late and not isinstance(i, Store):
                new[i] = self._value(i, env, new)
        return new

    def _value(self, i: Any, env: Env, new: dict[Any, Any]) -> Any:
        if isinstance(i, Load):
            index = remap(i.index, env)
            if _direct(i) and (i.buffer, index) in self.kept:
                return self.kept[i.buffer, index]
            bound = tuple([(s, new[v]) for s, v in i.indirect])
            made: Any = Load(i.buffer, index, bound, i.mask and new[i.mask], i.other)
            key: Any = ("load", i.buffer, index, bound, made.mask, repr(i.other))
        elif isinstance(i, Compute):
            args = tuple([new[a] for a in i.args])
            made, key = Compute(i.fn, args, i.dtype, i.attrs), (i.fn, args, i.dtype, i.attrs)
        elif isinstance(i, Index):
            made = Index(substitute(i.expr, env), i.dtype)
            key = ("index", made.expr, i.dtype)
        elif isinstance(i, Reduce):
            made, key = Reduce(i.kind, new[i.value], i.dtype), ("reduce", i.kind, new[i.value])
        else:
            assert isinstance(i, Const)
            made, key = i, ("const", repr(i.value), i.dtype)
        found = self.seen.get(key)
        if found is None:
            found = self.seen[key] = made
            self.body.append(made)
        return found

    def add(self, guest: Kernel, env: Env) -> Kernel:
        """Make the guest's partial sums here; the kernel that folds them."""
        new = self._copy(guest, {s: substitute(e, self.env) for s, e in env.items()}, whole=False)
        self.origin += [o for o in guest.origin if o not in self.origin]
        at = tuple([Expr({(a.index,): 1}) for a in self.parts])
        columns = tuple([env[a.index] for a in guest.x])
        sizes = (*(a.size for a in self.parts), *(a.size for a in guest.x))
        loads: dict[Any, Load] = {}
        for i in guest.body:
            if isinstance(i, Reduce):
                part = Buffer(f"{guest.name}_part{len(loads)}", tensor_type(sizes, i.dtype, guest.device))
                self.body.append(Store(part, (*at, *columns), new[i.value], "sum"))
                loads[i] = Load(part, (*at, *[Expr({(a.index,): 1}) for a in guest.x]))
        return self._second(guest, loads)

    def _second(self, guest: Kernel, loads: dict[Any, Load]) -> Kernel:
        late, point = _late(guest), point_level(guest)
        new: dict[Any, Any] = {}
        body: list[Instr] = []
        for i in guest.body:
            if i in point:
                continue
            if isinstance(i, Reduce):
                new[i] = Reduce(i.kind, loads[i], i.dtype)
                body += [loads[i], new[i]]
            else:
                new[i] = rebound(i, new) if i in late else i
                body.append(new[i])
        r = tuple(self.parts)
        return Kernel(guest.name, guest.x, r, in_passes(body, r), guest.device, guest.origin)

    def kernel(self) -> Kernel:
        h = self.host
        return Kernel(h.name, tuple(self.x), h.r, in_passes(self.body, h.r), h.device, tuple(self.origin))


def _late(k: Kernel) -> set[Any]:
    """The reductions and what depends on them."""
    late: set[Any] = set()
    for i in k.body:
        if isinstance(i, Reduce) or any(v in late for v in operands(i)):
            late.add(i)
    return late


def _sym(e: IntLike) -> Symbol:
    s = symbol_of(e)
    assert s is not None
    return s
