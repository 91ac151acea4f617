"""What the backward saves, as a minimum cut.

Every value that the backward could use is a node of a network, with an edge of the cost of saving it; where it may be
computed again, an edge from the source of the cost of that.  The cut pays for each value on its way: it is saved, or
computed again from what is.  Costs are bytes of memory traffic; a byte that stays alive until the backward counts
``MEMORY`` times.

What is never computed again, except inside of an activation checkpoint (``checkpoints.py``): library calls and
reductions; values that the forward keeps across a library call anyway (a residual stream: a chain of these would have
to be computed from the first layer on).  Views are free; they are not saved, because their base is.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from ..ir import Expr, Graph, Node, TensorType, evaluate, nodes_in, symbol_of
from .checkpoints import keep, sealed
from .costs import DRAW_ON_GPU, POINTWISE, RECOMPUTE, Kind, kind_of
from .flow import INFINITE, Network
from .rewrite import operands
from .schedule import peak_bytes
from .unalias import storage_root

MEMORY = 2.0
STEPS = 16  # choices between two, by the memory budget
GAIN = 0.98  # of the bytes saved or at the peak: what is less of a change is less than the estimate is worth
PATIENCE = 6  # choices without a lower peak, after which none is hoped for
SMALL = 512  # bytes; below, saving costs a constant


@dataclass
class Plan:
    """A joint graph, studied. ``late``: what depends on tangents. ``early``: what the forward computes. ``demanded``:
    what the backward reads and the forward can give, in order. ``overwritten``: positions of mutated primals."""

    graph: Graph
    primal_index: dict[Node, int]
    late: set[Node]
    early: set[Node]
    demanded: list[Node]
    overwritten: frozenset[int]
    kinds: dict[Node, Kind] = field(default_factory=dict)
    users: dict[Node, list[Node]] = field(default_factory=dict)
    kept: set[Node] = field(default_factory=set)  # early values that outlive a library call in the forward
    stored: set[Node] = field(default_factory=set)  # early values that the forward writes to memory anyway
    needed: set[Node] = field(default_factory=set)  # values that a library call of the backward reads
    drawn: set[Node] = field(default_factory=set)  # random numbers, and what is made of them alone
    sealed: set[Node] = field(default_factory=set)  # early values inside of an activation checkpoint: never saved
    results: list[Node] = field(default_factory=list)  # what the forward returns to the user
    ends: list[Node] = field(default_factory=list)  # the gradients

    def shrinks(self, node: Node) -> bool:
        """Whether a node is a view of fewer elements than its memory has."""
        root = storage_root(node)
        return root is not node and nbytes(node) < nbytes(root)


def nbytes(node: Node) -> int:
    """Bytes of a node's elements; symbolic sizes count by their hints."""
    val = node.val
    if isinstance(val, TensorType):
        n = val.nbytes
        return evaluate(n) if isinstance(n, Expr) else n
    return 8


def study(
    graph: Graph, primals: Sequence[Node], outputs: Any, gradients: Any, overwritten: frozenset[int] = frozenset()
) -> Plan:
    """Classify the nodes of a joint graph without dead code."""
    primal_index = {n: i for i, n in enumerate(primals)}
    late = {n for n in graph.inputs if n not in primal_index}
    reads: dict[Node, list[Node]] = {}
    for n in graph.nodes:
        if n.op == "call":
            reads[n] = args = operands(n)
            if not late.isdisjoint(args):
                late.add(n)
    early = set(nodes_in(outputs))
    demanded = {n for n in nodes_in(gradients) if n not in late}
    users: dict[Node, list[Node]] = {n: [] for n in graph.nodes}
    for n in reversed(graph.nodes):
        args = reads.get(n, [])
        if n.tags.get("effect") and n not in late:
            early.add(n)
        if n in early:
            early.update(args)
        for a in args:
            users[a].append(n)
            if n in late and a not in late:
                demanded.add(a)
    plan = Plan(graph, primal_index, late, early, [n for n in graph.nodes if n in demanded], overwritten)
    plan.kinds = {n: kind_of(n) for n in reads}
    plan.users = users
    plan.results, plan.ends = nodes_in(outputs), nodes_in(gradients)
    _mark_kept(plan, reads)
    _mark_stored(plan, set(nodes_in(outputs)))
    plan.sealed = sealed(plan, set(nodes_in(outputs)))
    return plan


def _mark_kept(plan: Plan, reads: dict[Node, list[Node]]) -> None:
    """Early values that are read again after a library call which their first reader leads to. Random masks are not
    among them: they are drawn where they are first read."""
    for n in plan.graph.nodes:
        kind = plan.kinds.get(n)
        if kind is Kind.DRAW or kind in POINTWISE and reads[n] and plan.drawn.issuperset(reads[n]):
            plan.drawn.add(n)
    depth: dict[Node, int] = {}
    before: dict[Node, int] = {}
    for n in plan.graph.nodes:
        if n in plan.early:
            before[n] = max((depth[a] for a in reads.get(n, ())), default=0)
            depth[n] = before[n] + (plan.kinds.get(n) is Kind.OPAQUE)
    reach: dict[Node, int] = {}
    for n in reversed(plan.graph.nodes):
        if n in plan.early:
            at = [reach[u] if plan.kinds[u] is Kind.VIEW else before[u] for u in plan.users[n] if u in plan.early]
            reach[n] = max(at, default=0)
            if reach[n] > depth[n] and n not in plan.drawn:
                plan.kept.add(n)
    for n in [n for n in plan.kept if plan.kinds.get(n) in POINTWISE]:
        source = _normalised(plan, n)
        if source is not None:
            plan.kept.remove(n)
            plan.kept.add(source)


