"""Small programs as people write them around models: samplers, metrics, tokenizers, configs, hooks, training helpers.

A case ``c_name()`` gives (function, maker of its arguments). Each is called several times, in eager and compiled.
"""

# ruff: noqa: B006, B007, B023, B028, B904, E731, E741, F401, F841, UP031, UP042
from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import inspect
import io
import itertools
import json
import logging
import math
import operator
import os
import random
import re
import string
import time
import typing
import warnings

import torch
import torch.nn.functional as F
from torch import nn


def S(*a):
    torch.manual_seed(0)
    return torch.randn(*a)


def c_pad_seq():
    from torch.nn.utils.rnn import pad_sequence

    return (lambda s: pad_sequence(s, batch_first=True, padding_value=-1)), lambda: (
        [torch.arange(3), torch.arange(5)],
    )


def c_packed():
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    torch.manual_seed(0)
    g = nn.GRU(3, 4, batch_first=True)

    def f(x, lens):
        p = pack_padded_sequence(x, lens, batch_first=True, enforce_sorted=False)
        o, h = g(p)
        y, l = pad_packed_sequence(o, batch_first=True)
        return y, h, l

    return f, lambda: (S(2, 5, 3), torch.tensor([3, 5]))


def c_rope():
    def f(x, base=10000.0):
        d = x.shape[-1]
        inv = 1.0 / (base ** (torch.arange(0, d, 2).float() / d))
        t = torch.arange(x.shape[-2])
        fr = torch.outer(t, inv)
        c, s = fr.cos(), fr.sin()
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)

    return f, lambda: (S(2, 4, 8),)


def c_kv_cache():
    class Cache:
        def __init__(s):
            s.k = None
            s.seen = 0

        def update(s, k):
            s.k = k if s.k is None else torch.cat([s.k, k], 1)
            s.seen += k.shape[1]
            return s.k

    def f(x, c):
        for _ in range(3):
            k = c.update(x)
        return k.sum(1), c.seen, c

    return f, lambda: (S(2, 2, 3), Cache())


def c_static_cache():
    def f(x, cache, pos):
        cache[:, pos] = x
        pos += 1
        return cache[:, :].sum(1), pos

    return f, lambda: (S(2, 3), torch.zeros(2, 4, 3), torch.tensor(1))


def c_moe():
    torch.manual_seed(0)
    ex = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    gate = nn.Linear(4, 3)

    def f(x):
        w, i = gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for e, m in enumerate(ex):
            sel = i == e
            r, k = torch.where(sel)
            if r.numel():
                out.index_add_(0, r, m(x[r]) * w[r, k, None])
        return out

    return f, lambda: (S(5, 4),)


def c_gumbel():
    def f(l, tau=1.0, hard=True):
        g = -torch.empty_like(l).exponential_().log()
        y = ((l + g) / tau).softmax(-1)
        if hard:
            i = y.max(-1, keepdim=True)[1]
            h = torch.zeros_like(l).scatter_(-1, i, 1.0)
            return h - y.detach() + y
        return y

    return f, lambda: (S(2, 4),)


def c_ste():
    class R(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, s):
            ctx.save_for_backward(x)
            ctx.s = s
            return torch.round(x * s) / s

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (x.abs() <= 1).float(), None

    def f(x):
        x = x.detach().clone().requires_grad_()
        R.apply(x, 4.0).sum().backward()
        return x.grad

    return f, lambda: (S(5),)


def c_grad_penalty():
    torch.manual_seed(0)
    d = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def f(a, b):
        e = torch.full((a.size(0), 1), 0.3)
        x = (e * a + (1 - e) * b).requires_grad_()
        (g,) = torch.autograd.grad(d(x).sum(), x, create_graph=True)
        return ((g.norm(2, 1) - 1) ** 2).mean()

    return f, lambda: (S(4, 3), S(4, 3) * 2)


def c_vmap_free():
    def f(x, w):
        return torch.func.vmap(lambda a: (a * w).sum())(x)

    return f, lambda: (S(4, 3), S(3))


def c_func_grad():
    def f(w, x):
        return torch.func.grad(lambda w: ((x @ w) ** 2).mean())(w)

    return f, lambda: (S(3), S(4, 3))


def c_functional_call():
    torch.manual_seed(0)
    m = nn.Linear(3, 2)

    def f(ps, x):
        return torch.func.functional_call(m, ps, (x,))

    return f, lambda: ({"weight": S(2, 3), "bias": S(2)}, S(4, 3))


