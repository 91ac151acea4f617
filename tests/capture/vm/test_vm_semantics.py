"""Python semantics: each function gives what eager gives, in one graph. PYTEST_DONT_REWRITE (asserts in the cases)."""

# ruff: noqa: UP031, UP032, B018, B009, E501
from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
from typing import Any, NamedTuple

import pytest
import torch
from vm_harness import check

CASES: list[Any] = []


def case(*args: Any, **kwargs: Any) -> Any:
    """Register a function with its arguments."""

    def register(f: Any) -> Any:
        CASES.append(pytest.param(f, args, kwargs, id=f.__name__))
        return f

    return register


X = torch.arange(6.0).reshape(2, 3)


# ---- operators and control flow


@case(X, 3)
def arithmetic(x, n):
    return x * n + n**2 - n // 2 + n % 2 - (-n) + (n << 1) + (n & 1) + (n | 4) + (n ^ 1) + ~n


@case(X, X + 1)
def tensor_operators(x, y):
    z = x + y - x * y / (y + 1)
    z = z @ y.T
    return -z, abs(z), z > 0, z == 1, ~(z > 0), (z > 0) & (z < 5), x**2, 2**x, x // 2, x % 2, 1 - x, 1 / y


@case(X)
def in_place_operators(x):
    y = x.clone()
    y += 1
    y *= 2
    y -= x
    z = y
    z /= 3
    return y, z


@case(X, 2)
@case(X, -2)
def branches(x, n):
    if n > 0 and x.shape[0] == 2:
        return x + n
    elif n < 0 or x.dim() > 5:
        return x - n
    return x


@case(X)
def loops(x):
    total = x
    for i in range(5):
        if i == 1:
            continue
        if i == 4:
            break
        total = total + i
    else:
        total = total * 100
    n = 0
    while n < 3:
        n += 1
        total = total * n
    else:
        total = total - 1
    return total


@case(X)
def nested_loops_else(x):
    for i in range(3):
        for j in range(3):
            if j == 2:
                break
            x = x + i * j
        else:
            x = x * 1000
    return x


@case(X, None)
@case(X, 3)
def optional(x, n):
    n = n or 7
    return x + n if n is not None else x


@case(X, 5)
def chained_comparison(x, n):
    return x * 2 if 0 < n <= 5 != 6 else -x


@case(X)
def walrus(x):
    if (n := x.shape[1]) > 2:
        return x + n
    return x


@case(X)
def boolean_values(x):
    a = [] or "default"
    b = 0 and 1
    c = not ()
    d = bool([0]) and bool({}) is False
    return x + len(a) + b + c + d


@case(X, 2)
def ternaries_and_strings(x, n):
    s = f"{n:03d}-{n!r:>4}-{'a' * n}" + "x".join(["p", "q"]) + "%d %s" % (n, "t") + "{} {k}".format(n, k=n)
    return x + len(s), s, s.upper().split("-"), s.startswith("00"), s[1:3], "q" in s


# ---- containers


@case(X)
def lists(x):
    a = [1, 2, 3, x]
    a.append(4)
    a.extend((5, 6))
    a.insert(0, 0)
    b = a.pop()
    a.remove(2)
    a.reverse()
    c = a[1:3] + [b] * 2
    a[0] = 9
    a[1:2] = [7, 7]
    del a[-1]
    return x + b, a, c, len(a), 7 in a[:2], a.index(9), a[:2].count(7), [*a, *c]


@case(X)
def list_sorting(x):
    a = [3, 1, 2]
    b = sorted(a, reverse=True)
    a.sort(key=lambda v: -v)
    return x + a[0], a, b, sorted("bca"), list(reversed(a)), min(a), max(a, key=lambda v: v % 3), sum(a)


@case(X)
def tuples(x):
    t = (1, 2.0, x)
    a, *b = t
    (c, d), e = (1, 2), 3
    *f, g = range(4)
    return x + a, t + (4,), t * 2, b, c + d + e, f, g, t[::-1], t[0] == 1, (1, 2) < (1, 3), hash((1, 2)) == hash((1, 2))


