"""Real objects to values. Existing mutable objects get one value each, remembered by identity."""

from __future__ import annotations

import enum
import functools
import operator
import typing
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    FunctionType,
    GenericAlias,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    UnionType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from braze.capture.source import AttrSource, ConstSource, InstanceAttrSource, ItemSource
from braze.fake.kernels import is_kernel
from braze.fake.symint import to_expr

from .attributes import find
from .guarding import Frozen
from .registry import PLACEMENTS, is_static, trusted_module
from .signals import unsupported
from .values.base import FALSE, NONE, TRUE, Const, Value
from .values.existing import KINDS, ExistingIterator, readable
from .values.floats import FloatValue
from .values.functions import CellValue, GetterValue, MethodValue, PartialValue, WrapperValue
from .values.kernels import KernelValue
from .values.mappings import DictValue, SetValue
from .values.modules import ModuleValue
from .values.objects import ExceptionValue, ObjectValue
from .values.sequences import DequeValue, ListValue, SliceValue, TupleValue
from .values.statics import BuiltinValue, ClassValue, FunctionValue, PyModule
from .values.symbolic import SymValue, value_of
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from braze.capture.source import Source

    from .tracer import Tracer

_SINGLETONS: dict[Any, Const] = {None: NONE, True: TRUE, False: FALSE}
Wrapper = Callable[["Tracer", Any, "Source | None"], Value]


def wrap(vm: Tracer, raw: Any, source: Source | None, keep: bool = False) -> Value:
    """The value of a real object. Without a source it is new (a result of constant evaluation).

    ``keep``: the object stays alive and is known by identity even without a source (a dict key).
    """
    t = type(raw)
    if t in _IMMUTABLE:
        if source is None and (raw is None or t is bool):
            return _SINGLETONS[raw]
        if t is int and vm.sizes.varies(source, raw):
            return SymValue(None, raw, source)
        if raw is False and vm.plan.capturable and _of_group(source, "capturable"):
            vm.guards.const(source, False)
            return TRUE
        if t is float and source is not None and (_of_group(source, "lr") or vm.sizes.floating(source, raw)):
            return vm.shared.get(source) or vm.shared.setdefault(source, FloatValue(source, raw))
        return Const(raw, source)
    if source is not None or keep:
        known = vm.by_id.get(id(raw))
        if known is not None:
            if source is not None and known.source is not None:
                vm.guards.same(known.source, source)
            return known
    maker = WRAPPERS.get(t)
    if maker is None:
        maker = _by_base(raw)
    v = maker(vm, raw, source)
    if (source is not None or keep) and not isinstance(v, Const):
        vm.remember_value(raw, v)
    return v


def _symint(vm: Tracer, raw: Any, source: Source | None) -> Value:
    return value_of(vm, to_expr(raw))


def _symbool(vm: Tracer, raw: Any, source: Source | None) -> Value:
    return TRUE if raw else FALSE


def _of_group(source: Source | None, name: str) -> bool:
    """Whether the source is an optimizer's ``param_groups[i][name]``, such as the "lr" that schedulers change."""
    if not isinstance(source, ItemSource) or source.key is not name and source.key != name:
        return False
    groups = source.base.base if source.base is not None else None
    return isinstance(groups, (AttrSource, InstanceAttrSource, ItemSource)) and groups.key == "param_groups"


def _const(vm: Tracer, raw: Any, source: Source | None) -> Value:
    return Const(raw, source)


def _tuple(vm: Tracer, raw: Any, source: Source | None) -> Value:
    cls = type(raw)
    if source is None:
        return TupleValue([wrap(vm, x, None) for x in raw], cls)
    vm.guards.type_(source, cls)
    return TupleValue(None, cls, raw, source)


def _list(vm: Tracer, raw: Any, source: Source | None) -> Value:
    if source is None:
        return ListValue([wrap(vm, x, None) for x in raw])
    vm.guards.type_(source, list)
    return ListValue(None, raw, source)


