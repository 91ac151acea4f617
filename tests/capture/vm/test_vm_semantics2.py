"""More Python semantics: the rarer corners. PYTEST_DONT_REWRITE (asserts in the cases)."""

# ruff: noqa: UP031, UP032, B018, B009, B010, B023, E501, E731, B012, F821
from __future__ import annotations

import collections
import contextlib
import copy
import functools
import itertools
import logging
import math
import types
import typing
import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from vm_harness import Log, check, compiled

CASES: list[Any] = []
X = torch.arange(6.0).reshape(2, 3)


def case(*args: Any, **kwargs: Any) -> Any:
    def register(f: Any) -> Any:
        CASES.append(pytest.param(f, args, kwargs, id=f.__name__))
        return f

    return register


# ---- functions and scopes


@case(X)
def late_binding(x):
    fs = [lambda v: v + i for i in range(3)]
    gs = [lambda v, i=i: v + i for i in range(3)]
    return [f(x) for f in fs], [g(1) for g in gs]


@case(X)
def defaults_are_shared(x):
    def f(v, acc=[]):  # noqa: B006
        acc.append(v)
        return acc

    f(1)
    return x + len(f(2)), f(3)


@case(X)
def deleted_names(x):
    y = x + 1
    del y
    try:
        return y
    except UnboundLocalError as e:
        return x * 2, "y" in str(e)


@case(X)
def deleted_cells(x):
    n = 1

    def f():
        return n

    a = f()
    del n
    try:
        f()
    except NameError as e:
        return x + a, type(e).__name__


@case(X)
def keyword_only_defaults(x):
    def f(*, a=1, b, **kw):
        return a + b + len(kw)

    try:
        f()
    except TypeError as e:
        text = str(e)
    return x + f(b=2) + f(a=3, b=4, c=5), text


@case(X)
def wrong_calls(x):
    def f(a, b=1):
        return a

    out = []
    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"a": 2}), ((1,), {"c": 2})):
        try:
            f(*args, **kwargs)
        except TypeError as e:
            out.append(str(e).split("() ")[-1])
    return x + len(out), out


@case(X)
def nested_functions(x):
    def a(n):
        def b():
            def c():
                nonlocal n
                n += 1
                return n

            return c() + c()

        return b() + n

    return x + a(1)


@case(X)
def function_attributes(x):
    def f(v):
        "doc"
        f.calls += 1
        return v + f.calls

    f.calls = 0
    f(x)
    return f(x), f.__name__, f.__doc__, f.calls, f.__defaults__, callable(f), f.__code__.co_argcount


@case(X)
def star_expressions(x):
    a, (b, *c), *d = 1, (2, 3, 4), 5, 6
    e = [*c, *range(2), *"ab"]
    f = {**{"p": 1}, "q": 2, **dict(r=3)}
    g = (*c, *d)
    return x + a + b, c, d, e, f, g, {*c, *d}


@case(X)
def walrus_in_comprehension(x):
    out = [y for n in range(5) if (y := n * 2) > 3]
    return x + y, out


@case(X)
def nested_comprehensions(x):
    a = [[(i, j) for j in range(i)] for i in range(3)]
    b = {k: [v for v in vs if v] for k, vs in {"a": [0, 1], "b": []}.items()}
    c = [i for row in [[1, 2], [3]] for i in row if i != 2]
    n = 10
    d = [[n + i for i in range(2)] for n in range(2)]
    return x + n, a, b, c, d


# ---- exceptions


@case(X)
def finally_overrides(x):
    def f():
        try:
            return 1
        finally:
            return 2

    def g():
        for i in range(3):
            try:
                raise ValueError
            except ValueError:
                continue
            finally:
                log.append(i)
        return "done"

    log = []
    return x + f(), g(), log


