"""How the host calls vendor operators: the fastest binding of each, and whether its result's layout can be trusted.

``torch.mm(a, b)`` costs 0.7 us less than ``torch.ops.aten.mm.default(a, b)``: the generated Python binding parses its
arguments directly.  The operators below have such a binding with the operator's own schema.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.runtime import host

CONTIGUOUS_RESULT = frozenset(("mm", "bmm", "addmm", "baddbmm"))
"""Operators whose result is always contiguous: its strides need no check."""

DIRECT = CONTIGUOUS_RESULT | {
    "convolution",
    "embedding",
    "index_select",
    "sort",
    "topk",
    "cumsum",
    "cumprod",
    "native_dropout",
    "grid_sampler",
}
"""Operators called by their Python binding ``torch.<name>``."""

GUARDED = {"_scaled_dot_product_efficient_attention_backward": host.efficient_attention_backward}
"""Operators called by a function of ``braze.runtime.host`` that knows where they may not be called as they are."""


def binding(target: Any) -> tuple[Any, str | None, bool]:
    """(callable, its spelling in the host program or None, can the result's strides be trusted)."""
    if not isinstance(target, torch._ops.OpOverload):
        return target, None, getattr(target, "trusted", False)
    name, overload = target._schema.name.partition("::")[2], target._overloadname
    trusted = name in CONTIGUOUS_RESULT and overload == "default"
    if name in DIRECT and overload == "default" and hasattr(torch, name):
        return getattr(torch, name), f"torch.{name}", trusted
    if name in GUARDED and overload == "default":
        return GUARDED[name], GUARDED[name].__name__, trusted
    return target, f"torch.ops.{target._schema.name.replace('::', '.')}.{overload}", trusted
