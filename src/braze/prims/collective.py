"""Functional collectives (``torch.ops._c10d_functional``) as nodes of a graph.

In a functional ATen graph a collective is one node, :class:`Collective`, whose result is complete: a wait of its own
would only say what every reader knows.  The primitive graph has the two halves::

    y = all_reduce(x, "sum", "0")
    z = all_gather_into_tensor(w, 2, "0")

    ->  s, t0 = start[all_reduce](None, x, "sum", "0");             y = wait(s)
        g, t1 = start[all_gather_into_tensor](t0, w, 2, "0");       z = wait(g, w)

``t0`` is a tensor without elements, which orders the starts: every rank issues its collectives in the program's order,
whatever fusion does.  ``wait`` reads what the collective reads, which so stays as it is until then; its result is the
memory of its first operand.  ``inductor/fuse/overlap.py`` moves starts up and waits down.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from ..fake import rule_for
from ..ir import TensorType, leaves

NAMESPACE = "_c10d_functional"
FUNCTIONAL = tuple(
    "all_reduce broadcast all_gather_into_tensor reduce_scatter_tensor all_to_all_single all_reduce_coalesced "
    "all_gather_into_tensor_coalesced reduce_scatter_tensor_coalesced".split()
)
"""The operators that are nodes; what else the namespace has (in place, point to point) breaks a graph."""


def _ops() -> Any:
    return getattr(torch.ops, NAMESPACE)


def finished(pending: Any) -> Any:
    """The result of a collective, complete."""
    wait_for = _ops().wait_tensor.default
    return [wait_for(x) for x in pending] if isinstance(pending, (list, tuple)) else wait_for(pending)


class Collective:
    """``collective(op)(*args)``: the collective's complete result."""

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        self.several = "[]" in str(op._schema.returns[0].type) or "List" in str(op._schema.returns[0].type)
        self.__name__ = op._schema.name.partition("::")[2]
        self.spelling = f"collective({self.__name__!r})"

    def __repr__(self) -> str:
        return self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return finished(self.op(*args, **kwargs))

    def shape(self, *args: Any, **kwargs: Any) -> Any:
        """The results' types."""
        return rule_for(self.op)(*args, **kwargs)


class Start:
    """``start(op)(token, *args)`` issues the collective: its results, not yet complete, and the next token."""

    several = True
    pending = True

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        self.__name__ = f"start_{op._schema.name.partition('::')[2]}"
        self.spelling = f"start({op._schema.name.partition('::')[2]!r})"

    def __repr__(self) -> str:
        return self.__name__

    def __call__(self, token: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        out = self.op(*args, **kwargs)
        given = out if isinstance(out, (list, tuple)) else (out,)
        return (*given, torch.empty(0, dtype=torch.uint8, device=given[0].device))


class Wait:
    """``wait(pending, *read)``: ``pending``, complete. ``read``: what the collective reads until then."""

    __name__ = "wait_tensor"
    spelling = "wait"
    shows_first = True

    def __repr__(self) -> str:
        return self.__name__

    def __call__(self, pending: torch.Tensor, *read: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _ops().wait_tensor.default(pending)
        return out


wait = Wait()


def functional_op(name: str) -> OpOverload:
    """``"all_reduce"`` -> its overload."""
    op: OpOverload = getattr(_ops(), name).default
    return op


@lru_cache(None)
def collective(name: str) -> Collective:
    """The one complete form of an operator of ``FUNCTIONAL``."""
    return Collective(functional_op(name))


@lru_cache(None)
def start(name: str) -> Start:
    """The one starting form of an operator of ``FUNCTIONAL``."""
    return Start(functional_op(name))


def token_type(device: torch.device) -> TensorType:
    """The type of what orders the starts."""
    return TensorType((0,), (1,), torch.uint8, device)


def kept_operands(args: Any) -> list[Any]:
    """The tensors that a collective reads, each once."""
    return list(dict.fromkeys(x for x in leaves(args) if hasattr(x, "val")))