def _normalised(plan: Plan, node: Node) -> Node | None:
    """What a norm of a sum reads, ``s`` of ``norm(a + b)``, for the norm's result: where the norm ends a layer, the sum
    is saved instead (the backward reads it, and its statistics are small), neither ``a``, ``b`` nor the result."""
    found: set[Node] = set()
    todo = [node]
    while todo:
        for a in operands(todo.pop()):
            if not isinstance(a.val, TensorType) or 4 * nbytes(a) < nbytes(node) or a in plan.primal_index:
                continue
            if any(plan.kinds[u] is Kind.REDUCE and u in plan.early for u in plan.users[a]):
                found.add(a)
            elif plan.kinds.get(a) in POINTWISE and a not in plan.kept:
                todo.append(a)
            else:
                return None
    source = next(iter(found)) if len(found) == 1 else None
    if source is None or source in plan.kept or nbytes(source) > nbytes(node):
        return None
    return source if plan.kinds.get(source) in POINTWISE else None


def _mark_stored(plan: Plan, outputs: set[Node]) -> None:
    kinds = plan.kinds
    for n in reversed(plan.graph.nodes):
        kind = kinds.get(n)
        for u in plan.users[n]:
            if kinds[u] is Kind.OPAQUE or kinds[u] is Kind.VIEW and u in plan.needed:
                if u in plan.late or u in plan.needed:
                    plan.needed.add(n)
            if u in plan.early and (kinds[u] is Kind.OPAQUE or kinds[u] is Kind.VIEW and u in plan.stored):
                plan.stored.add(n)
        if n.op != "call" or kind is Kind.OPAQUE or n in outputs or n in plan.kept:
            plan.stored.add(n)
        elif n.target is operator.getitem and kinds.get(n.args[0]) is Kind.OPAQUE:
            plan.stored.add(n)


def _saving(plan: Plan, n: Node, memory: float) -> int:
    """The cost of saving a value; INFINITE where something else should be."""
    if not isinstance(n.val, TensorType) or n in plan.sealed:
        return INFINITE
    if n in plan.primal_index and plan.primal_index[n] not in plan.overwritten:
        return 1
    size = nbytes(n)
    root = storage_root(n)
    if root is not n:
        if not plan.shrinks(n) or any(plan.kinds[u] is Kind.VIEW for u in plan.users[n]):
            return INFINITE
        return int(max(size, SMALL) * (memory + 2))
    if plan.kinds.get(n) is Kind.CREATE:
        return INFINITE
    return int(max(size, SMALL) * (memory + (n not in plan.stored)))


def _again(plan: Plan, n: Node, table: dict[Kind, float], held: AbstractSet[Node]) -> int:
    """The cost of computing a value again; INFINITE where that must not be, as for those ``held``."""
    if n in plan.primal_index or n.op == "const":
        return INFINITE
    if n not in plan.early:
        return 0  # the backward alone wants it: it is computed once, there
    kind = plan.kinds[n]
    if kind is Kind.VIEW:
        return 0
    if n in plan.sealed:
        return 1
    if keep(n) == "must" and kind is not Kind.CREATE:
        return INFINITE
    rate = table.get(kind)
    if kind is Kind.DRAW and n.val.device.type == "cuda" and _drawn_in_rows(plan, n):
        rate = DRAW_ON_GPU
    if rate is None or n in held and kind is not Kind.CREATE:
        return INFINITE
    cost = rate * nbytes(n)
    if n in plan.needed:
        cost += nbytes(n) + sum(nbytes(a) for a in operands(n) if a in plan.primal_index)
    return int(cost) + 1


def _drawn_in_rows(plan: Plan, draw: Node) -> bool:
    """Whether the backward reads the random mask beside gradients of a norm alone. These come from a kernel that walks
    rows, which draws four numbers at a time; one that walks columns would draw each number by itself."""
    todo, gradients = [draw], []
    while todo:
        for u in plan.users[todo.pop()]:
            if u in plan.late:
                gradients += [a for a in operands(u) if a in plan.late]
            elif plan.users[u] and all(a in plan.drawn or a is draw for a in operands(u)):
                todo.append(u)
    seen = set()
    for g in gradients:
        while g not in seen:
            seen.add(g)
            kind, late = plan.kinds.get(g), [a for a in operands(g) if a in plan.late]
            if kind is Kind.REDUCE:
                break
            if (kind not in POINTWISE and kind is not Kind.VIEW) or len(late) != 1:
                return False
            g = late[0]
    return bool(gradients)


