"""Programs, and what may change under them between calls: each kind of thing that a trace may depend on.

A case gives (function, arguments, changes). The module is loaded anew for each case, so that it may change its own
globals and classes; what a case changes elsewhere (torch, math, builtins) its last changes put back.
"""

# ruff: noqa: B006, B024, E731, F841, E741, N802, N806, ANN, D, B006, B023, B904, F821, PLW0603, UP
from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import functools
import math
import operator
import sys
import types

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def X():
    return torch.arange(6.0).reshape(2, 3) + 1


CASES = []


def case(f):
    CASES.append(f)
    return f


G = 2.0
GL = [1, 2, 3]
GD = {"a": 1, "b": 2}
GN = {"l": {"m": [1, {"z": 3}]}}


class E(enum.Enum):
    A = 1
    B = 2


def helper(x, k=1, *, s=2):
    return x * k + s


class Meta(type):
    @property
    def metaprop(cls):
        return cls.val

    def __len__(cls):
        return cls.val

    def __contains__(cls, k):
        return k < cls.val


class WithMeta(metaclass=Meta):
    val = 2


class Slots:
    __slots__ = ("a", "b", "__dict__")


class Desc:
    def __init__(self, v):
        self.v = v

    def __get__(self, o, t=None):
        return self.v


class Cfg:
    cls_attr = 1
    lst = [1]
    d = {"q": 1}
    desc = Desc(3)

    def __init__(self):
        self.a = 1
        self.n = None
        self.name = "n"
        self.sub = types.SimpleNamespace(z=1, deep=types.SimpleNamespace(w=[1, 2]))

    @property
    def prop(self):
        return self.a * 2

    @classmethod
    def cm(cls):
        return cls.cls_attr

    @staticmethod
    def sm(v):
        return v + 1

    def meth(self, v=1):
        return v + self.a

    def __len__(self):
        return 2

    def __bool__(self):
        return True

    def __getitem__(self, i):
        return i * 2

    def __call__(self, x):
        return x + 1

    def __eq__(self, o):
        return self is o

    __hash__ = object.__hash__

    def __add__(self, o):
        return 5

    def __iter__(self):
        return iter([1, 2])

    def __contains__(self, k):
        return k == 1

    def __enter__(self):
        return 3

    def __exit__(self, *a):
        return None

    def __index__(self):
        return 1

    def __float__(self):
        return 2.0


class M(nn.Module):
    k = 1

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
        self.seq = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.ml = nn.ModuleList([nn.Linear(3, 3)])
        self.md = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})
        self.pl = nn.ParameterList([nn.Parameter(torch.ones(3))])
        self.register_buffer("buf", torch.ones(3))
        self.opt = None
        self.act = F.relu
        self.plain = torch.ones(3)
        self.drop = nn.Dropout(0.5)
        self.cfg = Cfg()
        self.tup = (1, 2)
        self.fnlist = [torch.sin]

    def forward(self, x):
        x = self.l(x)
        x = self.seq(x)
        for m in self.ml:
            x = m(x)
        for n, m in self.md.items():
            x = m(x) + len(n)
        for p in self.pl:
            x = x * p
        x = x + self.buf * self.k + self.plain
        x = self.act(x)
        if self.opt is not None:
            x = x + self.opt
        if self.training:
            x = x + 1
        for f in self.fnlist:
            x = f(x)
        return x * self.cfg.a


def setg(**k):
    globals().update(k)


def A(o, n, v):
    return lambda: setattr(o, n, v)


