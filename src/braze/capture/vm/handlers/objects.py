"""``object``'s own methods, exceptions, generators, and fields that C classes compute (getset descriptors)."""

from __future__ import annotations

import dataclasses
import enum
import reprlib
from types import CellType, FunctionType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any

from ..attributes import class_plain_get, generic_get, generic_set
from ..registry import CODE_HANDLERS, FUNCTION_FIELDS, GETSETS, HANDLERS, handles, simple
from ..signals import unsupported
from ..values.base import NONE, NOT_IMPLEMENTED, Const, Value, boolean
from ..values.functions import CellValue, MadeFunction, MethodValue
from ..values.generator import GeneratorValue
from ..values.objects import ExceptionValue, ObjectValue
from ..values.sequences import ListValue, TupleValue
from ..values.statics import ClassValue, FunctionValue
from .builtin import exception_text

if TYPE_CHECKING:
    from ..tracer import Tracer


def new_instance(vm: Tracer, cls: type) -> Value:
    """``object.__new__(cls)``."""
    abstract = getattr(cls, "__abstractmethods__", None)
    if abstract:
        names = ", ".join(sorted(abstract))
        vm.raise_(TypeError, f"Can't instantiate abstract class {cls.__name__} with abstract methods {names}")
    if issubclass(cls, BaseException):
        return exception_new(vm, [vm.wrap_static(cls)], {})
    if not cls.__flags__ & (1 << 9):
        unsupported(f"constructing a {cls.__module__}.{cls.__name__}, a class written in C")
    return ObjectValue(cls)


