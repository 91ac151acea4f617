"""Instructions on variables, constants, attributes and items, and those that only move the stack."""

from __future__ import annotations

import builtins
import importlib
import sys
from types import FunctionType
from typing import Any

from .decode import Op, op
from .frame import Frame
from .registry import is_static, trusted_module
from .signals import unsupported
from .values.base import NULL, Const, Value
from .values.functions import CellValue
from .values.sequences import SliceValue, TupleValue
from .values.statics import BuiltinValue, FunctionValue


@op("NOP", "RESUME", "CACHE", "PRECALL", "EXTENDED_ARG", "COPY_FREE_VARS_DONE", "NOT_TAKEN")
def nop(f: Frame, o: Op) -> None:
    pass


@op("COPY_FREE_VARS")
def copy_free_vars(f: Frame, o: Op) -> None:
    cells = f.func.cells(f.vm)
    f.slots[len(f.slots) - len(cells) :] = cells


@op("MAKE_CELL")
def make_cell(f: Frame, o: Op) -> None:
    f.slots[o.arg] = CellValue(f.slots[o.arg])


@op("LOAD_CONST")
def load_const(f: Frame, o: Op) -> None:
    f.stack.append(const_value(f, o))


def const_value(f: Frame, o: Op) -> Value:
    """The value of a constant of the code; one object for each use, as in CPython."""
    found = f.code.consts.get(o.index)
    if found is None:
        found = f.code.consts[o.index] = _constant(o.arg)
    return found


def _constant(raw: Any) -> Value:
    if type(raw) is FunctionType:
        return FunctionValue(raw)
    return TupleValue([_constant(x) for x in raw]) if type(raw) is tuple else Const(raw)


@op("RETURN_CONST")
def return_const(f: Frame, o: Op) -> Value:
    f.yielded = False
    return const_value(f, o)


@op("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")
def load_fast(f: Frame, o: Op) -> None:
    v = f.slots[o.arg]
    if v is None:
        name = f.code.slots[o.arg]
        f.vm.raise_(UnboundLocalError, f"cannot access local variable {name!r} where it is not associated with a value")
    f.stack.append(v)