def c_state_dict():
    def f(m, x):
        sd = m.state_dict()
        sd2 = {k.replace("weight", "w"): v * 2 for k, v in sd.items()}
        return m(x), list(sd2), sum(v.sum() for v in sd2.values())

    def mk():
        torch.manual_seed(0)
        return nn.Linear(3, 2), S(2, 3)

    return f, mk


def c_ga_step():
    def f(m, opt, xs):
        tot = 0.0
        for i, x in enumerate(xs):
            l = m(x).pow(2).mean() / len(xs)
            l.backward()
            tot += l.item()
            if (i + 1) % 2 == 0:
                opt.step()
                opt.zero_grad()
        return tot, [p.detach().clone() for p in m.parameters()]

    def mk():
        torch.manual_seed(0)
        m = nn.Linear(3, 2)
        return m, torch.optim.SGD(m.parameters(), 0.1, momentum=0.9), [S(2, 3), S(2, 3) * 2, S(2, 3), S(2, 3)]

    return f, mk


def c_early_stop():
    class ES:
        def __init__(s, p):
            s.p = p
            s.best = float("inf")
            s.bad = 0

        def __call__(s, v):
            if v < s.best:
                s.best = v
                s.bad = 0
            else:
                s.bad += 1
            return s.bad >= s.p

    def f(x, es):
        n = 0
        for i in range(6):
            n += 1
            if es(abs(3 - i)):
                break
        return x * n, es

    return f, lambda: (S(3), ES(2))


def c_log_json():
    def f(x, rec):
        rec.append(json.dumps({"step": len(rec), "shape": list(x.shape)}))
        return x * 2

    return f, lambda: (S(3), [])


def c_fstring():
    def f(x, n):
        s = f"{n:>5}|{n!r}|{x.shape}|{x.dtype}|{n / 3:.2f}|{'a' * n}"
        return x * len(s), s, "%d-%s" % (n, "b"), f"{n:03d}"

    return f, lambda: (S(3), 4)


def c_walrus():
    def f(x):
        while (n := x.shape[0]) > 2:
            x = x[1:]
        return x, n, [y for i in range(4) if (y := i * 2) > 2]

    return f, lambda: (S(5),)


def c_slots_iter():
    class It:
        def __init__(s, n):
            s.i, s.n = 0, n

        def __iter__(s):
            return s

        def __next__(s):
            if s.i >= s.n:
                raise StopIteration
            s.i += 1
            return s.i

    def f(x):
        for i in It(3):
            x = x * i
        return x, list(It(2)), dict(zip("ab", It(5)))

    return f, lambda: (S(3),)


def c_tree_map():
    def tmap(fn, t):
        if isinstance(t, torch.Tensor):
            return fn(t)
        if isinstance(t, dict):
            return type(t)((k, tmap(fn, v)) for k, v in t.items())
        if isinstance(t, tuple) and hasattr(t, "_fields"):
            return type(t)(*(tmap(fn, v) for v in t))
        if isinstance(t, (list, tuple)):
            return type(t)(tmap(fn, v) for v in t)
        return t

    P = collections.namedtuple("P", "a b")

    def f(t):
        return tmap(lambda v: v * 2, t)

    return f, lambda: ({"a": [S(2), (S(1), 3)], "p": P(S(2), None)},)


def c_pytree():
    from torch.utils import _pytree as pt

    def f(t):
        l, s = pt.tree_flatten(t)
        return pt.tree_unflatten([v * 2 for v in l], s), pt.tree_map(lambda v: v + 1, t)

    return f, lambda: ({"a": [S(2), (S(1),)]},)


def c_metaclass_reg():
    class M(type):
        reg = {}

        def __new__(m, n, b, d):
            c = super().__new__(m, n, b, d)
            m.reg[n] = c
            return c

    class A(metaclass=M):
        k = 2

        def __call__(s, x):
            return x * s.k

    class B(A):
        k = 5

    def f(x, n):
        return M.reg[n]()(x), sorted(M.reg)

    return f, lambda: (S(3), "B")


def c_getattr_proxy():
    class Wrap:
        def __init__(s, m):
            s._m = m

        def __getattr__(s, n):
            return getattr(s._m, n)

        def __call__(s, *a):
            return s._m(*a)

    def f(w, x):
        return w(x) + w.weight.sum(), w.in_features

    def mk():
        torch.manual_seed(0)
        return Wrap(nn.Linear(3, 2)), S(2, 3)

    return f, mk


