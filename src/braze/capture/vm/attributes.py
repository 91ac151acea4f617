"""Attribute access as CPython does it: class lookup by MRO, data descriptors, instance dict, ``__getattr__``.

Functions take the tracer first and become its methods.
"""

from __future__ import annotations

import enum
import functools
from types import (
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, NoReturn

from .registry import FUNCTION_FIELDS, GETSETS, handler_of, is_static, trusted_module
from .signals import Raised, unsupported
from .values.base import NONE, Const, Value
from .values.functions import MethodValue, SuperValue
from .values.objects import ObjectValue
from .values.sequences import TupleValue
from .values.statics import BuiltinValue, ClassValue, FunctionValue, PyModule

if TYPE_CHECKING:
    from .tracer import Tracer

_TUPLE_GETTER = "_tuplegetter"


class _Found:
    """A class attribute found by the MRO."""

    __slots__ = ("raw", "owner")

    def __init__(self, raw: Any, owner: type) -> None:
        self.raw, self.owner = raw, owner


def find(vm: Tracer, cls: type, name: str) -> _Found | None:
    """The class attribute as ``_PyType_Lookup`` finds it, or None. Cached for this capture, and guarded: that it is
    absent, that it is this method or descriptor, that it is a value of this type (and so no descriptor)."""
    key = (cls, name)
    if key in vm.class_cache:
        known: _Found | None = vm.class_cache[key]
        return known
    out = None
    for base in cls.__mro__:
        d = base.__dict__
        if name in d:
            out = _Found(d[name], base)
            break
    vm.class_cache[key] = out
    if not cls.__flags__ & _IMMUTABLE:
        _guard_lookup(vm, cls, name, out)
    return out


_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: a class whose attributes cannot be set


def _guard_lookup(vm: Tracer, cls: type, name: str, found: _Found | None) -> None:
    where = vm.sources.const(cls, cls.__qualname__)
    if found is None:
        vm.guards.class_lacks(where, name)
    elif hasattr(type(found.raw), "__get__") or hasattr(type(found.raw), "__set__"):
        vm.guards.class_attribute(where, name, found.raw)
    else:
        vm.guards.type_(where.type_attr(name), type(found.raw))


def lookup(vm: Tracer, cls: type, name: str) -> Any:
    """The raw class attribute, or None."""
    found = find(vm, cls, name)
    return None if found is None else found.raw


def attribute_error(vm: Tracer, cls: type, name: str) -> NoReturn:
    find(vm, cls, name)
    find(vm, cls, "__getattr__")
    vm.raise_(AttributeError, f"{cls.__name__!r} object has no attribute {name!r}")


# ---- descriptors


def _is_data(vm: Tracer, raw: Any) -> bool:
    t = type(raw)
    return find(vm, t, "__set__") is not None or find(vm, t, "__delete__") is not None


def bind(vm: Tracer, found: _Found, obj: Value, cls: type, name: str) -> Value:
    """``raw.__get__(obj, cls)``, or the class attribute itself."""
    raw = found.raw
    binder = BINDERS.get(type(raw))
    if binder is not None:
        value: Value = binder(vm, found, obj, cls, name)
        return value
    if type(raw).__name__ == _TUPLE_GETTER:
        return _bind_tuple_getter(vm, found, obj, cls, name)
    getter = find(vm, type(raw), "__get__")
    if getter is None:
        return class_attribute(vm, cls, name, raw)
    if getter.raw is property.__dict__["__get__"]:
        return _bind_property(vm, found, obj, cls, name)
    if isinstance(getter.raw, FunctionType):
        descriptor = class_attribute(vm, cls, name, raw)
        return vm.call_function(FunctionValue(getter.raw), [descriptor, obj, vm.wrap_static(cls)], {})
    unsupported(f"the descriptor {type(raw).__name__} of {cls.__name__}.{name}")


def class_attribute(vm: Tracer, cls: type, name: str, raw: Any) -> Value:
    """The attribute's object, re-read from the class where it may change."""
    if is_static(raw) and trusted_module(cls.__module__):
        return vm.wrap_static(raw)
    out = vm.wrap(raw, vm.sources.const(cls, cls.__qualname__).type_attr(name))
    vm.found.append(out)
    return out


def _bind_function(vm: Tracer, found: _Found, obj: Value, cls: type, name: str) -> Value:
    return MethodValue(vm.wrap_static(found.raw), obj)


def _bind_classmethod(vm: Tracer, found: _Found, obj: Value, cls: type, name: str) -> Value:
    func = found.raw.__func__
    inner = type(func)
    if inner is FunctionType:
        return MethodValue(vm.wrap_static(func), vm.wrap_static(cls))
    unsupported(f"a classmethod over {inner.__name__} ({cls.__name__}.{name})")


def _bind_staticmethod(vm: Tracer, found: _Found, obj: Value, cls: type, name: str) -> Value:
    return vm.wrap_static(found.raw.__func__)


def _bind_property(vm: Tracer, found: _Found, obj: Value, cls: type, name: str) -> Value:
    fget = found.raw.fget
    if fget is None:
        vm.raise_(AttributeError, f"property {name!r} of {cls.__name__!r} object has no getter")
    return vm.wrap_static(fget).call(vm, [obj], {})


def _bind_member(vm: Tracer, found: _Found, obj: Value, cls: type, name: str) -> Value:
    """A ``__slots__`` entry, or a field of a C struct."""
    if isinstance(obj, TupleValue):
        fields = getattr(obj.cls, "__match_args__", ())
        if name in fields:
            return obj.items(vm)[fields.index(name)]
    if name == "__dict__" and (attrs := obj.own_attrs(vm)) is not None:
        return attrs  # type: ignore[no-any-return]
    if isinstance(obj, ObjectValue):
        if name in obj.slots:
            v = obj.slots[name]
            if v is None:
                attribute_error(vm, cls, name)
            return v
        if obj.raw is None:
            attribute_error(vm, cls, name)
        try:
            raw = found.raw.__get__(obj.raw, cls)
        except AttributeError:
            unsupported(f"reading the unset slot {cls.__name__}.{name} of an existing object")
        assert obj.source is not None
        v = obj.slots[name] = vm.wrap(raw, obj.source.attr(name))
        vm.found.append(v)
        return v
    if isinstance(obj, Const):
        return vm.fold(lambda o: getattr(o, name), [obj])
    unsupported(f"the attribute {name!r} of a {cls.__name__} object")


def _bind_getset(vm: Tracer, found: _Found, obj: Value, cls: type, name: str) -> Value:
    handler = GETSETS.get(found.raw) or GETSETS.get(name)
    if handler is not None:
        return handler(vm, obj)
    if isinstance(obj, Const):
        return vm.fold(lambda o: getattr(o, name), [obj])
    unsupported(f"the attribute {name!r} of a {cls.__name__} object")


def _bind_class_c_method(vm: Tracer, found: _Found, obj: Value, cls: type, name: str) -> Value:
    return MethodValue(BuiltinValue(found.raw), vm.wrap_static(cls))


def _bind_cached_property(vm: Tracer, found: _Found, obj: Value, cls: type, name: str) -> Value:
    attrs = obj.own_attrs(vm)
    if attrs is None:
        unsupported(f"functools.cached_property {name!r} on an object without __dict__")
    value = vm.wrap_static(found.raw.func).call(vm, [obj], {})
    attrs.store(vm, found.raw.attrname, value)
    return value


def _bind_tuple_getter(vm: Tracer, found: _Found, obj: Value, cls: type, name: str) -> Value:
    sequence = obj if isinstance(obj, TupleValue) else getattr(obj, "payload", None)
    if not isinstance(sequence, TupleValue):
        unsupported(f"the named tuple field {cls.__name__}.{name}")
    index: int = found.raw.__reduce__()[1][0]
    return sequence.items(vm)[index]


def _bind_partialmethod(vm: Tracer, found: _Found, obj: Value, cls: type, name: str) -> Value:
    raw = found.raw
    bound = MethodValue(vm.wrap_static(raw.func), obj)
    from .values.functions import PartialValue

    where = vm.sources.const(raw, f"{cls.__qualname__}.{name}")
    args = [vm.wrap(a, where.attr("args").item(i)) for i, a in enumerate(raw.args)]
    kwargs = {k: vm.wrap(a, where.attr("keywords").item(k)) for k, a in raw.keywords.items()}
    return PartialValue(bound, args, kwargs)


BINDERS: dict[type, Any] = {
    FunctionType: _bind_function,
    MethodDescriptorType: _bind_function,
    WrapperDescriptorType: _bind_function,
    classmethod: _bind_classmethod,
    staticmethod: _bind_staticmethod,
    property: _bind_property,
    MemberDescriptorType: _bind_member,
    GetSetDescriptorType: _bind_getset,
    ClassMethodDescriptorType: _bind_class_c_method,
    functools.cached_property: _bind_cached_property,
    functools.partialmethod: _bind_partialmethod,
}


# ---- instances


def generic_get(vm: Tracer, obj: Value, name: str) -> Value:
    """``object.__getattribute__``: no ``__getattr__``."""
    cls = obj.pytype(vm)
    found = find(vm, cls, name)
    if found is not None and _is_data(vm, found.raw):
        return bind(vm, found, obj, cls, name)
    attrs = obj.own_attrs(vm)
    if attrs is not None:
        v: Value | None = attrs.find(vm, name)
        if v is not None:
            return v
    if found is not None:
        return bind(vm, found, obj, cls, name)
    attribute_error(vm, cls, name)


def enum_get(vm: Tracer, obj: Const, name: str) -> Value:
    """An attribute of an enum member: what the member holds is fixed, methods and properties are the program's."""
    found = find(vm, type(obj.raw), name)
    if found is not None and type(found.raw) is not enum.property and not isinstance(found.raw, enum.Enum):
        return generic_get(vm, obj, name)
    obj.as_const(vm)
    try:
        value = getattr(obj.raw, name)
    except AttributeError as e:
        vm.raise_real(e)
    return vm.wrap(value, vm.sources.const(obj.raw, str(obj.raw)).attr(name))


def object_plain_get(vm: Tracer, obj: Value, name: str) -> Value:
    """``type(obj).__getattribute__(obj, name)``."""
    how = find(vm, obj.pytype(vm), "__getattribute__")
    if how is not None and isinstance(how.raw, FunctionType):
        return vm.call_function(FunctionValue(how.raw), [obj, Const(name)], {})
    return generic_get(vm, obj, name)


def object_get(vm: Tracer, obj: Value, name: str) -> Value:
    """``getattr(obj, name)`` with the class's own ``__getattribute__`` and ``__getattr__``."""
    fallback = find(vm, obj.pytype(vm), "__getattr__")
    if fallback is None:
        return object_plain_get(vm, obj, name)
    try:
        return object_plain_get(vm, obj, name)
    except Raised as e:
        if not vm.exception_matches(e.value, AttributeError):
            raise
    return vm.call_raw(fallback.raw, [obj, Const(name)], {})


def object_set(vm: Tracer, obj: Value, name: str, value: Value | None) -> None:
    """``setattr`` (``value`` None: ``delattr``) with the class's own ``__setattr__``."""
    special = "__setattr__" if value is not None else "__delattr__"
    how = find(vm, obj.pytype(vm), special)
    if how is not None and isinstance(how.raw, FunctionType):
        args = [obj, Const(name)] + ([value] if value is not None else [])
        vm.call_function(FunctionValue(how.raw), args, {})
        return
    if how is not None and how.owner is not object and handler_of(how.raw) is not None:
        vm.call_raw(how.raw, [obj, Const(name)] + ([value] if value is not None else []), {})
        return
    generic_set(vm, obj, name, value)


def generic_set(vm: Tracer, obj: Value, name: str, value: Value | None) -> None:
    """``object.__setattr__`` or, with ``value`` None, ``object.__delattr__``."""
    cls = obj.pytype(vm)
    found = find(vm, cls, name)
    if found is not None and _is_data(vm, found.raw):
        _set_data(vm, found, obj, cls, name, value)
        return
    attrs = obj.own_attrs(vm)
    if attrs is None:
        if found is not None:
            vm.raise_(AttributeError, f"{cls.__name__!r} object attribute {name!r} is read-only")
        attribute_error(vm, cls, name)
    if value is not None:
        attrs.store(vm, name, value)
    elif attrs.remove(vm, name) is None:
        attribute_error(vm, cls, name)


def _set_data(vm: Tracer, found: _Found, obj: Value, cls: type, name: str, value: Value | None) -> None:
    raw = found.raw
    if isinstance(raw, property):
        func = raw.fset if value is not None else raw.fdel
        if func is None:
            what = "setter" if value is not None else "deleter"
            vm.raise_(AttributeError, f"property {name!r} of {cls.__name__!r} object has no {what}")
        vm.wrap_static(func).call(vm, [obj] + ([value] if value is not None else []), {})
        return
    if isinstance(raw, MemberDescriptorType) and isinstance(obj, ObjectValue):
        if value is None and obj.slots.get(name) is None and (obj.raw is None or not hasattr(obj.raw, name)):
            attribute_error(vm, cls, name)
        obj.set_slot(vm, name, value)
        return
    setter = find(vm, type(raw), "__set__" if value is not None else "__delete__")
    if setter is not None and isinstance(setter.raw, FunctionType):
        descriptor = class_attribute(vm, cls, name, raw)
        vm.call_function(FunctionValue(setter.raw), [descriptor, obj] + ([value] if value is not None else []), {})
        return
    unsupported(f"assigning to the attribute {name!r} of a {cls.__name__} object")


def function_get(vm: Tracer, obj: Value, name: str) -> Value:
    """An attribute of a Python function. The function is known by identity where a field of it is read."""
    field = FUNCTION_FIELDS.get(name)
    if isinstance(obj, FunctionValue):
        obj.as_const(vm)
        if field is None and name in obj.raw.__dict__:
            return generic_get(vm, obj, name)
    return field(vm, obj) if field is not None else generic_get(vm, obj, name)


# ---- classes, super, modules


def class_get(vm: Tracer, obj: ClassValue, name: str) -> Value:
    """``cls.name``."""
    how = find(vm, type(obj.raw), "__getattribute__")
    if how is not None and isinstance(how.raw, FunctionType):
        return vm.call_function(FunctionValue(how.raw), [obj, Const(name)], {})
    return class_plain_get(vm, obj, name)


def class_plain_get(vm: Tracer, obj: ClassValue, name: str) -> Value:
    """``type.__getattribute__(cls, name)``, and the metaclass's ``__getattr__``."""
    cls = obj.raw
    meta = type(cls)
    on_meta = find(vm, meta, name)
    if on_meta is not None and _is_data(vm, on_meta.raw):
        if isinstance(on_meta.raw, (GetSetDescriptorType, MemberDescriptorType)):
            return _class_field(vm, obj, name)
        return bind(vm, on_meta, obj, meta, name)
    found = find(vm, cls, name)
    if found is not None:
        return _class_bind(vm, found, cls, name)
    if on_meta is not None:
        return bind(vm, on_meta, obj, meta, name)
    fallback = find(vm, meta, "__getattr__")
    if fallback is not None:
        return vm.call_raw(fallback.raw, [obj, Const(name)], {})
    vm.raise_(AttributeError, f"type object {cls.__name__!r} has no attribute {name!r}")


def _class_field(vm: Tracer, obj: ClassValue, name: str) -> Value:
    """``__name__``, ``__mro__``, ``__dict__`` and the like."""
    if name == "__dict__":
        from .values.mappings import ClassDict

        return ClassDict(obj.raw, {k: class_attribute(vm, obj.raw, k, v) for k, v in obj.raw.__dict__.items()})
    try:
        value = getattr(obj.raw, name)
    except AttributeError as e:
        vm.raise_real(e)
    if isinstance(value, tuple):
        return TupleValue([vm.wrap_static(x) for x in value])
    return vm.wrap(value, None)


def _class_bind(vm: Tracer, found: _Found, cls: type, name: str) -> Value:
    """``raw.__get__(None, cls)``."""
    raw = found.raw
    t = type(raw)
    if t is classmethod:
        return _bind_classmethod(vm, found, NONE, cls, name)
    if t is staticmethod:
        return vm.wrap_static(raw.__func__)
    if t is ClassMethodDescriptorType:
        return MethodValue(BuiltinValue(raw), vm.wrap_static(cls))
    getter = find(vm, t, "__get__")
    if getter is not None and isinstance(getter.raw, FunctionType):
        descriptor = class_attribute(vm, cls, name, raw)
        return vm.call_function(FunctionValue(getter.raw), [descriptor, NONE, vm.wrap_static(cls)], {})
    return class_attribute(vm, cls, name, raw)


def super_get(vm: Tracer, obj: SuperValue, name: str) -> Value:
    """``super(after, obj).name``."""
    if name == "__class__":
        return ClassValue(super)
    mro = obj.owner.__mro__
    for base in mro[mro.index(obj.after) + 1 :]:
        find(vm, base, name)  # guards also that classes passed over do not get the name later
        if name in base.__dict__:
            found = _Found(base.__dict__[name], base)
            if isinstance(obj.obj, ClassValue) and obj.owner is obj.obj.raw:
                if name == "__new__" and isinstance(found.raw, staticmethod):
                    return vm.wrap_static(found.raw.__func__)
                return _class_bind(vm, found, obj.obj.raw, name)
            return bind(vm, found, obj.obj, obj.owner, name)
    vm.raise_(AttributeError, f"'super' object has no attribute {name!r}")


def module_get(vm: Tracer, obj: PyModule, name: str) -> Value:
    """An attribute of a module; functions and classes of the standard library and torch are held and guarded."""
    module = obj.raw
    if type(module) is not ModuleType:
        found = find(vm, type(module), name)
        if found is not None and found.owner is not ModuleType and found.owner is not object:
            obj.as_const(vm)
            return bind(vm, found, obj, type(module), name)
    d = module.__dict__
    if name not in d:
        obj.as_const(vm)
        try:
            raw = getattr(module, name)  # __getattr__ of a lazy module
        except AttributeError:
            vm.guards.no_attr(obj.source or vm.sources.module(module.__name__), name)
            vm.raise_(AttributeError, f"module {module.__name__!r} has no attribute {name!r}")
        return vm.wrap(raw, vm.sources.module(module.__name__).attr(name))
    raw = d[name]
    if trusted_module(module.__name__) and is_static(raw):
        if obj.source is not None:
            obj.as_const(vm)
        vm.guards.same_object(vm.sources.global_(name, d), raw)
        return vm.wrap_static(raw)
    where = obj.source if obj.source is not None else vm.sources.module(module.__name__)
    out = vm.wrap_shared((id(d), name), raw, lambda: where.attr(name))
    vm.found.append(out)
    return out