@case(X)
def nested_handlers(x):
    log = []
    try:
        try:
            raise ValueError("a")
        except KeyError:
            log.append("no")
        finally:
            log.append("inner")
    except ValueError as e:
        try:
            raise TypeError("b") from None
        except TypeError as f:
            log.append((str(e), str(f), f.__cause__, f.__suppress_context__, f.__context__ is e))
    else:
        log.append("no")
    return x + len(log), log


@case(X)
def exception_in_function_is_caught_outside(x):
    def a():
        b()

    def b():
        with contextlib.ExitStack() as s:
            s.callback(log.append, "callback")
            raise LookupError("deep")

    log = []
    try:
        a()
    except (OSError, LookupError) as e:
        log.append(repr(e))
    return x + 1, log


@case(X)
def stop_iteration_value(x):
    def g():
        yield 1
        return 2

    it = g()
    next(it)
    try:
        next(it)
    except StopIteration as e:
        return x + e.value


@case(X)
def generator_raising_stop_iteration(x):
    def g():
        yield 1
        raise StopIteration(5)

    try:
        list(g())
    except RuntimeError as e:
        return x + 1, str(e)


class Chained(Exception):
    def __init__(self, *args, hint="none"):
        super().__init__(*args)
        self.hint = hint

    def __str__(self):
        return f"{self.args} {self.hint}"


@case(X)
def exception_objects(x):
    e = Chained(1, "b", hint="h")
    try:
        raise e
    except Chained as f:
        same_object = f is e
    return x + 1, str(e), e.hint, e.args, same_object, isinstance(e, Exception), [e]


# ---- generators


@case(X)
def generator_in_with(x):
    log = []

    @contextlib.contextmanager
    def manager(n):
        log.append(("in", n))
        try:
            yield n
        finally:
            log.append(("out", n))

    def g():
        with manager(1) as n:
            yield n
            with manager(2) as m:
                yield m

    out = list(g())
    it = g()
    next(it)
    it.close()
    return x + sum(out), log


@case(X)
def lazy_generator_expression(x):
    log = []
    it = (log.append(i) or i for i in range(5))
    first = next(it)
    log.append("between")
    any(v == 2 for v in it)
    return x + first, log, list(it)


@case(X)
def recursive_generator(x):
    def walk(t):
        if isinstance(t, list):
            for v in t:
                yield from walk(v)
        else:
            yield t

    return x + sum(walk([1, [2, [3, 4]], 5]))


@case(X)
def generator_of_tensors(x):
    def rows(t):
        for r in t:
            yield r * 2

    return torch.stack(list(rows(x))), sum(rows(x)), max(float(i) for i in range(3))


@case(X)
def callable_iterator(x):
    values = [1, 2, 0, 3]
    return x + sum(iter(lambda: values.pop(0), 0)), values


# ---- classes


class Meta(type):
    def __call__(cls, *args, **kwargs):
        obj = super().__call__(*args, **kwargs)
        obj.made = True
        return obj

    def __getitem__(cls, k):
        return k * 2

    def __len__(cls):
        return 7


class WithMeta(metaclass=Meta):
    def __init__(self, n):
        self.n = n


@case(X)
def metaclasses(x):
    w = WithMeta(3)
    return x + w.n, w.made, WithMeta[4], len(WithMeta)


class Registry:
    known: dict[str, Any] = {}

    def __init_subclass__(cls, key, **kw):
        super().__init_subclass__(**kw)
        Registry.known[key] = cls

    def __class_getitem__(cls, k):
        return f"{cls.__name__}[{k}]"


class One(Registry, key="one"):
    def f(self, v):
        return v + 1


@case(X)
def class_registry(x):
    return Registry.known["one"]().f(x), One[3], Registry.__subclasses__ is not None


class Shape(ABC):
    @abstractmethod
    def area(self): ...

    @property
    @abstractmethod
    def name(self): ...

    def describe(self):
        return f"{self.name}: {self.area()}"


class Square(Shape):
    def __init__(self, s):
        self.s = s

    def area(self):
        return self.s**2

    @property
    def name(self):
        return "square"