def c_opover():
    class V:
        def __init__(s, t):
            s.t = t

        def __add__(s, o):
            return V(s.t + (o.t if isinstance(o, V) else o))

        __radd__ = __add__

        def __matmul__(s, o):
            return V(s.t @ o.t)

        def __getitem__(s, i):
            return s.t[i]

        def __iadd__(s, o):
            s.t = s.t + o
            return s

        def __eq__(s, o):
            return bool(s.t.shape == o.t.shape)

        def __hash__(s):
            return 1

    def f(x):
        a = V(x)
        b = 1 + a + a
        b += 2
        return (b @ b).t, b[0], a == b, {a: 1}[a]

    return f, lambda: (S(3, 3),)


def c_tensor_sub():
    class T(torch.Tensor):
        pass

    def f(x):
        return x.as_subclass(T) * 2

    return f, lambda: (S(3),)


def c_inplace_chain():
    def f(x, buf):
        buf.zero_().add_(x).mul_(2)
        buf[0] += 1
        buf[1:] = buf[:-1].clone()
        x.clamp_(min=0)
        return buf.sum()

    return f, lambda: (S(4), torch.ones(4))


def c_nested_fn_nonlocal():
    def f(x):
        n = 0
        out = []

        def step(y, *, k=2, **kw):
            nonlocal n
            n += 1
            out.append(y * k + kw.get("b", 0))
            return out[-1]

        step(x)
        step(x, k=3)
        step(x, b=1)
        return out, n

    return f, lambda: (S(3),)


def c_curry():
    def compose(*fs):
        return functools.reduce(lambda f, g: lambda x: g(f(x)), fs)

    def f(x):
        return compose(
            torch.sin, functools.partial(torch.mul, other=2), operator.methodcaller("add", 1), lambda t: t**2
        )(x)

    return f, lambda: (S(3),)


def c_itertools():
    def f(x):
        s = 0
        for a, b in itertools.product(range(2), [1, 3]):
            s += a * b
        for k, g in itertools.groupby([1, 1, 2, 3, 3]):
            s += k * len(list(g))
        for a, b in itertools.pairwise([1, 2, 4]):
            s += b - a
        s += (
            sum(itertools.islice(itertools.count(3, 2), 3))
            + sum(itertools.accumulate([1, 2, 3]))
            + len(list(itertools.combinations("abcd", 2)))
        )
        return (
            x * s,
            list(itertools.zip_longest([1], [2, 3], fillvalue=0)),
            list(itertools.chain.from_iterable([[1], [2]])),
            list(itertools.starmap(pow, [(2, 3)])),
            list(itertools.takewhile(lambda v: v < 3, [1, 2, 5])),
        )

    return f, lambda: (S(3),)


def c_warn_log():
    lg = logging.getLogger("oddlog")

    def f(x):
        warnings.warn("w")
        lg.info("x %s", x.shape)
        return x + 1

    return f, lambda: (S(3),)


def c_env():
    def f(x):
        return x * (2 if os.environ.get("ODD_FLAG", "0") == "1" else 3)

    return f, lambda: (S(3),)


def c_inspect():
    def g(a, b=2, *, c=3):
        return a

    def f(x):
        sig = inspect.signature(g)
        return x * len(sig.parameters), g.__defaults__, g.__kwdefaults__, callable(g), g.__name__

    return f, lambda: (S(3),)


def c_assert_msg():
    def f(x):
        assert x.dim() == 2, f"want 2d, got {x.dim()}"
        return x * 2

    return f, lambda: (S(3),)


def c_raise_from():
    def f(x, d):
        try:
            try:
                d["z"]
            except KeyError as e:
                raise ValueError("bad") from e
        except ValueError as e:
            return x + 1, type(e.__cause__).__name__, str(e)

    return f, lambda: (S(3), {})


def c_random_py():
    def f(x):
        r = random.Random(3)
        return x * r.randint(1, 5), r.random()

    return f, lambda: (S(3),)


def c_numpy():
    import numpy as np

    def f(x):
        a = np.arange(3).astype(np.float32)
        y = torch.from_numpy(a) * x
        return y, float(np.mean(a)), np.prod([1, 2, 3])

    return f, lambda: (S(3),)


def c_numpy_roundtrip():
    import numpy as np

    def f(x):
        return torch.from_numpy(np.sin(x.numpy())) * 2

    return f, lambda: (S(3),)


def c_global_counter():
    g = {"n": 0}

    def f(x):
        g["n"] += 1
        return x + g["n"] - g["n"]

    return f, lambda: (S(3),)


