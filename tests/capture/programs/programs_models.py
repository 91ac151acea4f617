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


def c_topk_sampler():
    def f(logits, k, p, temp):
        l = logits / temp
        v, _ = torch.topk(l, min(k, l.size(-1)))
        l = l.masked_fill(l < v[..., -1:], float("-inf"))
        s, i = torch.sort(l, descending=True)
        c = s.softmax(-1).cumsum(-1)
        rm = c > p
        rm[..., 1:] = rm[..., :-1].clone()
        rm[..., 0] = False
        l = l.masked_fill(rm.scatter(-1, i, rm), float("-inf"))
        return l.softmax(-1)

    return f, lambda: (S(2, 10), 5, 0.9, 0.7)


def c_generate_loop():
    emb = nn.Embedding(11, 8)
    lin = nn.Linear(8, 11)

    def f(ids, n):
        for _ in range(n):
            l = lin(emb(ids)).mean(1)
            nxt = l.argmax(-1, keepdim=True)
            ids = torch.cat([ids, nxt], 1)
        return ids

    return f, lambda: (torch.tensor([[1, 2, 3]]), 4)


def c_beam():
    def f(lp, beams):
        B, V = lp.shape
        scores = torch.zeros(beams)
        seqs = [[] for _ in range(beams)]
        for t in range(3):
            tot = (scores[:, None] + lp[:beams]).flatten()
            s, i = tot.topk(beams)
            scores = s
            seqs = [seqs[j // V] + [j % V] for j in i.tolist()]
        return scores, seqs

    return f, lambda: (S(4, 5).log_softmax(-1), 3)


def c_dataclass_cfg():
    @dataclasses.dataclass(frozen=True)
    class Cfg:
        d: int = 8
        act: str = "gelu"
        drop: float = 0.0
        sizes: tuple = (1, 2)
        extra: dict = dataclasses.field(default_factory=dict)

        def __post_init__(self):
            object.__setattr__(self, "half", self.d // 2)

        @property
        def hidden(self):
            return self.d * 4

    def f(x, cfg):
        c2 = dataclasses.replace(cfg, act="relu")
        h = getattr(F, c2.act)(x) * c2.half + c2.hidden
        return h, dataclasses.asdict(c2)["sizes"], [fl.name for fl in dataclasses.fields(cfg)]

    return f, lambda: (S(2, 8), Cfg())


def c_registry():
    REG = {}

    def register(name):
        def deco(fn):
            REG[name] = fn
            return fn

        return deco

    @register("a")
    def a(x):
        return x + 1

    @register("b")
    def b(x):
        return x * 2

    def f(x, names):
        for n in names:
            x = REG[n](x)
        return x, sorted(REG)

    return f, lambda: (S(3), ["a", "b", "a"])


def c_timer_deco():
    def timed(fn):
        @functools.wraps(fn)
        def w(*a, **k):
            t = time.perf_counter()
            r = fn(*a, **k)
            w.calls = getattr(w, "calls", 0) + 1
            return r

        return w

    @timed
    def g(x):
        return x.sin() * 2

    def f(x):
        return g(x) + g(x), g.__name__

    return f, lambda: (S(3),)


def c_retry():
    def retry(n):
        def d(fn):
            def w(x, st):
                for i in range(n):
                    try:
                        return fn(x, st)
                    except RuntimeError as e:
                        st.append(str(e))
                raise RuntimeError("gave up")

            return w

        return d

    @retry(3)
    def g(x, st):
        if len(st) < 2:
            raise RuntimeError(f"fail {len(st)}")
        return x * len(st)

    return g, lambda: (S(3), [])


def c_meter():
    class Meter:
        def __init__(s):
            s.sum = 0.0
            s.n = 0
            s.hist = collections.deque(maxlen=3)

        def update(s, v, n=1):
            s.sum += v * n
            s.n += n
            s.hist.append(v)

        @property
        def avg(s):
            return s.sum / max(s.n, 1)

    def f(x, m):
        for t in x:
            m.update(t.mean(), 2)
        return m.avg, len(m.hist), m

    return f, lambda: (S(5, 3), Meter())


def c_confusion():
    def f(p, t, C):
        i = t * C + p
        m = torch.bincount(i, minlength=C * C).reshape(C, C)
        tp = m.diag().float()
        return m, tp / (m.sum(0) + 1e-6), (tp.sum() / m.sum()).item()

    return f, lambda: (torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 1, 1]), 3)


def c_f1():
    def f(p, t):
        p = p > 0.5
        tp = (p & t).sum().float()
        fp = (p & ~t).sum()
        fn = (~p & t).sum()
        pr = tp / (tp + fp).clamp(min=1)
        rc = tp / (tp + fn).clamp(min=1)
        return 2 * pr * rc / (pr + rc).clamp(min=1e-8)

    return f, lambda: (torch.tensor([0.1, 0.9, 0.8]), torch.tensor([False, True, False]))


def c_tokenizer():
    def f(text, emb):
        vocab = {c: i for i, c in enumerate(string.ascii_lowercase + " ")}
        toks = re.findall(r"\w+|\s", text.lower())
        ids = [vocab[c] for t in toks for c in t if c in vocab]
        cnt = collections.Counter(toks)
        return emb[torch.tensor(ids)].sum(0), cnt.most_common(1), " ".join(t.strip() for t in toks if t.strip())

    return f, lambda: ("Hello world hello", S(27, 4))


def c_bpe():
    def f(x, word, merges):
        parts = list(word)
        while len(parts) > 1:
            pairs = [(merges.get((a, b), 1e9), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
            r, i = min(pairs)
            if r == 1e9:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return x * len(parts), parts

    return f, lambda: (S(2), "lower", {("l", "o"): 0, ("lo", "w"): 1, ("e", "r"): 2})


def c_lr_sched():
    def f(x, step, warm, total):
        if step < warm:
            lr = step / warm
        else:
            lr = 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))
        return x * lr

    n = itertools.count(1)
    return f, lambda: (S(3), 7, 10, 100)


def c_clip():
    def f(ps, mx):
        n = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad) for p in ps]))
        c = (mx / (n + 1e-6)).clamp(max=1.0)
        for p in ps:
            p.grad.mul_(c)
        return n

    def mk():
        ps = [nn.Parameter(S(3)), nn.Parameter(S(2, 2))]
        for p in ps:
            p.grad = p.detach() * 3
        return ps, 1.0

    return f, mk


