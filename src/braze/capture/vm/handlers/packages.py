"""Python packages that model code is full of: their inner functions that depend on constants alone are called for real.

Known by name, since the packages need not be installed.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..registry import NAMED
from ..signals import NotConst
from ..values.base import Value

if TYPE_CHECKING:
    from ..tracer import Tracer

PURE_FUNCTIONS = {
    "einops.einops": ("_prepare_transformation_recipe", "_compactify_pattern_for_einsum"),
    "einops.packing": ("analyze_pattern",),
}


def _real(vm: Tracer, raw: FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Value:
    try:
        with _disable_current_modes():
            out = raw(*args, **kwargs)
    except Exception as e:
        vm.raise_real(e)
    return vm.wrap_frozen(out, f"{raw.__qualname__}()")


def pure_function(vm: Tracer, raw: FunctionType, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What a function of constants gives, an object that nobody changes; None where an argument is no constant."""
    try:
        real, named = [a.as_python(vm) for a in args], {k: a.as_python(vm) for k, a in kwargs.items()}
    except NotConst:
        return None
    return _real(vm, raw, real, named)


def einops_backend(vm: Tracer, raw: FunctionType, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``einops._backends.get_backend``: one object for all tensors, made and remembered at the first call."""
    if kwargs or len(args) != 1 or not issubclass(args[0].pytype(vm), torch.Tensor):
        return None
    return _real(vm, raw, [torch.empty(0)], {})


def _register() -> None:
    for module, names in PURE_FUNCTIONS.items():
        for name in names:
            NAMED[name] = (module, pure_function)
    NAMED["get_backend"] = ("einops._backends", einops_backend)


_register()
