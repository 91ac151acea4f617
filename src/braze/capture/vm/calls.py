"""Calls: binding arguments, inlining Python functions, constructing objects, evaluating C functions on constants."""

from __future__ import annotations

import inspect
from types import ClassMethodDescriptorType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils._python_dispatch import _disable_current_modes

from braze.capture import directives
from braze.capture.higher_order import plain_form
from braze.capture.skip import wrapper_file

from .attributes import find
from .frame import Frame
from .handlers.markers import is_bookkeeping, is_disabled, is_graph_break, original
from .passing import passes_result
from .registry import (
    BREAKS,
    CALLS_BY_TYPE,
    CODE_HANDLERS,
    HANDLERS,
    NAMED,
    PLACEMENTS,
    PURE_TYPES,
    handler_of,
    is_pure,
    is_torch_c,
    is_torch_leaf,
    trusted_module,
)
from .signals import Break, NotConst, unsupported
from .values.base import NONE, Value
from .values.functions import MadeFunction
from .values.generator import GeneratorValue
from .values.mappings import DictValue
from .values.objects import ObjectValue
from .values.sequences import TupleValue
from .values.statics import ClassValue, FunctionValue

if TYPE_CHECKING:
    from .tracer import Tracer

Function = FunctionValue | MadeFunction
_GENERATOR = inspect.CO_GENERATOR
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
MAX_DEPTH = 150  # inlined frames in one another; each takes several of the real interpreter's


