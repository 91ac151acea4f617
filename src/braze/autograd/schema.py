"""What an operator does to memory, read off its schema once and kept in a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from ..errors import Unsupported
from ..prims.functionalised import Functionalised

aten = torch.ops.aten

# In-place changes of a tensor's storage.
METADATA_OPS = frozenset(
    f"aten::{name}"
    for name in (
        "resize_as_sparse_ set_ set_data shallow_copy_data_ _resize_output_ sparse_resize_ "
        "sparse_resize_and_clear_ _coalesced_"
    ).split()
)
# Views that show the same elements at the same places.
IDENTITY_OPS = frozenset({"aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift", "aten::detach_"})
# Calls without a tensor result that a trace may forget: they look at metadata, or are profiler marks.
FORGET_NAMESPACES = ("profiler", "prim")


@dataclass(frozen=True, slots=True)
class OpInfo:
    """``writes``: names (and positions, -1 for keyword-only) of the arguments that an operator overwrites;
    ``returns_view`` of its first argument; ``random``: draws from a generator; ``effect``: must stay though unused."""

    writes: tuple[tuple[str, int], ...]
    returns_view: bool
    identity: bool
    random: bool
    effect: bool


@lru_cache(None)
def op_info(op: OpOverload) -> OpInfo:
    """The table row of an operator. Unsupported for one that changes a tensor's storage in place."""
    schema = op._schema
    if schema.name in METADATA_OPS:
        raise Unsupported(f"{op} changes the storage of a tensor in place", hint="use the out-of-place form")
    writes = tuple(
        (a.name, -1 if a.kwarg_only else i)
        for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    )
    identity = schema.name in IDENTITY_OPS
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return OpInfo(
        () if identity else writes,
        view or identity,
        identity,
        torch.Tag.nondeterministic_seeded in op.tags,
        "_assert" in schema.name or not schema.returns and not writes,
    )


def draws(target: Any) -> bool:
    """Whether the target of a call, or what it calls on copies, draws from a generator: other numbers in each call."""
    op = target.op if isinstance(target, Functionalised) else target
    return isinstance(op, OpOverload) and op_info(op).random


TENSOR_OPTIONS = ("dtype", "layout", "device", "pin_memory")


@lru_cache(None)
def functional_form(op: OpOverload) -> OpOverload | None:
    """The operator of the same arguments (by name and type, ``out`` left out) that returns what ``op`` writes.

    ``add_.Tensor`` -> ``add.Tensor``; ``pow_.Scalar`` -> ``pow.Tensor_Scalar``; ``add.out`` -> ``add.Tensor``.
    """
    schema = op._schema
    namespace, name = schema.name.split("::")
    module = getattr(torch.ops, namespace)
    want = {a.name: str(a.type) for a in schema.arguments if not a.is_out}
    if len(want) < len(schema.arguments):
        base = name.removesuffix("_out")
    elif name.endswith("_"):
        base = name[:-1]
    else:
        return None
    packet = getattr(module, base, None)
    overloads = packet.overloads() if packet is not None else []
    for overload in sorted(overloads, key=lambda o: o != op._overloadname):
        found: OpOverload = getattr(packet, overload)
        have = {a.name: str(a.type) for a in found._schema.arguments}
        if have == want and not op_info(found).writes:
            return found
    for overload in overloads:  # factories: arange.start_out -> arange.start, given the dtype and device of ``out``
        found = getattr(packet, overload)
        have = {a.name: str(a.type) for a in found._schema.arguments if a.name not in TENSOR_OPTIONS}
        if have == want and len(have) < len(found._schema.arguments) and not op_info(found).writes:
            return found
    return None


def bind(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name, defaults filled in."""
    out: dict[str, Any] = {}
    for i, a in enumerate(op._schema.arguments):
        if i < len(args) and not a.kwarg_only:
            out[a.name] = args[i]
        elif a.name in kwargs:
            out[a.name] = kwargs[a.name]
        else:
            out[a.name] = a.default_value
    return out
