"""Where every ATen overload of the installed torch stands: one class and one reason each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch._ops import OpOverload

from .opaque import OPAQUE, base_name, refusal
from .prim import PRIMS
from .registry import decomposition_of, overload_name

CLASSES = ("primitive", "decomposed", "composite", "opaque", "functionalised", "refused", "unlisted")


def overloads() -> Iterator[OpOverload]:
    """All overloads in the ``aten`` namespace that Python can call."""
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::"):
            base, _, overload = name.removeprefix("aten::").partition(".")
            packet = getattr(torch.ops.aten, base, None)
            op = getattr(packet, overload or "default", None)
            if isinstance(op, OpOverload):
                yield op


def classify(op: OpOverload) -> tuple[str, str]:
    """(class, reason). The classes:

    - primitive: has a primitive of the same name; decomposed: has a row.
    - composite: ATen takes it apart before a graph sees it; functionalised: mutates or writes into an argument, which
      ``autograd`` replaces by the functional form.
    - opaque: stays an ATen call; refused: cannot be in a graph; unlisted: nobody has decided yet.
    """
    name = base_name(op)
    if decomposition_of(op) is not None:
        return ("primitive", f"prims.{name}") if name in PRIMS else ("decomposed", overload_name(op))
    if op._schema.is_mutable:
        return "functionalised", "mutates an argument"
    full = f"aten::{overload_name(op)}"
    if torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd"):
        return "composite", "ATen takes it apart"
    reason = refusal(op)
    if reason is not None:
        return "refused", reason
    return ("opaque", OPAQUE[name]) if name in OPAQUE else ("unlisted", "")


def counts() -> Counter[str]:
    """Class -> number of overloads."""
    return Counter(classify(op)[0] for op in overloads())