def choose_saved(plan: Plan, budget: float = 1.0) -> list[Node]:
    """The values to save, in the graph's order. Below a budget of 1.0, values are computed again that otherwise would
    not be, until at most that share of the bytes is saved or nothing more can be done: of the choices on the way the
    one with the lowest peak, so that a lower budget never has a higher one."""
    base = _cut(plan, MEMORY, RECOMPUTE, plan.kept)
    if budget >= 1.0:
        return base
    target = budget * saved_bytes(plan, base)
    sizes = {n: nbytes(n) for n in plan.graph.nodes}
    best, lowest, least = base, peak_bytes(plan, base, sizes), saved_bytes(plan, base)
    vain = 0
    for saved in _leaner(plan, base):
        peak, size = peak_bytes(plan, saved, sizes), saved_bytes(plan, saved)
        vain += peak > lowest
        if size <= least and peak <= lowest and (size < GAIN * least or peak < GAIN * lowest):
            best, lowest, least, vain = saved, peak, size, 0
        if size <= target or vain == PATIENCE:
            break
    return best


def _leaner(plan: Plan, base: list[Node]) -> Iterator[list[Node]]:
    """Choices that save less and less than ``base``. Between two of them more and more values are computed again that
    the first saves and the second does not, spread over the graph, so that few follow from one another: every second
    block of a residual network."""
    yield _cut(plan, 8.0, RECOMPUTE, plan.kept)
    reductions = {**RECOMPUTE, Kind.REDUCE: 2.0}
    for memory in (8.0, 64.0):
        final = set(_cut(plan, memory, reductions, frozenset()))
        loose = [n for n in base if n not in final]
        counts = sorted({round(len(loose) * k / STEPS) for k in range(1, STEPS + 1)} - {0})
        for count in counts:
            held = {n for i, n in enumerate(loose) if (i + 1) * count // len(loose) == i * count // len(loose)}
            yield _cut(plan, memory, reductions, held)


def recomputed(plan: Plan, saved: list[Node]) -> float:
    """What computing values again costs with these saved, in bytes of memory traffic."""
    have, seen, todo = set(saved) | set(plan.primal_index), set(), list(plan.demanded)
    while todo:
        n = todo.pop()
        if n not in have and n not in seen:
            seen.add(n)
            todo += operands(n)
    table = {**RECOMPUTE, Kind.REDUCE: 2.0}
    costs = [_again(plan, n, table, frozenset()) for n in seen if n in plan.early]
    return float(sum(c for c in costs if c < INFINITE))


def with_sizes(plan: Plan, saved: list[Node], tangents: Sequence[Node]) -> list[Node]:
    """``saved`` and the inputs that are sizes; for each symbolic size that still no backward input shows, an input that
    does."""
    given = [p for p in plan.primal_index if isinstance(p.val, Expr)]
    shown = {name for n in [*saved, *tangents, *given] for name in _names(n)}
    out = given + saved
    for p in plan.primal_index:
        new = _names(p) - shown
        if new and plan.primal_index[p] not in plan.overwritten:
            out.append(p)
            shown |= new
    order = {n: i for i, n in enumerate(plan.graph.nodes)}
    return sorted(out, key=order.__getitem__) if len(out) > len(saved) else out


def _names(node: Node) -> set[str]:
    """The symbols that a tensor has as sizes, or that an integer is. Their ranges may differ by what was decided."""
    sizes = node.val.sizes if isinstance(node.val, TensorType) else (node.val,)
    return {s.name for d in sizes if isinstance(d, Expr) and (s := symbol_of(d)) is not None}


def saved_bytes(plan: Plan, saved: list[Node]) -> int:
    """Bytes that live until the backward because of it: inputs are there anyway."""
    return sum(nbytes(n) for n in saved if n not in plan.primal_index)


def _cut(plan: Plan, memory: float, table: dict[Kind, float], held: AbstractSet[Node]) -> list[Node]:
    wanted = _ancestors(plan)
    net = Network()
    entry: dict[Node, int] = {}
    exit_: dict[Node, int] = {}
    for n in wanted:
        save, again = _saving(plan, n, memory), _again(plan, n, table, held)
        if again >= INFINITE:
            entry[n], exit_[n] = 0, net.node()
            net.edge(0, exit_[n], save)
            continue
        entry[n] = net.node()
        net.edge(0, entry[n], again)
        if save >= INFINITE:
            exit_[n] = entry[n]
        else:
            exit_[n] = net.node()
            net.edge(entry[n], exit_[n], save)
        for a in operands(n):
            net.edge(exit_[a], entry[n], INFINITE)
    for n in plan.demanded:
        net.edge(exit_[n], 1, INFINITE)
    _, near = net.min_cut()
    return [n for n in wanted if near[entry[n]] and not near[exit_[n]]]


def _ancestors(plan: Plan) -> list[Node]:
    """What the demanded values are computed from, and they, in order."""
    out = set(plan.demanded)
    for n in reversed(plan.graph.nodes):
        if n in out and n.op == "call":
            out.update(operands(n))
    return [n for n in plan.graph.nodes if n in out]
