"""Which autograd nodes a ``backward()`` inside of the traced program has used up.

    loss = f(x, w); loss.backward(); return loss      # loss requires grad, yet nobody can go through its graph again

A result whose history leads through such a node is handed out as eager does: it requires grad, and a backward through
it raises the engine's error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Freed:
    """The nodes that were executed without ``retain_graph``."""

    def __init__(self) -> None:
        self.nodes: set[Any] = set()
        self._answers: dict[Any, bool] = {}

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call ``torch.autograd.grad(*args, **kwargs)`` is about to run."""
        names = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")
        given = {**dict(zip(names, args)), **kwargs}
        keeps = given.get("retain_graph")
        if given.get("create_graph") if keeps is None else keeps:
            return
        self.nodes |= _executed(_listed(given["outputs"]), _listed(given["inputs"]))
        self._answers.clear()

    def __contains__(self, x: Any) -> bool:
        """Whether a backward through the tensor would meet a freed node."""
        node = x.grad_fn
        return bool(self.nodes) and node is not None and _reaches(node, self.nodes, self._answers)


def _listed(x: Any) -> list[Any]:
    return [x] if isinstance(x, torch.Tensor) else list(x)


def _executed(heads: Iterable[Any], inputs: Iterable[Any]) -> set[Any]:
    """The nodes between heads and inputs, those of the inputs left out."""
    ends = [x for x in inputs if x is not None]
    leaves = {id(x) for x in ends if x.grad_fn is None}
    targets = {x.grad_fn for x in ends if x.grad_fn is not None}
    answers: dict[Any, bool] = {}
    for h in heads:
        if h.grad_fn is not None:
            _reaches(h.grad_fn, targets, answers, leaves)
    below = {n for n, found in answers.items() if found}
    return {n for n in below if any(m in below or _is_end(m, targets, leaves) for m, _ in n.next_functions if m)}


def _is_end(node: Any, targets: set[Any], leaves: set[int]) -> bool:
    return node in targets or id(getattr(node, "variable", None)) in leaves


def _reaches(root: Any, targets: set[Any], answers: dict[Any, bool], leaves: set[int] | None = None) -> bool:
    """Whether a node is, or leads to, one of ``targets`` or a leaf. Fills ``answers`` for all nodes below."""
    stack = [root]
    while stack:
        n = stack[-1]
        if n in answers:
            stack.pop()
            continue
        below = [m for m, _ in n.next_functions if m is not None]
        missing = [m for m in below if m not in answers]
        if missing:
            stack += missing
            continue
        stack.pop()
        answers[n] = _is_end(n, targets, leaves or set()) or any(answers[m] for m in below)
    return answers[root]
