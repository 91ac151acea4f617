"""What the snippets of the case files see: classes and functions of the program. PYTEST_DONT_REWRITE"""

# ruff: noqa
from __future__ import annotations

import abc
import array
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import logging
import math
import operator
import os
import random
import re
import string
import sys
import time
import types
import typing
import warnings
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Generic, NamedTuple, Optional, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SCALE = 3
TABLE = {"one": 1, "two": 2}
STACK: list[Any] = []
T = TypeVar("T")
logger = logging.getLogger("cases")


class Box:
    kind = "box"
    count = 0

    def __init__(self, v, log=None):
        self.v = v
        self.log = [] if log is None else log

    @property
    def twice(self):
        return self.v * 2

    @twice.setter
    def twice(self, value):
        self.v = value / 2

    @staticmethod
    def static(a, b=2):
        return a * b

    @classmethod
    def make(cls, v):
        return cls(v)

    def method(self, k=1):
        self.log.append(k)
        return self.v + k

    def __len__(self):
        return len(self.log)

    def __repr__(self):
        return f"Box({len(self.log)})"


class Sub(Box):
    kind = "sub"

    def __init__(self, v, extra=5):
        super().__init__(v)
        self.extra = extra

    def method(self, k=1):
        return super().method(k) + self.extra

    @classmethod
    def make(cls, v):
        out = super().make(v)
        out.extra = 7
        return out


class Vec:
    """Operators."""

    def __init__(self, *parts):
        self.parts = list(parts)

    def __add__(self, o):
        return Vec(*[a + b for a, b in zip(self.parts, o.parts)]) if isinstance(o, Vec) else NotImplemented

    def __radd__(self, o):
        return Vec(*[o + a for a in self.parts])

    def __mul__(self, k):
        return Vec(*[a * k for a in self.parts])

    __rmul__ = __mul__

    def __imul__(self, k):
        self.parts = [a * k for a in self.parts]
        return self

    def __neg__(self):
        return Vec(*[-a for a in self.parts])

    def __getitem__(self, i):
        return self.parts[i]

    def __setitem__(self, i, v):
        self.parts[i] = v

    def __delitem__(self, i):
        del self.parts[i]

    def __len__(self):
        return len(self.parts)

    def __iter__(self):
        return iter(self.parts)

    def __contains__(self, v):
        return any(v is p for p in self.parts)

    def __call__(self, k=0):
        return self.parts[k]

    def __bool__(self):
        return len(self.parts) > 1

    def __matmul__(self, o):
        return sum(a * b for a, b in zip(self.parts, o.parts))

    def __index__(self):
        return len(self.parts)

    def __enter__(self):
        self.parts.append(1)
        return self

    def __exit__(self, kind, value, tb):
        self.parts.append(2 if kind is None else 3)
        return kind is KeyError

    def __reversed__(self):
        return iter(self.parts[::-1])

    def __invert__(self):
        return "inverted"

    def __pow__(self, k, mod=None):
        return k if mod is None else mod

    def __lshift__(self, k):
        self.parts.append(k)
        return self

    def __format__(self, spec):
        return f"<{spec}>"

    def __str__(self):
        return "vec"

    def __abs__(self):
        return len(self.parts)

    def __floordiv__(self, k):
        return ("//", k)

    def __rsub__(self, k):
        return ("rsub", k)


@functools.total_ordering
class Ranked:
    def __init__(self, r):
        self.r = r

    def __eq__(self, o):
        return isinstance(o, Ranked) and self.r == o.r

    def __lt__(self, o):
        return self.r < o.r

    def __hash__(self):
        return hash(self.r)


class Keyed:
    """Equal and hashed by value."""

    def __init__(self, k):
        self.k = k

    def __eq__(self, o):
        return isinstance(o, Keyed) and self.k == o.k

    def __hash__(self):
        return hash(("keyed", self.k))


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


class Lazy:
    def __init__(self):
        self.real = 4

    def __getattr__(self, name):
        if name.startswith("auto_"):
            return len(name)
        raise AttributeError(name)


class Strict:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, (value, "set"))

    def __delattr__(self, name):
        object.__setattr__(self, name, "deleted")


class Watching:
    def __getattribute__(self, name):
        if name == "secret":
            return 42
        return object.__getattribute__(self, name)