@case(X)
def abstract_classes(x):
    try:
        Shape()
    except TypeError as e:
        text = "abstract" in str(e)
    return x + Square(3).area(), Square(2).describe(), isinstance(Square(1), Shape), text


class Vector:
    def __init__(self, *v):
        self.v = list(v)

    def __add__(self, o):
        return Vector(*(a + b for a, b in zip(self.v, o.v))) if isinstance(o, Vector) else NotImplemented

    def __radd__(self, o):
        return self if o == 0 else NotImplemented

    def __iadd__(self, o):
        self.v = [a + b for a, b in zip(self.v, o.v)]
        return self

    def __mul__(self, k):
        return Vector(*(a * k for a in self.v))

    __rmul__ = __mul__

    def __neg__(self):
        return self * -1

    def __abs__(self):
        return math.sqrt(sum(a * a for a in self.v))

    def __getitem__(self, i):
        return self.v[i]

    def __setitem__(self, i, value):
        self.v[i] = value

    def __delitem__(self, i):
        del self.v[i]

    def __lt__(self, o):
        return abs(self) < abs(o)

    def __eq__(self, o):
        return self.v == o.v

    __hash__ = None

    def __matmul__(self, o):
        return sum(a * b for a, b in zip(self.v, o.v))

    def __index__(self):
        return len(self.v)

    def __format__(self, spec):
        return f"<{spec or 'plain'}>"

    def __bool__(self):
        return any(self.v)

    def __invert__(self):
        return Vector(*self.v[::-1])

    def __call__(self, x):
        return x * self.v[0]

    def __round__(self, n=0):
        return n


@case(X)
def operator_overloading(x):
    a, b = Vector(3, 4), Vector(1, 2)
    c = a + b
    d = c
    d += a
    e = sum([a, b])
    a[0] = 9
    del a[1]
    return (a(x), c is d, c.v, e.v, (2 * b).v, (-b).v, abs(Vector(3, 4)), a < b, max([Vector(1), Vector(5)]).v, b == Vector(1, 2),
            b != Vector(1), Vector(1, 2) @ b, [10, 20, 30][b], f"{b:q} {b}", bool(Vector(0)), (~b).v, list(b), 2 in b)  # fmt: skip


@case(X)
def unsupported_operands(x):
    try:
        Vector(1) + 3
    except TypeError as e:
        text = str(e)
    try:
        hash(Vector(1))
    except TypeError as e:
        text += str(e)
    return x + 1, text


@case(X)
def tensor_with_object_operand(x):
    class_ = Scale(3)
    return x * class_, class_ * x, x + class_


class Scale:
    def __init__(self, k):
        self.k = k

    def __mul__(self, o):
        return o * self.k

    __rmul__ = __mul__

    def __radd__(self, o):
        return o + self.k


class Lazy:
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        value = len(name)
        setattr(self, name, value)
        return value


@case(X, Lazy())
def lazy_attributes(x, o):
    return x + o.abc + o.abc, hasattr(o, "_x"), getattr(o, "_y", 1), vars(o)


class Counter:
    total = 0

    def __init__(self):
        self.n = 0

    def step(self, by=1):
        self.n += by
        return self

    @property
    def value(self):
        return self.n

    @value.setter
    def value(self, v):
        self.n = v * 10

    @value.deleter
    def value(self):
        self.n = -1


@case(X, Counter())
def properties_and_chaining(x, c):
    c.step().step(2)
    a = c.value
    c.value = 4
    b = c.value
    del c.value
    return x + a + b + c.n, Counter().step(5).n


@case(X, Counter())
def bound_methods(x, c):
    f = c.step
    f()
    g = Counter.step
    g(c, by=3)
    h = functools.partial(c.step, by=10)
    h()
    fs = {"a": c.step, "b": f}
    fs["a"]()
    return x + c.n, f.__self__ is c, f.__name__, f == c.step