@case
def module_tree():
    torch.manual_seed(0)
    m = M()
    n = functools.partial(nn.Linear, 3, 3)

    def f(m, x):
        return m(x)

    return f, (m, X()), [
        A(m, "l", n()), lambda: m.seq.append(nn.Tanh()), lambda: m.seq.__setitem__(0, n()), lambda: m.ml.append(n()),
        lambda: m.ml.insert(0, n()), lambda: m.md.update({"ccc": nn.Tanh()}), lambda: m.md.pop("b"),
        lambda: m.pl.append(nn.Parameter(torch.ones(3) * 2)), A(m, "buf", torch.ones(3) * 5),
        A(m, "plain", torch.ones(3) * 7), A(m, "act", torch.tanh), A(m, "act", nn.GELU()), A(m, "opt", torch.ones(3)),
        A(m, "opt", None), A(m, "k", 4), A(M, "k", 6), lambda: delattr(m, "k"), lambda: m.eval(), lambda: m.train(),
        lambda: m.fnlist.append(torch.cos), lambda: m.fnlist.__setitem__(0, torch.exp), A(m.cfg, "a", 3),
        A(m, "cfg", Cfg()), lambda: m.l.weight.data.fill_(1.0),
        lambda: setattr(m.l, "weight", nn.Parameter(torch.ones(3, 3) * 0.5)), lambda: setattr(m.l, "bias", None),
        lambda: m.l.register_forward_hook(lambda mod, i, o: o + 1),
        lambda: m.l.register_forward_pre_hook(lambda mod, i: (i[0] * 2,)),
        lambda: m.register_forward_hook(lambda mod, i, o: o * 3),
        lambda: nn.utils.parametrize.register_parametrization(m.ml[0], "weight", nn.Tanh()),
        lambda: nn.utils.parametrizations.weight_norm(m.ml[1]), lambda: m.register_module("l", nn.Identity()),
        lambda: m.__dict__.__setitem__("forward", lambda x: x * 2), lambda: m.__dict__.pop("forward"),
        lambda: setattr(M, "forward", lambda self, x: x + self.buf),
        lambda: m.register_buffer("buf", torch.ones(3) * 9), lambda: m._buffers.__setitem__("buf", torch.zeros(3)),
        lambda: m.double(),
    ]  # fmt: skip


@case
def global_values():
    def f(x):
        return x * G + sum(GL) + GD["a"] + GD.get("zz", 0) + GN["l"]["m"][1]["z"] + len(GN["l"]["m"])

    return f, (X(),), [
        lambda: setg(G=3.0), lambda: setg(G=3), lambda: setg(G=True), lambda: setg(G=np.float32(2.5)),
        lambda: setg(G=2.0), lambda: GL.append(4), lambda: GL.__setitem__(0, 9), lambda: GD.__setitem__("a", 5),
        lambda: GD.__setitem__("zz", 5), lambda: GD.pop("zz"), lambda: GN["l"]["m"].append(3),
        lambda: GN["l"]["m"][1].__setitem__("z", 8), lambda: GN.__setitem__("l", {"m": [1, {"z": 1}]}),
        lambda: setg(GL=(1, 2)), lambda: setg(GD=collections.OrderedDict(a=3)),
        lambda: setg(GD=collections.defaultdict(int, a=3, zz=2)),
    ]  # fmt: skip


@case
def dict_order():
    d = {"a": 1, "b": 2}

    def f(x, d):
        for i, (_k, v) in enumerate(d.items()):
            x = x * (i + 1) + v
        return x, list(d), next(iter(d.values()))

    return f, (X(), d), [
        lambda: d.update(c=3), lambda: d.pop("a"), lambda: d.__setitem__("a", 1),
        lambda: (d.pop("b"), d.__setitem__("b", 2)), lambda: (d.clear(), d.update({1: 2})),
        lambda: (d.clear(), d.update({True: 2})), lambda: (d.clear(), d.update({1.0: 2})),
    ]  # fmt: skip


@case
def dict_presence():
    d = {"a": 1}
    y = X()

    def f(x, d):
        r = x + 1
        if "z" in d:
            r = r * 2
        v = d.get("t")
        if v is not None:
            r = r + 1
        return r, d.get("fn"), d.get("cls"), d.get("t") is None

    return f, (X(), d), [
        lambda: d.__setitem__("z", 1), lambda: d.__setitem__("t", y), lambda: d.__setitem__("fn", helper),
        lambda: d.__setitem__("cls", Cfg), lambda: d.pop("fn"), lambda: d.pop("cls"), lambda: d.pop("t"),
        lambda: d.pop("z"), lambda: d.__setitem__("t", None),
    ]  # fmt: skip