@case(X)
def dicts(x):
    d = {"a": 1, "b": x}
    d["c"] = 3
    d.update(e=5)
    d.update({"f": 6}, g=7)
    d |= {"h": 8}
    e = {**d, "a": 10}
    popped = d.pop("c")
    missing = d.pop("zz", -1)
    del d["e"]
    d.setdefault("q", []).append(1)
    return (x + popped + missing, d, e, list(d), list(d.values()), list(d.items()), "a" in d, d.get("b"), d.get("z", 0),
            len(d), dict(a=1) == {"a": 1}, {"a": 1} | {"b": 2}, dict.fromkeys("ab", 0), dict([("k", 1)]))  # fmt: skip


@case(X)
def dict_iteration(x):
    d = {1: "a", (2, 3): "b", None: "c"}
    out = []
    for k, v in d.items():
        out.append((k, v))
    for k in d:
        out.append(k)
    return x + len(out), out, d.keys() & {1}, sorted(map(str, d.keys())), d.popitem()


@case(X)
def sets(x):
    s = {1, 2, 3}
    s.add(4)
    s.discard(1)
    s.update([7])
    t = {2, 9}
    return (
        x + len(s),
        s | t,
        s & t,
        s - t,
        s ^ t,
        2 in s,
        s.union([1]),
        s.issubset({2, 3, 4, 7}),
        frozenset(t),
        s == {2, 3, 4, 7},
    )


@case(X)
def comprehensions(x):
    a = [i * 2 for i in range(4) if i % 2]
    b = {i: i**2 for i in range(3)}
    c = {i % 2 for i in range(4)}
    d = tuple(i for i in a)
    e = [[i * j for j in range(2)] for i in range(3)]
    n = 3
    f = [i + n for i in range(n)]
    return x + sum(a), a, b, c, d, e, f, sum(i for i in range(4)), any(i > 2 for i in a), all(x.shape)


@case(X)
def comprehension_over_tensors(x):
    rows = [r + i for i, r in enumerate(x)]
    return torch.stack(rows), {i: r.sum() for i, r in enumerate(rows)}


@case(X)
def collections_module(x):
    d = collections.OrderedDict(a=1)
    d["b"] = x
    d.move_to_end("a")
    e = collections.defaultdict(list)
    e["k"].append(1)
    e["l"]
    return x + len(e), d, e, list(d)


@case([1, [2, 3], {"k": X}], X)
def mutates_arguments(a, x):
    a.append(x + 1)
    a[1].extend([4, 5])
    a[2]["new"] = x * 2
    a[2]["k"] = 5
    del a[0]
    return x + len(a)


@case({"a": 1, "b": 2}, X)
def reorders_dict(d, x):
    v = d.pop("a")
    d["c"] = 3
    d["a"] = v
    return x + v


@case([3, 1, 2], X)
def sorts_argument(a, x):
    a.sort()
    a += [x]
    return x * a[0]


@case({1, 2}, X)
def mutates_set(s, x):
    s.add(3)
    s.remove(1)
    return x + len(s)


@case([X], X)
def shared_identity(a, x):
    b = [1]
    c = {"b": b, "also": b}
    b.append(2)
    return x + 1, c, c["b"] is c["also"], a[0] is x, b


def test_identity_of_results_is_kept():
    def f(x):
        b = [x + 1]
        return b, {"b": b}, (b[0], b)

    from vm_harness import Log, compiled

    out = compiled(f, Log())(X)
    assert out[0] is out[1]["b"] is out[2][1] and out[2][0] is out[0][0]


def test_cycles_are_rebuilt():
    def f(x):
        a = [x + 1]
        a.append(a)
        d = {"a": a}
        d["d"] = d
        return a, d

    from vm_harness import Log, compiled

    a, d = compiled(f, Log())(X)
    assert a[1] is a and d["d"] is d and d["a"] is a and torch.equal(a[0], X + 1)


# ---- functions


@case(X)
def closures(x):
    n = 1

    def add(y):
        nonlocal n
        n += 1
        return y + n

    return add(add(x)), n


@case(X, 1, k=5)
def argument_kinds(x, a, /, b=2, *args, k, **kw):
    return x + a + b + k + len(args) + len(kw)