class Typed:
    """A data descriptor."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, cls=None):
        return self if obj is None else getattr(obj, self.name, 0)

    def __set__(self, obj, value):
        if not isinstance(value, int):
            raise TypeError("int wanted")
        setattr(obj, self.name, value + 1)


class Once:
    """A descriptor without __set__."""

    def __init__(self, f):
        self.f = f

    def __get__(self, obj, cls=None):
        value = self.f(obj)
        obj.__dict__[self.f.__name__] = value
        return value


class Described:
    size = Typed()

    @Once
    def heavy(self):
        return len(self.__dict__) + 10

    @functools.cached_property
    def cached(self):
        return [1, 2]


class Meta(type):
    def __call__(cls, *args):
        obj = super().__call__(*args)
        obj.made_by_meta = True
        return obj

    def __getitem__(cls, k):
        return (cls.__name__, k)

    def __contains__(cls, k):
        return k == "in"

    def __len__(cls):
        return 9

    @property
    def tag(cls):
        return "tag of " + cls.__name__


class WithMeta(metaclass=Meta):
    def __init__(self, a=1):
        self.a = a


class Registry:
    known: list[str] = []

    def __init_subclass__(cls, **kwargs):
        cls.known.append(cls.__name__)


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def pretty(self):
        return self.name.lower()

    def next(self):
        return Color.GREEN if self is Color.RED else Color.RED


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Flags(enum.Flag):
    A = 1
    B = 2


class Mode(str, enum.Enum):
    TRAIN = "train"
    EVAL = "eval"


class Point(NamedTuple):
    x: Any
    y: Any = 0

    def norm1(self):
        return abs(self.x) + abs(self.y)


Pair = namedtuple("Pair", "first second", defaults=(9,))


@dataclass
class Config:
    width: int
    depth: int = 2
    names: list[str] = field(default_factory=list)
    extra: Any = None

    def __post_init__(self):
        self.total = self.width * self.depth


@dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: str = "b"


@dataclass(slots=True)
class Tight:
    a: Any
    b: int = 3


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    def describe(self):
        return f"area {self.area()}"


class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side**2


class A:
    def who(self):
        return ["A"]


class B(A):
    def who(self):
        return ["B", *super().who()]


class C(A):
    def who(self):
        return ["C", *super().who()]


class D(B, C):
    def who(self):
        return ["D", *super().who()]


class Stack(list):
    def push(self, v):
        self.append(v)
        return self

    def top(self):
        return self[-1]


class Defaults(dict):
    def __missing__(self, k):
        self[k] = len(self)
        return self[k]


class Attr(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Meters(float):
    def feet(self):
        return self * 3.28


class Name(str):
    def shout(self):
        return self.upper() + "!"


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Indexed:
    def __getitem__(self, i):
        if i > 3:
            raise IndexError
        return i * i


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append("exit" if kind is None else kind.__name__)
        return self.swallow


class CustomError(Exception):
    def __init__(self, code, *rest):
        super().__init__(code, *rest)
        self.code = code


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])
        self.table = nn.ModuleDict({"a": nn.Identity(), "b": nn.Tanh()})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))])
        self.register_buffer("offset", torch.full((3,), 0.5))
        self.steps = 0

    def forward(self, x, *, loud=False):
        self.steps += 1
        if loud:
            print("forward", self.steps)
        for b in self.blocks:
            x = b(x)
        return self.lin(x) + self.offset


def loud(v, k=0):
    print("loud", k)
    return v + k


def fails(v, error=ValueError):
    print("failing")
    raise error("failed")


def gen(n):
    for i in range(n):
        yield i


def echo(start):
    got = start
    while got is not None:
        got = yield got


def guarded(log):
    try:
        yield 1
        yield 2
    except ValueError as e:
        log.append(("caught", e.args))
        yield 3
    finally:
        log.append("closed")


def chained(n):
    r = yield from returning(n)
    yield ("returned", r)


def returning(n):
    for i in range(n):
        yield i
    return n * 10


@contextlib.contextmanager
def scope(log, tag="s"):
    log.append(("+", tag))
    try:
        yield tag
    finally:
        log.append(("-", tag))


def kw(a, b=2, *args, c, d=4, **rest):
    return a, b, args, c, d, rest


def posonly(a, b=5, /, c=6):
    return a, b, c


def deco(tag):
    def wrap(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            return (tag, f(*args, **kwargs))

        return inner

    return wrap


@deco("d")
def decorated(x, k=1):
    return x * k


@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


@functools.singledispatch
def dispatch(v):
    return "object"


@dispatch.register
def _(v: int):
    return "int"


@torch.no_grad()
def without_grad(x):
    return x * 2, torch.is_grad_enabled()


def counter():
    n = 0

    def up(k=1):
        nonlocal n
        n += k
        return n

    return up
