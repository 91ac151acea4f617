"""The assembler and disassembler: stdlib code taken apart and put together again, made-up code, and the emitter."""

from __future__ import annotations

import ast
import dis
import importlib
import inspect
import json
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from braze.capture import assemble as assembler
from braze.capture.assemble import assemble, instructions_of
from braze.capture.bytecode import VERSION, Bytecode, Instr, Label
from braze.capture.emit import INPUTS, Emitter
from braze.capture.source import FrameSources, FrameValues

MODULES = """inspect json json.decoder json.encoder textwrap ast dis argparse typing dataclasses collections functools
contextlib asyncio.base_events asyncio.tasks tempfile subprocess logging re enum email.message heapq random statistics
fractions decimal unittest.case pathlib zipfile tarfile difflib pprint configparser""".split()


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for k in code.co_consts:
        if isinstance(k, types.CodeType):
            yield from codes_in(k)


@pytest.mark.parametrize("name", MODULES)
def test_stdlib_round_trip(name: str) -> None:
    """Same stack size, names, tables; same bytes where there are no superinstructions to split."""
    module = importlib.import_module(name)
    assert module.__file__ is not None
    with open(module.__file__) as f:
        top = compile(f.read(), module.__file__, "exec")
    for old in codes_in(top):
        new = assemble(instructions_of(old))
        assert new.co_stacksize == old.co_stacksize, old
        assert (new.co_consts, new.co_names, new.co_varnames) == (old.co_consts, old.co_names, old.co_varnames)
        assert (new.co_freevars, new.co_cellvars, new.co_flags) == (old.co_freevars, old.co_cellvars, old.co_flags)
        if VERSION < (3, 13):
            assert new.co_code == old.co_code, old
            assert list(new.co_positions()) == list(old.co_positions()), old
            assert new.co_exceptiontable == old.co_exceptiontable, old
        else:
            assert _flat(new) == _flat(old), old


def _flat(code: types.CodeType) -> list[Any]:
    """What the code does and where it is from, without offsets."""
    b = instructions_of(code)
    order = {label: i for i, label in enumerate(i for i in b.items if isinstance(i, Label))}
    out: list[Any] = []
    for i in b.items:
        if isinstance(i, Label):
            out.append(order[i])
        else:
            out.append((i.op, order[i.arg] if isinstance(i.arg, Label) else i.arg, i.flags, i.pos))
    return [out, [(order[r.start], order[r.end], order[r.handler], r.depth, r.lasti) for r in b.regions]]


