"""The order in which a backward computes, and an estimate of the memory that a choice of saved values takes.

What is computed again is computed right before its first use.  So it is not free to save less: where each layer's
input follows from the layer before, the last layer's backward computes a whole network's again, and all of them wait
for their own layers at once.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from ..ir import Node, TensorType
from .costs import POINTWISE, Kind
from .rewrite import operands
from .unalias import storage_root

if TYPE_CHECKING:
    from .choose import Plan


def backward_order(plan: Plan, saved: set[Node], packs: Container[Node] = ()) -> list[Node]:
    """What the backward computes; packed saved values stand for their unpacking."""
    order: list[Node] = []
    done = {v for v in saved if v not in packs} | {n for n in plan.graph.inputs if n not in plan.primal_index}

    def need(n: Node) -> None:
        stack = [n]
        while stack:
            at = stack[-1]
            missing = [] if at in done or at in saved else [a for a in operands(at) if a not in done]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if at not in done:
                done.add(at)
                order.append(at)

    for n in plan.graph.nodes:
        if n in plan.late and n.op == "call":
            need(n)
    for g in plan.ends:
        need(g)
    return order


def peak_bytes(plan: Plan, saved: Sequence[Node], nbytes: dict[Node, int]) -> int:
    """The most bytes that tensors other than inputs take at a library call, in the forward or in the backward, where
    everything else fuses with its neighbours. ``nbytes``: of each node."""
    kept = {storage_root(n) for n in saved}
    forward = [n for n in plan.graph.nodes if n in plan.early and n.op == "call"]
    stays = kept | {storage_root(n) for n in plan.results}
    ends = {storage_root(n) for n in plan.ends}
    first = _most(plan, forward, set(), stays, nbytes)
    return max(first, _most(plan, backward_order(plan, set(saved)), kept, ends, nbytes))


def _read_again(plan: Plan, order: list[Node], saved: set[Node], dies: dict[Node, int]) -> None:
    """A saved value that a repeated pointwise one is made of may be read as late as that one is: fusion does either."""
    last = dict(dies)
    for n in order:
        if n in plan.early and plan.kinds[n] in POINTWISE:
            for a in operands(n):
                root = storage_root(a)
                if root in saved:
                    dies[root] = max(dies[root], last.get(n, -1))


def _most(plan: Plan, order: list[Node], before: set[Node], after: set[Node], nbytes: dict[Node, int]) -> int:
    """The most at one call of a sequence, of what exists ``before`` it, is made in it, or stays ``after`` it."""
    born: dict[Node, int] = {n: 0 for n in before}
    dies: dict[Node, int] = {}
    calls = 0
    for n in order:
        library = plan.kinds.get(n) is Kind.OPAQUE
        for a in operands(n):
            dies[storage_root(a)] = calls if library else calls - 1
        root = storage_root(n)
        if root is n:
            born.setdefault(n, calls)
        calls += library
    if before:
        _read_again(plan, order, before, dies)
    change = [0] * (calls + 2)
    for n, start in born.items():
        if n in plan.primal_index or not isinstance(n.val, TensorType) or plan.kinds.get(n) is Kind.CREATE:
            continue
        end = calls if n in after else dies.get(n, -1)
        if end >= start:
            change[start] += nbytes[n]
            change[end + 1] -= nbytes[n]
    most = held = 0
    for c in change:
        held += c
        most = max(most, held)
    return most