@case(X)
def calls_with_all_argument_kinds(x):
    def f(a, b=2, /, c=3, *args, d=4, **kw):
        return a + b + c + d + sum(args) + sum(kw.values())

    return x + f(1), f(1, 2, 3, 4, 5, d=6, e=7), f(*[1, 2], **{"c": 1, "z": 2}), f(1, c=9)


@case(X)
def lambdas_and_partials(x):
    f = functools.partial(lambda a, b, c=0: a * b + c, 2, c=x)
    g = functools.reduce(operator.add, [1, 2, 3])
    return f(3), g, list(map(lambda v: v + 1, [1, 2])), list(filter(None, [0, 1])), f.args, f.keywords


GETTERS = operator.itemgetter(1), operator.attrgetter("x.y")


@case(X)
def operator_getters(x):
    get, name, call = operator.itemgetter(0, 1), operator.attrgetter("shape"), operator.methodcaller("sum", dim=0)
    return get([x, 2, 3]), name(x), call(x), GETTERS[0]([5, 6]), sorted([(1, 2), (0, 3)], key=operator.itemgetter(0))


@case(X)
def recursion(x):
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return x * fib(7)


def decorate(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return f(*args, **kwargs) + 1

    return wrapper


@decorate
def decorated_helper(x, n=2):
    return x * n


@case(X)
def decorators(x):
    @decorate
    def inner(y):
        return y - 1

    return decorated_helper(x, n=3), inner(x), inner.__name__


@functools.lru_cache
def cached(n):
    return n * 2


@case(X)
def cached_function(x):
    return x + cached(2) + cached(3)


@case(X)
def returns_closure_value(x):
    def outer(n):
        def inner(y):
            return y + n

        return inner

    f, g = outer(1), outer(2)
    return f(x), g(x), f(g(x))


def test_function_made_inside_escapes():
    def f(x):
        n = x.shape[0]

        def g(y, k=3, *, m=1):
            return y + n + k + m

        return x + 1, g

    from vm_harness import Log, compiled

    y, g = compiled(f, Log())(X)
    assert torch.equal(g(X), X + 6) and g.__name__ == "g"


def test_closure_cell_of_the_function_is_written():
    def make():
        n = 0

        def f(x):
            nonlocal n
            n += 1
            return x + n

        return f, lambda: n

    from vm_harness import Log, compiled

    f, n = make()
    g = compiled(f, Log())
    assert torch.equal(g(X), X + 1) and n() == 1 and torch.equal(g(X), X + 2) and n() == 2


COUNTER = 0


def test_global_is_written():
    def f(x):
        global COUNTER
        COUNTER += 1
        return x + COUNTER

    from vm_harness import Log, compiled

    before = COUNTER
    assert torch.equal(compiled(f, Log())(X), X + before + 1) and COUNTER == before + 1


# ---- generators


@case(X)
def generators(x):
    def gen(n):
        got = yield x
        while n:
            got = yield x * n + (got or 0)
            n -= 1
        return "end"

    g = gen(2)
    a = next(g)
    b = g.send(10)
    rest = list(g)
    return a, b, rest, list(gen(0))


@case(X)
def yield_from(x):
    def inner():
        a = yield 1
        yield a
        return 7

    def outer():
        r = yield from inner()
        yield r
        yield from [8, 9]

    g = outer()
    return x + 1, next(g), g.send(5), list(g)


@case(X)
def generator_return_and_close(x):
    log = []

    def gen():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    g = gen()
    next(g)
    g.close()
    h = gen()
    try:
        next(h)
        h.throw(ValueError("v"))
    except ValueError as e:
        log.append(str(e))
    try:
        next(iter([]))
    except StopIteration as e:
        log.append(e.value)
    return x + 1, log


@case(X)
def iterators(x):
    a = list(zip([1, 2], "ab"))
    b = list(enumerate("ab", 1))
    c = list(itertools.chain([1], [2, 3], itertools.chain.from_iterable([[4], [5]])))
    d = list(itertools.islice(itertools.count(5, 2), 3))
    e = list(itertools.product([1, 2], "a"))
    f = list(itertools.accumulate([1, 2, 3]))
    g = list(itertools.repeat(1, 3)) + list(itertools.zip_longest([1], [2, 3], fillvalue=0))
    it = iter([1, 2, 3])
    h = next(it), list(it), next(it, "none")
    i = list(itertools.starmap(pow, [(2, 3)])), list(itertools.takewhile(lambda v: v < 2, [1, 2, 1]))
    j = (
        list(itertools.permutations([1, 2])),
        list(itertools.combinations([1, 2, 3], 2)),
        list(itertools.pairwise([1, 2, 3])),
    )
    return x + 1, a, b, c, d, e, f, g, h, i, j


def test_iterators_leave_with_their_position():
    def f(x):
        it = iter([1, 2, 3])
        next(it)
        r = iter(range(4))
        next(r)
        return x + 1, it, r, zip([1, 2], [3, 4])

    from vm_harness import Log, compiled

    _, a, b, c = compiled(f, Log())(X)
    assert list(a) == [2, 3] and list(b) == [1, 2, 3] and list(c) == [(1, 3), (2, 4)]


# ---- exceptions


@case(X)
def exceptions(x):
    log = []
    try:
        {}["k"]
    except KeyError as e:
        log.append(e.args)
    try:
        [][1]
    except (IndexError, KeyError) as e:
        log.append(str(e))
    else:
        log.append("no")
    finally:
        log.append("finally")
    try:
        raise ValueError("a", 1)
    except Exception as e:
        log.append((type(e).__name__, e.args))
    try:
        int("x")
    except ValueError as e:
        log.append(str(e))
    return x + len(log), log


@case(X)
def exception_control_flow(x):
    def f(n):
        for i in range(5):
            try:
                if i == n:
                    return "returned"
                if i == 3:
                    raise RuntimeError
            except RuntimeError:
                break
            finally:
                log.append(i)
        else:
            return "else"
        return "broke"

    log = []
    return x + 1, f(1), f(9), log


@case(X)
def exception_chaining(x):
    try:
        try:
            1 // 0
        except ZeroDivisionError as e:
            raise ValueError("outer") from e
    except ValueError as e:
        cause = type(e.__cause__).__name__
    try:
        try:
            raise KeyError("a")
        finally:
            x = x + 1
    except KeyError:
        x = x * 2
    try:
        try:
            raise KeyError("b")
        except KeyError:
            raise
    except KeyError as e:
        again = e.args
    return x, cause, again


class MyError(ValueError):
    def __init__(self, code, **kw):
        super().__init__(f"code {code}")
        self.code = code


@case(X)
def own_exception(x):
    try:
        raise MyError(5)
    except ValueError as e:
        return x + e.code, str(e), isinstance(e, MyError)


@case(X)
def assertion(x):
    assert x.shape[0] == 2, "message"
    try:
        assert x.dim() == 7, f"dim {x.dim()}"
    except AssertionError as e:
        return x + 1, str(e)


@case(X)
def attribute_errors(x):
    class_ = Point(1, 2)
    try:
        class_.nope
    except AttributeError as e:
        text = str(e)
    try:
        x.nope
    except AttributeError as e:
        text += str(e)
    return x + hasattr(class_, "x") + hasattr(x, "nope") + hasattr(x, "shape"), text, getattr(class_, "zz", 3)


@case(X)
def type_errors(x):
    out = []
    for f in (lambda: 1 + "a", lambda: len(5), lambda: [1] < 2, lambda: x.shape(), lambda: {}[[]], lambda: "a" - 1):
        try:
            f()
        except TypeError as e:
            out.append(type(e).__name__)
    return x + len(out), out


# ---- context managers


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(None if kind is None else kind.__name__)
        return self.swallow


@case(X)
def context_managers(x):
    log = []
    with Manager(log) as m, Manager(log):
        x = x + len(m.log)
    with Manager(log, swallow=True):
        raise ValueError
    try:
        with Manager(log):
            raise KeyError
    except KeyError:
        log.append("caught")
    return x, log


@contextlib.contextmanager
def managed(log, n):
    log.append(n)
    try:
        yield n * 2
    except ValueError:
        log.append("value error")
    finally:
        log.append("out")


@case(X)
def generator_context_managers(x):
    log = []
    with managed(log, 1) as v:
        x = x + v
    with managed(log, 2):
        raise ValueError
    with contextlib.suppress(KeyError):
        {}["k"]
    with contextlib.nullcontext(3) as v:
        x = x * v
    return x, log


@case(X)
def exit_stack(x):
    log = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(Manager(log))
        stack.callback(log.append, "callback")
        x = x + 1
    return x, log


@case(torch.ones(2, requires_grad=True))
def grad_modes(x):
    a = x * 2
    with torch.no_grad():
        b = x * 3
        with torch.enable_grad():
            c = x * 4
        d = torch.is_grad_enabled()
    with torch.set_grad_enabled(False):
        e = x * 5
    return a, b, c, d, e, x.detach() * 2


@torch.no_grad()
def without_grad(x):
    return x * 2


@case(torch.ones(2, requires_grad=True))
def grad_mode_decorator(x):
    return without_grad(x), x * 3


@case(torch.ones(2, 2))
def autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        a = x @ x
        with torch.autocast("cpu", enabled=False):
            b = x @ x
    return a, b, x @ x, torch.is_autocast_enabled("cpu")


# ---- classes


class Point:
    count = 0
    __slots__ = ()

    def __new__(cls, x, y):
        return super().__new__(Plain)


class Plain:
    scale = 2

    def __init__(self, x=1, y=2):
        self.x, self.y = x, y

    @property
    def total(self):
        return self.x + self.y

    @total.setter
    def total(self, v):
        self.x = v

    @classmethod
    def make(cls, n):
        return cls(n, n)

    @staticmethod
    def double(n):
        return n * 2

    @functools.cached_property
    def lazy(self):
        return self.x * 100

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return self.x + i

    def __call__(self, v):
        return v * self.scale

    def __eq__(self, other):
        return isinstance(other, Plain) and self.x == other.x

    __hash__ = object.__hash__

    def __add__(self, other):
        return Plain(self.x + (other.x if isinstance(other, Plain) else other), self.y)

    __radd__ = __add__

    def __contains__(self, v):
        return v == self.x

    def __bool__(self):
        return True

    def __iter__(self):
        return iter((self.x, self.y))

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return name[4:]
        raise AttributeError(name)


class Point(Plain):  # noqa: F811
    def __init__(self, x, y):
        super().__init__(x, y)
        self.z = 0

    def __repr__(self):
        return f"Point({self.x}, {self.y})"


@case(X)
def plain_objects(x):
    p = Point(1, x)
    q = Point.make(3)
    p.total = 5
    p.extra = q
    del p.extra
    r = p + q + 1
    return (x + p.x, p.y, q.total, Plain.double(2), q.lazy, q.lazy, len(q), q[2], q(3), p == q, p != q, r.x, 3 in q, p.dyn_a,
            list(q), isinstance(p, Plain), type(p) is Point, repr(q), str(q) == f"{q}", (1 + q).x, vars(q))  # fmt: skip


@case(X, Plain(2, 3))
def existing_object(x, p):
    p.x += 1
    p.new = x + p.x
    p.total = p.total + 1
    return x * p.scale + p(2) + p.lazy, p.dyn_q, len(p)


@case(X)
def object_escapes(x):
    p = Point(x + 1, [1])
    p.self = p
    return {"p": p}


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@case(X, Slotted(1))
def slots(x, s):
    t = Slotted(x)
    s.a = 5
    s.b = x
    return x + s.a, t.a, hasattr(t, "b"), t


@dataclasses.dataclass
class Data:
    a: int
    b: Any = None
    c: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.a += 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: Any = 2


@case(X, Data(1))
def dataclass_objects(x, d):
    e = Data(2, b=x)
    e.c.append(d.a)
    f = Frozen(1)
    try:
        f.a = 2
        frozen = False
    except dataclasses.FrozenInstanceError:
        frozen = True
    return (
        x + d.a,
        e,
        e == e,
        Data(1) == Data(1),
        f,
        frozen,
        [k.name for k in dataclasses.fields(e)],
        dataclasses.replace(f, a=9),
    )


class Pair(NamedTuple):
    first: Any
    second: int = 2


Old = collections.namedtuple("Old", "p q")


@case(X, Pair(X, 3))
def named_tuples(x, p):
    q = Pair(x + 1)
    a, b = q
    o = Old(1, q=2)
    return q, p.first + p.second, b, q._replace(second=7), q[0], p._asdict(), o, o.p, isinstance(q, tuple), len(q)


class Color(enum.Enum):
    RED = 1
    BLUE = "b"

    @property
    def label(self):
        return self.name.lower()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@case(X, Color.RED)
def enums(x, c):
    return (x + (1 if c is Color.RED else 0), c.value, c == Color.BLUE, Color("b"), Color["RED"], c.label, Level.LOW + 1,
            {Color.RED: 1}[c], [m.name for m in Color], Level.HIGH > Level.LOW)  # fmt: skip


class MyDict(dict):
    def __setitem__(self, k, v):
        super().__setitem__(k, v)
        self.last = k

    def __missing__(self, k):
        return k


class MyList(list):
    def second(self):
        return self[1]


@case(X, MyDict(a=1), MyList([1, 2]))
def container_subclasses(x, d, l):
    d["b"] = x
    l.append(3)
    e = MyDict()
    e["q"] = 1
    m = MyList([5, 6])
    return x + d["a"] + l.second(), d["zz"], d.last, e, m, len(e), list(m), m.second(), "q" in e, e.get("q")


class Base:
    def who(self):
        return "base"


class Left(Base):
    def who(self):
        return "left " + super().who()


class Right(Base):
    def who(self):
        return "right " + super().who()


class Diamond(Left, Right):
    def who(self):
        return "diamond " + super().who()


@case(X)
def diamond(x):
    d = Diamond()
    f = d.who
    return x + 1, f(), Left.who(d), super(Left, d).who(), [c.__name__ for c in Diamond.__mro__]


class Descriptor:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name, 0) + 1

    def __set__(self, obj, value):
        setattr(obj, self.name, value * 2)


