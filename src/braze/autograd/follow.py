"""Run a captured graph on fakes while knowing which line of the user's program each ATen call belongs to.

Forward calls belong to the captured call at hand.  Backward calls belong to the captured call during which their
autograd node was made: nodes are numbered in order, so its number falls between two calls' first numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import Unsupported
from ..fake import FakeTensor
from ..fake.symint import Decide, refuse, to_symint
from ..ir import Expr, Graph, Loc, Node, leaves, map_leaves, node_args, nodes_in
from ..ir.pause import grad_without_hooks
from .checkpoints import BACKWARD, Policy
from .freed import Freed

_number = torch._C._autograd._get_sequence_nr
_running = torch._C._current_autograd_node


class Follower:
    """``follower(*inputs)`` runs the graph; ``follower.locate()`` is the line of the ATen call at hand."""

    def __init__(self, graph: Graph, decide: Decide = refuse) -> None:
        self.graph, self.decide = graph, decide
        self._loc: Loc | None = None
        self.region: int | None = None  # the activation checkpoint that the call at hand belongs to
        self.inner: int | None = None  # the innermost one, where they are nested
        self._policies: dict[int, Policy] = {}  # of selective checkpoints, by region
        self.freed = Freed()
        self._starts: list[int] = []
        self._locs: list[Loc | None] = []

    def locate(self) -> Loc | None:
        """The line of the forward call that runs, or that the running autograd node came from."""
        node: Any = _running()
        if node is None:
            return self._loc
        at = bisect_right(self._starts, node._sequence_nr()) - 1
        return self._locs[at] if at >= 0 else self._loc

    def __call__(self, *inputs: Any) -> Any:
        graph = self.graph
        if len(graph.inputs) != len(inputs):
            raise ValueError(f"{graph.name} takes {len(graph.inputs)} inputs, got {len(inputs)}")
        env: dict[Node, Any] = dict(zip(graph.inputs, inputs))
        last = _last_uses(graph)
        for n in graph.nodes:
            if n.op == "const":
                env[n] = n.target
            elif n.op == "call":
                self._enter(n.loc)
                self.region = n.tags.get("checkpoint") if n.tags else None
                self.inner = n.tags.get("inner") if n.tags else None
                if self.region is not None and "contexts" in n.tags and self.region not in self._policies:
                    self._policies[self.region] = Policy(n.tags["contexts"])
                args, kwargs = self._real(n.args, env), self._real(n.kwargs, env)
                if n.target is torch.autograd.grad or n.target is grad_without_hooks:
                    self.freed.note(args, kwargs)
                if n.target is torch.Tensor.detach_ and any(args[0] is x and x.requires_grad for x in inputs):
                    raise Unsupported("an input is detached in place", str(n.loc or ""))
                try:
                    env[n] = _call(n.target, args, kwargs)
                except Unsupported as e:
                    if e.where or n.loc is None:
                        raise
                    raise type(e)(e.what, str(n.loc), e.hint) from e
                for a in last.get(n, ()):
                    del env[a]
        self._loc = self.region = self.inner = None
        return self._real(graph.outputs, env)

    def checkpoint(self) -> tuple[int, int] | None:
        """The numbers of the outermost and innermost checkpointed region that the ATen call at hand computes in its
        forward; BACKWARD where a call of the graph differentiates."""
        if _running() is not None:
            return BACKWARD
        return None if self.region is None else (self.region, self.region if self.inner is None else self.inner)

    def keeps(self, op: Any, args: Any, kwargs: Any, out: Any) -> str | None:
        """What the policy of a selective checkpoint says of the ATen call at hand: "must", "may" be saved, or None."""
        regions = self.checkpoint()
        policy = None if regions is None else self._policies.get(regions[0])
        return None if policy is None else policy(op, args, kwargs, out)

    def _real(self, tree: Any, env: dict[Node, Any]) -> Any:
        decide = self.decide
        return map_leaves(
            tree, lambda x: env[x] if isinstance(x, Node) else to_symint(x, decide) if isinstance(x, Expr) else x
        )

    def _enter(self, loc: Loc | None) -> None:
        self._loc = loc
        self._starts.append(_number())
        self._locs.append(loc)


_BEHIND = frozenset({torch.linalg.matrix_rank})
"""Functions that write to ``out`` behind the dispatcher: their results are made, and then copied there."""


def _call(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call. Unsupported where it does not seem to write to ``out``."""
    outs = [x for x in leaves(kwargs.get("out")) if type(x) is FakeTensor] if "out" in kwargs else []
    before = [x.node.base.version for x in outs]
    result = target(*args, **kwargs)
    unseen = [x for x, version in zip(outs, before) if x.node.base.version == version and x.numel()]
    if unseen and target in _BEHIND:
        plain = {k: v for k, v in kwargs.items() if k != "out"}
        _copy(target, outs, [x for x in leaves(target(*args, **plain)) if type(x) is FakeTensor])
    elif unseen and target is not torch.empty:  # which writes nothing
        name = getattr(target, "__name__", target)
        raise Unsupported(f"{name} with out=, which the trace cannot see being written")
    return result


def _copy(target: Any, outs: list[FakeTensor], results: list[FakeTensor]) -> None:
    if [x.shape for x in outs] != [x.shape for x in results]:
        name = getattr(target, "__name__", target)
        raise Unsupported(f"{name} with an out= of another shape, which the trace cannot see being written")
    with torch.no_grad():
        for out, result in zip(outs, results):
            out.copy_(result)


def _last_uses(graph: Graph) -> dict[Node, Sequence[Node]]:
    """call -> the values that nobody reads after it."""
    seen = set(nodes_in(graph.outputs))
    out: dict[Node, Sequence[Node]] = {}
    for n in reversed(graph.nodes):
        if n.op == "call":
            out[n] = [a for a in dict.fromkeys(node_args(n)) if a not in seen]
            seen.update(out[n])
    return out
