"""Instructions that steer: jumps, loops, calls, ``with``, exceptions, generators."""

from __future__ import annotations

import sys
from typing import Any

from .decode import Op, op
from .frame import Frame
from .passing import passes_result
from .signals import NotConst, Raised, unsupported
from .values.base import NONE, NULL, Const, Value, boolean
from .values.generator import GeneratorValue
from .values.objects import ExceptionValue
from .values.statics import ClassValue

PY312 = sys.version_info >= (3, 12)
PY313 = sys.version_info >= (3, 13)


class PreviousException(Value):
    """What PUSH_EXC_INFO puts below ``current``: the exception that was handled before, or None."""

    __slots__ = ("value", "current")

    def __init__(self, value: Value | None, current: Value) -> None:
        self.source = None
        self.value, self.current = value, current


# ---- jumps

MAX_JUMPS = 100_000  # backwards, in one capture: loops are unrolled


def _go(f: Frame, target: int) -> None:
    if target < f.pc:
        f.jumps += 1
        f.vm.backward_jumps += 1
        if f.vm.backward_jumps > MAX_JUMPS:
            unsupported("a loop of too many steps", "it would be unrolled; keep it outside of the compiled function")
    f.pc = target


@op("JUMP", "JUMP_NO_INTERRUPT")
def jump(f: Frame, o: Op) -> None:
    _go(f, o.arg)


@op("POP_JUMP_IF_TRUE")
def pop_jump_if_true(f: Frame, o: Op) -> None:
    if f.stack.pop().truth(f.vm):
        _go(f, o.arg)


@op("POP_JUMP_IF_FALSE")
def pop_jump_if_false(f: Frame, o: Op) -> None:
    if not f.stack.pop().truth(f.vm):
        _go(f, o.arg)


@op("POP_JUMP_IF_NONE")
def pop_jump_if_none(f: Frame, o: Op) -> None:
    if f.vm.identical(f.stack.pop(), NONE):
        _go(f, o.arg)