@case
def attr_presence():
    o = Cfg()

    def f(x, o):
        r = x + 1
        if hasattr(o, "flag"):
            r = r * 2
        r = r + getattr(o, "opt", 5)
        try:
            r = r + o.maybe
        except AttributeError:
            r = r - 100
        t = getattr(o, "ten", None)
        return (
            r,
            t is None,
            hasattr(o, "fnn"),
            hasattr(Cfg, "late"),
            hasattr(o, "late2"),
            hasattr(sys.modules[__name__], "LATE"),
        )

    return f, (X(), o), [
        A(o, "flag", 1), A(o, "opt", 2), A(o, "maybe", 3), lambda: delattr(o, "flag"), lambda: delattr(o, "opt"),
        lambda: delattr(o, "maybe"), A(Cfg, "flag", 1), A(Cfg, "maybe", 7), A(o, "ten", X()),
        lambda: delattr(o, "ten"), A(o, "fnn", helper), lambda: delattr(o, "fnn"), A(Cfg, "late", 1),
        A(Cfg, "late2", 1), lambda: delattr(Cfg, "flag"), lambda: delattr(Cfg, "maybe"), lambda: setg(LATE=1),
        lambda: delattr(Cfg, "late"), lambda: setattr(Cfg, "__getattr__", lambda s, n: 9),
        lambda: setattr(Cfg, "__getattr__", lambda s, n: 11), lambda: delattr(Cfg, "__getattr__"),
    ]  # fmt: skip


@case
def class_things():
    o = Cfg()

    def f(x, o):
        return x + o.prop + o.cm() + o.sm(1) + o.meth() + o.cls_attr + o.lst[0] + o.d["q"] + o.desc + Cfg.cls_attr

    return f, (X(), o), [
        A(o, "a", 5), A(Cfg, "prop", property(lambda s: 100)), A(Cfg, "cm", classmethod(lambda c: 50)),
        A(Cfg, "sm", staticmethod(lambda v: v + 9)), A(Cfg, "meth", lambda self, v=1: v * 1000),
        A(Cfg, "cls_attr", 8), lambda: Cfg.lst.__setitem__(0, 4), lambda: Cfg.d.__setitem__("q", 6),
        A(Desc, "__get__", lambda s, o, t=None: 77), A(Cfg, "desc", 5), A(o, "cls_attr", 3),
        A(o, "meth", lambda v=1: 0), A(o, "__class__", type("Cfg2", (Cfg,), {"cls_attr": 44, "desc": 1})),
    ]  # fmt: skip


@case
def specials():
    o = Cfg()

    def f(x, o):
        with o as v:
            r = x + v
        return r + len(o) + o[2] + (o + 1) + sum(o) + (1 in o) + int(bool(o)) + float(o) + [10, 20, 30][o] + o(x)

    return f, (X(), o), [
        A(Cfg, "__len__", lambda s: 7), A(Cfg, "__getitem__", lambda s, i: 70), A(Cfg, "__add__", lambda s, o: 700),
        A(Cfg, "__iter__", lambda s: iter([5])), A(Cfg, "__contains__", lambda s, k: False),
        A(Cfg, "__bool__", lambda s: False), A(Cfg, "__float__", lambda s: 9.0), A(Cfg, "__index__", lambda s: 2),
        A(Cfg, "__call__", lambda s, x: x * 9), A(Cfg, "__enter__", lambda s: 30),
        A(Cfg, "__exit__", lambda s, *a: True),
    ]  # fmt: skip


@case
def functions():
    def inner(x, k=1):
        return x * k

    h = {"f": helper}

    def mk(n):
        def g(x):
            return x + n

        return g

    g1 = mk(1)

    def f(x, h, g1):
        return h["f"](x) + helper(x) + inner(x) + g1(x)

    def setcell(v):
        g1.__closure__[0].cell_contents = v

    return f, (X(), h, g1), [
        lambda: setattr(helper, "__defaults__", (5,)), lambda: setattr(helper, "__kwdefaults__", {"s": 9}),
        lambda: setattr(inner, "__defaults__", (7,)), lambda: setcell(5), lambda: setcell(torch.ones(3)),
        lambda: setcell(1.5), lambda: setattr(helper, "__code__", (lambda x, k=1, *, s=2: x - k - s).__code__),
        lambda: h.__setitem__("f", lambda x: x), lambda: setattr(inner, "__code__", (lambda x, k=1: x - k).__code__),
    ]  # fmt: skip


