"""NumPy on known numbers: evaluated while tracing. Arrays break the graph."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..registry import CALLS_BY_TYPE, PURE_TYPES, add_static
from ..signals import NotConst, unsupported
from ..values.base import Const, Value
from ..values.statics import BuiltinValue
from ..wrap import WRAPPERS

if TYPE_CHECKING:
    from ..tracer import Tracer


def call_numpy(vm: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A NumPy function or ufunc of constants that gives a number."""
    try:
        return vm.fold(function, args, kwargs)
    except NotConst:
        unsupported(f"numpy.{function.__name__}() of a value that is not known while compiling")


for _t in (np.ufunc, type(np.prod)):
    CALLS_BY_TYPE[_t] = call_numpy
    WRAPPERS[_t] = lambda vm, raw, source: BuiltinValue(raw, source)
    if _t is not FunctionType:
        add_static(_t)
SCALARS: tuple[type, ...] = tuple(t for t in vars(np).values() if isinstance(t, type) and issubclass(t, np.generic))
for _t in SCALARS:
    WRAPPERS[_t] = lambda vm, raw, source: Const(raw, source)
PURE_TYPES.update(SCALARS)