class WithDescriptor:
    d = Descriptor()


@case(X)
def descriptors(x):
    w = WithDescriptor()
    w.d = 5
    return x + w.d, w


class Guarded:
    def __setattr__(self, name, value):
        object.__setattr__(self, "_" + name, value)

    def __delattr__(self, name):
        object.__delattr__(self, "_" + name)

    def __getattribute__(self, name):
        if name == "magic":
            return 42
        return super().__getattribute__(name)


@case(X, Guarded())
def attribute_hooks(x, g):
    g.a = 1
    g.b = x
    del g.b
    return x + g._a + g.magic


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


@case(X, Countdown(3))
def user_iterators(x, c):
    return x + sum(Countdown(3)), list(c), [*Countdown(2)], max(Countdown(4)), 2 in Countdown(5)


# ---- match


@case(X, {"kind": "a", "v": [1, 2, 3]})
@case(X, (1, Plain(4, 5)))
@case(X, "text")
@case(X, 7)
def pattern_matching(x, v):
    match v:
        case {"kind": "a", "v": [first, *rest], **others}:
            return x + first, rest, others
        case (1, Plain(x=px, y=py)) if px < py:
            return x + px, py
        case str() as s:
            return x + len(s)
        case 5 | 6 | 7:
            return x + 100
        case _:
            return x


# ---- numbers, math, builtins


@case(X, 2.5)
def builtin_functions(x, f):
    return (x + int(f), round(f), abs(-3), divmod(7, 2), pow(2, 3), math.sqrt(4), math.pi, max(1, f), min([3, 1]), float("1e3"),
            complex(1, 2), bin(5), chr(65), ord("A"), isinstance(f, (int, float)), issubclass(bool, int), callable(len),
            str(f), repr("a"), list(range(5, 0, -2)), slice(1, 2), sum([1, 2], 3), all([]), any([]), id(x) == id(x), type(f))  # fmt: skip


@case(X, float("nan"), -0.0)
def special_floats(x, nan, zero):
    return x + (nan != nan), math.copysign(1, zero), nan, zero


@case(X)
def dynamic_attributes(x):
    p = Plain()
    for name in ("a", "b"):
        setattr(p, name, len(name))
    delattr(p, "a")
    return x + getattr(p, "b"), vars(p)


@pytest.mark.parametrize(("f", "args", "kwargs"), CASES)
def test_semantics(f, args, kwargs):
    check(f, *args, **kwargs)