@op("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(f: Frame, o: Op) -> None:
    v = f.slots[o.arg]
    f.stack.append(NULL if v is None else v)
    f.slots[o.arg] = None


@op("STORE_FAST")
def store_fast(f: Frame, o: Op) -> None:
    v = f.stack.pop()
    f.slots[o.arg] = None if v is NULL else v


@op("DELETE_FAST")
def delete_fast(f: Frame, o: Op) -> None:
    load_fast(f, o)
    f.stack.pop()
    f.slots[o.arg] = None


@op("LOAD_CLOSURE")
def load_closure(f: Frame, o: Op) -> None:
    v = f.slots[o.arg]
    assert v is not None
    f.stack.append(v)


def _cell(f: Frame, o: Op) -> CellValue:
    cell = f.slots[o.arg]
    assert isinstance(cell, CellValue)
    return cell


@op("LOAD_DEREF", "LOAD_CLASSDEREF")
def load_deref(f: Frame, o: Op) -> None:
    v = _cell(f, o).read(f.vm)
    if v is None:
        _unbound_cell(f, o)
    f.stack.append(v)  # type: ignore[arg-type]


def _unbound_cell(f: Frame, o: Op) -> None:
    name = f.code.slots[o.arg]
    if name in f.code.bytecode.freevars:
        what = f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope"
        f.vm.raise_(NameError, what)
    f.vm.raise_(UnboundLocalError, f"cannot access local variable {name!r} where it is not associated with a value")


@op("STORE_DEREF")
def store_deref(f: Frame, o: Op) -> None:
    _cell(f, o).write(f.vm, f.stack.pop())


@op("DELETE_DEREF")
def delete_deref(f: Frame, o: Op) -> None:
    cell = _cell(f, o)
    if cell.read(f.vm) is None:
        _unbound_cell(f, o)
    cell.write(f.vm, None)


# ---- globals and names


@op("LOAD_GLOBAL")
def load_global(f: Frame, o: Op) -> None:
    if o.flags & 1 and sys.version_info < (3, 13):
        f.stack.append(NULL)
    f.stack.append(global_value(f, o.arg))
    if o.flags & 1 and sys.version_info >= (3, 13):
        f.stack.append(NULL)


def global_value(f: Frame, name: str) -> Value:
    """A global variable, or a builtin. What torch's own modules name is held, and guarded to be the same object."""
    vm, scope = f.vm, f.globals
    key = (id(scope), name)
    v = vm.shared.get(key)
    if v is not None:
        if v is NULL:
            vm.raise_(NameError, f"name {name!r} is not defined")
        return v
    if name in scope:
        raw = scope[name]
        if is_static(raw) and trusted_module(scope.get("__name__")):
            v = vm.wrap_static(raw)
            vm.guards.same_object(vm.sources.global_(name, None if scope is vm.scope else scope), raw)
        else:
            v = vm.wrap(raw, vm.sources.global_(name, None if scope is vm.scope else scope))
    elif hasattr(builtins, name):
        raw = getattr(builtins, name)
        v = vm.wrap_static(raw)
        vm.guards.same_object(vm.sources.builtin(name), raw)
        if not trusted_module(scope.get("__name__")):
            vm.guards.has_key(vm.sources.globals(None if scope is vm.scope else scope), name, False)
    else:
        vm.guards.has_key(vm.sources.globals(None if scope is vm.scope else scope), name, False)
        vm.raise_(NameError, f"name {name!r} is not defined")
    vm.found.append(v)
    vm.shared[key] = v
    return v


@op("STORE_GLOBAL")
def store_global(f: Frame, o: Op) -> None:
    f.vm.effects.store_global(f.globals, o.arg, f.stack.pop())
    f.vm.shared[id(f.globals), o.arg] = f.vm.effects.globals[id(f.globals)].names[o.arg]  # type: ignore[assignment]


@op("DELETE_GLOBAL")
def delete_global(f: Frame, o: Op) -> None:
    global_value(f, o.arg)
    f.vm.effects.store_global(f.globals, o.arg, None)
    f.vm.shared[id(f.globals), o.arg] = NULL


@op("LOAD_BUILD_CLASS")
def load_build_class(f: Frame, o: Op) -> None:
    f.stack.append(BuiltinValue(builtins.__build_class__))


@op("LOAD_NAME", "STORE_NAME", "DELETE_NAME", "SETUP_ANNOTATIONS", "LOAD_LOCALS")
def class_body(f: Frame, o: Op) -> None:
    unsupported("a class defined inside the compiled function", "define the class outside")


@op("LOAD_ASSERTION_ERROR")
def load_assertion_error(f: Frame, o: Op) -> None:
    f.stack.append(f.vm.wrap_static(AssertionError))


@op("IMPORT_NAME")
def import_name(f: Frame, o: Op) -> None:
    """Imports of loaded modules; loading one runs code, hence breaks."""
    fromlist, level = f.stack.pop(), f.stack.pop()
    vm, scope = f.vm, f.globals
    names = fromlist.as_const(vm)
    depth = level.as_const(vm)
    name = o.arg
    if depth:
        name = importlib.util.resolve_name("." * depth + name, scope.get("__package__") or scope["__name__"])
    if name not in sys.modules:
        unsupported(f"the first import of {name}", "import it outside of the compiled function")
    for n in names or ():
        if n != "*" and not hasattr(sys.modules[name], n) and f"{name}.{n}" not in sys.modules:
            unsupported(f"the first import of {name}.{n}", "import it outside of the compiled function")
    target = name if names else name.partition(".")[0] if not depth else name
    f.stack.append(vm.wrap_static(sys.modules[target]))


@op("IMPORT_FROM")
def import_from(f: Frame, o: Op) -> None:
    module = f.stack[-1]
    raw = module.as_const(f.vm)
    if o.arg in vars(raw) or not isinstance(sys.modules.get(f"{raw.__name__}.{o.arg}"), type(sys)):
        f.stack.append(module.get_attr(f.vm, o.arg))
    else:
        f.stack.append(f.vm.wrap_static(sys.modules[f"{raw.__name__}.{o.arg}"]))


# ---- attributes and items


@op("LOAD_ATTR")
def load_attr(f: Frame, o: Op) -> None:
    v = f.stack.pop().get_attr(f.vm, o.arg)
    if not o.flags & 1:
        f.stack.append(v)
    elif sys.version_info >= (3, 13):
        f.stack += (v, NULL)
    else:
        f.stack += (NULL, v)


@op("LOAD_METHOD")
def load_method(f: Frame, o: Op) -> None:
    v = f.stack.pop().get_attr(f.vm, o.arg)
    f.stack += (NULL, v)


@op("LOAD_SUPER_ATTR")
def load_super_attr(f: Frame, o: Op) -> None:
    owner, cls, sup = f.stack.pop(), f.stack.pop(), f.stack.pop()
    if not (isinstance(sup, Const) and sup.raw is super):
        unsupported("a replaced builtin super()")
    v = f.vm.make_super(cls, owner).get_attr(f.vm, o.arg)
    if not o.flags & 1:
        f.stack.append(v)
    elif sys.version_info >= (3, 13):
        f.stack += (v, NULL)
    else:
        f.stack += (NULL, v)


@op("STORE_ATTR")
def store_attr(f: Frame, o: Op) -> None:
    obj, value = f.stack.pop(), f.stack.pop()
    obj.set_attr(f.vm, o.arg, value)


@op("DELETE_ATTR")
def delete_attr(f: Frame, o: Op) -> None:
    f.stack.pop().del_attr(f.vm, o.arg)


@op("BINARY_SUBSCR")
def binary_subscr(f: Frame, o: Op) -> None:
    key, obj = f.stack.pop(), f.stack.pop()
    f.stack.append(f.vm.get_item(obj, key))


@op("STORE_SUBSCR")
def store_subscr(f: Frame, o: Op) -> None:
    key, obj, value = f.stack.pop(), f.stack.pop(), f.stack.pop()
    obj.set_item(f.vm, key, value)


@op("DELETE_SUBSCR")
def delete_subscr(f: Frame, o: Op) -> None:
    key, obj = f.stack.pop(), f.stack.pop()
    obj.del_item(f.vm, key)


@op("BINARY_SLICE")
def binary_slice(f: Frame, o: Op) -> None:
    stop, start, obj = f.stack.pop(), f.stack.pop(), f.stack.pop()
    f.stack.append(f.vm.get_item(obj, SliceValue(start, stop, Const(None))))


@op("STORE_SLICE")
def store_slice(f: Frame, o: Op) -> None:
    stop, start, obj, value = f.stack.pop(), f.stack.pop(), f.stack.pop(), f.stack.pop()
    obj.set_item(f.vm, SliceValue(start, stop, Const(None)), value)


# ---- the stack


@op("POP_TOP", "END_FOR_313")
def pop_top(f: Frame, o: Op) -> None:
    f.stack.pop()


@op("PUSH_NULL")
def push_null(f: Frame, o: Op) -> None:
    f.stack.append(NULL)


@op("COPY")
def copy(f: Frame, o: Op) -> None:
    f.stack.append(f.stack[-o.arg])


@op("SWAP")
def swap(f: Frame, o: Op) -> None:
    s, n = f.stack, o.arg
    s[-1], s[-n] = s[-n], s[-1]


@op("LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF")
def load_from_dict(f: Frame, o: Op) -> None:
    class_body(f, o)