@case
def defaults_kinds():
    t = torch.ones(3)

    def f(x, a=1, b=[1], c={"k": 1}, d=None, e=t, *, kw=2, fn=torch.sin):
        return fn(x) * a + b[0] + c["k"] + e + kw + (0 if d is None else d)

    return f, (X(),), [
        lambda: f.__defaults__[1].__setitem__(0, 9), lambda: f.__defaults__[2].__setitem__("k", 9),
        lambda: setattr(f, "__defaults__", (2, [1], {"k": 1}, None, t)),
        lambda: setattr(f, "__kwdefaults__", {"kw": 5, "fn": torch.cos}),
        lambda: setattr(f, "__defaults__", (2, [1], {"k": 1}, 3, t * 2)),
        lambda: setattr(f, "__kwdefaults__", {"kw": 5.5, "fn": torch.cos}),
    ]  # fmt: skip


@case
def closures():
    n = 1
    lst = [1]
    mod = nn.Linear(3, 3)
    s = {1, 2}

    def f(x):
        return mod(x) * n + lst[0] + len(s) + (3 in s)

    def sn(v):
        nonlocal n
        n = v

    def sm(v):
        nonlocal mod
        mod = v

    def ss(v):
        nonlocal s
        s = v

    return f, (X(),), [
        lambda: sn(2), lambda: sn(2.0), lambda: sn(True), lambda: sn(torch.tensor(2.0)),
        lambda: lst.__setitem__(0, 5), lambda: sm(nn.Linear(3, 3)), lambda: sm(nn.ReLU()), lambda: s.add(3),
        lambda: s.discard(1), lambda: ss(frozenset([3])), lambda: ss([3, 3]),
    ]  # fmt: skip


@case
def enums_consts():
    o = types.SimpleNamespace(
        e=E.A,
        s="a",
        b=b"a",
        f=1.0,
        n=None,
        t=(1, 2),
        fs=frozenset([1]),
        c=1j,
        r=range(3),
        sl=slice(0, 1),
        dt=torch.float32,
        dev=torch.device("cpu"),
        el=...,
    )

    def f(x, o):
        r = x[o.sl].to(o.dt)
        return (
            r * o.f + sum(o.t) + len(o.r) + (1 if o.e is E.A else 2) + (1 in o.fs),
            o.s,
            o.b,
            o.n,
            o.e,
            o.c,
            math.copysign(1, o.f),
            o.f != o.f,
            str(o.e),
            type(o.f),
            isinstance(o.t, tuple),
        )

    return f, (X(), o), [
        A(o, "e", E.B), A(o, "s", "b"), A(o, "b", b"b"), A(o, "b", bytearray(b"a")), A(o, "f", -0.0), A(o, "f", 0.0),
        A(o, "f", float("nan")), A(o, "f", float("inf")), A(o, "f", 1), A(o, "f", True), A(o, "f", np.float64(1.0)),
        A(o, "f", np.float32(1.5)), A(o, "f", np.int64(3)), A(o, "n", 0), A(o, "t", [1, 2]), A(o, "t", (1, 2, 3)),
        A(o, "t", (1.0, 2)), A(o, "t", (True, 2)), A(o, "fs", frozenset([True])), A(o, "fs", frozenset([2])),
        A(o, "c", 2j), A(o, "r", range(0, 3)), A(o, "r", range(4)), A(o, "sl", slice(1, 2)),
        A(o, "sl", slice(0, 1, None)), A(o, "sl", 0), A(o, "dt", torch.float64), A(o, "s", "".join(["a"])),
        A(o, "s", type("S", (str,), {})("q")),
    ]  # fmt: skip


