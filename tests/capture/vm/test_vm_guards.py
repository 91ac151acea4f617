"""Guards: compiled code never runs for arguments for which it would be wrong.

Each function is captured with its first arguments; for every other set of arguments, either a guard fails, or the
compiled code does what eager does. ``reused`` cases say for which the guards must still hold.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn
from vm_harness import same

from braze.capture import Captured, capture_frame
from braze.capture.program import compile_guards
from braze.capture.source import FrameValues
from braze.ir import Graph, interpret

X = torch.arange(6.0).reshape(2, 3)
CASES: list[Any] = []


def case(*sets: tuple[Any, ...], reused: tuple[int, ...] = ()) -> Any:
    """Register a function with sets of arguments; ``reused``: sets that must not need another capture."""

    def register(f: Any) -> Any:
        CASES.append(pytest.param(f, sets, reused, id=f.__name__))
        return f

    return register


class Config:
    def __init__(self, **kw: Any) -> None:
        self.__dict__.update(kw)


class Sub(Config):
    pass


class Kind(enum.Enum):
    A = 1
    B = 2


@dataclasses.dataclass
class Options:
    scale: float = 2.0
    names: tuple[str, ...] = ("a",)


@case(
    (X, 1),
    (X, 2),
    (X, 1.0),
    (X, True),
    (X + 1, 1),
    (X.double(), 1),
    (X[:1], 1),
    (X.t(), 1),
    (X.clone().requires_grad_(), 1),
    reused=(4,),
)
def number(x, n):
    return x * n


@case((X, 3), (X, 0), (X, None), (X, ""), (X, "a"), (X, []))
def truth(x, n):
    return x + 1 if n else x - 1


@case((X, None), (X, 1), (X, X))
def none(x, n):
    return x + 1 if n is None else x - 1


@case((X, 5), (X, 7), (X, None), reused=(1,))
def not_none(x, n):
    return x + 1 if n is not None else x - 1


@case((X, 5), (X, "a"), (X, X), (X, [1]), reused=(1, 2, 3))
def unused_argument(x, n):
    return x + 1


@case((X, 5), (X, "a"), (X, [1]), reused=(1, 2))
def returned_argument(x, n):
    return x + 1, n


@case((X, [1, 2]), (X, [1, 3]), (X, [1, 2, 3]), (X, (1, 2)), (X, [1, 2]), reused=(4,))
def sum_of_list(x, a):
    return x + sum(a)


@case((X, [1, 2]), (X, [1, 5]), (X, [1]), (X, [2, 2]), reused=(1,))
def first_of_list(x, a):
    return x + a[0], len(a)


@case((X, [X + 2, X + 1]), (X, [X + 5, X + 0]), (X, [X, X.double()]), (X, [X]), reused=(1,))
def list_of_tensors(x, a):
    return x + a[0] * a[1]


@case((X, {"a": 1}), (X, {"a": 2}), (X, {"a": 1, "b": 3}), (X, {"b": 3}), (X, {}), reused=(2,))
def dict_item(x, d):
    return x + d["a"] if "a" in d else x


@case((X, {"a": 1, "b": 2}), (X, {"b": 2, "a": 1}), (X, {"a": 1}), (X, {"a": 1, "b": 2, "c": 3}))
def dict_order(x, d):
    return x + len(d), list(d)


@case((X, {"a": 1}), (X, {"a": 1, "z": 5}), (X, {"z": 4}))
def dict_get_missing(x, d):
    return x + d.get("z", 0)


@case((X, {1, 2}), (X, {1, 3}), (X, {1, 2, 3}), (X, frozenset({1, 2})))
def sets(x, s):
    return x + sum(s)


@case((X, Config(a=1)), (X, Config(a=2)), (X, Config(a=1, b=3)), (X, Config(b=1)), (X, Sub(a=1)))
def attributes(x, c):
    return x + c.a + getattr(c, "b", 0) + isinstance(c, Sub)


@case((X, Config(t=X + 1)), (X, Config(t=X + 5)), (X, Config(t=X.double())), (X, Config(t=3)), reused=(1,))
def tensor_attribute(x, c):
    return x + c.t


@case((X, Kind.A), (X, Kind.B))
def enumeration(x, k):
    return x + k.value if k is Kind.A else x


@case((X, Options()), (X, Options(3.0)), (X, Options(names=("b",))), reused=(2,))
def dataclass(x, o):
    return x * o.scale


@case((X, torch.relu), (X, torch.sigmoid), (X, lambda x: x + 1), (X, nn.ReLU()))
def function_argument(x, f):
    return f(x)


def adder(n):
    return lambda x: x + n


@case((X, adder(1)), (X, adder(1)), (X, adder(2)), (X, adder(X)), reused=(1,))
def closure_argument(x, f):
    return f(x)


def with_default(n):
    def f(x, k=n, *, m=n):
        return x + k * m

    return f


@case((X, with_default(1)), (X, with_default(1)), (X, with_default(3)), reused=(1,))
def defaults_of_an_argument(x, f):
    return f(x)


@case((X, torch.float64), (X, torch.float16), (X, torch.device("cpu")))
def dtype_argument(x, d):
    return x.to(d)


@case((X, slice(0, 1)), (X, slice(1, 2)), (X, 0), (X, (0, 1)), (X, X > 2), (X, X > 4), reused=())
def index_argument(x, i):
    return x[i] + 1


@case((X, 1.5), (X, -0.0), (X, 0.0), (X, float("nan")), (X, float("inf")))
def float_argument(x, f):
    return x * 0 + f, f > 1


@case((X, -0.0), (X, 0.0))
def negative_zero(x, f):
    return torch.atan2(x * 0, x * 0 + f - 1), f


@case((X, (1, (2, "a"))), (X, (1, (2, "b"))), (X, (1, (2, "a", 3))), (X, (1.0, (2, "a"))))
def nested_tuple(x, t):
    return x + t[0] + t[1][0], t[1][-1] == "a"


@case(([X, X],), ([X, X.clone()],), ([X.clone(), X],))
def same_tensor_twice(a):
    return a[0] + 1 if a[0] is a[1] else a[0] - 1


@case((X, X.clone()), (X, X))
def aliased_argument_written(x, y):
    x.add_(1)
    return x * y


def shared(a):
    return [a, a]


@case((X, shared([1])), (X, [[1], [1]]))
def aliased_lists(x, a):
    a[0].append(2)
    return x + len(a[1]), a


@case((X, [[1], [1]]), (X, shared([1])))
def distinct_lists(x, a):
    a[0].append(2)
    return x + len(a[1]), a


@case(
    (X, nn.Linear(3, 3)),
    (X, nn.Linear(3, 3, bias=False)),
    (X, nn.Linear(3, 4)),
    (X, nn.ReLU()),
    (X, nn.Linear(3, 3)),
    reused=(4,),
)
def modules(x, m):
    return m(x)


@case((X, nn.Dropout(0.5).eval()), (X, nn.Dropout(0.5).train()), (X, nn.Dropout(0.1).eval()))
def module_mode(x, m):
    return m(x)


@case(
    (X, nn.Sequential(nn.Linear(3, 3))), (X, nn.Sequential(nn.Linear(3, 3), nn.ReLU())), (X, nn.Sequential(nn.ReLU()))
)
def module_children(x, m):
    return m(x)


def frozen(m):
    for p in m.parameters():
        p.requires_grad_(False)
    return m


@case((X, nn.Linear(3, 3)), (X, frozen(nn.Linear(3, 3))))
def frozen_parameters(x, m):
    return m(x)


@case((X, int), (X, float), (X, list))
def class_argument(x, c):
    return x + (1 if c is int else 2), isinstance(1, c)


def count(x, c):
    c.n += 1
    c.total = c.total * 2 + c.n
    return x + 1


def collect(x, c):
    c.log.append(x.shape[0])
    c.log += [x]
    c.last["k"] = 1
    return x + 1


def presence(x, c):
    return x + 1 if hasattr(c, "flag") else x - 1


CASES += [
    pytest.param(
        count, [(X, Config(n=0, total=1)), (X, Config(n=5, total=9)), (X, Config(n=1.5, total=1))], (1,), id="count"
    ),
    pytest.param(
        collect,
        [(X, Config(log=[], last={})), (X, Config(log=[1, 2], last={"k": 3})), (X, Config(log=(), last={}))],
        (1,),
        id="collect",
    ),
    pytest.param(presence, [(X, Config(flag=1)), (X, Config()), (X, Config(flag=2))], (2,), id="presence"),
]


def run(f: FunctionType, out: Captured, args: tuple[Any, ...]) -> Any:
    """The compiled version's result, or None where a guard fails; both guard evaluators must agree."""
    frame = FrameValues(f, args)
    reads = compile_guards(out.guards, out.sources).check(f, args)
    assert (reads is None) == (out.guards.explain_failure(frame) is not None)
    if reads is None:
        return None
    new = FunctionType(out.code, f.__globals__, f.__name__, None, f.__closure__)
    return (new(*args, reads),)


