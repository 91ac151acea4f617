"""Guards: each kind by table, and the native program against the Python meaning of the guards."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import operator
import sys
import types
import weakref
from typing import Any

import pytest
import torch

from braze import _C
from braze.capture import native
from braze.capture.guards import (
    CodeIs,
    Custom,
    DictHas,
    DictKeys,
    Distinct,
    EqualsConst,
    GlobalState,
    GuardSet,
    HasNoAttr,
    IdIs,
    InstanceLacks,
    IntRange,
    Length,
    NotNone,
    Relation,
    Same,
    TensorMatch,
    TensorSpec,
    Truth,
    TypeIs,
)
from braze.capture.program import compile_guards
from braze.capture.source import FrameSources, FrameValues
from braze.ir import symbol, symbol_of

NAN = float("nan")


def takes(x: Any, y: Any = None, *args: Any, **kwargs: Any) -> None: ...


SRC = FrameSources(takes.__code__)
X, Y = SRC.local("x"), SRC.local("y")


def holds(guards: GuardSet, program: Any, *args: Any) -> bool:
    """Whether the guards hold, by both of their forms, which must agree. The native one runs in full, then fast."""
    args = (*args, *[None] * (2 - len(args)), (), {})
    text = guards.explain_failure(FrameValues(takes, args))
    for _ in range(3):
        got = program.check(takes, args)
        assert (got is not None) is (text is None), (text, guards.describe(), program.stats())
    return text is None


class Point:
    __slots__ = ("x", "y")

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


class Plain:
    shared = 5

    def __init__(self, **kw: Any) -> None:
        self.__dict__.update(kw)

    def method(self) -> None: ...

    @property
    def prop(self) -> int:
        return 7


class Sub(dict):
    def __getitem__(self, key: Any) -> Any:
        return "overridden"

    def __len__(self) -> int:
        return 99


def closure(n: Any) -> Any:
    def inner(a: int, b: int = 3, *, c: int = 4) -> Any:
        return n

    return inner


T, DT = torch.ones(2, 3), torch.device("cpu")
KINDS: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("TypeIs", TypeIs(X, int), [1, 10**30], [True, 1.0, None, "a"]),
    ("TypeIs bool", TypeIs(X, bool), [True, False], [1, 0]),
    ("IdIs", IdIs.of(X, takes), [takes], [None, 1, closure(1)]),
    ("IdIs strong", IdIs.of(X, KEY := (1, [2])), [KEY], [(1, [2]), None]),
    ("NotNone", NotNone(X), [0, False, ""], [None]),
    ("int", EqualsConst(X, 1), [1], [True, 1.0, 2, "1", None]),
    ("big int", EqualsConst(X, 10**40), [10**40], [10**40 + 1]),
    ("True", EqualsConst(X, True), [True], [1, False, None]),
    ("None", EqualsConst(X, None), [None], [0, False]),
    ("float", EqualsConst(X, 0.0), [0.0], [-0.0, 0, NAN]),
    ("nan", EqualsConst(X, NAN), [NAN, float("nan")], [0.0, 1.0]),
    ("complex", EqualsConst(X, complex(0.0, 1)), [1j], [complex(-0.0, 1), 1.0]),
    ("str", EqualsConst(X, "ab"), ["ab", "".join(["a", "b"])], ["abc", b"ab", None]),
    ("bytes", EqualsConst(X, b"ab"), [b"ab"], ["ab"]),
    ("tuple", EqualsConst(X, (1, (2.0, "a"))), [(1, (2.0, "a"))], [(True, (2.0, "a")), (1, (2, "a")), (1,), [1]]),
    ("frozenset", EqualsConst(X, frozenset({1, "a"})), [frozenset({"a", 1})], [frozenset({True, "a"}), {1, "a"}]),
    ("slice", EqualsConst(X, slice(1, None, 2)), [slice(1, None, 2)], [slice(1, None), None]),
    ("range", EqualsConst(X, range(3)), [range(3)], [range(4), [0, 1, 2]]),
    ("device", EqualsConst(X, DT), [torch.device("cpu")], [torch.device("meta"), "cpu"]),
    ("set", EqualsConst(X.call(frozenset, "set {}"), frozenset({1, "a"})), [{1, "a"}, frozenset({1, "a"})], [{1}, 5]),
    ("Truth", Truth(X, False), [0, [], {}, None, "", set(), Sub()], [1, [0], {0: 0}, "a", {1}]),
    ("IntRange", IntRange(X, 2, 5), [2, 5], [1, 6, True, 3.0, 10**30, None]),
    ("Length", Length(X, 2), [[1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, "ab", collections.deque("ab")], [[], (1,), {}, 5]),
    ("Length of a subclass", Length(X, 0), [Sub(), {}], [Sub(k=1), torch.nn.ModuleList([torch.nn.Linear(1, 1)])]),
    ("Length in Python", Length(X, 1), [torch.nn.ModuleList([torch.nn.Linear(1, 1)])], [torch.nn.ModuleList(), 5]),
    ("DictKeys", DictKeys(X, ("a", 1)), [{"a": 0, 1: 0}], [{1: 0, "a": 0}, {"a": 0}, {"a": 0, 1.0: 0}, {}, 5]),
    ("DictHas", DictHas(X, "a", True), [{"a": 1}], [{}, {"b": 1}]),
    ("DictHas not", DictHas(X, "a", False), [{}, {"b": 1}], [{"a": 1}]),
    ("InstanceLacks", InstanceLacks(X, "shared"), [Plain(), Plain(a=1), Point(1, 2), 5], [Plain(shared=1)]),
    ("HasNoAttr", HasNoAttr(X, "q"), [Plain(), Point(1, 2), 5], [Plain(q=1)]),
    ("HasNoAttr class", HasNoAttr(X, "shared"), [Point(1, 2)], [Plain(), Plain(shared=2)]),
    ("CodeIs", CodeIs.of(X, closure(1).__code__), [closure(1), closure(2)], [takes, 5, None]),
    ("Custom", Custom(X, lambda v: v > 3, "more than 3"), [4, 5.0], [3, None, "a"]),
    ("attr", EqualsConst(X.attr("a"), 1), [Plain(a=1), types.SimpleNamespace(a=1)], [Plain(a=2), Plain(), 5]),
    ("class attr", EqualsConst(X.attr("shared"), 5), [Plain()], [Plain(shared=4), 5]),
    ("slot", EqualsConst(X.attr("x"), 1), [Point(1, 2)], [Point(2, 1), Point.__new__(Point), 5]),
    ("property", EqualsConst(X.attr("prop"), 7), [Plain()], [5]),
    ("method", IdIs.of(X.attr("method").attr("__func__"), Plain.method), [Plain()], [5, Plain(method=Point.__init__)]),
    ("instance attr", EqualsConst(X.instance_attr("a"), 1), [Plain(a=1)], [Plain(), Plain(a=2), 5]),
    ("type attr", IdIs.of(X.type().type_attr("method"), Plain.method), [Plain()], [Point(1, 2), 5]),
    ("mro", IdIs.of(X.type().mro(0), Plain), [Plain()], [5]),
    ("list item", EqualsConst(X.item(-1), 3), [[1, 3], (3,)], [[3, 1], [], ()]),
    ("dict item", EqualsConst(X.item("k"), 3), [{"k": 3}, collections.OrderedDict(k=3)], [{"k": 4}, {}]),
    ("tuple key", EqualsConst(X.item((1, "a")), 3), [{(1, "a"): 3}], [{}]),
    ("raw item", EqualsConst(X.raw_item("k"), 3), [Sub(k=3), {"k": 3}], [Sub(), Sub(k=4)]),
    ("raw length", Length(X.attr("__dict__"), 1), [Plain(a=1)], [Plain()]),
    ("dict key", EqualsConst(X.dict_key(1), "b"), [{"a": 1, "b": 2}], [{"b": 1, "a": 2}, {"a": 1}]),
    ("default", EqualsConst(X.default(0), 3), [closure(1)], [takes, 5]),
    ("kwdefault", EqualsConst(X.kwdefault("c"), 4), [closure(1)], [takes, 5]),
    ("closure", EqualsConst(X.closure(0).cell_contents(), 9), [closure(9)], [closure(8), takes]),
    ("partial", EqualsConst(X.attr("args").item(0), 9), [functools.partial(takes, 9)], [functools.partial(takes), 5]),
    ("call", EqualsConst(X.call(operator.neg, "-{}"), -3), [3], [4, "a"]),
    ("size", EqualsConst(X.size(-1), 3), [T, torch.ones(3)], [torch.ones(4), torch.tensor(1.0), 5]),
    ("stride", EqualsConst(X.stride(0), 3), [T], [torch.ones(3, 2).t()]),
    ("offset", EqualsConst(X.storage_offset(), 0), [T], [T[1]]),
    ("global", TypeIs(SRC.global_("torch"), types.ModuleType), [0], []),
    ("global scope", TypeIs(SRC.global_("nn", vars(torch)), types.ModuleType), [0], []),
    ("no global", TypeIs(SRC.global_("nothing_here"), int), [], [0]),
    ("builtin", IdIs.of(SRC.builtin("len"), len), [0], []),
    ("module", IdIs.of(SRC.module("torch").attr("nn").attr("Linear"), torch.nn.Linear), [0], []),
    ("function", EqualsConst(SRC.function().default(0), None), [0], []),
    ("const", EqualsConst(SRC.const([1]).item(0), 1), [0], []),
]  # fmt: skip


@pytest.mark.parametrize("guard, good, bad", [pytest.param(*k[1:], id=k[0]) for k in KINDS])
def test_kind(guard: Any, good: list[Any], bad: list[Any]) -> None:
    guards = GuardSet([guard])
    program = compile_guards(guards)
    for _ in range(2):
        for value in good:
            assert holds(guards, program, value), value
        for value in bad:
            assert not holds(guards, program, value), value
        for value in [v for pair in zip(good, bad) for v in pair]:
            assert holds(guards, program, value) is any(value is v for v in good)
    assert len(guards.describe()) == 1


TENSORS: dict[str, Any] = {
    "plain": lambda: torch.ones(2, 3),
    "size": lambda: torch.ones(2, 4),
    "rank": lambda: torch.ones(2, 3, 1),
    "scalar": lambda: torch.tensor(1.0),
    "empty": lambda: torch.ones(0, 3),
    "transposed": lambda: torch.ones(3, 2).t(),
    "double": lambda: torch.ones(2, 3, dtype=torch.float64),
    "bool": lambda: torch.ones(2, 3, dtype=torch.bool),
    "grad": lambda: torch.ones(2, 3, requires_grad=True),
    "not leaf": lambda: torch.ones(2, 3, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 3)),
    "buffer": lambda: torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
    "meta": lambda: torch.ones(2, 3, device="meta"),
    "sparse": lambda: torch.ones(2, 3).to_sparse(),
    "conj": lambda: torch.ones(2, 3, dtype=torch.complex64).conj(),
    "complex": lambda: torch.ones(2, 3, dtype=torch.complex64),
    "six": lambda: torch.ones(1, 2, 3, 1, 2, 3),
    "six permuted": lambda: torch.ones(1, 2, 3, 3, 2, 1).permute(0, 1, 2, 5, 4, 3),
    "none": lambda: None,
}


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2, 3)


TENSORS["inference"] = _inference


@pytest.mark.parametrize("name", [n for n in TENSORS if n != "none"])
def test_tensor_specs(name: str) -> None:
    t = TENSORS[name]()
    guards = GuardSet([TensorMatch(X, TensorSpec.of(t))])
    program = compile_guards(guards, [X])
    for other, make in TENSORS.items():
        value = make()
        equal = other == name or {name, other} <= {"grad", "not leaf"}
        assert holds(guards, program, value) is equal, other
        if equal:
            assert program.check(takes, (value, None, (), {}))[0] is value
    assert not program.stats()["careful"]


def test_tensor_specs_without_native_layout() -> None:
    try:
        native.unbind()
        native._bound = False
        for name in ("plain", "parameter", "sparse", "six"):
            guards = GuardSet(
                [TensorMatch(X, TensorSpec.of(TENSORS[name]())), EqualsConst(X.size(0), TENSORS[name]().size(0))]
            )
            program = compile_guards(guards)
            for other, make in TENSORS.items():
                assert holds(guards, program, make()) is (other == name)
            assert program.stats()["careful"]
    finally:
        native.unbind()
        assert native.bind()


def test_dynamic_sizes_and_leaves() -> None:
    guards = GuardSet([TensorMatch(X, TensorSpec.of(torch.ones(4, 6, 8), dynamic=[1]))])
    program = compile_guards(guards)
    assert str(guards.describe()[0]) == "x: float32[4, *, 8] cpu"
    for n in (1, 6, 7, 100):
        assert holds(guards, program, torch.ones(4, n, 8))
    assert not holds(guards, program, torch.ones(5, 6, 8))
    assert not holds(guards, program, torch.ones(4, 6, 9))
    assert not holds(guards, program, torch.ones(4, 8, 6).transpose(1, 2))
    leaf = torch.ones(2, requires_grad=True)
    guards = GuardSet([TensorMatch(X, TensorSpec.of(leaf, check_leaf=True))])
    program = compile_guards(guards)
    assert holds(guards, program, leaf) and not holds(guards, program, leaf * 1)


def test_relations() -> None:
    a, b = symbol("a", 1, 1000), symbol("b", 1, 1000)
    env = ((symbol_of(a), X.size(0)), (symbol_of(b), Y))
    cases = [
        ("==", a, b * 2),
        ("!=", a % 8, 0),
        ("<", a + 3, b * a),
        ("<=", a // 3 - b, -1),
        ("==", (a * a - b) // 7 % 5, b % 3),
    ]
    for op, lhs, rhs in cases:
        guards = GuardSet([Relation(op, lhs, rhs, env)])
        program = compile_guards(guards)
        seen = {holds(guards, program, torch.empty(i), j) for i in range(1, 18) for j in range(1, 9)}
        assert seen == {True, False}, (op, lhs, rhs)
    assert not holds(guards, program, torch.empty(2), "no int")
    assert not holds(guards, program, 5, 5)


def test_joint_guards() -> None:
    guards = GuardSet([Same(X, Y)])
    program = compile_guards(guards)
    assert holds(guards, program, T, T) and not holds(guards, program, T, torch.ones(2, 3))
    guards = GuardSet([Distinct((X, Y, SRC.global_("T")))])
    program = compile_guards(guards)
    a, b = torch.ones(1), torch.ones(1)
    assert holds(guards, program, a, b) and not holds(guards, program, a, a)
    assert not holds(guards, program, T, a) and not holds(guards, program, a, T)
    assert guards.explain_failure(FrameValues(takes, (a, a, (), {}))) == "x is y: expected two objects, got one"


def _set(setter: Any, value: Any, back: Any) -> Any:
    @contextlib.contextmanager
    def changed() -> Any:
        setter(value)
        try:
            yield
        finally:
            setter(back)

    return changed()


class _Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


STATES: dict[str, Any] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "autocast dtype": lambda: _set(lambda d: torch.set_autocast_dtype("cpu", d), torch.float16, torch.bfloat16),
    "autocast cuda dtype": lambda: _set(lambda d: torch.set_autocast_dtype("cuda", d), torch.bfloat16, torch.float16),
    "autocast cache": lambda: _set(torch.set_autocast_cache_enabled, False, True),
    "default dtype": lambda: _set(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": lambda: _set(torch.use_deterministic_algorithms, True, False),
    "threads": lambda: _set(torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads()),
    "function mode": _Mode,
    "torch function": torch._C.DisableTorchFunction,
}


@pytest.mark.parametrize("name", STATES)
def test_global_state(name: str) -> None:
    guards = GuardSet([GlobalState.now()])
    program = compile_guards(guards)
    assert holds(guards, program, 0)
    with STATES[name]():
        assert not holds(guards, program, 0)
        inside = GuardSet([GlobalState.now()])
        other = compile_guards(inside)
        assert holds(inside, other, 0)
    assert holds(guards, program, 0)
    assert not holds(inside, other, 0)
    assert _C.torch_state() is not None


def test_repeats_and_implied_types() -> None:
    guards = GuardSet([TypeIs(X, int), EqualsConst(X, 1), EqualsConst(X, 1), EqualsConst(Y, True), TypeIs(X, int)])
    assert guards.describe() == ["x: 1", "y: True"]
    guards = GuardSet([TypeIs(X, torch.Tensor), TensorMatch(X, TensorSpec.of(T)), TensorMatch(X, TensorSpec.of(T))])
    assert len(guards) == 1
    assert len(GuardSet([IdIs.of(X, takes), IdIs.of(X, takes), Length(Y, 2), Length(Y, 2)])) == 2


def test_explanations() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    weight = X.member("_modules", "0").member("_parameters", "weight")
    guards = GuardSet([TensorMatch(weight, TensorSpec.of(model[0].weight)), EqualsConst(Y, 1.5)])

    def explain(*args: Any) -> str | None:
        return guards.explain_failure(FrameValues(takes, (*args, (), {})))

    assert explain(model, 1.5) is None
    assert explain(model, 2) == "y: expected 1.5, got 2"
    assert explain(torch.nn.Sequential(torch.nn.Linear(2, 4)), 1.5) == "x[0].weight: size(0): expected 3, got 4"
    assert explain(5, 1.5).startswith("x[0].weight: cannot be read any more (AttributeError")
    model[0].weight.requires_grad_(False)
    assert explain(model, 1.5) == "x[0].weight: requires_grad: expected True, got False"
    model.double()
    assert explain(model, 1.5) == "x[0].weight: dtype: expected torch.float32, got torch.float64"


def test_dead_objects_never_pass() -> None:
    value = Plain()
    guards = GuardSet([IdIs.of(X, value)])
    program = compile_guards(guards)
    assert holds(guards, program, value)
    ref = weakref.ref(value)
    del value
    gc.collect()
    assert ref() is None
    for _ in range(50):
        assert not holds(guards, program, Plain())
    assert not holds(guards, program, None)


def test_custom_guards_may_do_anything() -> None:
    """A guard that changes what is being guarded: no crash, and the inputs are those of before."""
    items = [object()]

    def predicate(v: Any) -> bool:
        items[:] = [object()]
        gc.collect()
        return True

    program = compile_guards(GuardSet([Custom(X, predicate, "odd")]), [X.item(0)])
    for _ in range(4):
        before = items[0]
        assert program.check(takes, (items, None, (), {}))[0] is before

    def raising(v: Any) -> bool:
        raise RuntimeError

    program = compile_guards(GuardSet([Custom(X, raising, "odd")]))
    assert program.check(takes, (1, None, (), {})) is None


def test_reads_and_references() -> None:
    class O2:
        pass

    a, b = O2(), O2()
    a.b = b
    program = compile_guards(
        GuardSet([TypeIs(X, O2)]), [X.instance_attr("b"), X, X.attr("b"), X.type(), X.attr("prop2")][:4]
    )
    args = (a, None, (), {})
    before = sys.getrefcount(a), sys.getrefcount(b), sys.getrefcount(O2)
    for _ in range(300):
        got = program.check(takes, args)
        assert got[0] is b and got[1] is a and got[2] is b and got[3] is O2
    for _ in range(300):
        assert program.check(takes, (b, None, (), {})) is None
        assert program.check(takes, (5, None, (), {})) is None
    del got
    after = sys.getrefcount(a), sys.getrefcount(b), sys.getrefcount(O2)
    assert all(abs(x - y) <= 2 for x, y in zip(after, before)), (before, after)


def test_malformed_programs_are_refused() -> None:
    ops = _C.OPS
    for code in (
        [(999, 0, 0, None, 0, 0, 0)],
        [(ops["TYPE_IS"], -1, -1, int, 0, 0, 0)],
        [(ops["LOCAL"], -1, 7, None, 0, 0, 0)],
        [5],
    ):
        with pytest.raises((ValueError, TypeError)):
            _C.Program(code, 1, ())
    with pytest.raises(ValueError):
        _C.Program([], 1, (3,))
    with pytest.raises(ValueError):
        compile_guards(GuardSet([TypeIs(FrameSources(takes.__code__).local(1), int)])).check(takes, (1,))
