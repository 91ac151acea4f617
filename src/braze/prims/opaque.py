"""ATen calls that stay as they are."""

from __future__ import annotations

from torch._ops import OpOverload


def refusal(op: OpOverload) -> str | None:
    """Why a call of ``op`` cannot be in a primitive graph, or None."""
    schema = op._schema
    if schema.is_mutable:
        return "mutates an argument in a functional graph"
    if any(a.alias_info is not None for a in schema.arguments):
        return "a view without a decomposition"
    return None