def c_ema():
    class EMA:
        def __init__(s, m, d):
            s.m, s.d = m, d
            s.shadow = {k: v.clone() for k, v in m.state_dict().items()}
            s.step = 0

        @torch.no_grad()
        def update(s):
            s.step += 1
            d = min(s.d, (1 + s.step) / (10 + s.step))
            for k, v in s.m.state_dict().items():
                if v.dtype.is_floating_point:
                    s.shadow[k].mul_(d).add_(v, alpha=1 - d)
                else:
                    s.shadow[k].copy_(v)

    def f(e, x):
        e.update()
        return e.m(x), e.shadow

    def mk():
        torch.manual_seed(0)
        return EMA(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), 0.99), S(4, 3)

    return f, mk


def c_swa():
    def f(avg, m, n):
        with torch.no_grad():
            for a, b in zip(avg.parameters(), m.parameters()):
                a.copy_(a + (b - a) / (n + 1))
        return sum(p.sum() for p in avg.parameters())

    def mk():
        torch.manual_seed(0)
        return nn.Linear(3, 2), nn.Linear(3, 2), 3

    return f, mk


def c_mixup():
    def f(x, y, lam):
        idx = torch.randperm(x.size(0))
        return lam * x + (1 - lam) * x[idx], (y, y[idx], lam)

    return f, lambda: (S(4, 3), torch.arange(4), 0.3)


def c_focal():
    def f(l, t, gamma=2.0, alpha=None, reduction="mean"):
        ce = F.cross_entropy(l, t, reduction="none", weight=alpha)
        pt = torch.exp(-ce)
        loss = (1 - pt) ** gamma * ce
        match reduction:
            case "mean":
                return loss.mean()
            case "sum":
                return loss.sum()
            case _:
                return loss

    return f, lambda: (S(4, 3), torch.tensor([0, 1, 2, 1]))


def c_ctx_stack():
    def f(x, flags):
        with contextlib.ExitStack() as st:
            if flags["ng"]:
                st.enter_context(torch.no_grad())
            st.callback(flags["log"].append, "done")
            y = x * 2
        return y, torch.is_grad_enabled()

    return f, lambda: (S(3).requires_grad_(), {"ng": True, "log": []})


def c_nullctx():
    def f(x, amp):
        ctx = torch.autocast("cpu", torch.bfloat16) if amp else contextlib.nullcontext()
        with ctx:
            return x @ x

    return f, lambda: (S(3, 3), True)


def c_suppress():
    def f(x, d):
        with contextlib.suppress(KeyError):
            x = x * d["no"]
        with contextlib.suppress(KeyError):
            x = x * d["a"]
        return x

    return f, lambda: (S(3), {"a": 2})


def c_redirect():
    def f(x):
        b = io.StringIO()
        with contextlib.redirect_stdout(b):
            print("hi")
        return x * 2, b.getvalue()

    return f, lambda: (S(3),)