@case(X)
def simple_namespace(x):
    n = types.SimpleNamespace(a=1, b=x)
    n.c = n.a + 1
    return n.b + n.c, n.a


class TypedDictLike(typing.TypedDict, total=False):
    a: int


@case(X)
def typing_things(x):
    d: TypedDictLike = {"a": 1}
    y = typing.cast(torch.Tensor, x)
    n: int | None = 3
    return y + d["a"] + n, isinstance(3, int | str), isinstance(None, type(None))


# ---- containers


@case(X)
def slices_of_lists(x):
    a = list(range(10))
    a[2:5] = ["a"]
    a[::2] = [0] * len(a[::2])
    del a[1:3]
    b = a[-3:][::-1]
    s = slice(1, 4, 2)
    return x + len(a), a, b, a[s], s.start, s.indices(3), (1, 2, 3)[s]


@case(X)
def dict_views(x):
    d = {"a": 1, "b": 2}
    k, v, i = d.keys(), d.values(), d.items()
    d["c"] = 3
    return (
        x + len(k),
        list(k),
        list(v),
        list(i),
        "c" in k,
        3 in v,
        ("a", 1) in i,
        k | {"z"},
        k - {"a"},
        list(reversed(d)),
    )


@case(X)
def dict_changed_while_iterating(x):
    d = {1: 1}
    try:
        for k in d:
            d[k + 1] = 1
    except RuntimeError as e:
        return x + 1, str(e)


@case(X)
def counters_and_chainmaps(x):
    d = collections.defaultdict(lambda: 5)
    d["a"] += 1
    n = collections.defaultdict(lambda: collections.defaultdict(int))
    n["a"]["b"] += 2
    return x + d["a"], dict(d), n["a"]["b"], len(n)


@case(X)
def deques(x):
    d = collections.deque([1, 2, 3], maxlen=3)
    d.append(4)
    d.appendleft(0)
    a = d.pop()
    b = d.popleft()
    return x + a + b, list(d), len(d), d[0], 3 in d, d


@case(X, collections.deque([1, 2]), collections.OrderedDict(a=1), collections.defaultdict(int, {"k": 2}))
def existing_collections(x, q, o, d):
    q.append(3)
    o["b"] = x
    d["new"] += 1
    return x + sum(q) + d["k"], list(o)


@case(X)
def tuple_keys_and_identity_keys(x):
    d = {(1, "a"): 1, (1, ("b",)): 2, torch.float32: 3, int: 4, None: 5, 1.5: 6, True: 7}
    m = {x: "tensor", nn.ReLU: "class"}
    return x + d[(1, "a")] + d[(1, ("b",))], d[torch.float32], d[int], d[1], m[x], m[nn.ReLU], x in m


@case(X)
def copies(x):
    a = [1, [2], {"k": [3]}]
    b, c, d = copy.copy(a), copy.deepcopy(a), a[:]
    a[1].append(9)
    o = copy.copy(Counter().step(3))
    p = copy.deepcopy(types.SimpleNamespace) is types.SimpleNamespace
    return x + 1, b, c, d, o.n, p


@case(X)
def sorting(x):
    a = [(2, "b"), (1, "z"), (2, "a")]
    b = sorted(a, key=lambda t: t[0])
    a.sort(reverse=True)
    return (
        x + a[0][0],
        a,
        b,
        sorted({"b": 1, "a": 2}),
        sorted([3, 1], key=None),
        max("ab", "abc", key=len),
        min([], default=4),
    )


@case(X)
def bytes_and_numbers(x):
    return (x + 0b101, b"ab" + b"c", b"abc"[1], "é".encode(), (5).bit_length(), (1.5).is_integer(), 7 // -2, -7 % 3, 2**-1, 1_000,
            int("ff", 16), (3).__add__(4), complex(1, 2).imag, 0.1 + 0.2, round(2.675, 2), float("inf") > 1, "%5.2f|%-4s|%x" % (3.14159, "ab", 255))  # fmt: skip


