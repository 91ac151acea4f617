"""``torch.utils.checkpoint`` in a joint graph: what lies inside of a region is computed again, never saved.

Capture marks the calls of a checkpointed function, and the trace the operators that they become, by the region's number
(``tags["checkpoint"]``)::

    h = checkpoint(lambda x: gelu(x @ w) @ v, x)      # saved: x. The backward computes x @ w again, and gelu of it

What leaves a region is saved as anything else is, and what a selective checkpoint's policy wants saved: the trace asks
it, call by call (``tags["keep"]``, "must" or "may").  Random numbers are drawn again from the saved seed, so they are
the same; draws of the library (``strict_random``) cannot be repeated, and are saved.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, SelectiveCheckpointContext

from ..ir import Node
from ..prims.rng import philox_seed
from .costs import Kind
from .rewrite import operands
from .schema import draws
from .unalias import storage_root

if TYPE_CHECKING:
    from .choose import Plan

BACKWARD = (-1, -1)  # in the place of regions' numbers


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
    return {n for n in regions if n not in open_ and n in plan.early and repeatable(n) and not keep(n)}


def keep(n: Node) -> str:
    """What a policy says of a call's result: "must" or "may" be saved, or nothing."""
    call = n.args[0] if n.target is operator.getitem else n
    return str(call.tags.get("keep", "")) if call.tags else ""


class Policy:
    """The policy of one selective checkpoint, as ``context_fn`` makes it for each call of the checkpoint."""

    def __init__(self, context_fn: Callable[[], Any]) -> None:
        self._ask = context_fn()[0].policy_fn
        names = signature(SelectiveCheckpointContext).parameters
        self._named = "op_output" in names

    def __call__(self, op: Any, args: Any, kwargs: Any, out: Any) -> str | None:
        """ "must" or "may" for what is saved, None for what is computed again."""
        if op in SAC_IGNORED_OPS:
            return None
        context = SelectiveCheckpointContext(is_recompute=False, **({"op_output": out} if self._named else {}))
        answer = self._ask(context, op, *args, **kwargs)
        return _ANSWERS.get(answer)


_ANSWERS = {True: "must", CheckpointPolicy.MUST_SAVE: "must", CheckpointPolicy.PREFER_SAVE: "may"}
_ANSWERS |= {p: "may" for p in CheckpointPolicy if p.name.endswith("_CPU_OFFLOAD")}  # saved, where it is


def _regions(plan: Plan) -> dict[Node, int]:
    """The region of each call that is in one; a call that a pass has made belongs to the region that it lies in."""
    found: dict[Node, int] = {}
    for n in plan.graph.nodes:
        region = region_of(n) if n.op == "call" else None
        if region is not None:
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


def region_of(n: Node, which: str = "checkpoint") -> int | None:
    """The region that a call was traced in: the outermost one, or the one that is ``inner`` to all."""
    call = n.args[0] if n.target is operator.getitem else n
    return call.tags.get(which) if call.tags else None


def repeatable(n: Node) -> bool:
    """Whether a call gives the same again."""
    call = n.args[0] if n.target is operator.getitem else n
    if call.tags.get("effect") or call.target is philox_seed:
        return False
    return not draws(call.target)
