"""``itertools``."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ..registry import HANDLERS, class_method, handles, simple
from ..values.base import NONE, Const, Value
from ..values.iterators import ItemsIterator, LazyIterator
from ..values.sequences import TupleValue

if TYPE_CHECKING:
    from ..tracer import Tracer

_f: Any


@handles(itertools.chain)
def chain(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _chain(iter(args), list(args))


@class_method(itertools.chain.from_iterable)
def chain_from_iterable(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it = args[1].iterate(vm)

    def each() -> Any:
        while (x := it.next(vm)) is not None:
            yield x

    return _chain(each(), [])


def _chain(sources: Any, over: list[Value]) -> Value:
    current: list[Value] = []

    def step(vm: Tracer) -> Value | None:
        while True:
            if not current:
                source = next(sources, None)
                if source is None:
                    return None
                current.append(source.iterate(vm))
            v = current[0].next(vm)
            if v is not None:
                return v
            current.clear()

    return LazyIterator(itertools.chain, step, over)


@handles(itertools.count)
def count(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    state = [args[0] if args else kwargs.get("start", Const(0))]
    by = args[1] if len(args) > 1 else kwargs.get("step", Const(1))

    def step(vm: Tracer) -> Value | None:
        out = state[0]
        state[0] = vm.binary("+", out, by)
        return out

    return LazyIterator(itertools.count, step, [])


@handles(itertools.repeat)
def repeat(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    times = args[1] if len(args) > 1 else kwargs.get("times")
    if times is not None:
        return ItemsIterator([args[0]] * max(vm.as_index(times), 0), itertools.repeat)
    return LazyIterator(itertools.repeat, lambda vm: args[0], [args[0]], itertools.repeat)


@handles(itertools.islice)
def islice(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it = args[0].iterate(vm)
    bounds = [a.as_const(vm) for a in args[1:]]
    picked = iter(itertools.islice(itertools.count(), *bounds))
    at = [0]

    def step(vm: Tracer) -> Value | None:
        want = next(picked, None)
        if want is None:
            return None
        while True:
            v = it.next(vm)
            if v is None:
                return None
            at[0] += 1
            if at[0] - 1 == want:
                return v

    return LazyIterator(itertools.islice, step, [])


@handles(itertools.accumulate)
def accumulate(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = vm.unpack(args[0])
    func = args[1] if len(args) > 1 else kwargs.get("func", NONE)
    initial = kwargs.get("initial", NONE)
    if initial is not NONE:
        items.insert(0, initial)
    out = items[:1]
    for x in items[1:]:
        out.append(vm.binary("+", out[-1], x) if func is NONE else func.call(vm, [out[-1], x], {}))
    return ItemsIterator(out, itertools.accumulate)


def _combinations(function: Any) -> Any:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        lists = [vm.unpack(a) for a in args] if function is itertools.product else [vm.unpack(args[0])]
        rest = [] if function is itertools.product else [a.as_const(vm) for a in args[1:]]
        options = {k: v.as_const(vm) for k, v in kwargs.items()}
        return ItemsIterator([TupleValue(x) for x in function(*lists, *rest, **options)], function)

    return handler


for _f in (itertools.product, itertools.permutations, itertools.combinations, itertools.combinations_with_replacement):
    HANDLERS[_f] = _combinations(_f)
if hasattr(itertools, "pairwise"):

    @simple(itertools.pairwise)
    def pairwise(vm: Tracer, v: Value) -> Value:
        items = vm.unpack(v)
        return ItemsIterator([TupleValue(p) for p in zip(items, items[1:])], itertools.pairwise)


@handles(itertools.zip_longest)
def zip_longest(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    lists = [vm.unpack(a) for a in args]
    fill = kwargs.get("fillvalue", NONE)
    return ItemsIterator([TupleValue(p) for p in itertools.zip_longest(*lists, fillvalue=fill)], itertools.zip_longest)


@handles(itertools.starmap)
def starmap(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, it = args[0], args[1].iterate(vm)

    def step(vm: Tracer) -> Value | None:
        v = it.next(vm)
        return None if v is None else func.call(vm, vm.unpack(v), {})

    return LazyIterator(itertools.starmap, step, [func, it], itertools.starmap)


@handles(itertools.takewhile)
def takewhile(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, it = args[0], args[1].iterate(vm)
    done = [False]

    def step(vm: Tracer) -> Value | None:
        v = None if done[0] else it.next(vm)
        if v is None or not func.call(vm, [v], {}).truth(vm):
            done[0] = True
            return None
        return v

    return LazyIterator(itertools.takewhile, step, [func, it], None)


@handles(itertools.dropwhile)
def dropwhile(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = vm.unpack(args[1])
    i = 0
    while i < len(items) and args[0].call(vm, [items[i]], {}).truth(vm):
        i += 1
    return ItemsIterator(items[i:], itertools.dropwhile)