def reassembled(f: Any) -> Any:
    """The function with its code, and that of the functions inside it, taken apart and put together."""

    def rebuild(code: types.CodeType) -> types.CodeType:
        b = instructions_of(code)
        made = {id(k): rebuild(k) for k in code.co_consts if isinstance(k, types.CodeType)}
        b.consts = [made.get(id(k), k) for k in b.consts]
        for i in b.instructions:
            i.arg = made.get(id(i.arg), i.arg)
        return assemble(b)

    g = types.FunctionType(rebuild(f.__code__), f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    g.__kwdefaults__ = f.__kwdefaults__
    return g


@pytest.fixture
def rebuilt_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (inspect, json.decoder, json.encoder, textwrap, ast):
        for owner in [
            module,
            *(v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__),
        ]:
            for name, f in list(vars(owner).items()):
                if isinstance(f, types.FunctionType) and f.__module__ == module.__name__:
                    monkeypatch.setattr(owner, name, reassembled(f))


def test_stdlib_runs_reassembled(rebuilt_modules: None) -> None:
    data = {"a": [1, 2.5, None, True, "x\n"], "b": {"c": []}}
    assert json.loads(json.dumps(data, indent=2, sort_keys=True)) == data
    assert "".join(json.JSONEncoder(indent=1).iterencode(data)) == json.dumps(data, indent=1)
    with pytest.raises(json.JSONDecodeError, match="Expecting value"):
        json.loads("[1, }")
    assert textwrap.fill("the quick brown fox jumps", 10) == "the quick\nbrown fox\njumps"
    assert textwrap.dedent("  a\n    b\n") == "a\n  b\n"
    assert str(inspect.signature(json.dumps)).startswith("(obj, *, skipkeys=False")
    assert inspect.getsource(textwrap.dedent).startswith("def dedent")
    assert inspect.getdoc(textwrap.dedent).startswith("Remove any common")
    assert inspect.Signature.from_callable(lambda a, /, b, *c, d=1, **e: 0).bind(1, 2, 3, d=4, x=5).arguments["c"] == (
        3,
    )
    tree = ast.parse("x = [i ** 2 for i in range(3) if i]\nwith a as b: pass\ndef f(): yield")
    assert ast.unparse(ast.parse(ast.unparse(tree))) == ast.unparse(tree)
    assert [type(n).__name__ for n in ast.walk(tree)][:2] == ["Module", "Assign"]


def control(x: int) -> list[Any]:
    out: list[Any] = []
    for i in range(x):
        try:
            if i == 3:
                raise KeyError(i)
            if i == 5:
                continue
            while i < 10:
                i += 4
            out.append(i)
        except KeyError as e:
            out.append(e.args)
        finally:
            out.append("f")
    else:
        out.append("else")
    match out:
        case [first, *rest] if len(rest) > 1:
            out.append((first, len(rest)))
        case _:
            out.append("none")
    return out


def nested(n: int) -> Any:
    a = [n]

    def inner(b: int = n, *, c: int = 2) -> Any:
        nonlocal n
        n += b
        return [x + n + c for x in a for _ in range(b)] + [(lambda: n)()]

    class C:
        y = n

        def __init__(self) -> None:
            super().__init__()
            self.z = __class__

    return inner(), inner(c=5), C.y, C().z.__name__, f"{n!r:>5}", {**{"a": n}, "b": 1}, (*a, 1)


def withs(fail: bool) -> list[str]:
    import contextlib

    log: list[str] = []

    @contextlib.contextmanager
    def cm(name: str) -> Iterator[str]:
        log.append(f"enter {name}")
        try:
            yield name
        except ValueError:
            log.append("swallowed")
        finally:
            log.append(f"exit {name}")

    with cm("a") as a, cm("b"):
        log.append(a)
        if fail:
            raise ValueError
    try:
        raise ExceptionGroup("g", [TypeError(1), OSError(2)])
    except* TypeError as g:
        log.append(str(g.exceptions))
    except* OSError:
        log.append("os")
    return log


def generator(n: int) -> Iterator[Any]:
    got = yield n
    yield from (i * i for i in range(got))
    try:
        yield "last"
    except ValueError as e:
        yield e.args


namespace: dict[str, Any] = {}
exec(
    "def big(n):\n t = 0\n for i in range(n):\n  if i % 2:\n"
    + "   t += i\n" * 400
    + "  else:\n"
    + "   t -= 1\n" * 400
    + " return t",
    namespace,
)


@pytest.mark.parametrize(
    "f, args",
    [
        (control, (7,)),
        (control, (0,)),
        (nested, (3,)),
        (withs, (False,)),
        (withs, (True,)),
        (namespace["big"], (9,)),
        (dis._get_code_object, ("1 + 1",)),
    ],
)
def test_functions_run_reassembled(f: Any, args: tuple[Any, ...]) -> None:
    got, want = reassembled(f)(*args), f(*args)
    assert got == want or isinstance(want, types.CodeType)


def test_generators_run_reassembled() -> None:
    def drive(f: Callable[[int], Any]) -> list[Any]:
        g = f(1)
        return [next(g), g.send(3), next(g), next(g), next(g), g.throw(ValueError("v"))]

    assert drive(reassembled(generator)) == drive(generator) == [1, 0, 1, 4, "last", ("v",)]


def test_tracebacks_keep_their_lines() -> None:
    def f() -> None:
        x = 1
        raise KeyError(x)

    for g in (f, reassembled(f)):
        with pytest.raises(KeyError) as e:
            g()
        assert e.traceback[-1].lineno == f.__code__.co_firstlineno + 1


# ---- made-up code


def build(write: Callable[[Emitter], None], code: Bytecode | None = None, **names: Any) -> Any:
    e = Emitter(code)
    e.prologue()
    write(e)
    return types.FunctionType(e.assemble(), {"__builtins__": __builtins__, **names})


def test_backward_conditional_jumps_and_long_distances() -> None:
    def write(e: Emitter) -> None:
        e.load_const(0)
        e.store("n")
        top = e.label()
        e.load("n")
        e.load_const(1)
        e.binary("+=")
        e.store("n")
        for _ in range(70000 if VERSION == (3, 12) else 400):
            e.emit("NOP")
        e.load("n")
        e.load_const(10)
        e.compare("<")
        e.pop_jump_if(True, top)
        e.load("n")
        e.return_value()

    assert build(write)() == 10


def test_handlers_and_nested_regions() -> None:
    def write(e: Emitter) -> None:
        outer, inner, inner_end, end = Label("outer"), Label("inner"), Label("inner_end"), Label("end")
        handler, inner_handler, done = Label(), Label(), Label()
        e.load_const("kept")
        e.label(outer)
        e.load_const("also")
        e.label(inner)
        e.call_const(int, lambda: e.load("text"))
        e.label(inner_end)
        e.build("tuple", 3)
        e.return_value()
        e.label(inner_handler)  # kept, also, exception
        e.emit("PUSH_EXC_INFO")
        e.pop()
        e.emit("POP_EXCEPT")
        e.call_const(len, lambda: e.load("text"))
        e.build("tuple", 3)
        e.return_value()
        e.label(end)
        e.label(handler)  # kept, exception
        e.emit("PUSH_EXC_INFO")
        e.pop()
        e.emit("POP_EXCEPT")
        e.label(done)
        e.load_const("outer")
        e.build("tuple", 2)
        e.return_value()
        e.region(outer, end, handler, 1)
        e.region(inner, inner_end, inner_handler, 2)

    f = build(write, Bytecode(argcount=1, varnames=["text"]))
    assert f("12") == ("kept", "also", 12)
    assert f("ab") == ("kept", "also", 2)
    assert f(None) == ("kept", "outer")


def test_calls_of_every_form() -> None:
    def show(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    def write(e: Emitter) -> None:
        e.call_const(show, lambda: e.load_const(1), lambda: e.load_const(2))
        e.callee_const(show)
        e.load_const(1)
        e.load_const(2)
        e.call(2, ("k",))
        e.callee_const(show)
        e.load_const((1, 2))
        e.call_ex()
        e.callee(lambda: e.load_global("show"))
        e.load_const((1,))
        e.load_const({"z": 3})
        e.call_ex(kwargs=True)
        e.load_const("a-b")
        e.load_method("split")
        e.load_const("-")
        e.call(1)
        e.load_const(show)
        e.callee_from_top()
        e.call(0)
        e.load_const(len)
        e.pop()
        e.build("list", 6)
        e.return_value()

    assert build(write, show=show)() == [
        ((1, 2), {}),
        ((1,), {"k": 2}),
        ((1, 2), {}),
        ((1,), {"z": 3}),
        ["a", "b"],
        ((), {}),
    ]


def test_values_stack_and_containers() -> None:
    marker = object()

    class Box:
        pass

    def write(e: Emitter) -> None:
        for value in (1, 1.0, True, -0.0, 0.0, marker):
            e.load_const(value)
        e.build("tuple", 6)
        e.call_const(Box)
        e.store("box")
        e.load_const(5)
        e.load("box")
        e.store_attr("v")
        e.build("map", 0)
        e.copy()
        e.load("box")
        e.load_attr("v")
        e.swap(2)
        e.load_const("k")
        e.store_subscr()
        e.load_const((7, 8, 9))
        e.unpack(3)
        e.swap(3)
        e.build("list", 3)
        e.load_const(None)
        e.load_const(None)
        e.is_op()
        for op in ("<", "<=", "==", "!=", ">", ">="):
            e.load_const(1)
            e.load_const(2)
            e.compare(op)
        e.load_const(6)
        e.load_const(4)
        e.binary("-")
        e.build("tuple", 11)
        e.return_value()

    got = build(write, Bytecode(varnames=["box"]))()
    first = got[0]
    assert [type(v) for v in first] == [int, float, bool, float, float, object] and first[5] is marker
    assert str(first[3]) == "-0.0" and str(first[4]) == "0.0"
    assert got[1:] == ({"k": 5}, [7, 8, 9], True, True, True, False, True, False, False, 2)


def test_cells_and_functions() -> None:
    code = Emitter(
        Bytecode(name="inner", qualname="inner", argcount=2, varnames=["a", "k"], freevars=["n"], kwonlyargcount=0)
    )
    code.prologue()
    code.load("n")
    code.load("a")
    code.binary("+")
    code.load("k")
    code.binary("+")
    code.return_value()
    inner_code = code.assemble()

    def write(e: Emitter) -> None:
        e.load_const((100,))
        e.make_function(inner_code, ["n"], defaults=True)
        e.store("f")
        e.load("n")
        e.load_const(1)
        e.binary("+")
        e.store("n")
        e.callee(lambda: e.load("f"))
        e.load_const(10)
        e.call(1)
        e.return_value()

    assert build(write, Bytecode(argcount=1, varnames=["n", "f"], cellvars=["n"]))(5) == 116


def test_sources_load_in_bytecode() -> None:
    class Thing:
        shared = {"k": [1, 2]}

        def __init__(self) -> None:
            self.items = [3, (4, 5)]
            self.table = {"w": "weight"}

    n = 7

    def f(self: Any, x: Any, *rest: Any, **kw: Any) -> Any:
        return n, self, x

    src = FrameSources(f.__code__)
    me = src.local("self")
    sources = [
        me.attr("items").item(1).item(0),
        me.instance_attr("items"),
        me.member("table", "w"),
        me.type(),
        me.type().type_attr("shared").item("k"),
        me.attr("table").dict_key(0),
        me.attr("table").raw_item("w"),
        src.local("x").size(0),
        src.local("x").stride(-1),
        src.local("x").storage_offset(),
        src.local("rest").item(0),
        src.local("kw").item("z"),
        src.closure("n").cell_contents(),
        src.closure("n"),
        src.global_("VERSION"),
        src.global_("json", vars(importlib.import_module("json.tool"))),
        src.builtin("len"),
        src.module("json").attr("dumps"),
        src.const(n, "n"),
        me.type().mro(1),
        src.local("x").call(id, "id({})"),
        src.globals(),
    ]
    import torch

    args = (Thing(), torch.ones(3, 4), (1, 2), {"z": 9})
    e = Emitter.replacing(f.__code__)
    for s in sources:
        e.load_source(s)
    e.build("list", len(sources))
    e.return_value()
    g = types.FunctionType(e.assemble(), globals(), "g", None, f.__closure__)
    got = g(*args, ())
    want = [s.get(FrameValues(f, args)) for s in sources]
    assert all(a is b or a == b for a, b in zip(got, want)), list(zip(sources, got, want))
    with pytest.raises(ValueError, match="cannot load the function object"):
        e.load_source(src.function())


def test_replacing_has_the_argument_slots_and_the_inputs() -> None:
    def f(a: Any, /, b: Any, *c: Any, d: Any = 1, **e: Any) -> Any:
        z = a
        return lambda: (a, z)

    e = Emitter.replacing(f.__code__)
    e.load("a")
    e.load("d")
    e.load_inputs()
    e.load_input(1)
    e.build("tuple", 4)
    e.return_value()
    code = e.assemble()
    assert code.co_varnames[:6] == ("a", "b", "d", "c", "e", INPUTS) and code.co_argcount == 6
    assert types.FunctionType(code, {})(1, 2, 4, (), {}, ("x", "y")) == (1, 4, ("x", "y"), "y")


def test_errors() -> None:
    with pytest.raises(ValueError, match="no instruction"):
        assemble(Bytecode([Instr("NO_SUCH")]))
    with pytest.raises(ValueError, match="not placed"):
        assemble(Bytecode([Instr("JUMP", Label())]))
    with pytest.raises(ValueError, match="no such variable"):
        assemble(Bytecode([Instr("LOAD_FAST", "q"), Instr("RETURN_VALUE")]))
    with pytest.raises(ValueError, match="more than the stack has"):
        assemble(Bytecode([Instr("POP_TOP")]))
    label = Label()
    items = [Instr("LOAD_CONST", 1), label, Instr("LOAD_CONST", 1), Instr("JUMP", label)]
    with pytest.raises(ValueError, match="reached with stacks of"):
        assemble(Bytecode(items))
    assert "LOAD_CONST 1" in Bytecode(items).text()
    assert assembler.stack_size(Bytecode([Instr("LOAD_CONST", 1), Instr("RETURN_VALUE")])) == 1