@pytest.mark.parametrize(("f", "sets", "reused"), CASES)
def test_guards(f, sets, reused):
    def compile_graph(graph: Graph, types: Any, inputs: Any) -> Any:
        return lambda *tensors: interpret(graph, tensors)

    sets = [copy.deepcopy(s) if f is not closure_argument else s for s in sets]
    out = capture_frame(f.__code__, f, copy.deepcopy(sets[0]), compile_graph=compile_graph)
    assert isinstance(out, Captured), out
    held = []
    for i, args in enumerate(sets):
        eager_args, our_args = copy.deepcopy(args), copy.deepcopy(args)
        torch.manual_seed(0)
        try:
            want: Any = f(*eager_args)
        except Exception as e:
            want = e
        torch.manual_seed(0)
        got = run(f, out, our_args)
        if got is None:
            assert i > 0 and i not in reused, (i, out.guards.explain_failure(FrameValues(f, args)))
        else:
            held.append(i)
            assert same(got[0], want), (i, got, want)
            assert same(our_args, eager_args)
    assert 0 in held


# ---- facts outside of the arguments

SCALE = 2.0
TABLE = {"k": 1}


def uses_globals(x):
    return x * SCALE + TABLE["k"]


def helper(x):
    return x + 1


def uses_helper(x):
    return helper(x) * 2


