"""NumPy on known numbers: evaluated while tracing. Arrays break the graph, but for what they say of themselves."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..registry import CALLS_BY_TYPE, GETSETS, PURE, PURE_TYPES, add_static, simple
from ..signals import NotConst, unsupported
from ..values.base import Const, Value
from ..values.objects import ObjectValue
from ..values.statics import BuiltinValue
from ..wrap import WRAPPERS, _object

if TYPE_CHECKING:
    from braze.capture.source import Source

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
PURE.add(np.dtype)


def _dtype(vm: Tracer, raw: Any, source: Source | None) -> Value:
    """One of NumPy's own dtypes is a constant."""
    return Const(raw, source) if raw.isbuiltin == 1 else _object(vm, raw, source)


WRAPPERS.update({type(np.dtype(t)): _dtype for t in SCALARS if t.__name__ in np.sctypeDict})


def _field(name: str) -> Any:
    """What an existing array says of itself; its content is not looked at."""

    def handler(vm: Tracer, v: Value) -> Value:
        if not isinstance(v, ObjectValue) or v.raw is None or v.source is None:
            unsupported(f"the attribute {name!r} of an array that is made here")
        return vm.wrap(getattr(v.raw, name), v.source.attr(name))

    return handler


for _name in ("shape", "dtype", "ndim", "size"):
    GETSETS[vars(np.ndarray)[_name]] = _field(_name)


@simple(np.ndarray.__len__)
def length(vm: Tracer, v: Value) -> Value:
    shape = GETSETS[vars(np.ndarray)["shape"]](vm, v)
    if not shape.truth(vm):
        unsupported("len() of an array without dimensions")
    return shape.get_item(vm, Const(0))