def _deque(vm: Tracer, raw: Any, source: Source | None) -> Value:
    if source is None:
        return DequeValue([wrap(vm, x, None) for x in raw], raw.maxlen)
    vm.guards.type_(source, deque)
    return DequeValue(None, raw.maxlen, raw, source)


def _dict(vm: Tracer, raw: Any, source: Source | None) -> Value:
    cls = type(raw)
    if source is None:
        out = DictValue({vm.internal_key(k, None, 0): wrap(vm, v, None) for k, v in raw.items()}, cls)
    else:
        vm.guards.type_(source, cls)
        out = DictValue(None, cls, raw, source)
    if isinstance(raw, defaultdict):
        out.factory = wrap(vm, raw.default_factory, source.attr("default_factory") if source is not None else None)
    return out


def _set(vm: Tracer, raw: Any, source: Source | None) -> Value:
    if source is None:
        return SetValue([vm.internal_key(k, None, 0) for k in raw], type(raw))
    vm.guards.type_(source, type(raw))
    return SetValue(None, type(raw), raw, source)


def _frozenset(vm: Tracer, raw: Any, source: Source | None) -> Value:
    return Const(raw, source)


def _slice(vm: Tracer, raw: Any, source: Source | None) -> Value:
    if source is not None:
        return Const(raw, source)
    return SliceValue(*(wrap(vm, x, None) for x in (raw.start, raw.stop, raw.step)))


def _tensor(vm: Tracer, raw: Any, source: Source | None) -> Value:
    if source is None:
        unsupported("a tensor made while tracing by code that the graph does not hold")
    return TensorValue(None, None, type(raw), raw, source)


def _module(vm: Tracer, raw: Any, source: Source | None) -> Value:
    vm.guards.type_(source, type(raw))
    if source is None:
        unsupported(f"a {type(raw).__name__} made while tracing by code that is not traced")
    if "_parameters" not in raw.__dict__:
        unsupported(f"a {type(raw).__name__} under construction")
    return ModuleValue(type(raw), raw, source)


def _function(vm: Tracer, raw: Any, source: Source | None) -> Value:
    return FunctionValue(raw, source)


def _method(vm: Tracer, raw: Any, source: Source | None) -> Value:
    func, owner = raw.__func__, raw.__self__
    if source is None:
        unsupported("a bound method made while tracing by code that is not traced")
    vm.guards.type_(source, MethodType)
    f = wrap(vm, func, source.attr("__func__"))
    return MethodValue(f, wrap(vm, owner, source.attr("__self__")), source)


def _builtin(vm: Tracer, raw: Any, source: Source | None) -> Value:
    owner = getattr(raw, "__self__", None)
    if owner is None or isinstance(owner, (type, ModuleType)):
        return BuiltinValue(raw, source)
    method = find(vm, type(owner), raw.__name__)
    if method is None or source is None:
        return BuiltinValue(raw, source)
    vm.guards.type_(source, type(raw))
    return MethodValue(BuiltinValue(method.raw), wrap(vm, owner, source.attr("__self__")), source)


def _class(vm: Tracer, raw: Any, source: Source | None) -> Value:
    return ClassValue(raw, source)


def _pymodule(vm: Tracer, raw: Any, source: Source | None) -> Value:
    return PyModule(raw, source)


def _cell(vm: Tracer, raw: Any, source: Source | None) -> Value:
    return CellValue(None, raw, source)


def _partial(vm: Tracer, raw: Any, source: Source | None) -> Value:
    if source is None:
        unsupported("a functools.partial made while tracing by code that is not traced")
    vm.guards.type_(source, functools.partial)
    vm.guards.length(source.attr("args"), len(raw.args))
    vm.guards.keys(source.attr("keywords"), raw.keywords)
    func = wrap(vm, raw.func, source.attr("func"))
    args = [wrap(vm, a, source.attr("args").item(i)) for i, a in enumerate(raw.args)]
    kwargs = {k: wrap(vm, a, source.attr("keywords").item(k)) for k, a in raw.keywords.items()}
    return PartialValue(func, args, kwargs, source)


