"""The standard library's C parts that model code meets: functools, itertools, collections, contextvars, locks, copy."""

from __future__ import annotations

import collections
import contextvars
import copy
import functools
import importlib.metadata
import importlib.util
import inspect
import itertools
import logging
import operator
import os
import random
import sys
import threading
import time
import types
import warnings
import weakref
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from ..attributes import BINDERS, find
from ..passing import passes_result
from ..registry import BREAKS, CALLS_BY_TYPE, HANDLERS, handles, pure, simple
from ..resume import resume
from ..signals import NotConst, unsupported
from ..values.base import NONE, Const, Value
from ..values.existing import LEAVES
from ..values.functions import GetterValue, MadeFunction, MethodValue, PartialValue
from ..values.iterators import IteratorValue
from ..values.mappings import DictValue, SetValue
from ..values.objects import ExceptionValue, ObjectValue
from ..values.sequences import ListValue, TupleValue
from ..values.statics import BuiltinValue, FunctionValue
from ..values.tensor import TensorValue

if TYPE_CHECKING:
    from ..tracer import Tracer

pure(os.fspath, inspect.isfunction, inspect.ismethod, inspect.isclass)
_f: Any
_cls: Any
for _f in (time.time, time.perf_counter, time.monotonic, time.process_time, time.sleep):
    BREAKS[_f] = (f"time.{_f.__name__}()", "")
for _f in (random.random, random.randint, random.choice, random.shuffle, random.uniform, random.randrange, random.seed):
    BREAKS[_f] = (f"random.{_f.__name__}()", "use torch's random functions")


# ---- which packages there are, which does not change


