"""``itertools``. Each iterator can be made again with what is left of it, for a break inside a loop over it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ..registry import HANDLERS, class_method, handles, simple
from ..values.base import NONE, Const, Value
from ..values.iterators import ItemsIterator, LazyIterator, SequenceIterator
from ..values.sequences import ListValue, TupleValue

if TYPE_CHECKING:
    from ..tracer import Tracer

_f: Any


def _check(vm: Tracer, cls: Any, *options: Any) -> None:
    """Raise in the program what the class says about its options."""
    try:
        cls((), *options)
    except (TypeError, ValueError) as e:
        vm.raise_real(e)


@handles(itertools.chain)
def chain(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _chain(SequenceIterator(TupleValue(args)))


@class_method(itertools.chain.from_iterable)
def chain_from_iterable(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _chain(args[1].iterate(vm))


def _chain(sources: Value) -> Value:
    current: list[Value] = []

    def step(vm: Tracer) -> Value | None:
        while True:
            if not current:
                source = sources.next(vm)
                if source is None:
                    return None
                current.append(source.iterate(vm))
            v = current[0].next(vm)
            if v is not None:
                return v
            current.clear()

    return LazyIterator(itertools.chain, step, lambda: [sources, *current], _chain_rest)


def _chain_rest(sources: Any, *current: Any) -> Any:
    return itertools.chain(*current, itertools.chain.from_iterable(sources))


@handles(itertools.count)
def count(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    state = [args[0] if args else kwargs.get("start", Const(0))]
    by = args[1] if len(args) > 1 else kwargs.get("step", Const(1))

    def step(vm: Tracer) -> Value | None:
        out = state[0]
        state[0] = vm.binary("+", out, by)
        return out

    return LazyIterator(itertools.count, step, lambda: [state[0], by])


@handles(itertools.repeat)
def repeat(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    times = args[1] if len(args) > 1 else kwargs.get("times")
    if times is not None:
        return ItemsIterator([args[0]] * max(vm.as_index(times), 0), itertools.repeat)
    return LazyIterator(itertools.repeat, lambda vm: args[0], lambda: [args[0]])


@handles(itertools.cycle)
def cycle(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it, saved, at = args[0].iterate(vm), ListValue([]), [-1]

    def step(vm: Tracer) -> Value | None:
        items = saved.items(vm)
        if at[0] < 0:
            v = it.next(vm)
            if v is not None:
                items.append(v)
                return v
        if not items:
            return None
        at[0] = (at[0] + 1) % len(items)
        return items[at[0]]

    return LazyIterator(itertools.cycle, step, lambda: [it, saved, Const(at[0])], _cycle_rest)


def _cycle_rest(it: Any, saved: list[Any], at: int) -> Any:
    if at >= 0:
        return itertools.islice(itertools.cycle(saved), at + 1, None)
    return itertools.islice(itertools.cycle(itertools.chain(saved, it)), len(saved), None)


@handles(itertools.islice)
def islice(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it = args[0].iterate(vm)
    bounds = slice(*(a.as_const(vm) for a in args[1:]))
    stop, by = bounds.stop, bounds.step or 1
    _check(vm, itertools.islice, *(a.as_const(vm) for a in args[1:]))
    taken, following, over = 0, bounds.start or 0, False

    def take(vm: Tracer) -> Value | None:
        nonlocal taken, following
        while taken < following:
            if it.next(vm) is None:
                return None
            taken += 1
        if stop is not None and taken >= stop:
            return None
        v = it.next(vm)
        taken += 1
        following = following + by if stop is None else min(following + by, stop)
        return v

    def step(vm: Tracer) -> Value | None:
        nonlocal over
        v = None if over else take(vm)
        over = v is None
        return v

    def rest() -> list[Value]:
        end = None if stop is None else stop - taken
        return [] if over else [it, Const(following - taken), Const(end), Const(by)]

    return LazyIterator(itertools.islice, step, rest, _islice_rest)


def _islice_rest(*parts: Any) -> Any:
    return itertools.islice(*parts) if parts else iter(())


@handles(itertools.accumulate)
def accumulate(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    it = args[0].iterate(vm)
    func = args[1] if len(args) > 1 else kwargs.get("func", NONE)
    initial = kwargs.get("initial", NONE)
    plain = vm.is_none(func)
    waiting = [] if vm.is_none(initial) else [initial]
    total: list[Value] = []

    def step(vm: Tracer) -> Value | None:
        v = waiting.pop() if waiting else it.next(vm)
        if v is None:
            return None
        if total:
            v = vm.binary("+", total[0], v) if plain else func.call(vm, [total[0], v], {})
        total[:] = [v]
        return v

    return LazyIterator(
        itertools.accumulate, step, lambda: [it, func, TupleValue(waiting), TupleValue(total)], _accumulate_rest
    )


def _accumulate_rest(it: Any, func: Any, waiting: Any, total: Any) -> Any:
    if not total:
        return itertools.accumulate(it, func, initial=waiting[0]) if waiting else itertools.accumulate(it, func)
    out = itertools.accumulate(itertools.chain(total, it), func)
    next(out)
    return out


def _combinations(function: Any) -> Any:
    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        lists = [vm.unpack(a) for a in args] if function is itertools.product else [vm.unpack(args[0])]
        rest = [] if function is itertools.product else [a.as_const(vm) for a in args[1:]]
        options = {k: v.as_const(vm) for k, v in kwargs.items()}
        return ItemsIterator([TupleValue(x) for x in function(*lists, *rest, **options)], function)

    return handler


for _f in (itertools.product, itertools.permutations, itertools.combinations, itertools.combinations_with_replacement):
    HANDLERS[_f] = _combinations(_f)


@simple(itertools.pairwise)
def pairwise(vm: Tracer, v: Value) -> Value:
    it, before = v.iterate(vm), ListValue([])

    def step(vm: Tracer) -> Value | None:
        last = before.items(vm)
        if not last:
            first = it.next(vm)
            if first is None:
                return None
            last.append(first)
        v = it.next(vm)
        if v is None:
            return None
        out = TupleValue([last[0], v])
        last[:] = [v]
        return out

    return LazyIterator(itertools.pairwise, step, lambda: [it, before], _pairwise_rest)


def _pairwise_rest(it: Any, before: list[Any]) -> Any:
    return itertools.pairwise(itertools.chain(before, it))


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

    return LazyIterator(itertools.starmap, step, lambda: [func, it])


@handles(itertools.filterfalse)
def filterfalse(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, it = args[0], args[1].iterate(vm)
    plain = vm.is_none(func)

    def step(vm: Tracer) -> Value | None:
        while (v := it.next(vm)) is not None:
            if not (v if plain else func.call(vm, [v], {})).truth(vm):
                return v
        return None

    return LazyIterator(itertools.filterfalse, step, lambda: [func, it])


@handles(itertools.compress)
def compress(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    data, chosen = args[0].iterate(vm), (args[1] if len(args) > 1 else kwargs["selectors"]).iterate(vm)

    def step(vm: Tracer) -> Value | None:
        while (v := data.next(vm)) is not None and (pick := chosen.next(vm)) is not None:
            if pick.truth(vm):
                return v
        return None

    return LazyIterator(itertools.compress, step, lambda: [data, chosen])


@handles(itertools.takewhile)
def takewhile(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, it = args[0], args[1].iterate(vm)
    done = False

    def step(vm: Tracer) -> Value | None:
        nonlocal done
        v = None if done else it.next(vm)
        if v is None or not func.call(vm, [v], {}).truth(vm):
            done = True
            return None
        return v

    return LazyIterator(itertools.takewhile, step, lambda: [] if done else [func, it], _takewhile_rest)


def _takewhile_rest(*parts: Any) -> Any:
    return itertools.takewhile(*parts) if parts else iter(())


@handles(itertools.dropwhile)
def dropwhile(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, it = args[0], args[1].iterate(vm)
    begun = False

    def step(vm: Tracer) -> Value | None:
        nonlocal begun
        while (v := it.next(vm)) is not None:
            if begun or not func.call(vm, [v], {}).truth(vm):
                begun = True
                return v
        return None

    return LazyIterator(itertools.dropwhile, step, lambda: [Const(begun), func, it], _dropwhile_rest)


def _dropwhile_rest(begun: bool, func: Any, it: Any) -> Any:
    return it if begun else itertools.dropwhile(func, it)


_batched: Any = getattr(itertools, "batched", None)  # since 3.12
if _batched is not None:

    @handles(_batched)
    def batched(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        it, n = args[0].iterate(vm), vm.as_index(args[1] if len(args) > 1 else kwargs["n"])
        strict = "strict" in kwargs and kwargs["strict"].truth(vm)
        _check(vm, _batched, n)

        def step(vm: Tracer) -> Value | None:
            out: list[Value] = []
            while len(out) < n and (v := it.next(vm)) is not None:
                out.append(v)
            if strict and 0 < len(out) < n:
                vm.raise_(ValueError, "batched(): incomplete batch")
            return TupleValue(out) if out else None

        return LazyIterator(_batched, step, lambda: [it, Const(n), Const(strict)], _batched_rest)


def _batched_rest(it: Any, n: int, strict: bool) -> Any:
    return itertools.batched(it, n, strict=True) if strict else itertools.batched(it, n)  # type: ignore[attr-defined]


@handles(itertools.groupby)
def groupby(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Whole at once: each group is an iterator over its items."""
    key = args[1] if len(args) > 1 else kwargs.get("key", NONE)
    plain = vm.is_none(key)
    groups: list[tuple[Value, list[Value]]] = []
    for x in vm.unpack(args[0]):
        k = x if plain else key.call(vm, [x], {})
        if groups and vm.same_or_equal(groups[-1][0], k):
            groups[-1][1].append(x)
        else:
            groups.append((k, [x]))
    return ItemsIterator([TupleValue([k, ItemsIterator(g)]) for k, g in groups], itertools.groupby)


@handles(itertools.tee)
def tee(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Over all items at once."""
    n = vm.as_index(args[1]) if len(args) > 1 else 2
    items = vm.unpack(args[0])
    return TupleValue([ItemsIterator(list(items)) for _ in range(n)])
