"""What the interpreter knows of C functions and of whole modules: the tables that the ``handlers`` package fills.

- ``HANDLERS``: callable (function, method descriptor or class) -> ``handler(vm, args, kwargs)``.
- ``GETSETS``: getset descriptor, or attribute name -> ``handler(vm, obj)``.
- ``PURE``: C callables that are evaluated while tracing when all arguments are known.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GenericAlias,
    MethodDescriptorType,
    ModuleType,
    UnionType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .tracer import Tracer
    from .values.base import Value

Handler = Callable[["Tracer", "list[Value]", "dict[str, Value]"], "Value"]
HANDLERS: dict[Any, Handler] = {}
GETSETS: dict[Any, Callable[[Tracer, Value], Value]] = {}
FUNCTION_FIELDS: dict[str, Callable[[Tracer, Value], Value]] = {}  # fields of Python functions, by name
CALLS_BY_TYPE: dict[type, Any] = {}  # class of a callable -> ``handler(vm, callable, args, kwargs)``
CODE_HANDLERS: dict[CodeType, Any] = {}  # code of a closure -> ``handler(vm, function, args, kwargs)``
NAMED: dict[str, tuple[str, Any]] = {}  # name of a package's function -> (its module, ``handler(vm, function, …)``)
PURE: set[Any] = set()
BREAKS: dict[Any, tuple[str, str]] = {}  # callable -> (reason, hint)


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register a handler for these callables."""

    def register(handler: Handler) -> Handler:
        for f in functions:
            HANDLERS[f] = handler
        return handler

    return register


def class_method(*functions: Any) -> Callable[[Handler], Handler]:
    """Register a handler of class methods written in C; its first argument is the class."""

    def register(handler: Handler) -> Handler:
        for f in functions:
            cls = f.__self__
            HANDLERS[cls.__dict__[f.__name__]] = handler
            HANDLERS[f] = lambda vm, args, kwargs, cls=cls: handler(vm, [vm.wrap_static(cls), *args], kwargs)  # type: ignore[misc]
        return handler

    return register


def simple(*functions: Any) -> Callable[[Any], Any]:
    """Register ``handler(vm, *args)`` for calls with positional arguments only."""

    def register(handler: Any) -> Any:
        def adapt(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
            if kwargs:
                names = ", ".join(kwargs)
                vm.unsupported_call(functions[0], f"keyword arguments ({names})")
            try:
                out: Value = handler(vm, *args)
            except TypeError as e:
                if e.__traceback__ is not None and e.__traceback__.tb_next is None:
                    vm.raise_(TypeError, f"{functions[0].__name__}: {e}")
                raise
            return out

        for f in functions:
            HANDLERS[f] = adapt
        return handler

    return register


def pure(*functions: Any) -> None:
    """These C callables have no effects, and a result that depends on their arguments alone."""
    PURE.update(functions)


def handler_of(function: Any) -> Handler | None:
    """The handler of a callable; None for the unhashable, too."""
    try:
        return HANDLERS.get(function)
    except TypeError:
        return None


# ---- modules and static objects

STATIC_TYPES: tuple[type, ...] = (
    FunctionType,
    BuiltinFunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
    ClassMethodDescriptorType,
    ModuleType,
    type,
    enum.Enum,
    type(functools.lru_cache(lambda: None)),
    UnionType,
    GenericAlias,
    torch.dtype,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)


def add_static(*classes: type) -> None:
    """Instances of these classes are static, too."""
    global STATIC_TYPES
    STATIC_TYPES = (*STATIC_TYPES, *classes)


_TRUSTED = frozenset(
    {"torch", "torchvision", "numpy", "typing_extensions", *sys.stdlib_module_names} - {"__main__", "os"}
)


def is_static(raw: Any) -> bool:
    """Functions, classes, modules and enum members: objects that programs name but hardly ever rebind."""
    return isinstance(raw, STATIC_TYPES)


def trusted_module(name: str | None) -> bool:
    """Whether the code of the module is taken as it is: functions that it defines are not changed in place."""
    return name is not None and name.split(".", 1)[0] in _TRUSTED


# ---- torch functions

_LEAF_MODULES = frozenset({"torch.functional", "torch.nn.functional", "torch._tensor", "torch._VF"})
_C_NAMESPACES = frozenset(
    f"torch._C._{n}" for n in ("nn", "fft", "linalg", "special", "nested", "sparse", "VariableFunctions")
)
_VARIABLE_FUNCTIONS = torch.relu.__self__  # type: ignore[attr-defined]
_TENSOR_CLASSES: tuple[Any, ...] = (torch.Tensor, torch._C.TensorBase)
_INLINE_LEAVES: set[Any] = {torch.functional.broadcast_shapes}


def _leaf_functions() -> frozenset[Any]:
    """Python functions of ``torch.nn.functional`` whose ``__module__`` is elsewhere (``boolean_dispatch``)."""
    f = torch.nn.functional
    return frozenset(
        v for v in vars(f).values() if isinstance(v, FunctionType) and v.__module__ == "torch._jit_internal"
    )


_DISPATCHED = _leaf_functions()


def is_torch_leaf(function: FunctionType) -> bool:
    """A Python function of torch that goes into the graph as one call."""
    return function.__module__ in _LEAF_MODULES and function not in _INLINE_LEAVES or function in _DISPATCHED


def is_torch_c(function: Any) -> bool:
    """A C function or method of torch that computes on tensors."""
    if isinstance(function, BuiltinFunctionType):
        owner = function.__self__
        if owner is _VARIABLE_FUNCTIONS:
            return True
        return getattr(function, "__module__", None) in _C_NAMESPACES
    if isinstance(function, (MethodDescriptorType, WrapperDescriptorType)):
        return function.__objclass__ in _TENSOR_CLASSES
    return isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))


PLACEMENTS = "torch.distributed.tensor.placement_types"
"""The module of immutable classes that say how a DTensor is divided."""

PURE_TYPES: set[type] = set(
    {int, float, bool, complex, str, bytes, tuple, frozenset, range, slice, type(None), type(Ellipsis)}
    | {torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo, object}
)


def is_pure(function: Any) -> bool:
    """A C callable to evaluate while tracing when its arguments are known."""
    try:
        if function in PURE:
            return True
    except TypeError:
        return False
    if isinstance(function, (MethodDescriptorType, WrapperDescriptorType)):
        return function.__objclass__ in PURE_TYPES and function.__name__ not in (
            "__setattr__",
            "__delattr__",
            "__init__",
        )
    if isinstance(function, ClassMethodDescriptorType):
        return function.__objclass__ in PURE_TYPES
    if isinstance(function, BuiltinFunctionType) and not isinstance(function.__self__, (ModuleType, type(None))):
        return type(function.__self__) in PURE_TYPES or function.__self__ in PURE_TYPES
    return False