def _of_packages(function: Any) -> None:
    @handles(function)
    def call(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            real, named = [a.as_python(vm) for a in args], {k: a.as_python(vm) for k, a in kwargs.items()}
        except NotConst:
            unsupported(f"{function.__name__}() of a name that is not known while compiling")
        try:
            out = function(*real, **named)
        except Exception as e:
            vm.raise_real(e)
        return vm.wrap(out, vm.sources.const(out, f"{function.__name__}({real})"))


for _f in (importlib.util.find_spec, importlib.metadata.version):
    _of_packages(_f)


# ---- warnings and logging: made after the graph has run


@handles(warnings.warn)
def warn(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    vm.effects.defer(warnings.warn, [_as_now(vm, a) for a in args], kwargs)
    return NONE


@handles(logging.Logger._log)
def log(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    vm.effects.logged.update(map(id, _logging_state(getattr(args[0], "raw", None))))
    if vm.logger_changed():
        unsupported("a log message after a change of its logger")
    vm.effects.defer(logging.Logger._log, [args[0], *[_as_now(vm, a) for a in args[1:]]], kwargs)
    return NONE


def _logging_state(logger: Any) -> list[Any]:
    """The mutable objects that say what becomes of a message."""
    out: list[Any] = []
    while isinstance(logger, logging.Logger):
        out += [vars(logger), logger.handlers, logger.filters]
        out += [x for h in logger.handlers for x in (vars(h), h.filters)]
        logger = logger.parent
    return out


def _as_now(vm: Tracer, v: Value) -> Value:
    """What a message shows, which is written later, as it is now."""
    if isinstance(v, TensorValue):
        return vm.record(torch.Tensor.clone, [v], {})
    if isinstance(v, TupleValue):
        return v.with_items([_as_now(vm, x) for x in v.items(vm)])
    if type(v) is ListValue:
        return ListValue([_as_now(vm, x) for x in v.items(vm)])
    if isinstance(v, DictValue) and v.cls is dict:
        return DictValue({k: _as_now(vm, x) for k, x in v.items(vm)})
    if isinstance(v, SetValue):
        return SetValue(v.keys(vm), v.cls)
    if isinstance(v, ObjectValue) and v.source is None and not isinstance(v, ExceptionValue) and v.payload is None:
        unsupported(f"a message about a {v.cls.__name__} that was made in the compiled function", "pass its text")
    return v


@handles(logging.getLogger)
def get_logger(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raw = logging.getLogger(*(a.as_const(vm) for a in args), **{k: v.as_const(vm) for k, v in kwargs.items()})
    return vm.wrap(raw, vm.sources.const(raw, f"logger {raw.name}"))


@handles(types.SimpleNamespace)
def simple_namespace(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    out = ObjectValue(types.SimpleNamespace)
    attrs = out.own_attrs(vm)
    assert attrs is not None
    for a in args:
        vm.update_dict(attrs, a)
    attrs.known.update(kwargs)
    return out


@functools.cache
def _enabled_for(level: int) -> Any:
    return lambda logger: logger.isEnabledFor(level)


@handles(logging.Logger.isEnabledFor)
def is_enabled_for(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    logger, level = args[0], args[1].as_const(vm)
    raw = getattr(logger, "raw", None)
    if raw is None or logger.source is None:
        unsupported("a logger made in the compiled function")
    return vm.wrap(raw.isEnabledFor(level), logger.source.call(_enabled_for(level), f"{{}}.isEnabledFor({level})"))


@handles(resume)
@passes_result
def resume_call(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The rest of a callee after a break in it: traced as part of its caller's rest."""
    return args[0].call(vm, args[1:], {})


@handles(inspect.signature)
def signature(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    v = args[0]
    func, bound = (v.func, True) if isinstance(v, MethodValue) else (v, False)
    if kwargs or not isinstance(func, FunctionValue):
        unsupported(f"inspect.signature() of a {v.pytype(vm).__name__}")
    raw = func.as_const(vm)
    real = inspect.signature(MethodType(raw, object()) if bound else raw)
    return vm.wrap_frozen(real, "signature")


if hasattr(sys, "exception"):
    HANDLERS[sys.exception] = lambda vm, args, kwargs: NONE if vm.handled is None else vm.handled


# ---- functools


@handles(functools.partial)
def partial(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, rest = args[0], args[1:]
    if isinstance(func, PartialValue):
        return PartialValue(func.func, func.args + rest, {**func.kwargs, **kwargs})
    return PartialValue(func, rest, kwargs)


@handles(functools.reduce)
def reduce(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = vm.unpack(args[1])
    if len(args) > 2:
        items.insert(0, args[2])
    if not items:
        vm.raise_(TypeError, "reduce() of empty iterable with no initial value")
    out = items[0]
    for x in items[1:]:
        out = args[0].call(vm, [out, x], {})
    return out


_LRU = type(functools.lru_cache(maxsize=1)(lambda: None))


def call_cached(vm: Tracer, wrapper: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function under ``functools.lru_cache``: inlined; the cache neither answers nor learns.

    One that warns or logs is called for real afterwards, so that it does so once.
    """
    before = vm.effects.deferred()
    out = vm.wrap_static(wrapper.__wrapped__).call(vm, args, kwargs)
    new = vm.effects.deferred()[len(before) :]
    if new:
        if not vm.is_none(out):
            unsupported(f"the cached function {wrapper.__qualname__}(), which warns and returns something")
        for call in new:
            del vm.effects.touched[call]
        vm.effects.defer(wrapper, args, kwargs)
    return out


CALLS_BY_TYPE[_LRU] = call_cached


def _bind_cached(vm: Tracer, found: Any, obj: Value, cls: type, name: str) -> Value:
    return MethodValue(BuiltinValue(found.raw), obj)


BINDERS[_LRU] = _bind_cached


def _getter(cls: type) -> Any:
    return lambda vm, args, kwargs: GetterValue(cls, args, kwargs)


for _cls in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    HANDLERS[_cls] = _getter(_cls)


# ---- contextvars


class ContextToken(Value):
    """What ``ContextVar.set`` gave."""

    __slots__ = ("var", "before")

    def __init__(self, var: Any, before: Value | None) -> None:
        self.source = None
        self.var, self.before = var, before

    def pytype(self, vm: Tracer) -> type:
        return contextvars.Token

    def truth(self, vm: Tracer) -> bool:
        return True


def _context_var(vm: Tracer, v: Value) -> Any:
    raw = getattr(v, "raw", None)
    if not isinstance(raw, contextvars.ContextVar):
        unsupported("a ContextVar made in the compiled function")
    vm.guards.const(v.source, raw)
    return raw


def _read_var(vm: Tracer, var: Any) -> Value | None:
    if var in vm.effects.context:
        return vm.effects.context[var]
    source = vm.sources.const(var, var.name).call(_var_value, "{}.get()")
    raw = var.get(_MISSING)
    if raw is _MISSING:
        vm.guards.const(source, _MISSING)
        v = None
    else:
        v = vm.wrap(raw, source)
    vm.effects.context[var] = v
    return v


_MISSING = type("Unset", (), {})()


def _var_value(var: Any) -> Any:
    return var.get(_MISSING)


@handles(contextvars.ContextVar.get)
def context_get(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    v = _read_var(vm, _context_var(vm, args[0]))
    if v is not None:
        return v
    if len(args) > 1:
        return args[1]
    var = _context_var(vm, args[0])
    try:
        default = _default_of(var)
    except LookupError:
        vm.raise_values(LookupError, [args[0]])
    return vm.wrap(default, vm.sources.const(var, var.name).call(_default_of, "default of {}"))


def _default_of(var: Any) -> Any:
    """What the variable was made with; LookupError without."""
    return contextvars.Context().run(var.get)


@simple(contextvars.ContextVar.set)
def context_set(vm: Tracer, v: Value, value: Value) -> Value:
    var = _context_var(vm, v)
    before = _read_var(vm, var)
    vm.effects.set_context(var, value)
    return ContextToken(var, before)


@simple(contextvars.ContextVar.reset)
def context_reset(vm: Tracer, v: Value, token: Value) -> Value:
    if not isinstance(token, ContextToken):
        unsupported("resetting a ContextVar with a token from outside of the compiled function")
    vm.effects.set_context(token.var, token.before)
    return NONE


# ---- collections, copy, locks, references


@handles(sys.exc_info)
def exc_info(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    e = vm.handled
    return TupleValue([NONE] * 3 if e is None else [vm.wrap_static(e.pytype(vm)), e, e.get_attr(vm, "__traceback__")])


@handles(copy.copy)
def copy_(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    v = args[0]
    if v.is_const():
        return v
    if isinstance(v, ListValue):
        return ListValue(v.items(vm))
    if isinstance(v, TupleValue):
        return v
    if isinstance(v, DictValue):
        same = DictValue(dict(v.items(vm)), v.cls)
        same.factory = v.factory
        _copy_attributes(vm, v, same, lambda x: x)
        return same
    if isinstance(v, SetValue):
        return SetValue(v.keys(vm), v.cls)
    if isinstance(v, ObjectValue) and v.payload is None and find(vm, v.cls, "__copy__") is None and not v.slots:
        out = ObjectValue(v.cls)
        attrs, mine = v.own_attrs(vm), out.own_attrs(vm)
        if attrs is not None and mine is not None:
            mine.known.update(attrs.items(vm))
        return out
    unsupported(f"copy.copy() of a {v.pytype(vm).__name__}")


@handles(copy.deepcopy)
def deepcopy(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _deepcopy(vm, args[0], {})


def _deepcopy(vm: Tracer, v: Value, memo: dict[Value, Value]) -> Value:
    if v in memo:
        return memo[v]
    if v.is_const() or isinstance(v, (FunctionValue, MadeFunction)):
        return v
    if isinstance(v, TupleValue):
        return TupleValue([_deepcopy(vm, x, memo) for x in v.items(vm)], v.cls)
    if type(v) is ListValue and v.cls is list:
        out = memo[v] = ListValue([])
        out.edit(vm).extend([_deepcopy(vm, x, memo) for x in v.items(vm)])
        return out
    if isinstance(v, DictValue):
        new = memo[v] = DictValue({}, v.cls)
        new.factory = v.factory
        for k, x in v.items(vm):
            new.store(vm, k, _deepcopy(vm, x, memo))
        _copy_attributes(vm, v, new, lambda x: _deepcopy(vm, x, memo))
        return new
    if isinstance(v, SetValue):
        return SetValue(v.keys(vm), v.cls)
    special = ("__deepcopy__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")
    if isinstance(v, ObjectValue) and v.payload is None and not v.slots and not isinstance(v, ExceptionValue):
        found = [find(vm, v.cls, name) for name in special]
        attrs = v.own_attrs(vm)
        if all(f is None or f.owner is object for f in found) and attrs is not None:
            obj = memo[v] = ObjectValue(v.cls)
            mine = obj.own_attrs(vm)
            assert mine is not None
            for k, x in attrs.items(vm):
                mine.store(vm, k, _deepcopy(vm, x, memo))
            return obj
    unsupported(f"copy.deepcopy() of a {v.pytype(vm).__name__}", "copy outside of the compiled function")


def _copy_attributes(vm: Tracer, old: Value, new: Value, copied: Any) -> None:
    """Of an OrderedDict (a state_dict's ``_metadata``)."""
    theirs, mine = old.own_attrs(vm), new.own_attrs(vm)
    for k, x in theirs.items(vm) if theirs is not None else ():
        mine.store(vm, k, copied(x))


def _count(mapping: Any, iterable: Any) -> None:
    """What ``collections.Counter`` counts with."""
    get = mapping.get
    for x in iterable:
        mapping[x] = get(x, 0) + 1


@handles(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return vm.call_function(FunctionValue(_count), args, kwargs)  # type: ignore[arg-type]


def _acquire(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Tracing runs no other user code meanwhile: a lock that is released again has no effect. One that is still held
    where the trace ends is taken there, for the code that follows."""
    if len(args) > 1 or kwargs:
        unsupported("taking a lock with a time limit")
    vm.effects.hold(args[0].pytype(vm), args[0])
    return Const(True)


def _release(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    vm.effects.let_go(args[0].pytype(vm), args[0])
    return NONE


for _cls in (type(threading.Lock()), type(threading.RLock())):
    for _name in ("acquire", "__enter__"):
        HANDLERS[_cls.__dict__[_name]] = _acquire
    for _name in ("release", "__exit__"):
        HANDLERS[_cls.__dict__[_name]] = _release


@handles(weakref.ref)
def weak_reference(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    unsupported("a weak reference made in the compiled function")


@simple(weakref.ref.__call__)
def dereference(vm: Tracer, v: Value) -> Value:
    raw = getattr(v, "raw", None)
    if raw is None or v.source is None:
        unsupported("a weak reference of unknown origin")
    return vm.wrap(raw(), v.source.call(_dereference, "{}()"))


def _dereference(ref: Any) -> Any:
    return ref()


def _next(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not isinstance(args[0], IteratorValue):
        unsupported(f"going on with an existing {args[0].pytype(vm).__name__}")
    return HANDLERS[next](vm, args, kwargs)


for _cls in (
    *(v for v in vars(itertools).values() if isinstance(v, type) and hasattr(v, "__next__")),
    *(zip, map, filter, enumerate, reversed, type(reversed([])), type(iter({})), type(iter({}.values()))),
    *(type(iter({}.items())), type(iter(set())), type(iter(int, 1)), *LEAVES),
):
    HANDLERS[_cls.__next__] = _next
    HANDLERS[_cls.__iter__] = lambda vm, args, kwargs: args[0]