def c_iou():
    def f(a, b):
        lt = torch.max(a[:, None, :2], b[None, :, :2])
        rb = torch.min(a[:, None, 2:], b[None, :, 2:])
        wh = (rb - lt).clamp(min=0)
        inter = wh[..., 0] * wh[..., 1]
        area = lambda t: (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])
        return inter / (area(a)[:, None] + area(b) - inter)

    return f, lambda: (torch.tensor([[0.0, 0, 2, 2], [1, 1, 3, 3]]), torch.tensor([[0.0, 0, 1, 1]]))


def c_nms():
    def f(boxes, scores, thr):
        order = scores.argsort(descending=True)
        keep = []
        while order.numel() > 0:
            i = order[0]
            keep.append(i)
            if order.numel() == 1:
                break
            d = (boxes[order[1:]] - boxes[i]).abs().sum(1)
            order = order[1:][d > thr]
        return torch.stack(keep)

    return f, lambda: (torch.tensor([[0.0, 0], [0.1, 0], [5, 5]]), torch.tensor([0.9, 0.8, 0.7]), 1.0)


def c_ctc_like():
    def f(lp, tgt):
        T, V = lp.shape
        a = torch.full((T, len(tgt) + 1), float("-inf"))
        a[0, 0] = 0.0
        for t in range(1, T):
            for s in range(len(tgt) + 1):
                v = a[t - 1, s]
                if s > 0:
                    v = torch.logaddexp(v, a[t - 1, s - 1] + lp[t, tgt[s - 1]])
                a[t, s] = v
        return a[-1, -1]

    return f, lambda: (S(4, 3).log_softmax(-1), [0, 2])


def c_param_groups():
    def f(m):
        decay, no = [], []
        for n, p in m.named_parameters():
            (no if p.ndim < 2 or n.endswith("bias") else decay).append(p)
        return sum(p.norm() for p in decay) * 0.1, len(no), [{"params": len(decay)}, {"params": len(no)}]

    def mk():
        torch.manual_seed(0)
        return (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)),)

    return f, mk


def c_lookahead_list_mut():
    def f(x, l):
        l[:] = [v for v in l if v % 2]
        l.sort(key=lambda v: -v)
        l.reverse()
        l.insert(0, 9)
        del l[-1]
        l *= 2
        l += [x.shape[0]]
        return x * sum(l)

    return f, lambda: (S(3), [1, 2, 3, 4, 5])


def c_deep_copy_mod():
    def f(m, x):
        m2 = copy.deepcopy(m)
        return m2(x)

    def mk():
        torch.manual_seed(0)
        return nn.Linear(3, 2), S(2, 3)

    return f, mk


def c_tensor_attr():
    def f(x):
        y = x * 2
        y.tag = "t"
        y.info = {"a": 1}
        return y * len(y.tag), y.info

    return f, lambda: (S(3),)


def c_dict_tensor_keys():
    def f(ps):
        st = {p: torch.zeros_like(p) for p in ps}
        for p in ps:
            st[p] = st[p] + p
        return [st[p] for p in ps]

    return f, lambda: ([S(2), S(3)],)


def c_complex():
    def f(x):
        c = torch.view_as_complex(x.reshape(-1, 2).contiguous())
        return torch.view_as_real(c * (1 + 2j)), c.abs(), (1 + 2j) * 2

    return f, lambda: (S(4),)


def c_fft():
    def f(x):
        return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfftfreq(8), n=8)

    return f, lambda: (S(2, 8),)


def c_del_except():
    def f(x, d):
        try:
            del d["k"]
        except KeyError:
            d["miss"] = d.get("miss", 0) + 1
        else:
            d["hit"] = 1
        finally:
            d["fin"] = True
        return x * len(d)

    return f, lambda: (S(3), {"k": 1})


def c_ordered_dict_attributes():
    def f(x, old):
        d = collections.OrderedDict(a=x)
        d.note = {"k": 1}
        old.seen = getattr(old, "seen", 0) + 1
        e, g = copy.copy(old), copy.deepcopy(old)
        return d, d.note, vars(e), vars(g), hasattr(e, "nothing"), x * old.seen

    def mk():
        old = collections.OrderedDict(b=1)
        old.meta = [1, 2]
        return S(3), old

    return f, mk


def c_state_dict_copied():
    def f(m, x):
        sd = copy.deepcopy(m.state_dict())
        return sd._metadata, list(sd), x * len(sd)

    return f, lambda: (S(3), nn.Linear(2, 2))[::-1]
