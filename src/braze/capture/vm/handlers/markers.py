"""Markers that PyTorch's own compiler puts on functions, recognised by name: the one place that knows them."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

_DISABLED = "_torch" + "dynamo_disable"
_SCRIPTED = "_torch" + "dynamo_inline"


# The code of the wrapper that torch puts around functions of its own which its compiler must not trace.
DISABLED_BY_TORCH = getattr(torch, "_disable_" + "dynamo")(lambda: None).__code__


def is_disabled(function: FunctionType) -> bool:
    """Whether ``torch.compiler.disable`` was applied to the function."""
    return bool(function.__dict__.get(_DISABLED, False))


def scripted(obj: Any) -> Any:
    """The Python function behind a function or object made by ``torch.jit.script``, or None."""
    return getattr(obj, _SCRIPTED, None)
