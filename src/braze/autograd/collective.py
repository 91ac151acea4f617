"""Functional collectives of the trace: each one node whose result is complete, an effect that keeps its place."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from ..errors import Unsupported
from ..prims.collective import FUNCTIONAL, NAMESPACE, collective, functional_op
from .record import HANDLERS, Recorder

_REFUSED = (
    "all_reduce_ broadcast_ all_reduce_coalesced_ all_gather_into_tensor_out reduce_scatter_tensor_out isend irecv"
    " batch_p2p_ops"
)


def _collective(rec: Recorder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    target = collective(op._schema.name.partition("::")[2])
    lowered = tuple([rec.lower(a) for a in args])
    named = {k: rec.lower(v) for k, v in kwargs.items()}
    for x in (*lowered, *named.values()):
        if isinstance(x, torch.distributed.ProcessGroup):
            raise Unsupported(f"{op} with a process group object", hint="give the group's name")
    val = [x.val for x in out] if target.several else out.val
    node = rec.emit(target, lowered, named, val)
    node.tags["effect"] = True
    rec.define(out, node)


def _wait(rec: Recorder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """What a graph holds is complete: the same memory."""
    value = args[0].node
    if value.base.input != -1:
        raise Unsupported("a wait for a collective that was started outside of the compiled function")
    out.node = value.view(None, rec.read(value), out.val)


def _refused(rec: Recorder, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    raise Unsupported(f"{op} in a graph", hint="use the functional form of torch.distributed._functional_collectives")


if torch.distributed.is_available():
    _ops = getattr(torch.ops, NAMESPACE)
    HANDLERS.update({functional_op(name): _collective for name in FUNCTIONAL if hasattr(_ops, name)})
    HANDLERS[_ops.wait_tensor.default] = _wait
    if hasattr(_ops, "_wrap_tensor_autograd"):  # which waits at the first use, in later versions
        HANDLERS[_ops._wrap_tensor_autograd.default] = _wait
    HANDLERS.update({getattr(_ops, name).default: _refused for name in _REFUSED.split() if hasattr(_ops, name)})
