"""A transform of ``torch.func`` as one call of a graph: the transformed function is a graph of its own.

    grad(lambda w: ((x @ w) ** 2).mean())(w)
    ->  t = transformed(w, x)      # body(w, x): m = x @ w; p = m ** 2; return p.mean()

The trace of the derivatives runs the call on fake tensors, under PyTorch's own batching and derivative rules, and sees
the plain ATen calls that they make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..ir import Graph, interpret


class Transformed:
    """``apply(body, *args)`` for the tensors of ``args``, then those that the body takes besides: a flat tuple of
    tensors, nested as ``results`` says after a call.

    ``leaves``: of ``args``, None where a tensor is, nested as ``args`` says. The first ``mapped`` tensors are those
    that ``apply`` gives to the body.
    """

    def __init__(
        self, name: str, apply: Callable[..., Any], body: Graph, leaves: list[Any], args: pytree.TreeSpec, mapped: int
    ) -> None:
        self.__name__ = name
        self.apply, self.body, self.leaves, self.args, self.mapped = apply, body, leaves, args, mapped
        self.results: Any = None

    def __call__(self, *tensors: Any) -> tuple[torch.Tensor, ...]:
        given = iter(tensors)
        leaves = [next(given) if leaf is None else leaf for leaf in self.leaves]
        rest = list(given)

        def body(*args: Any) -> Any:
            own = [x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
            return interpret(self.body, [*own, *rest])

        out, self.results = pytree.tree_flatten(self.apply(body, *pytree.tree_unflatten(leaves, self.args)))
        return tuple(out)