@case
def numpy_args():
    o = types.SimpleNamespace(a=np.float64(2.0), arr=np.ones(3), i=np.int64(1), b=np.bool_(True))

    def f(x, o):
        return x * float(o.a) + int(o.i) + (1 if o.b else 0) + torch.from_numpy(o.arr)

    return f, (X(), o), [
        A(o, "a", np.float64(3.0)), A(o, "i", np.int32(4)), A(o, "b", np.bool_(False)),
        lambda: o.arr.__setitem__(0, 5.0), A(o, "arr", np.ones(3, dtype=np.float32) * 2), A(o, "a", 2.5),
    ]  # fmt: skip


@case
def partials():
    o = types.SimpleNamespace(
        p=functools.partial(helper, k=2), ig=operator.itemgetter(0), ag=operator.attrgetter("T"), m=helper
    )

    def f(x, o):
        return o.p(x) + o.ig(x) + o.m(x)

    return f, (X(), o), [
        lambda: o.p.keywords.__setitem__("k", 7), lambda: o.p.keywords.__setitem__("s", 7),
        A(o, "p", functools.partial(helper, k=2)), A(o, "p", functools.partial(helper, s=3)),
        A(o, "p", functools.partial(torch.add, other=3)), A(o, "ig", operator.itemgetter(1)), A(o, "m", torch.sin),
        A(o, "m", nn.ReLU()), A(o, "m", Cfg().__call__), A(o, "p", lambda x: x),
    ]  # fmt: skip


@case
def bound_methods():
    a, b = Cfg(), Cfg()
    b.a = 9
    o = types.SimpleNamespace(m=a.meth)

    def f(x, o):
        return x + o.m(2)

    return f, (X(), o), [
        A(o, "m", b.meth), A(b, "a", 11), A(o, "m", a.meth), A(Cfg, "meth", lambda s, v=1: v * 3), A(o, "m", a.meth),
        A(o, "m", Cfg.sm),
    ]  # fmt: skip


@case
def containers():
    o = types.SimpleNamespace(
        dq=collections.deque([1, 2]),
        c=collections.Counter("aab"),
        dd=collections.defaultdict(list, a=[1]),
        od=collections.OrderedDict(a=1, b=2),
        nt=collections.namedtuple("P", "x y")(1, 2),
        s={1, 2},
        fs={"a"},
        cm=collections.ChainMap({"a": 1}, {"b": 2}),
    )

    def f(x, o):
        return (
            x + sum(o.dq) + o.c["a"] + len(o.dd["a"]) + list(o.od.values())[0] + o.nt.x + len(o.s) + ("a" in o.fs),
            list(o.od),
            len(o.dd),
        )

    return f, (X(), o), [
        lambda: o.dq.append(3), lambda: o.dq.rotate(1), lambda: o.c.update("a"), lambda: o.dd["a"].append(1),
        lambda: o.dd["b"].append(1), lambda: o.od.move_to_end("a"), lambda: o.od.update(z=1),
        A(o, "nt", o.nt._replace(x=5)), lambda: o.s.add(7), lambda: o.fs.clear(),
        A(o, "dq", collections.deque([1, 2], maxlen=2)),
    ]  # fmt: skip


@case
def metaclass():
    def f(x):
        return x + WithMeta.metaprop + len(WithMeta) + (1 in WithMeta)

    return f, (X(),), [
        A(WithMeta, "val", 1), A(Meta, "metaprop", property(lambda c: 40)), A(Meta, "__len__", lambda c: 7),
        A(Meta, "__contains__", lambda c, k: False),
    ]  # fmt: skip


@case
def slots():
    s = Slots()
    s.a = 1
    s.b = X()

    def f(x, s):
        return x + (s.a if hasattr(s, "a") else 50), hasattr(s, "b"), getattr(s, "c", 3)

    return f, (X(), s), [A(s, "a", 4), lambda: delattr(s, "a"), lambda: delattr(s, "b"), A(s, "c", 7), A(s, "a", 6)]