@case(X)
def string_methods(x):
    s = "  Hello, World  "
    return (x + len(s), s.strip().lower().replace("l", "L"), s.split(","), "a-b".partition("-"), "abc".find("c"), "x".join("abc"),
            "abc".startswith(("a", "b")), "ab\ncd".splitlines(), "a{0}{b}".format(1, b=2), "z".zfill(3), "abc"[::-1], "b" in "abc",
            "Ab".swapcase(), str(1) + repr("q"), f"{1.5:.2f} {x.shape[0]:>3} {'n'!r} {{}}", "tEsT".title(), "a,b".rsplit(",", 1))  # fmt: skip


@case(X)
def zip_and_enumerate(x):
    out = []
    for i, (a, b) in enumerate(zip([1, 2, 3], "abc"), start=10):
        out.append((i, a, b))
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError as e:
        text = str(e)
    pairs = dict(zip("ab", itertools.count()))
    return x + len(out), out, text, pairs, list(map(lambda a, b: a * b, [1, 2], [3, 4])), [*zip()]


# ---- torch in Python


@case(X)
def shapes_and_facts(x):
    b, c = x.shape
    y = x.view(c, -1)
    return (y, x.size(), x.size(-1), x.shape[-1], x.dim(), x.ndim, x.numel(), x.dtype, x.device.type, x.is_floating_point(), len(x),
            x.stride(), x.is_contiguous(), x.t().is_contiguous(), y.shape == (3, 2), torch.Size([1, 2]).numel(), x.requires_grad,
            x.new_zeros(2).shape, torch.is_tensor(x), x.element_size(), torch.finfo(x.dtype).eps, x.type(), x.is_cuda)  # fmt: skip


@case(X)
def tensor_indexing(x):
    y = x.clone()
    y[0, 1] = 9
    y[:, 0] = x[:, 1]
    y[y > 4] = 0
    y[..., -1] += 1
    i = torch.tensor([1, 0])
    return (
        y,
        x[i],
        x[None, :, 1:],
        x[0][1],
        x[:, i],
        x[x > 1].shape == (4,) if False else 1,
        x[(0, 1)],
        x[-1:, ::2],
        x[True].shape,
    )


@case(X)
def tensor_attributes(x):
    return x.T, x.mT, x.data + 1, x.real, x.grad, x.is_leaf


@case(X)
def tensor_unpacking(x):
    a, b = x
    (c, d, e), _ = x.unbind(0)
    v, i = x.max(dim=1)
    m = x.max(1)
    q, r = torch.linalg.qr(x)
    return a + b, c + d + e, v, i, m.values, m.indices, q @ r, x.split(1), torch.chunk(x, 2, dim=1), [*x]


@case(X)
def multiple_results_in_containers(x):
    parts = dict(zip("ab", x.chunk(2)))
    parts["c"] = [p.sum() for p in parts.values()]
    return parts


@case(X)
def creation(x):
    a = torch.zeros(2, 3) + torch.ones_like(x) * torch.full((3,), 2.0)
    b = torch.arange(3, dtype=x.dtype, device=x.device)
    c = torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(2)
    d = torch.eye(3)[torch.tensor([0, 2])]
    return a, b + x, c, d, torch.linspace(0, 1, 3), torch.cat([x, x]), torch.stack((x, x), -1), torch.empty(0).shape


@case(X)
def functional(x):
    f = nn.functional
    y = f.linear(x, torch.ones(4, 3), bias=None)
    return (
        f.softmax(y, dim=-1),
        f.gelu(x, approximate="tanh"),
        f.one_hot(torch.tensor([0, 2]), 3),
        f.pad(x, (1, 1)),
        f.normalize(x, dim=1),
    )


@case(X)
def in_place_and_out(x):
    y = torch.empty(2, 3)
    torch.add(x, 1, out=y)
    z = y
    z.mul_(2).add_(1)
    return y, z is y, torch.relu_(y - 5)