@handles(object.__new__)
def object_new(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return new_instance(vm, args[0].as_const(vm))


@handles(object.__init__, object.__init_subclass__)
def nothing(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return NONE


@simple(object.__setattr__)
def object_setattr(vm: Tracer, v: Value, name: Value, value: Value) -> Value:
    generic_set(vm, v, name.as_const(vm), value)
    return NONE


@simple(object.__delattr__)
def object_delattr(vm: Tracer, v: Value, name: Value) -> Value:
    generic_set(vm, v, name.as_const(vm), None)
    return NONE


@simple(object.__getattribute__)
def object_getattribute(vm: Tracer, v: Value, name: Value) -> Value:
    return generic_get(vm, v, name.as_const(vm))


@simple(type.__getattribute__)
def type_getattribute(vm: Tracer, v: Value, name: Value) -> Value:
    assert isinstance(v, ClassValue)
    return class_plain_get(vm, v, name.as_const(vm))


@simple(object.__eq__)
def object_eq(vm: Tracer, a: Value, b: Value) -> Value:
    return boolean(True) if vm.identical(a, b) else NOT_IMPLEMENTED


@simple(object.__ne__)
def object_ne(vm: Tracer, a: Value, b: Value) -> Value:
    out = vm.compare("==", a, b)
    return out if out is NOT_IMPLEMENTED else boolean(not out.truth(vm))


@handles(type.__call__)
def type_call(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``type.__call__`` as a metaclass's own ``__call__`` reaches it."""
    from ..calls import construct_plain

    cls = args[0]
    assert isinstance(cls, ClassValue)
    return construct_plain(vm, cls.as_const(vm), args[1:], kwargs, cls)


@handles(enum.EnumMeta.__call__)
def enum_call(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return vm.fold(lambda cls, *a: cls(*a), args, kwargs)


_running: dict[Any, list[Value]] = {}


def plain_repr(vm: Tracer, f: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The wrapper of ``reprlib.recursive_repr``: it tells objects apart by their ids."""
    cells = dict(zip(f.code.co_freevars, f.cells(vm)))
    fill = cells["fillvalue"].read(vm) if "fillvalue" in cells else Const("...")
    user, running = cells["user_function"].read(vm), _running.setdefault(vm, [])
    assert fill is not None and user is not None
    if any(v is args[0] for v in running):
        return fill
    running.append(args[0])
    try:
        return user.call(vm, args, kwargs)
    finally:
        running.pop()
        if not running:
            del _running[vm]


CODE_HANDLERS[reprlib.recursive_repr()(lambda self: "").__code__] = plain_repr
if hasattr(dataclasses, "_recursive_repr"):
    CODE_HANDLERS[dataclasses._recursive_repr(lambda self: "").__code__] = plain_repr  # up to CPython 3.12


# ---- exceptions


@handles(BaseException.__new__)
def exception_new(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].as_const(vm)
    if issubclass(cls, (BaseExceptionGroup, OSError, SyntaxError, UnicodeError)):
        unsupported(f"making a {cls.__name__}, which C code takes apart")
    return ExceptionValue(cls, args[1:])


@handles(BaseException.__init__, Exception.__init__)
def exception_init(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    e = args[0]
    assert isinstance(e, ExceptionValue)
    if kwargs:
        vm.raise_(TypeError, f"{e.cls.__name__}() takes no keyword arguments")
    e.args = args[1:]
    return NONE


@simple(BaseException.add_note)
def add_note(vm: Tracer, e: Value, note: Value) -> Value:
    notes = vm.get_attr_or_none(e, "__notes__")
    if notes is None:
        notes = ListValue([])
        e.set_attr(vm, "__notes__", notes)
    notes.get_attr(vm, "append").call(vm, [note], {})
    return NONE


def _exception_classes() -> list[type]:
    out: list[type] = []
    todo: list[type] = [BaseException]
    while todo:
        cls = todo.pop()
        out.append(cls)
        below: list[type] = type.__subclasses__(cls)
        todo += [c for c in below if c.__module__ == "builtins"]
    return out


for _cls in _exception_classes():
    if "__init__" in _cls.__dict__:
        HANDLERS[_cls.__dict__["__init__"]] = exception_init
    if "__new__" in _cls.__dict__:
        HANDLERS[_cls.__new__] = exception_new


@simple(BaseException.with_traceback)
def with_traceback(vm: Tracer, e: Value, tb: Value) -> Value:
    return e


@simple(BaseException.__str__, KeyError.__str__)
def exception_str(vm: Tracer, e: Value) -> Value:
    assert isinstance(e, ExceptionValue)
    return exception_text(vm, e)


# ---- generators


def _generator(v: Value) -> GeneratorValue:
    if not isinstance(v, GeneratorValue):
        unsupported("driving a generator that exists already")
    return v


def _stop(vm: Tracer, g: GeneratorValue) -> Any:
    vm.raise_values(StopIteration, [] if g.result is NONE else [g.result])


@simple(GeneratorType.send)
def generator_send(vm: Tracer, v: Value, value: Value) -> Value:
    g = _generator(v)
    if not g.started and not (vm.is_none(value)):
        vm.raise_(TypeError, "can't send non-None value to a just-started generator")
    out = g.resume(vm, value, None)
    return out if out is not None else _stop(vm, g)


@handles(GeneratorType.throw)
def generator_throw(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    g, error = _generator(args[0]), args[1]
    if isinstance(error, ClassValue):
        given = args[2] if len(args) > 2 and not (vm.is_none(args[2])) else None
        error = (
            given
            if given is not None and isinstance(given, ExceptionValue)
            else error.call(vm, [given] if given else [], {})
        )
    out = g.resume(vm, NONE, error)
    return out if out is not None else _stop(vm, g)


@simple(GeneratorType.close)
def generator_close(vm: Tracer, v: Value) -> Value:
    return _generator(v).close(vm)


HANDLERS[GeneratorType.__iter__] = lambda vm, args, kwargs: args[0]


@simple(GeneratorType.__next__)
def generator_next(vm: Tracer, v: Value) -> Value:
    g = _generator(v)
    out = g.resume(vm, NONE, None)
    return out if out is not None else _stop(vm, g)


# ---- fields


def _class(vm: Tracer, v: Value) -> Value:
    return vm.wrap_static(v.pytype(vm))


def _dict(vm: Tracer, v: Value) -> Value:
    attrs: Value | None = v.own_attrs(vm)
    if attrs is None:
        vm.raise_(AttributeError, f"{v.pytype(vm).__name__!r} object has no attribute '__dict__'")
    return attrs


def _code(vm: Tracer, v: Value) -> Value:
    assert isinstance(v, (FunctionValue, MadeFunction))
    return Const(v.code)


def _function_name(vm: Tracer, v: Value) -> Value:
    if isinstance(v, MadeFunction):
        found = v.own_attrs(vm).find(vm, "__name__")
        return found if found is not None else Const(v.code.co_name)
    return Const(v.raw.__name__)  # type: ignore[attr-defined]


def _function_qualname(vm: Tracer, v: Value) -> Value:
    return Const(v.qualname if isinstance(v, MadeFunction) else v.raw.__qualname__)  # type: ignore[attr-defined]


def _function_doc(vm: Tracer, v: Value) -> Value:
    if isinstance(v, MadeFunction):
        first = v.code.co_consts[0] if v.code.co_consts else None
        return Const(first if isinstance(first, str) else None)
    return vm.wrap_static(v.raw.__doc__)  # type: ignore[attr-defined]


def _function_module(vm: Tracer, v: Value) -> Value:
    return Const(v.globals.get("__name__") if isinstance(v, MadeFunction) else v.raw.__module__)  # type: ignore[attr-defined]


def _defaults(vm: Tracer, v: Value) -> Value:
    assert isinstance(v, (FunctionValue, MadeFunction))
    d = v.defaults(vm)
    return TupleValue(d) if d else NONE


def _kwdefaults(vm: Tracer, v: Value) -> Value:
    assert isinstance(v, (FunctionValue, MadeFunction))
    d = v.kwdefaults(vm)
    return vm.new_dict(d) if d else NONE


def _closure(vm: Tracer, v: Value) -> Value:
    assert isinstance(v, (FunctionValue, MadeFunction))
    cells = v.cells(vm)
    return TupleValue(cells) if cells else NONE


def _annotations(vm: Tracer, v: Value) -> Value:
    if isinstance(v, MadeFunction):
        if isinstance(v.annotations, TupleValue):  # as MAKE_FUNCTION takes them: names and values in turn
            flat = v.annotations.items(vm)
            v.annotations = vm.new_dict({k.as_const(vm): x for k, x in zip(flat[::2], flat[1::2])})
        return v.annotations if v.annotations is not None else vm.new_dict()
    return vm.wrap(v.raw.__annotations__, None)  # type: ignore[attr-defined]


def _contents(vm: Tracer, v: Value) -> Value:
    assert isinstance(v, CellValue)
    out = v.read(vm)
    if out is None:
        vm.raise_(ValueError, "Cell is empty")
    return out


GETSETS.update(
    {
        "__class__": _class,
        object.__dict__["__class__"]: _class,
        "__dict__": _dict,
        FunctionType.__dict__["__code__"]: _code,
        FunctionType.__dict__["__name__"]: _function_name,
        FunctionType.__dict__["__qualname__"]: _function_qualname,
        FunctionType.__dict__["__defaults__"]: _defaults,
        FunctionType.__dict__["__kwdefaults__"]: _kwdefaults,
        FunctionType.__dict__["__annotations__"]: _annotations,
        CellType.__dict__["cell_contents"]: _contents,
    }
)
FUNCTION_FIELDS.update(
    {
        "__doc__": _function_doc,
        "__type_params__": lambda vm, v: TupleValue([]),
        "__module__": _function_module,
        "__closure__": _closure,
        "__globals__": lambda vm, v: unsupported("reading a function's __globals__"),
    }
)


@handles(MethodType)
def method_type(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return MethodValue(args[0], args[1])


@handles(CellType)
def cell_type(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return CellValue(args[0] if args else None)