@case
def aliasing():
    a = X()
    d = {"p": [1], "q": [1]}

    def f(x, y, d):
        x.add_(1)
        d["p"].append(2)
        return x * y, len(d["q"]), x is y

    x, y = X(), X()

    def sh():
        d["q"] = d["p"]

    def un():
        d["q"] = [1]

    return f, (x, y, d), [sh, un, lambda: d.__setitem__("p", d["q"])]


@case
def identity():
    o = types.SimpleNamespace(a=[1], b=None, t=X(), u=None)
    o.b = o.a
    o.u = o.t

    def f(x, o):
        return x + (1 if o.a is o.b else 2) + (10 if o.t is o.u else 20)

    return f, (X(), o), [A(o, "b", [1]), A(o, "u", X()), A(o, "b", o.a), A(o, "u", o.t)]


@case
def torch_state():
    def f(x):
        y = torch.ones(3)
        return (
            x * 2 @ torch.ones(3, 3),
            y.dtype,
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
            torch.is_autocast_enabled("cpu"),
            torch.is_inference_mode_enabled(),
            torch.empty(1).device,
        )

    return f, (X().requires_grad_(),), [
        lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32),
        lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False),
        lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(1), lambda: torch.set_grad_enabled(False),
        lambda: torch.set_grad_enabled(True), lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.set_autocast_dtype("cpu", torch.float16), lambda: torch.set_autocast_enabled("cpu", False),
        lambda: torch.set_autocast_dtype("cpu", torch.bfloat16), lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.set_float32_matmul_precision("highest"), lambda: torch.set_flush_denormal(True),
        lambda: torch.set_flush_denormal(False), lambda: torch.backends.mkldnn.set_flags(False),
    ]  # fmt: skip


@case
def monkeypatched_torch():
    old = F.relu
    olds = torch.sin

    def f(x):
        return F.relu(x - 3) + torch.sin(x) + math.sqrt(4)

    om = math.sqrt
    return f, (X(),), [
        A(F, "relu", lambda x: x * 100), A(F, "relu", old), A(torch, "sin", lambda x: x * 9), A(torch, "sin", olds),
        A(math, "sqrt", lambda v: 50), A(math, "sqrt", om),
    ]  # fmt: skip


@case
def patched_torch_class():
    m = nn.Linear(3, 3)
    old = nn.Linear.forward
    oc = nn.Module.__call__

    def f(m, x):
        return m(x)

    return f, (m, X()), [
        A(nn.Linear, "forward", lambda s, x: x * 5), A(nn.Linear, "forward", old),
        A(nn.Linear, "__call__", lambda s, x: x * 3), lambda: delattr(nn.Linear, "__call__"),
        A(m, "forward", lambda x: x), lambda: delattr(m, "forward"), A(nn.Module, "__call__", lambda s, x: x * 31),
        A(nn.Module, "__call__", oc),
    ]  # fmt: skip


@case
def global_hooks():
    m = nn.Linear(3, 3)
    h = []

    def f(m, x):
        return m(x)

    return f, (m, X()), [
        lambda: h.append(nn.modules.module.register_module_forward_hook(lambda mod, i, o: o + 5)),
        lambda: h.pop().remove(),
        lambda: h.append(nn.modules.module.register_module_forward_pre_hook(lambda mod, i: (i[0] * 2,))),
        lambda: h.pop().remove(),
    ]  # fmt: skip


@case
def builtins_shadow():
    old = builtins.divmod

    def f(x):
        return x + len([1, 2]) + divmod(7, 2)[0]

    return f, (X(),), [
        lambda: setg(len=lambda v: 100), lambda: globals().pop("len"), A(builtins, "divmod", lambda a, b: (5, 5)),
        A(builtins, "divmod", old),
    ]  # fmt: skip


@case
def nameerr():
    def f(x):
        try:
            return x + NOTYET
        except NameError:
            return x - 1

    return f, (X(),), [lambda: setg(NOTYET=5), lambda: globals().pop("NOTYET")]