class Model(nn.Module):
    factor = 2

    def forward(self, x):
        return self.body(x) * self.factor

    def body(self, x):
        return x + 1


def uses_model(m, x):
    return m(x)


def changed(f: Any, args: tuple[Any, ...], change: Any) -> None:
    """After the change the guards fail, or compiled code still does what eager does."""
    out = capture_frame(f.__code__, f, args, compile_graph=lambda g, t, i: lambda *ts: interpret(g, ts))
    assert isinstance(out, Captured)
    assert same(run(f, out, args)[0], f(*args))
    before = f(*args)
    change()
    after = f(*args)
    got = run(f, out, args)
    assert not same(before, after), "the change must matter"
    assert got is None, "a guard must fail"


def test_globals(monkeypatch):
    changed(uses_globals, (X,), lambda: monkeypatch.setitem(globals(), "SCALE", 3.0))
    changed(uses_globals, (X,), lambda: monkeypatch.setitem(TABLE, "k", 7))


def test_global_functions(monkeypatch):
    changed(uses_helper, (X,), lambda: monkeypatch.setitem(globals(), "helper", lambda x: x - 1))


@pytest.mark.parametrize(("owner", "name", "value"), [
    ("class", "body", lambda self, x: x - 5),
    ("class", "factor", 5),
    ("class", "forward", lambda self, x: x),
    ("object", "factor", 5),
    ("object", "forward", lambda x: x),
])  # fmt: skip
def test_patched_methods_and_attributes(monkeypatch, owner, name, value):
    m = Model()
    changed(uses_model, (m, X), lambda: monkeypatch.setattr(Model if owner == "class" else m, name, value))


def test_shadowed_builtin(monkeypatch):
    def f(x):
        return x + len([1, 2])

    changed(f, (X,), lambda: monkeypatch.setitem(globals(), "len", lambda v: 100))


def test_closure_variables():
    n = 1

    def f(x):
        return x + n

    def change():
        nonlocal n
        n = 5

    changed(f, (X,), change)


def test_grad_mode():
    def f(x):
        return x * 2, torch.is_grad_enabled()

    out = capture_frame(f.__code__, f, (X,), compile_graph=lambda g, t, i: lambda *ts: interpret(g, ts))
    assert isinstance(out, Captured)
    with torch.no_grad():
        assert run(f, out, (X,)) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert run(f, out, (X,)) is None