def _getter(vm: Tracer, raw: Any, source: Source | None) -> Value:
    cls = type(raw)
    args = raw.__reduce__()[1]
    if source is None or cls is operator.methodcaller:
        unsupported(f"an existing operator.{cls.__name__}")
    vm.guards.const(source, raw)
    return GetterValue(cls, [wrap(vm, a, None) for a in args], {}, raw, source)


def _wrapper(vm: Tracer, raw: Any, source: Source | None) -> Value:
    return WrapperValue(raw, source)


def _iterator(vm: Tracer, raw: Any, source: Source | None) -> Value:
    if source is None or not readable(raw):
        return _object(vm, raw, source)
    vm.guards.type_(source, type(raw))
    return ExistingIterator(raw, source)


def _exception(vm: Tracer, raw: Any, source: Source | None) -> Value:
    vm.guards.type_(source, type(raw))
    where = source.attr("args") if source is not None else None
    vm.guards.length(where, len(raw.args))
    args = [wrap(vm, a, where.item(i) if where is not None else None) for i, a in enumerate(raw.args)]
    return ExceptionValue(type(raw), args, raw if source is not None else None, source)


def _object(vm: Tracer, raw: Any, source: Source | None) -> Value:
    cls = type(raw)
    if source is None:
        unsupported(f"a {cls.__name__} made while tracing by code that is not traced")
    vm.guards.type_(source, cls)
    out = ObjectValue(cls, raw, source)
    if isinstance(raw, dict):
        out.payload = DictValue(None, OrderedDict if isinstance(raw, OrderedDict) else dict, raw, source)
        out.payload.cls = cls
    elif isinstance(raw, list):
        out.payload = ListValue(None, raw, source)
        out.payload.cls = cls
    elif isinstance(raw, set):
        out.payload = SetValue(None, cls, raw, source)
    elif isinstance(raw, (int, float, str, bytes)):
        out.payload = Const(raw, source)
    return out


def _user_tuple(vm: Tracer, raw: Any, source: Source | None) -> Value:
    """A named tuple or a struct sequence is a tuple value; other subclasses are objects with a tuple inside."""
    cls = type(raw)
    if cls.__dictoffset__ == 0:
        return _tuple(vm, raw, source)
    v = _object(vm, raw, source)
    assert isinstance(v, ObjectValue)
    v.payload = TupleValue(None, cls, raw, source)
    return v


def _mapping_proxy(vm: Tracer, raw: Any, source: Source | None) -> Value:
    if source is not None and not isinstance(source.root, Frozen):
        unsupported("a mappingproxy of an existing object")
    items = {k: wrap(vm, v, source.item(k) if source is not None else None) for k, v in raw.items()}
    return DictValue({vm.internal_key(k, None, 0): v for k, v in items.items()}, MappingProxyType)


def wrap_frozen(vm: Tracer, raw: Any, label: str) -> Value:
    """The value of an object that nobody changes, made while tracing or known to be immutable all the way down."""
    vm.keep.append(raw)
    return wrap(vm, raw, Frozen(raw, label))


_TYPING = tuple(  # what annotations are made of
    {type(typing.Any), type(typing.Union), typing.TypeVar, type(typing.List), type(typing.List[int])}  # noqa: UP006
    | {type(typing.Union[int, str]), type(typing.Callable), type(typing.Callable[[int], int]), type(typing.Tuple)}  # noqa: UP006, UP007
)


def _kernel(vm: Tracer, raw: Any, source: Source | None) -> Value:
    return KernelValue(raw, source)


def _by_base(raw: Any) -> Wrapper:
    if type(raw).__module__.startswith("triton.") and is_kernel(raw):
        return _kernel
    if type(raw).__module__ == PLACEMENTS:
        return _const
    for base, maker in _BASES:
        if isinstance(raw, base):
            return maker
    return _object