@case
def dataclasses_():
    @dataclasses.dataclass
    class D:
        a: int = 1
        b: list = dataclasses.field(default_factory=list)

    @dataclasses.dataclass(frozen=True)
    class Fz:
        a: int = 1

    o = D()
    fz = types.SimpleNamespace(z=Fz())

    def f(x, o, fz):
        return x + o.a + len(o.b) + fz.z.a, o == D(), dataclasses.replace(o, a=3).a, D().a

    return f, (X(), o, fz), [
        A(o, "a", 4), lambda: o.b.append(1), A(fz, "z", Fz(7)), A(D, "a", 9),
        lambda: object.__setattr__(fz.z, "a", 70),
    ]  # fmt: skip


@case
def inherit():
    class A1:
        v = 1

        def g(self):
            return self.v

    class B1(A1):
        pass

    class C1(B1):
        def g(self):
            return super().g() + 10

    o = C1()

    def f(x, o):
        return x + o.g() + (1 if isinstance(o, A1) else 0)

    return f, (X(), o), [
        A(A1, "v", 2), A(B1, "v", 3), A(A1, "g", lambda s: 100), A(B1, "g", lambda s: 200), lambda: delattr(B1, "g"),
        A(C1, "g", lambda s: 5), lambda: setattr(C1, "__bases__", (A1,)), A(o, "g", lambda: 9),
    ]  # fmt: skip


@case
def isinst():
    class P(abc.ABC):
        pass

    o = types.SimpleNamespace(v=Cfg())

    def f(x, o):
        return x + (1 if isinstance(o.v, P) else 2)

    return f, (X(), o), [lambda: P.register(Cfg)]


@case
def instance_dict_ops():
    o = Cfg()

    def f(x, o):
        return x + sum(v for v in vars(o).values() if isinstance(v, int)), sorted(k for k in o.__dict__)

    return f, (X(), o), [
        A(o, "new", 5), lambda: o.__dict__.update(q=6), lambda: o.__dict__.pop("q"),
        lambda: setattr(o, "__dict__", {"a": 1}),
    ]  # fmt: skip


@case
def list_of_mods():
    ms = [nn.Linear(3, 3), nn.ReLU()]

    def f(x, ms):
        for m in ms:
            x = m(x)
        return x

    return f, (X(), ms), [
        lambda: ms.append(nn.Linear(3, 3)), lambda: ms.reverse(), lambda: ms.__setitem__(0, nn.Linear(3, 3)),
        lambda: ms.pop(),
    ]  # fmt: skip


@case
def class_static():
    class H:
        act = staticmethod(torch.sin)
        fn = helper
        cls = Cfg
        e = E.A
        mod = math
        dt = torch.float32

    o = H()

    def f(x, o):
        return (
            o.act(x)
            + (1 if o.e is E.A else 2)
            + o.cls.cls_attr
            + o.mod.sqrt(4)
            + (0 if o.dt == torch.float32 else 5)
            + H.cls.cls_attr
        )

    return f, (X(), o), [
        A(H, "act", torch.cos), A(H, "act", staticmethod(torch.exp)), A(H, "e", E.B),
        A(H, "cls", type("Q", (), {"cls_attr": 50})), A(H, "mod", types.SimpleNamespace(sqrt=lambda v: 9)),
        A(H, "dt", torch.float64),
    ]  # fmt: skip


@case
def warn_state():
    def f(x, o):
        v = o.x
        return x + v

    class P:
        def __init__(s):
            s._x = 1

        @property
        def x(s):
            return s._x

    p = P()
    return f, (X(), p), [A(p, "_x", 3), A(P, "x", property(lambda s: s._x * 10)), A(P, "x", 5)]


@case
def data_descriptor_over_instance():
    class P:
        def __init__(s):
            s.a, s.b = 1, 2.5

    class Plain:
        def __get__(s, o, t=None):
            return 4

    p = P()

    def f(x, p):
        p.seen = p.a
        return x * p.a + p.b, p.seen

    return f, (X(), p), [
        A(P, "b", 9.0), A(P, "b", Plain()), A(Plain, "__set__", lambda s, o, v: 0), A(P, "b", property(lambda s: 7.0)),
        A(P, "a", property(lambda s: 5, lambda s, v: None)),
        A(P, "seen", property(lambda s: s.__dict__.get("q", 0), lambda s, v: s.__dict__.update(q=v + 1))),
    ]  # fmt: skip