def c_hooks():
    def f(m, x):
        acts = {}
        hs = [
            l.register_forward_hook(lambda mod, i, o, n=n: acts.__setitem__(n, o.mean()))
            for n, l in m.named_modules()
            if isinstance(l, nn.Linear)
        ]
        try:
            y = m(x)
        finally:
            for h in hs:
                h.remove()
        return y, acts

    def mk():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), S(2, 3)

    return f, mk


def c_hook_obj():
    class Grab:
        def __init__(s, m):
            s.out = []
            s.h = m.register_forward_hook(s)

        def __call__(s, m, i, o):
            s.out.append(o.detach())

    torch.manual_seed(0)
    m = nn.Linear(3, 3)
    g = Grab(m)

    def f(x):
        g.out.clear()
        y = m(x)
        return y, g.out[0]

    return f, lambda: (S(2, 3),)


def c_apply_init():
    def f(m, x):
        def init(l):
            if isinstance(l, nn.Linear):
                nn.init.ones_(l.weight)
                nn.init.zeros_(l.bias)

        m.apply(init)
        return m(x)

    return f, lambda: (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), S(2, 3))


def c_freeze():
    def f(m, x):
        for n, p in m.named_parameters():
            if "0." in n:
                p.requires_grad_(False)
        return m(x).sum(), [p.requires_grad for p in m.parameters()]

    def mk():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), S(2, 3)

    return f, mk


def c_count_params():
    def f(m, x):
        return m(x) * sum(p.numel() for p in m.parameters() if p.requires_grad), {
            n: tuple(p.shape) for n, p in m.named_parameters()
        }

    def mk():
        torch.manual_seed(0)
        return nn.Linear(3, 2), S(2, 3)

    return f, mk


def c_enum_cfg():
    class Act(str, enum.Enum):
        RELU = "relu"
        TANH = "tanh"

    class Fl(enum.Flag):
        A = 1
        B = 2

    def f(x, a, fl):
        if a is Act.RELU:
            x = x.relu()
        elif a == "tanh":
            x = x.tanh()
        if Fl.A in fl:
            x = x + 1
        return x, a.value, fl | Fl.B, Act("tanh").name, [m.name for m in Act]

    return f, lambda: (S(3), Act.TANH, Fl.A)


def c_singledispatch():
    @functools.singledispatch
    def g(v, x):
        return x

    @g.register
    def _(v: int, x):
        return x * v

    @g.register(list)
    def _(v, x):
        return x + len(v)

    def f(x):
        return g(3, x) + g([1, 2], x) + g("s", x)

    return f, lambda: (S(3),)


def c_cached_prop():
    class A:
        def __init__(s, n):
            s.n = n
            s.c = 0

        @functools.cached_property
        def mask(s):
            s.c += 1
            return torch.tril(torch.ones(s.n, s.n))

    def f(x, a):
        return x @ a.mask + a.mask.sum(), a.c

    return f, lambda: (S(2, 3), A(3))


def c_lru():
    @functools.lru_cache(None)
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return (lambda x: x * fib(10)), lambda: (S(3),)


def c_namedtuple():
    class Out(typing.NamedTuple):
        loss: torch.Tensor
        logits: torch.Tensor
        extra: int = 3

    def f(x):
        o = Out(x.sum(), x * 2)
        o2 = o._replace(extra=5)
        a, b, c = o2
        return o, o2._asdict()["extra"] + c, Out._fields

    return f, lambda: (S(3),)


def c_typed_dict():
    class Batch(typing.TypedDict):
        x: torch.Tensor
        y: int

    def f(b: Batch):
        b2 = {**b, "y": b["y"] + 1}
        return b2 | {"z": b["x"] * b2["y"]}

    return f, lambda: ({"x": S(3), "y": 1},)


def c_collate():
    def f(items):
        el = items[0]
        if isinstance(el, dict):
            return {
                k: torch.stack([i[k] for i in items]) if torch.is_tensor(el[k]) else [i[k] for i in items] for k in el
            }

    return f, lambda: ([{"a": S(3), "n": 1}, {"a": S(3) * 2, "n": 2}],)


def c_pad():
    def f(seqs, pad=0):
        n = max(map(len, seqs))
        out = torch.full((len(seqs), n), pad, dtype=seqs[0].dtype)
        m = torch.zeros(len(seqs), n, dtype=torch.bool)
        for i, s in enumerate(seqs):
            out[i, : len(s)] = s
            m[i, : len(s)] = True
        return out, m

    return f, lambda: ([torch.arange(3), torch.arange(5), torch.arange(1)],)
