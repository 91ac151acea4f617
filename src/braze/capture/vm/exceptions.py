"""Exceptions of the user's program: made by instructions and C functions, matched, chained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from .signals import Raised
from .values.base import NONE, Const, Value
from .values.objects import ExceptionValue

if TYPE_CHECKING:
    from .tracer import Tracer


def new_exception(vm: Tracer, cls: type, args: list[Value]) -> ExceptionValue:
    return ExceptionValue(cls, args)


def raise_value(vm: Tracer, e: Value) -> NoReturn:
    """Raise an exception object, with the one being handled as its context."""
    if isinstance(e, ExceptionValue):
        e.raised = True
        e.loc = e.loc or vm.loc()
    if isinstance(e, ExceptionValue) and e.context is NONE and vm.handled is not None and vm.handled is not e:
        e.context = vm.handled
    raise Raised(e)


def raise_(vm: Tracer, cls: type, message: str) -> NoReturn:
    raise_value(vm, ExceptionValue(cls, [Const(message)]))


def raise_values(vm: Tracer, cls: type, args: list[Value]) -> NoReturn:
    raise_value(vm, ExceptionValue(cls, args))


def raise_real(vm: Tracer, e: BaseException) -> NoReturn:
    """Raise the program's counterpart of an exception that a constant operation raised."""
    v = ExceptionValue(type(e), [vm.wrap(a, None) for a in e.args])
    v.real = e
    raise_value(vm, v)


def exception_matches(vm: Tracer, e: Value, classes: Any) -> bool:
    """``isinstance(e, classes)`` of real exception classes."""
    return issubclass(e.pytype(vm), classes)