@case
def attribute_access_replaced():
    class P:
        def __init__(s):
            s.a = 2

    p, get = P(), object.__getattribute__

    def f(x, p):
        p.b = p.a + 1
        return x * p.a + p.b, hasattr(p, "c"), getattr(p, "d", 3)

    return f, (X(), p), [
        A(P, "__setattr__", lambda s, n, v: s.__dict__.__setitem__(n, v * 2)),
        A(P, "__getattr__", lambda s, n: {"c": 1}[n] if n == "c" else 8),
        A(P, "__getattribute__", lambda s, n: 10 if n == "a" else get(s, n)),
        lambda: delattr(P, "__getattribute__"), lambda: delattr(P, "__setattr__"), lambda: delattr(P, "__getattr__"),
    ]  # fmt: skip


@case
def class_shadows_member():
    class L(nn.Module):
        def __init__(s):
            super().__init__()
            s.weight = nn.Parameter(torch.ones(3))
            s.register_buffer("buf", torch.ones(3) * 2)
            s.sub = nn.Linear(3, 3, bias=False)
            nn.init.ones_(s.sub.weight)

        def forward(s, x):
            return s.sub(x) * s.weight + s.buf

    m = L()
    return lambda m, x: m(x), (m, X()), [
        A(L, "weight", torch.ones(3) * 5), A(L, "buf", property(lambda s: 4.0)), A(L, "sub", staticmethod(torch.sin)),
        lambda: delattr(L, "weight"), A(L, "__getattr__", lambda s, n: 3.0), lambda: delattr(L, "__getattr__"),
        A(L, "__getattribute__", lambda s, n: 2.0 if n == "weight" else object.__getattribute__(s, n)),
        lambda: delattr(L, "__getattribute__"), A(L, "__call__", lambda s, x: x - 1), lambda: delattr(L, "__call__"),
    ]  # fmt: skip


@case
def special_methods_later():
    class P:
        pass

    class Base:
        def who(s):
            return 1

    class Mid(Base):
        pass

    class Leaf(Mid):
        def who(s):
            return super().who() + 10

    p, leaf = P(), Leaf()

    def f(x, p, leaf):
        n = (1 if p else 2) + (10 if p == 1 else 20) + (100 if callable(p) else 200) + leaf.who()
        return x + n, f"{p is None}", isinstance(p, P), hash(p) == 7

    return f, (X(), p, leaf), [
        A(P, "__len__", lambda s: 0), A(P, "__bool__", lambda s: True), A(P, "__eq__", lambda s, o: True),
        A(P, "__hash__", lambda s: 7), A(P, "__call__", lambda s: 1), A(Mid, "who", lambda s: 4),
        lambda: delattr(P, "__bool__"), lambda: delattr(Mid, "who"), lambda: setattr(Leaf, "__bases__", (Base,)),
    ]  # fmt: skip


@case
def metaclass_later():
    class Mt(type):
        pass

    class K(metaclass=Mt):
        v = 2

    def f(x, k):
        return x * k.v, len(k.__name__)

    return f, (X(), K), [
        A(Mt, "v", 7), A(Mt, "v", property(lambda c: 5)), lambda: delattr(Mt, "v"), A(K, "v", 3),
        A(Mt, "__getattribute__", lambda c, n: 9 if n == "v" else type.__getattribute__(c, n)),
    ]  # fmt: skip


@case
def library_classes_later():
    class Od(collections.OrderedDict):
        pass

    d, ns = Od(a=1), types.SimpleNamespace(z=2)

    def f(x, d, ns):
        return x * d["a"] + ns.z + len(d)

    return f, (X(), d, ns), [
        A(Od, "__getitem__", lambda s, k: 5), A(Od, "__len__", lambda s: 3), lambda: delattr(Od, "__getitem__"),
    ]  # fmt: skip