@case(X)
def einsum_and_friends(x):
    return (
        torch.einsum("ij,kj->ik", x, x),
        torch.meshgrid(x[0], x[1], indexing="ij"),
        torch.where(x > 1, x, 0.0),
        torch.broadcast_tensors(x, x[:1]),
    )


@case(X)
def modules_made_inside(x):
    torch.manual_seed
    act = nn.ReLU()
    seq = nn.Sequential(nn.Flatten(), nn.Identity(), act)
    return (
        seq(x - 2),
        nn.CrossEntropyLoss()(x, torch.tensor([0, 2])),
        act.training,
        len(seq),
        isinstance(seq[0], nn.Flatten),
    )


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None


@case(torch.ones(3, requires_grad=True))
def custom_autograd_function(x):
    return Double.apply(x, 2).sum() + 1


@case(torch.ones(3, requires_grad=True))
def checkpointing(x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda v, k: v * k, x, 3, use_reentrant=False) + 1


@case(X)
def numpy_numbers(x):
    n = np.prod([2, 3]) + np.sqrt(4.0) + np.float64(1)
    return x * n, int(np.prod(x.shape)), np.pi, float(np.float32(0.5))


@case(X)
def math_on_shapes(x):
    n = math.prod(x.shape)
    return x.reshape(n), math.ceil(n / 4), math.log2(n), math.isclose(0.1 + 0.2, 0.3), math.floor(-0.5), math.inf


@case(X)
def imports_inside(x):
    from math import sqrt as root

    import torch.nn.functional as F
    from torch import nn as layers

    return F.relu(x) * root(4), layers.Linear.__name__


@case(torch.ones(2, 2))
def autocast_variants(x):
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16, enabled=True):
        a = x @ x
    with torch.amp.autocast("cpu"):
        b = x @ x
    return a, b, x @ x


@case(torch.ones(2, requires_grad=True))
def inference_mode(x):
    with torch.inference_mode():
        y = (x * 2).sum()
        grad = torch.is_grad_enabled()
    return y + 1, grad, x * 3


class Stack:
    def __enter__(self):
        return None

    def __exit__(self, *exc):
        raise KeyError("from exit")


@case(X)
def exit_that_raises(x):
    try:
        with Stack():
            x = x + 1
            raise ValueError
    except KeyError as e:
        return x, e.args, type(e.__context__).__name__


@case(X)
def warnings_are_given(x):
    with warnings.catch_warnings() if False else contextlib.nullcontext():
        warnings.warn("careful", stacklevel=1)
    logging.getLogger("vm_test").debug("quiet %s", 1)
    return x + 1


def test_warnings_and_logs_come_out(caplog):
    def f(x):
        warnings.warn("careful", UserWarning, stacklevel=1)
        logging.getLogger("vm_test").warning("loud %s", x.shape[0])
        return x + 1

    with pytest.warns(UserWarning, match="careful"):
        compiled(f, Log(), fullgraph=True)(X)
    assert "loud 2" in caplog.text


def test_disabled_functions_break():
    @torch.compiler.disable
    def g(x):
        return x * 2

    def f(x):
        return g(x + 1) - 1

    log = check(f, X, breaks=None)
    assert len(log.graphs) == 2 and "compiler.disable" in log.breaks[0]


def test_endless_loop_is_left_to_python():
    def spin(n):
        while n < 10**9:
            n += 1
        return n

    from braze.capture import Skip, capture_frame

    def f(x):
        return x + spin(0)

    with pytest.raises(Exception, match="too many steps"):
        capture_frame(f.__code__, f, (X,), compile_graph=lambda *a: None, fullgraph=True)
    assert Skip


@pytest.mark.parametrize(("f", "args", "kwargs"), CASES)
def test_semantics(f, args, kwargs):
    check(f, *args, **kwargs)