@op("POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(f: Frame, o: Op) -> None:
    if not f.vm.identical(f.stack.pop(), NONE):
        _go(f, o.arg)


@op("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(f: Frame, o: Op) -> None:
    if f.stack[-1].truth(f.vm):
        f.pc = o.arg
    else:
        f.stack.pop()


@op("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(f: Frame, o: Op) -> None:
    if not f.stack[-1].truth(f.vm):
        f.pc = o.arg
    else:
        f.stack.pop()


# ---- loops


@op("GET_ITER")
def get_iter(f: Frame, o: Op) -> None:
    f.stack.append(f.stack.pop().iterate(f.vm))


@op("FOR_ITER")
def for_iter(f: Frame, o: Op) -> None:
    v = f.stack[-1].next(f.vm)
    if v is not None:
        f.stack.append(v)
        return
    f.pc = o.arg
    if PY312:
        f.stack.append(NULL)  # END_FOR takes it away with the iterator
    else:
        f.stack.pop()


@op("END_FOR")
def end_for(f: Frame, o: Op) -> None:
    f.stack.pop()
    if not PY313:
        f.stack.pop()


# ---- calls


@op("KW_NAMES")
def kw_names(f: Frame, o: Op) -> None:
    f.kw_names = o.arg


@op("CALL")
@passes_result
def call(f: Frame, o: Op) -> None:
    n = o.arg
    stack = f.stack
    args = stack[len(stack) - n :]
    del stack[len(stack) - n :]
    first, second = stack.pop(), stack.pop()
    if PY313:
        first, second = second, first  # callable, self or NULL
        if second is not NULL:
            args.insert(0, second)
        stack.append(first.call(f.vm, args, {}))
        return
    callee = first
    if second is not NULL:  # method, self
        callee = second
        args.insert(0, first)
    names = f.kw_names
    kwargs: dict[str, Value] = {}
    if names:
        f.kw_names = ()
        cut = len(args) - len(names)
        kwargs = dict(zip(names, args[cut:]))
        args = args[:cut]
    stack.append(callee.call(f.vm, args, kwargs))


@op("CALL_KW")
@passes_result
def call_kw(f: Frame, o: Op) -> None:
    names = f.stack.pop().as_const(f.vm)
    args = f.pop_n(o.arg)
    owner, callee = f.stack.pop(), f.stack.pop()
    if owner is not NULL:
        args.insert(0, owner)
    cut = len(args) - len(names)
    f.stack.append(callee.call(f.vm, args[:cut], dict(zip(names, args[cut:]))))


@op("CALL_FUNCTION_EX")
@passes_result
def call_function_ex(f: Frame, o: Op) -> None:
    kwargs: dict[str, Value] = {}
    if o.arg & 1:
        extra = f.stack.pop()
        for k, v in f.vm.mapping_items(extra):
            name = k.as_const(f.vm)
            if not isinstance(name, str):
                f.vm.raise_(TypeError, "keywords must be strings")
            kwargs[name] = v
    args = f.vm.unpack(f.stack.pop())
    callee = f.stack.pop()
    if PY313:
        callee = f.stack.pop()
    else:
        f.stack.pop()  # NULL
    f.stack.append(callee.call(f.vm, args, kwargs))


@op("CALL_INTRINSIC_1")
def call_intrinsic_1(f: Frame, o: Op) -> None:
    handler = _INTRINSICS.get(o.arg)
    if handler is None:
        unsupported(f"the intrinsic function {o.arg}")
    f.stack.append(handler(f, f.stack.pop()))


def _stop_iteration_error(f: Frame, e: Value) -> Value:
    if f.vm.exception_matches(e, StopIteration):
        out = f.vm.new_exception(RuntimeError, [Const("generator raised StopIteration")])
        out.cause = out.context = e
        return out
    return e


def _list_to_tuple(f: Frame, v: Value) -> Value:
    return f.vm.new_tuple(f.vm.unpack(v))


_INTRINSICS: dict[int, Any] = {
    3: _stop_iteration_error,
    5: lambda f, v: f.vm.unary("+", v),
    6: _list_to_tuple,
}


# ---- with


@op("BEFORE_WITH")
def before_with(f: Frame, o: Op) -> None:
    manager = f.stack.pop()
    cls = manager.pytype(f.vm)
    for name in ("__enter__", "__exit__"):
        if f.vm.find(cls, name) is None:
            what = f"{cls.__name__!r} object does not support the context manager protocol"
            f.vm.raise_(TypeError, what)
    exit_ = f.vm.special_method(manager, "__exit__")
    result = f.vm.call_special(manager, "__enter__", [])
    f.stack += (exit_, result)


@op("WITH_EXCEPT_START")
def with_except_start(f: Frame, o: Op) -> None:
    """exit, lasti, previous, exception -> the same, and exit(type, exception, traceback)."""
    error = f.stack[-1]
    exit_ = f.stack[-4]
    cls = f.vm.wrap_static(error.pytype(f.vm))
    f.stack.append(exit_.call(f.vm, [cls, error, error.get_attr(f.vm, "__traceback__")], {}))


# ---- exceptions


@op("PUSH_EXC_INFO")
def push_exc_info(f: Frame, o: Op) -> None:
    e = f.stack.pop()
    f.stack += (PreviousException(f.vm.handled, e), e)
    f.vm.handled = e


@op("POP_EXCEPT")
def pop_except(f: Frame, o: Op) -> None:
    before = f.stack.pop()
    assert isinstance(before, PreviousException)
    f.vm.handled = before.value


@op("CHECK_EXC_MATCH")
def check_exc_match(f: Frame, o: Op) -> None:
    classes = f.stack.pop()
    try:
        raw = classes.as_const(f.vm)
    except NotConst:
        unsupported("an except clause over a class that the compiled function made")
    f.stack.append(boolean(f.vm.exception_matches(f.stack[-1], raw)))


@op("RAISE_VARARGS")
def raise_varargs(f: Frame, o: Op) -> None:
    vm = f.vm
    cause = f.stack.pop() if o.arg == 2 else None
    if o.arg == 0:
        if vm.handled is None:
            vm.raise_(RuntimeError, "No active exception to reraise")
        raise Raised(vm.handled)
    e = f.stack.pop()
    if isinstance(e, ClassValue) and issubclass(e.raw, BaseException):
        e = e.call(vm, [], {})
    if not isinstance(e, ExceptionValue):
        vm.raise_(TypeError, "exceptions must derive from BaseException")
    if cause is not None:
        if isinstance(cause, ClassValue):
            cause = cause.call(vm, [], {})
        e.cause, e.suppress = cause, True
    vm.raise_value(e)


@op("RERAISE")
def reraise(f: Frame, o: Op) -> None:
    e = f.stack.pop()
    raise Raised(e)


# ---- generators


@op("RETURN_VALUE")
def return_value(f: Frame, o: Op) -> Value:
    f.yielded = False
    return f.stack.pop()


@op("RETURN_GENERATOR")
def return_generator(f: Frame, o: Op) -> None:
    f.stack.append(NONE)  # what the first resumption sends


@op("YIELD_VALUE")
def yield_value(f: Frame, o: Op) -> Value:
    f.yielded = True
    return f.stack.pop()


@op("GET_YIELD_FROM_ITER")
def get_yield_from_iter(f: Frame, o: Op) -> None:
    v = f.stack.pop()
    f.stack.append(v if isinstance(v, GeneratorValue) else v.iterate(f.vm))


@op("SEND")
def send(f: Frame, o: Op) -> None:
    """receiver, value -> receiver, what it yields; or jump with what it returned."""
    vm = f.vm
    value, receiver = f.stack.pop(), f.stack[-1]
    result: Value = NONE
    if isinstance(receiver, GeneratorValue):
        out = receiver.resume(vm, value, None)
        result = receiver.result
    elif vm.is_none(value):
        out, result = _next_with_result(f, receiver)
    else:
        out = receiver.get_attr(vm, "send").call(vm, [value], {})
    if out is not None:
        f.stack.append(out)
        return
    if PY312:
        f.stack.append(result)
    else:
        f.stack[-1] = result
    f.pc = o.arg


def _next_with_result(f: Frame, receiver: Value) -> tuple[Value | None, Value]:
    try:
        return receiver.next(f.vm), NONE
    except Raised as e:
        if not f.vm.exception_matches(e.value, StopIteration):
            raise
        return None, e.value.get_attr(f.vm, "value")


@op("END_SEND")
def end_send(f: Frame, o: Op) -> None:
    v = f.stack.pop()
    f.stack[-1] = v


@op("CLEANUP_THROW")
def cleanup_throw(f: Frame, o: Op) -> None:
    e, _, _ = f.stack.pop(), f.stack.pop(), f.stack.pop()
    if not f.vm.exception_matches(e, StopIteration):
        raise Raised(e)
    f.stack += (NONE, e.get_attr(f.vm, "value"))


def run_generator(vm: Any, gen: GeneratorValue, sent: Value, error: Value | None) -> Value | None:
    """Let a generator's frame run to its next yield; None when it returns (``gen.result``)."""
    f = gen.frame
    handled = vm.handled
    if error is not None:
        out = _throw(vm, f, error)
        if out is not None:
            return out
    elif gen.started:
        f.stack.append(sent)
    try:
        value = f.run_call()
    finally:
        vm.handled = handled
    if f.yielded:
        return value
    gen.result = value
    return None


def _throw(vm: Any, f: Frame, error: Value) -> Value | None:
    """Raise at the pause; inside ``yield from`` the inner generator gets the exception first."""
    paused = f.code.ops[f.pc - 1]
    if paused.send is not None and isinstance(f.stack[-1], GeneratorValue):
        inner = f.stack[-1]
        try:
            out = inner.resume(vm, NONE, error)
        except Raised as e:
            f.pending = e.value
            return None
        if out is not None:
            return out
        if PY312:
            f.stack.append(inner.result)
        else:
            f.stack[-1] = inner.result
        f.pc = paused.send.arg
        return None
    f.pending = error
    return None


@op("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR", "ASYNC_GEN_WRAP")
def asynchronous(f: Frame, o: Op) -> None:
    unsupported("async code in the compiled function")


@op("CHECK_EG_MATCH", "PREP_RERAISE_STAR", "IMPORT_STAR", "PRINT_EXPR", "CALL_INTRINSIC_2")
def rare(f: Frame, o: Op) -> None:
    unsupported(f"the bytecode instruction {o.name}")