_IMMUTABLE = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented)}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format, range, type(torch.finfo(torch.float32))}
    | {type(torch.iinfo(torch.int32))}
)
WRAPPERS: dict[type, Wrapper] = {
    tuple: _tuple,
    list: _list,
    deque: _deque,
    dict: _dict,
    OrderedDict: _dict,
    defaultdict: _dict,
    set: _set,
    frozenset: _frozenset,
    slice: _slice,
    torch.Size: _tuple,
    FunctionType: _function,
    MethodType: _method,
    BuiltinFunctionType: _builtin,
    MethodDescriptorType: lambda vm, raw, source: BuiltinValue(raw, source),
    WrapperDescriptorType: lambda vm, raw, source: BuiltinValue(raw, source),
    ClassMethodDescriptorType: lambda vm, raw, source: BuiltinValue(raw, source),
    ModuleType: _pymodule,
    CellType: _cell,
    type(functools.lru_cache(lambda: None)): lambda vm, raw, source: BuiltinValue(raw, source),
    functools.partial: _partial,
    MappingProxyType: _mapping_proxy,
    operator.itemgetter: _getter,
    operator.attrgetter: _getter,
    operator.methodcaller: _getter,
    staticmethod: _wrapper,
    classmethod: _wrapper,
    property: _wrapper,
    torch.SymInt: _symint,
    torch.SymBool: _symbool,
    **dict.fromkeys(KINDS, _iterator),
    torch.Tensor: _tensor,
    nn.Parameter: _tensor,
    nn.Buffer: _tensor,
}
_BASES: list[tuple[Any, Wrapper]] = [
    (type, _class),
    (nn.Module, _module),
    (torch.Tensor, _tensor),
    (ModuleType, _pymodule),
    (enum.Enum, _const),
    ((UnionType, GenericAlias, *_TYPING), _const),
    (tuple, _user_tuple),
    ((torch._ops.OpOverload, torch._ops.OpOverloadPacket), lambda vm, raw, source: BuiltinValue(raw, source)),
    (BaseException, _exception),
]


def wrap_static(vm: Tracer, raw: Any) -> Value:
    """The value of a function, class, module or constant that is held by the compiled code, without guards."""
    v = vm.static_cache.get(id(raw))
    if v is None:
        t = type(raw)
        if t in _IMMUTABLE or is_static(raw) or t in (CellType, staticmethod, classmethod, property, frozenset):
            v = (WRAPPERS.get(t) or _by_base(raw))(vm, raw, None) if t not in _IMMUTABLE else wrap(vm, raw, None)
        elif isinstance(raw, tuple) and type(raw) is tuple:
            return TupleValue([wrap_static(vm, x) for x in raw])
        else:
            return wrap(vm, raw, vm.sources.const(raw, type(raw).__qualname__))
        if t in _IMMUTABLE:
            return v
        vm.static_cache[id(raw)] = v
        vm.keep.append(raw)
    return v


def wrap_shared(vm: Tracer, key: Any, raw: Any, source: Callable[[], Source]) -> Value:
    """``wrap`` of a variable that is read many times (a global): one value, hence one guard, for each."""
    v = vm.shared.get(key)
    if v is None:
        v = vm.shared[key] = wrap(vm, raw, source())
    return v


def wrap_default(vm: Tracer, raw: Any, function: Source, which: int | str) -> Value:
    """A default argument of a function."""
    if is_static(raw) and isinstance(function, ConstSource) and trusted_module(getattr(function.key, "__module__", "")):
        return wrap_static(vm, raw)
    source = function.default(which) if isinstance(which, int) else function.kwdefault(which)
    return wrap(vm, raw, source)


def wrap_cell(vm: Tracer, raw: CellType, function: Source, index: int) -> CellValue:
    """A closure cell of an existing function."""
    known = vm.by_id.get(id(raw))
    if isinstance(known, CellValue):
        return known
    out = CellValue(None, raw, function.closure(index))
    vm.remember_value(raw, out)
    return out


def known_value(vm: Tracer, raw: Any) -> Value | None:
    return vm.by_id.get(id(raw))


def remember_value(vm: Tracer, raw: Any, v: Value) -> None:
    vm.by_id[id(raw)] = v
    vm.keep.append(raw)
