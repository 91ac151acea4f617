"""``torch.utils.checkpoint`` in a joint graph: what lies inside of a region is computed again, never saved.

Capture marks the calls of a checkpointed function, and the trace the operators that they become, by the region's number
(``tags["checkpoint"]``)::

    h = checkpoint(lambda x: gelu(x @ w) @ v, x)      # saved: x. The backward computes x @ w again, and gelu of it

What leaves a region is saved as anything else is.  Random numbers are drawn again from the saved seed, so they are the
same; draws of the library (``strict_random``) cannot be repeated, and are saved.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from torch._ops import OpOverload

from ..ir import Node
from ..prims.rng import philox_seed
from .costs import Kind
from .rewrite import operands
from .schema import op_info
from .unalias import storage_root

if TYPE_CHECKING:
    from .choose import Plan


def sealed(plan: Plan, outputs: set[Node]) -> set[Node]:
    """The early values that only calls of their own region read in the forward, and that can be computed again."""
    regions = _regions(plan)
    if not regions:
        return set()
    open_: set[Node] = set()
    for n in reversed(plan.graph.nodes):
        region = regions.get(n)
        if region is None:
            continue
        if n in outputs or any(u in plan.early and regions.get(u) != region for u in plan.users[n]):
            open_.add(n)
            if plan.kinds[n] is Kind.VIEW:
                open_.add(storage_root(n))
    return {n for n in regions if n not in open_ and n in plan.early and _repeatable(n)}


def _regions(plan: Plan) -> dict[Node, int]:
    """The region of each call that is in one; a call that a pass has made belongs to the region that it lies in."""
    found: dict[Node, int] = {}
    for n in plan.graph.nodes:
        source = n.args[0] if n.target is operator.getitem else n
        region = source.tags.get("checkpoint") if source.tags else None
        if region is not None and n.op == "call":
            found[n] = region
    if not found:
        return found
    calls = [n for n in plan.graph.nodes if n.op == "call" and n in plan.early]
    below: dict[Node, int] = dict(found)  # the region that all readers lie in
    for n in reversed(calls):
        if n not in found:
            readers = {below.get(u, -1) for u in plan.users[n] if u in plan.early}
            if len(readers) == 1 and -1 not in readers:
                below[n] = readers.pop()
    for n in calls:
        if n in below and n not in found and any(found.get(a) == below[n] for a in operands(n)):
            found[n] = below[n]
    return found


def _repeatable(n: Node) -> bool:
    call = n.args[0] if n.target is operator.getitem else n
    if call.tags.get("effect") or call.target is philox_seed:
        return False
    return not (isinstance(call.target, OpOverload) and op_info(call.target).random)
