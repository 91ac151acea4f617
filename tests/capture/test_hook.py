"""The frame hook with stand-ins for capture: every kind of frame, errors, threads, recursion, memory."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from braze import _C
from braze.capture import frames
from braze.capture.assemble import instructions_of
from braze.capture.captured import Captured, Skip
from braze.capture.emit import INPUTS, Emitter
from braze.capture.guards import EqualsConst, GuardSet, IdIs, TypeIs
from braze.capture.source import FrameSources, argument_count
from braze.config import Config
from braze.errors import Unsupported
from braze.events import CompileLog


def pipeline(**settings: Any) -> SimpleNamespace:
    config = Config(**{k: settings.pop(k) for k in list(settings) if k in Config.__dataclass_fields__})
    return SimpleNamespace(settings=SimpleNamespace(fullgraph=False, config=config, **settings), log=CompileLog())


def changed(code: types.CodeType, extra_stack: int = 0) -> types.CodeType:
    """Replacement code: the same, with the constant 1000 as 2000, and a larger frame."""
    b = instructions_of(code)
    n = argument_count(code)
    b.argcount, b.kwonlyargcount, b.posonlyargcount = n + 1, 0, 0
    b.flags &= ~(0x04 | 0x08)
    b.varnames = [*b.varnames[:n], INPUTS, *b.varnames[n:]]
    for i in b.instructions:
        if type(i.arg) is int and i.arg == 1000 and i.op in ("LOAD_CONST", "RETURN_CONST"):
            i.arg = 2000
    b.consts = [2000 if type(c) is int and c == 1000 else c for c in b.consts]
    b.name += "_new"
    out = Emitter(b).assemble()
    return out.replace(co_stacksize=out.co_stacksize + extra_stack)


class Recording:
    """A capture that changes the code and records what it was asked."""

    def __init__(self, extra_stack: int = 0) -> None:
        self.extra_stack = extra_stack
        self.seen: list[tuple[str, int]] = []

    def __call__(self, code: types.CodeType, function: Any, args: tuple[Any, ...], session: Any) -> Captured | Skip:
        self.seen.append((code.co_name, len(args)))
        if code.co_filename != __file__ or code.co_name.startswith("test"):
            return Skip("not of this file")
        return Captured(changed(code, self.extra_stack), GuardSet())


def only(function: Any, capture: Callable[..., Captured | Skip]) -> Callable[..., Captured | Skip]:
    """A capture that leaves all frames alone but those of one function."""

    def wrapped(code: types.CodeType, fn: Any, args: tuple[Any, ...], session: Any) -> Captured | Skip:
        return capture(code, fn, args, session) if code is function.__code__ else Skip("another function")

    return wrapped


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    frames.reset()
    assert not _C.installed() and _C.active() is None


@pytest.mark.parametrize("extra_stack", [0, 40, 12000])
def test_every_kind_of_frame(extra_stack: int) -> None:
    def plain(a: int, b: int = 2, *args: int, k: int = 5, **kw: int) -> int:
        return a + b + sum(args) + k + sum(kw.values()) + 1000

    def outer() -> tuple[Any, Any, Any]:
        z = 10

        def reads(a: int) -> int:
            return [(lambda: a + z)()][0] + 1000

        def writes(a: int) -> int:
            nonlocal z
            z += a
            return z + 1000

        return reads, writes, lambda: z

    reads, writes, get = outer()

    class A:
        def m(self, q: int) -> int:
            return q

    class B(A):
        def m(self, q: int) -> int:
            return super().m(q) + 1000

    def handles(a: int) -> int:
        try:
            return a // 0
        except ZeroDivisionError:
            return 1000

    def raises(a: int) -> None:
        raise KeyError(1000)

    grown = frames.counters()
    with frames.Session(pipeline(), Recording(extra_stack)):
        for _ in range(3):
            assert plain(1, 2, 3, 4, k=6, zz=8) == 24 + 2000
            assert plain(1) == 8 + 2000
            assert reads(3) == get() + 2003
            before = get()
            assert writes(5) == before + 5 + 2000
            assert B().m(4) == 2004
            assert handles(1) == 2000
            with pytest.raises(KeyError) as e:
                raises(1)
            assert e.value.args == (2000,)
            frame = e.tb
            while frame.tb_next is not None:
                frame = frame.tb_next
            assert frame.tb_frame.f_code.co_name == "raises_new"
    now = frames.counters()
    kinds = {0: (False, False), 40: (True, False), 12000: (False, True)}
    assert (now["grown"] > grown["grown"], now["shadowed"] > grown["shadowed"])[1] is kinds[extra_stack][1]
    if extra_stack == 40:
        assert now["grown"] > grown["grown"]


def test_generators_and_coroutines_run_as_they_are() -> None:
    def gen(n: int) -> Iterator[int]:
        for i in range(n):
            yield i + helper(i)

    def helper(i: int) -> int:
        return 1000

    async def coroutine(a: int) -> int:
        await asyncio.sleep(0)
        return a + helper(a)

    with frames.Session(pipeline(), Recording()):
        assert list(gen(3)) == [2000, 2001, 2002]
        assert asyncio.run(coroutine(1)) == 2001


def test_many_arguments() -> None:
    names = [f"a{i}" for i in range(150)]
    namespace: dict[str, Any] = {}
    exec(
        compile(f"def many({', '.join(names)}, *rest, k=1): return a0 + a149 + sum(rest) + k + 1000", __file__, "exec"),
        namespace,
    )
    many = namespace["many"]
    for extra in (0, 30000):
        frames.reset()
        with frames.Session(pipeline(), Recording(extra)):
            for _ in range(3):
                assert many(*range(150), 7, k=2) == 149 + 7 + 2 + 2000


def test_inputs_reach_the_replacement() -> None:
    def f(a: Any, b: Any) -> Any:
        return None

    def capture(code: Any, function: Any, args: Any, session: Any) -> Captured:
        src = FrameSources(code)
        e = Emitter.replacing(code)
        e.load_inputs()
        e.return_value()
        return Captured(
            e.assemble(), GuardSet([TypeIs(src.local("a"), list)]), [src.local("b"), src.local("a").item(1)]
        )

    with frames.Session(pipeline(), only(f, capture)):
        x, y = object(), object()
        for _ in range(3):
            assert f([1, x], y) == (y, x)
    session = frames.Session(pipeline(), only(f, capture))
    with pytest.warns(UserWarning, match="expected type list, got type tuple"):
        assert session.call(f, (1, 2), 3) is None


def test_guards_choose_the_version() -> None:
    calls = []

    def f(mode: str, x: int) -> int:
        return x

    def capture(code: Any, function: Any, args: Any, session: Any) -> Captured:
        calls.append(args)
        src = FrameSources(code)
        e = Emitter.replacing(code)
        e.load_const(args[0].upper())
        e.return_value()
        return Captured(e.assemble(), GuardSet([EqualsConst(src.local("mode"), args[0])]))

    p = pipeline()
    with frames.Session(p, only(f, capture)) as session:
        for _ in range(4):
            for mode in ("a", "b", "c"):
                assert f(mode, 1) == mode.upper()
        assert [c[0] for c in calls] == ["a", "b", "c"]
        assert [r.reason for r in p.log.recompiles] == ["mode: expected 'a', got 'b'", "mode: expected 'b', got 'c'"]
    assert sorted(hits for _, _, hits in session.versions() if hits) == [4, 4, 4]
    assert _C.entries(f.__code__)[0].info.guards.describe() == ["mode: 'c'"]  # most recently used first
    assert f("a", 1) == 1


def test_recompile_limit_is_by_root_object() -> None:
    class M:
        def f(self, n: int) -> int:
            return n + 1000

    def capture(code: Any, function: Any, args: Any, session: Any) -> Captured | Skip:
        src = FrameSources(code)
        guards = GuardSet([IdIs.of(src.local("self"), args[0]), EqualsConst(src.local("n"), args[1])])
        return Captured(changed(code), guards)

    objects = [M() for _ in range(5)]
    p = pipeline(recompile_limit=2)
    with frames.Session(p, only(M.f, capture)) as session:
        for _ in range(2):
            for m in objects:
                assert [m.f(i) for i in range(4)] == [2000, 2001, 1002, 1003]
        versions = [v for v in session.versions() if "M.f" in v[0]]
        assert sum(v.gave_up for _, v, _ in versions) == 5
        assert sum(not v.gave_up for _, v, _ in versions) == 10
        misses = frames.counters()["misses"]
        assert objects[0].f(3) == 1003 and objects[0].f(1) == 2001
        assert frames.counters()["misses"] == misses
        del m, objects[1:]  # dead objects make room
        other = M()
        assert [other.f(i) for i in range(4)] == [2000, 2001, 1002, 1003]
        assert len([v for v in session.versions() if "M.f" in v[0]]) <= 3 + 3


def test_skip_marks() -> None:
    import textwrap

    def f(x: int) -> int:
        return len(textwrap.dedent(" a")) + x

    recording = Recording()
    with frames.Session(pipeline(), recording):
        assert f(1) == 2
        assert f(1) == 2
    assert _C.is_skipped(textwrap.dedent.__code__)
    assert [n for n, _ in recording.seen] == ["f"]
    frames.reset()
    assert not _C.is_skipped(textwrap.dedent.__code__)


def test_errors_in_capture() -> None:
    def f(x: int) -> int:
        return x

    def bad(code: Any, function: Any, args: Any, session: Any) -> Captured:
        raise Unsupported("nothing works", hint="try later")

    p = pipeline()
    with frames.Session(p, bad):
        assert f(1) == 1
        assert f(2) == 2
    assert [(b.reason, b.count) for b in p.log.breaks] == [("nothing works", 1)]
    session = frames.Session(_fullgraph(), bad)
    for _ in range(100):
        with pytest.raises(Unsupported, match="nothing works"):
            session.call(f, 1)

    def broken(code: Any, function: Any, args: Any, session: Any) -> Captured:
        raise AssertionError("a bug")

    session = frames.Session(pipeline(), broken)
    with pytest.warns(UserWarning, match="a bug"):
        assert session.call(f, 1) == 1
    session = frames.Session(pipeline(strict=True), broken)
    with pytest.raises(AssertionError, match="a bug"):
        session.call(f, 1)


def _fullgraph() -> SimpleNamespace:
    p = pipeline()
    p.settings.fullgraph = True
    return p


def test_guards_that_fail_at_once_are_refused() -> None:
    def f(x: int) -> int:
        return x + 1000

    def capture(code: Any, function: Any, args: Any, session: Any) -> Captured:
        return Captured(changed(code), GuardSet([EqualsConst(FrameSources(code).local(0), "never")]))

    session = frames.Session(pipeline(), capture)
    with pytest.warns(UserWarning, match="do not hold"):
        assert session.call(f, 1) == 1001


def test_wrong_replacement_code_is_refused() -> None:
    def f(x: int) -> int:
        return x

    session = frames.Session(pipeline(), Recording())
    with pytest.raises(ValueError, match="argument slots"):
        _C.add_entry(f.__code__, session, None, f.__code__, None)
    with pytest.raises(TypeError):
        _C.add_entry(f.__code__, session, "guard", None, None)


def test_sessions_do_not_share_versions() -> None:
    def f(x: int) -> int:
        return x + 1000

    one, two = Recording(), Recording()
    a, b = frames.Session(pipeline(), one), frames.Session(pipeline(), two)
    with a:
        assert f(1) == 2001
        with b:
            assert _C.active() is b
            assert f(1) == 2001
        assert _C.active() is a
        assert f(1) == 2001
    assert f(1) == 1001
    assert [n for n, _ in one.seen] == [n for n, _ in two.seen] == ["f"]
    assert len(_C.entries(f.__code__)) == 2
    del b
    gc.collect()
    assert len(_C.entries(f.__code__)) == 1


def test_call_and_quiet() -> None:
    def f(x: int) -> int:
        return x + 1000

    session = frames.Session(pipeline(), Recording())
    assert session.call(f, 1) == 2001
    assert session.call(f, x=1) == 2001
    quiet = _C.quiet(f)
    assert quiet.__wrapped__ is f
    with session:
        assert quiet(1) == 1001
        assert not _C.quiet(_C.installed)()
        assert _C.installed()
    with pytest.raises(ZeroDivisionError):
        session.call(lambda: 1 // 0)
    assert not _C.installed()
    with pytest.raises(RuntimeError):
        session.__exit__(None, None, None)


def test_the_callback_runs_with_the_hook_off() -> None:
    def helper(x: int) -> int:
        return x + 1000

    def f(x: int) -> int:
        return x

    def capture(code: Any, function: Any, args: Any, session: Any) -> Skip:
        assert helper(1) == 1001 and _C.active() is None and not _C.installed()
        return Skip("")

    with frames.Session(pipeline(), capture) as session:
        f(1)
        assert _C.active() is session


def test_recursion() -> None:
    def fact(n: int) -> int:
        return 1000 if n == 0 else fact(n - 1)

    def forever(n: int) -> int:
        return forever(n + 1)

    for extra in (0, 3, 5000):
        frames.reset()
        with frames.Session(pipeline(), Recording(extra)):
            assert fact(200) == 2000
            with pytest.raises(RecursionError):
                forever(0)
            assert fact(20) == 2000


def test_threads() -> None:
    def f(x: int) -> int:
        return x + 1000

    results: dict[str, list[int]] = {"on": [], "off": []}
    recording = Recording()
    session = frames.Session(pipeline(), recording)
    barrier = threading.Barrier(8)

    def on() -> None:
        barrier.wait()
        with session:
            for i in range(300):
                results["on"].append(f(i) - i)

    def off() -> None:
        barrier.wait()
        for i in range(300):
            results["off"].append(f(i) - i)

    threads = [threading.Thread(target=t) for t in (on, off) * 4]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert set(results["on"]) == {2000} and set(results["off"]) == {1000}
    assert [n for n, _ in recording.seen].count("f") == 1
    assert not _C.installed()


def test_reset_while_running() -> None:
    def f(x: int) -> int:
        frames.reset()
        gc.collect()
        return x + 1000

    recording = Recording()
    with frames.Session(pipeline(), recording):
        for _ in range(3):
            assert f(1) == 2001
    assert [n for n, _ in recording.seen].count("f") == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork() -> None:
    def f(x: int) -> int:
        return x + 1000

    session = frames.Session(pipeline(), Recording())
    with session:
        f(1)
        pid = os.fork()
        if pid == 0:
            ok = f(1) == 2001 and _C.installed()
            os._exit(0 if ok else 1)
        assert os.waitpid(pid, 0)[1] == 0


def _references(values: list[Any]) -> list[int]:
    return [sys.getrefcount(v) for v in values]


@pytest.mark.parametrize("extra_stack", [0, 20, 20000])
def test_no_references_leak(extra_stack: int) -> None:
    class Thing:
        pass

    def f(a: Any, b: Any, *args: Any, **kw: Any) -> Any:
        c = a
        if b is None:
            raise ValueError
        return c

    def capture(code: Any, function: Any, args: Any, session: Any) -> Captured | Skip:
        src = FrameSources(code)
        return Captured(changed(code, extra_stack), GuardSet([TypeIs(src.local(0), Thing)]), [src.local(1)])

    values = [Thing(), Thing(), Thing()]
    with frames.Session(pipeline(), only(f, capture)):
        f(*values, k=values[0])
        before = _references([*values, f, f.__code__, _C.entries(f.__code__)[0].code, None])
        for _ in range(500):
            assert f(*values, k=values[0]) is values[0]
            try:
                f(values[0], None)
            except ValueError:
                pass
        after = _references([*values, f, f.__code__, _C.entries(f.__code__)[0].code, None])
    assert all(abs(a - b) < 100 for a, b in zip(after, before)), (before, after)


def test_entries_go_with_their_code_and_hold_objects_weakly() -> None:
    class M:
        def f(self) -> int:
            return 1000

    def make() -> Callable[[], int]:
        def g() -> int:
            return 1000

        return g

    def capture(code: Any, function: Any, args: Any, session: Any) -> Captured | Skip:
        guards = GuardSet()
        if args and isinstance(args[0], M):
            guards.add(IdIs.of(FrameSources(code).local(0), args[0]))
        return Captured(changed(code), guards)

    m, g = M(), make()
    session = frames.Session(pipeline(), capture)
    with session:
        assert m.f() == 2000 and g() == 2000
    gone = [weakref.ref(m), weakref.ref(g)]
    entries = [weakref.ref(_C.entries(M.f.__code__)[0].code)]
    del m, g
    gc.collect()
    assert [r() for r in gone] == [None, None]
    assert entries[0]() is None and not _C.entries(M.f.__code__)  # a version goes with the object it was made for
    frames.reset()


def test_tracing_and_profiling() -> None:
    def f(x: int) -> int:
        y = x + 1000
        return y

    lines: list[int] = []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_name.startswith("f"):
            lines.append(frame.f_lineno - f.__code__.co_firstlineno)
        return trace

    with frames.Session(pipeline(), Recording()):
        assert f(1) == 2001
        old = sys.gettrace()
        sys.settrace(trace)
        try:
            assert f(1) == 2001
        finally:
            sys.settrace(old)
    assert {1, 2} <= set(lines)