@passes_result
def call_function(vm: Tracer, f: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a Python function: by its handler, as one call of the graph, or inlined."""
    if isinstance(f, FunctionValue):
        raw = f.function()
        handler = HANDLERS.get(raw) or (HANDLERS.get(original(raw)) if raw.__dict__ else None)
        if handler is not None:
            f.as_const(vm)
            return handler(vm, args, kwargs)
        if raw in BREAKS:
            unsupported(*BREAKS[raw])
        plain = plain_form(raw)
        if plain is not None:
            return inline(vm, FunctionValue(plain), args, kwargs)
        if is_torch_leaf(raw):
            f.as_const(vm)
            try:
                return vm.record(raw, args, kwargs)
            except NotConst:
                pass  # takes a callable or another object that a graph cannot hold: inline it
        if not f.guarded and not f.called:
            f.called = True
            vm.guards.function(f.source, raw)
        named = NAMED.get(raw.__name__)
        if named is not None and named[0] == raw.__module__:
            answer: Value | None = named[1](vm, raw, args, kwargs)
            if answer is not None:
                return answer
        stand_in = CODE_HANDLERS.get(raw.__code__)
        if stand_in is not None:
            out: Value = stand_in(vm, f, args, kwargs)
            return out
        if raw.__name__ == "graph_break" and is_graph_break(raw):
            unsupported("graph_break()", "remove the call")
        if raw.__name__ == "tag" and is_bookkeeping(raw):
            return NONE
        if raw.__dict__:
            marked = marked_call(vm, f, args, kwargs)
            if marked is not None:
                return marked
        if raw.__dict__ and is_disabled(raw):
            own = original(raw)
            if own is not None and own.__module__.startswith("torch.optim."):
                return call_function(vm, FunctionValue(own), args, kwargs)
            unsupported(f"{raw.__qualname__}(), which is marked with braze.disable or torch.compiler.disable")
    return inline(vm, f, args, kwargs)


def marked_call(vm: Tracer, f: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A call of a function that ``allow_in_graph`` or ``assume_constant`` has marked; None for others."""
    raw = f.function()
    if directives.ALLOWED in raw.__dict__:
        f.as_const(vm)
        try:
            return vm.record(raw, args, kwargs)
        except NotConst:
            unsupported(f"{raw.__qualname__}(), which is allowed in graphs, with an argument that a graph cannot hold")
    if directives.CONSTANT in raw.__dict__:
        f.as_const(vm)
        try:
            real, named = [a.as_python(vm) for a in args], {k: a.as_python(vm) for k, a in kwargs.items()}
        except NotConst:
            unsupported(f"{raw.__qualname__}(), which is assumed constant, with an argument not known while compiling")
        with _disable_current_modes():
            result = raw(*real, **named)
        if isinstance(result, torch.Tensor):
            return vm.wrap(result, vm.sources.const(result, f"{raw.__qualname__}()"))
        return vm.wrap_frozen(result, f"{raw.__qualname__}()")
    return None


_WRAPPERS = {
    "_functorch": (", a transform of torch.func", "apply it to the compiled function, outside"),
    "lbfgs": (", which searches by the values of the loss", "compile the model that its closure calls"),
    "optim": (", on sparse gradients", "compile the model and call step() outside"),
    "": (
        " of torch.distributed, which runs collectives",
        "compile the modules below it: braze.compile(block), before or after fully_shard(block)",
    ),
}


@passes_result
def inline(vm: Tracer, f: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Interpret the function's code in a frame of its own."""
    code = f.code
    if isinstance(f, FunctionValue) and not f.coded:
        f.coded = True
        if not trusted_module(f.function().__module__):
            vm.guards.code(f.address(vm), f.function())
    if wrapper_file(code.co_filename):
        what, hint = next(text for part, text in _WRAPPERS.items() if part in code.co_filename)
        unsupported(f"{code.co_qualname}(){what}", hint)
    if code.co_flags & _ASYNC:
        unsupported(f"the coroutine {code.co_name}")
    if len(vm.frames) >= MAX_DEPTH:
        unsupported(f"more than {MAX_DEPTH} nested calls", "recursion this deep is run by Python")
    slots = bind_arguments(vm, f, args, kwargs)
    frame = Frame(vm, vm.decode(code), f, slots)
    if code.co_flags & _GENERATOR:
        if frame.serial in vm.plan.real_generators:
            what = f"the generator {code.co_name}(), which is dropped before it is done and then cleans up"
            raise Break(what, "close it in the compiled function, or loop to its end", whole=True)
        out = GeneratorValue(frame, f, args, kwargs)
        vm.generators.append(out)
        return out
    return frame.run_call()


# ---- arguments


def bind_arguments(vm: Tracer, f: Function, args: list[Value], kwargs: dict[str, Value]) -> list[Value | None]:
    """The values of the argument slots; TypeError in the user's program where they do not fit."""
    code = f.code
    n = code.co_argcount
    flags = code.co_flags
    if not kwargs and len(args) == n and not flags & 0x0C and not code.co_kwonlyargcount:
        return list(args)
    slots: list[Value | None] = list(args[:n])
    slots += [None] * (n - len(slots))
    total = n + code.co_kwonlyargcount
    slots += [None] * (total - n)
    names = code.co_varnames
    extra: dict[Any, Value] = {}
    for k, v in kwargs.items():
        try:
            i = names.index(k, code.co_posonlyargcount, total)
        except ValueError:
            if not flags & 0x08:
                wrong_call(vm, code, f"got an unexpected keyword argument {k!r}")
            extra[k] = v
            continue
        if slots[i] is not None:
            wrong_call(vm, code, f"got multiple values for argument {k!r}")
        slots[i] = v
    if len(args) > n and not flags & 0x04:
        fewest = n - len(f.defaults(vm))
        takes = f"takes {n}" if fewest == n else f"takes from {fewest} to {n}"
        given = f"{len(args)} {'was' if len(args) == 1 else 'were'} given"
        wrong_call(vm, code, f"{takes} positional argument{'s' * (n != 1)} but {given}")
    if None in slots:
        _fill_defaults(vm, f, slots)
    if flags & 0x04:
        slots.append(TupleValue(args[n:]))
    if flags & 0x08:
        slots.append(DictValue(extra))
    return slots


def _fill_defaults(vm: Tracer, f: Function, slots: list[Value | None]) -> None:
    code = f.code
    n = code.co_argcount
    defaults = f.defaults(vm)
    first = n - len(defaults)
    missing = []
    for i in range(n):
        if slots[i] is None:
            if i < first:
                missing.append(code.co_varnames[i])
            else:
                slots[i] = defaults[i - first]
    if missing:
        names = ", ".join(map(repr, missing))
        wrong_call(vm, code, f"missing {len(missing)} required positional argument{'s' * (len(missing) > 1)}: {names}")
    if code.co_kwonlyargcount:
        keyword = f.kwdefaults(vm)
        for i in range(n, n + code.co_kwonlyargcount):
            if slots[i] is None:
                name = code.co_varnames[i]
                if name not in keyword:
                    wrong_call(vm, code, f"missing 1 required keyword-only argument: {name!r}")
                slots[i] = keyword[name]


def wrong_call(vm: Tracer, code: CodeType, what: str) -> NoReturn:
    vm.raise_(TypeError, f"{code.co_qualname}() {what}")


# ---- C callables


def call_c(vm: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a callable that is not Python code."""
    handler = handler_of(function)
    if handler is not None:
        return handler(vm, args, kwargs)
    by_type = CALLS_BY_TYPE.get(type(function))
    if by_type is not None:
        out: Value = by_type(vm, function, args, kwargs)
        return out
    if function in BREAKS if _hashable(function) else False:
        unsupported(*BREAKS[function])
    if is_torch_c(function):
        try:
            return vm.record(function, args, kwargs)
        except NotConst:
            unsupported(f"{name_of(function)} of an object that a graph cannot hold")
    if is_pure(function):
        if function in _NEW and args and isinstance(args[0], ClassValue) and args[0].raw not in PURE_TYPES:
            cls = args[0].as_const(vm)
            return ObjectValue(cls, payload=vm.fold(_NEW[function], args[1:], kwargs))
        try:
            if isinstance(function, ClassMethodDescriptorType):
                return vm.fold(lambda cls, *a, **k: getattr(cls, function.__name__)(*a, **k), args, kwargs)
            return vm.fold(function, args, kwargs)
        except NotConst:
            pass
    vm.unsupported_call(function, "")


_NEW = {cls.__new__: cls for cls in (str, int, float, bytes)}


def _hashable(function: Any) -> bool:
    return type(function).__hash__ is not None


def name_of(function: Any) -> str:
    """A readable name of any callable."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)
    name = str(name).replace("_VariableFunctionsClass.", "")
    module = getattr(function, "__module__", None)
    return f"{module}.{name}" if module and module != "builtins" else str(name)


def unsupported_call(vm: Tracer, function: Any, detail: str) -> NoReturn:
    """Break: the interpreter does not know what this C function does."""
    try:
        known = BREAKS.get(function)
    except TypeError:
        known = None
    if known is not None:
        unsupported(*known)
    unsupported(f"a call of {name_of(function)}()" + (f" with {detail}" if detail else ""))


@passes_result
def call_raw(vm: Tracer, raw: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a raw class attribute (found by the MRO) with the instance as the first argument."""
    t = type(raw)
    if t is FunctionType:
        return call_function(vm, vm.wrap_static(raw), args, kwargs)  # type: ignore[arg-type]
    if t is staticmethod:
        return vm.wrap_static(raw.__func__).call(vm, args[1:], kwargs)
    if t is classmethod:
        return vm.wrap_static(raw.__func__).call(vm, [vm.wrap_static(args[0].pytype(vm)), *args[1:]], kwargs)
    if hasattr(raw, "__objclass__"):
        return call_c(vm, raw, args, kwargs)
    return vm.wrap_static(raw).call(vm, args, kwargs)


@passes_result
def call_special(vm: Tracer, obj: Value, name: str, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
    """``type(obj).name(obj, *args)``: how Python calls special methods. TypeError where the class lacks it."""
    cls = obj.pytype(vm)
    found = find(vm, cls, name)
    if found is None or found.raw is None:
        what = {"__call__": "is not callable", "__getitem__": "is not subscriptable"}.get(name, f"has no {name}")
        vm.raise_(TypeError, f"{cls.__name__!r} object {what}")
    return call_raw(vm, found.raw, [obj, *args], kwargs or {})


def fold(vm: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
    """Evaluate on constants while tracing; an exception becomes the program's. NotConst if an argument is not known."""
    real = [a.as_python(vm) for a in args]
    named = {k: v.as_python(vm) for k, v in kwargs.items()} if kwargs else {}
    try:
        out = function(*real, **named)
    except Exception as e:
        vm.raise_real(e)
    return vm.wrap(out, None)


# ---- construction


def construct(vm: Tracer, cls: type, args: list[Value], kwargs: dict[str, Value], value: ClassValue) -> Value:
    """``cls(*args, **kwargs)``: the metaclass's ``__call__``, else ``__new__`` and ``__init__``."""
    handler = handler_of(cls)
    if handler is not None:
        return handler(vm, args, kwargs)
    if cls in BREAKS:
        unsupported(*BREAKS[cls])
    meta = find(vm, type(cls), "__call__")
    if meta is not None and isinstance(meta.raw, FunctionType):
        special = handler_of(meta.raw)
        if special is not None:
            return special(vm, [value, *args], kwargs)
        return call_function(vm, FunctionValue(meta.raw), [value, *args], kwargs)
    return construct_plain(vm, cls, args, kwargs, value)


def construct_plain(vm: Tracer, cls: type, args: list[Value], kwargs: dict[str, Value], value: ClassValue) -> Value:
    """``type.__call__(cls, ...)``."""
    if is_pure(cls) or cls.__module__ == PLACEMENTS:
        try:
            return fold(vm, cls, args, kwargs)
        except NotConst:
            vm.unsupported_call(cls, "")
    if issubclass(cls, torch.Tensor):
        unsupported(f"constructing a {cls.__name__}", "create parameters and tensor subclasses outside")
    new = find(vm, cls, "__new__")
    assert new is not None
    raw_new = new.raw.__func__ if isinstance(new.raw, staticmethod) else new.raw
    init = find(vm, cls, "__init__")
    assert init is not None
    if raw_new is object.__new__:
        if init.raw is object.__init__ and (args or kwargs):
            vm.raise_(TypeError, f"{cls.__name__}() takes no arguments")
        obj = vm.new_instance(cls)
    else:
        obj = vm.wrap_static(raw_new).call(vm, [value, *args], kwargs)
        if not issubclass(obj.pytype(vm), cls):
            return obj
        init = find(vm, obj.pytype(vm), "__init__")
        assert init is not None
    if init.raw is not object.__init__:
        out = call_raw(vm, init.raw, [obj, *args], kwargs)
        if not (vm.is_none(out)):
            vm.raise_(TypeError, f"__init__() should return None, not {out.pytype(vm).__name__!r}")
    return obj
