"""Kernels in the loop IR as fusion makes them, with inputs and what eager computes: material of the GPU benchmark and
of the code generator's tests.

``CASES`` maps a name to ``case(rows, columns, dtype) -> Case``.  The shapes are small in tests, large on a card.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from braze.inductor.loops.ir import (
    Axis,
    Buffer,
    Compute,
    Const,
    Index,
    Instr,
    Kernel,
    Load,
    Reduce,
    Store,
    Value,
)
from braze.ir import IntLike, Symbol, symbol, symbol_of, tensor_type

F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64


class V:
    """A value in a body, with arithmetic."""

    def __init__(self, body: Body, value: Value) -> None:
        self.body, self.value = body, value

    def _binary(self, fn: str, a: Any, b: Any) -> V:
        dtype = torch.bool if fn in ("eq", "ne", "lt", "le", "gt", "ge") else self.value.dtype
        return self.body.compute(fn, a, b, dtype=dtype)

    def __add__(self, other: Any) -> V:
        return self._binary("add", self, other)

    def __sub__(self, other: Any) -> V:
        return self._binary("sub", self, other)

    def __rsub__(self, other: Any) -> V:
        return self._binary("sub", other, self)

    def __mul__(self, other: Any) -> V:
        return self._binary("mul", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Any) -> V:
        return self._binary("div", self, other)

    def __getattr__(self, fn: str) -> Any:
        return lambda *args: self._binary(fn, self, args[0]) if args else self.body.compute(fn, self)


class Body:
    """Builds one kernel: axes by name, buffers, loads and stores."""

    def __init__(self, x: dict[str, IntLike], r: dict[str, IntLike] | None = None) -> None:
        self.instrs: list[Instr] = []
        self.axis: dict[str, IntLike] = {}
        self.x, self.r = self._axes(x), self._axes(r or {})
        self.buffers: dict[str, Buffer] = {}

    def _axes(self, sizes: dict[str, IntLike]) -> tuple[Axis, ...]:
        out = []
        for name, n in sizes.items():
            self.axis[name] = symbol(name, 0, n - 1 if isinstance(n, int) else 2**31 - 2)
            s = symbol_of(self.axis[name])
            assert s is not None
            out.append(Axis(s, n))
        return tuple(out)

    def __getitem__(self, name: str) -> IntLike:
        return self.axis[name]

    def add(self, i: Any) -> Any:
        self.instrs.append(i)
        return V(self, i) if isinstance(i, Value) else None

    def buffer(self, name: str, sizes: Any, dtype: torch.dtype, strides: Any = None) -> Buffer:
        return self.buffers.setdefault(name, Buffer(name, tensor_type(sizes, dtype, "cuda", strides)))

    def compute(self, fn: str, *args: Any, dtype: torch.dtype | None = None, **attrs: Any) -> V:
        first = next(a.value.dtype for a in args[fn == "where" :] if isinstance(a, V))
        values = tuple(a.value if isinstance(a, V) else self.add(Const(a, first)).value for a in args)
        out: V = self.add(Compute(fn, values, dtype or first, tuple(attrs.items())))
        return out

    def load(
        self, b: Buffer, *index: IntLike, mask: V | None = None, other: Any = 0, indirect: Any = (), wide: bool = True
    ) -> V:
        v: V = self.add(Load(b, index, tuple(indirect), mask.value if mask else None, other))
        return self.to(v, F32) if wide and b.type.dtype in (BF16, torch.float16) else v

    def to(self, v: V, dtype: torch.dtype) -> V:
        return v if v.value.dtype is dtype else self.compute("convert", v, dtype=dtype)

    def fold(self, kind: str, v: V) -> V:
        dtype = I64 if kind.startswith("arg") else v.value.dtype
        out: V = self.add(Reduce(kind, v.value, dtype))
        return out

    def index(self, e: IntLike) -> V:
        out: V = self.add(Index(e))
        return out

    def store(self, b: Buffer, index: Any, v: V, mode: str = "set", mask: V | None = None, indirect: Any = ()) -> None:
        v = self.to(v, b.type.dtype)
        self.add(Store(b, tuple(index), v.value, mode, tuple(indirect), mask.value if mask else None))

    def kernel(self, name: str) -> Kernel:
        return Kernel(name, self.x, self.r, self.instrs, torch.device("cuda"))


def bound(name: str, size: int) -> tuple[IntLike, Symbol]:
    """A symbol for an indirect index."""
    e = symbol(name, 0, size - 1)
    s = symbol_of(e)
    assert s is not None
    return e, s


@dataclass
class Case:
    """``inputs(device)``: tensors by buffer name. ``eager``: the outputs by name from them, in plain torch, in f64 too.
    ``zeroed``: outputs that the kernel adds into."""

    kernel: Kernel
    buffers: dict[str, Buffer]
    inputs: Callable[[str], dict[str, torch.Tensor]]
    eager: Callable[..., dict[str, torch.Tensor]]
    zeroed: tuple[str, ...] = ()
    exact: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def outputs(self) -> list[str]:
        return [b.name for b in self.kernel.writes]

    @property
    def nbytes(self) -> int:
        """Bytes that must move: each buffer read once, written once."""
        both = [*self.kernel.reads, *self.kernel.writes]
        return sum(int(b.type.nbytes) for b in both)  # type: ignore[call-overload]


def rand(*sizes: int, dtype: torch.dtype = F32, scale: float = 1.0) -> Callable[[str], torch.Tensor]:
    return lambda device: (torch.randn(*sizes, device=device) * scale).to(dtype)


def make(**factories: Callable[[str], torch.Tensor]) -> Callable[[str], dict[str, torch.Tensor]]:
    return lambda device: {n: f(device) for n, f in factories.items()}


def bias_gelu(m: int, n: int, dtype: torch.dtype) -> Case:
    k = Body({"i": m, "j": n})
    a, c, o = k.buffer("a", (m, n), dtype), k.buffer("c", (n,), dtype), k.buffer("o", (m, n), dtype)
    v = k.load(a, k["i"], k["j"]) + k.load(c, k["j"])
    k.store(o, (k["i"], k["j"]), v * 0.5 * ((v * 0.7071067811865476).erf() + 1.0))
    inputs = make(a=rand(m, n, dtype=dtype), c=rand(n, dtype=dtype))
    return Case(k.kernel("bias_gelu"), k.buffers, inputs, lambda a, c: {"o": F.gelu(a + c)})


def add_relu(m: int, n: int, dtype: torch.dtype) -> Case:
    k = Body({"i": m, "j": n})
    a, c, o = (k.buffer(s, (m, n), dtype) for s in "aco")
    v = k.load(a, k["i"], k["j"]) + k.load(c, k["i"], k["j"])
    k.store(o, (k["i"], k["j"]), v.maximum(0.0))
    inputs = make(a=rand(m, n, dtype=dtype), c=rand(m, n, dtype=dtype))
    return Case(k.kernel("add_relu"), k.buffers, inputs, lambda a, c: {"o": F.relu(a + c)})


def softmax(m: int, n: int, dtype: torch.dtype) -> Case:
    k = Body({"i": m}, {"j": n})
    a, o = k.buffer("a", (m, n), dtype), k.buffer("o", (m, n), dtype)
    v = k.load(a, k["i"], k["j"])
    e = (v - k.fold("max", v)).exp()
    k.store(o, (k["i"], k["j"]), e / k.fold("sum", e))
    return Case(k.kernel("softmax"), k.buffers, make(a=rand(m, n, dtype=dtype)), lambda a: {"o": a.softmax(-1)})


def layer_norm(m: int, n: int, dtype: torch.dtype) -> Case:
    k = Body({"i": m}, {"j": n})
    a, o = k.buffer("a", (m, n), dtype), k.buffer("o", (m, n), dtype)
    w, c = k.buffer("w", (n,), F32), k.buffer("c", (n,), F32)
    mean, rstd = k.buffer("mean", (m,), F32), k.buffer("rstd", (m,), F32)
    v = k.load(a, k["i"], k["j"])
    mu = k.fold("sum", v) / float(n)
    d = v - mu
    r = (k.fold("sum", d * d) / float(n) + 1e-5).rsqrt()
    k.store(mean, (k["i"],), mu)
    k.store(rstd, (k["i"],), r)
    k.store(o, (k["i"], k["j"]), d * r * k.load(w, k["j"]) + k.load(c, k["j"]))
    inputs = make(a=rand(m, n, dtype=dtype), w=rand(n), c=rand(n))

    def eager(a: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> dict[str, torch.Tensor]:
        wide = torch.promote_types(a.dtype, F32)
        y, mu, r = torch.native_layer_norm(a.to(wide), (n,), w.to(wide), c.to(wide), 1e-5)
        return {"o": y.to(a.dtype), "mean": mu.reshape(-1), "rstd": r.reshape(-1)}

    return Case(k.kernel("layer_norm"), k.buffers, inputs, eager)


def layer_norm_backward(m: int, n: int, dtype: torch.dtype) -> Case:
    k = Body({"i": m}, {"j": n})
    a, g, o = (k.buffer(s, (m, n), dtype) for s in "ago")
    w, mean, rstd = k.buffer("w", (n,), F32), k.buffer("mean", (m,), F32), k.buffer("rstd", (m,), F32)
    r = k.load(rstd, k["i"])
    h = (k.load(a, k["i"], k["j"]) - k.load(mean, k["i"])) * r
    d = k.load(g, k["i"], k["j"]) * k.load(w, k["j"])
    s, t = k.fold("sum", d), k.fold("sum", d * h)
    k.store(o, (k["i"], k["j"]), (d - s / float(n) - h * (t / float(n))) * r)

    def inputs(device: str) -> dict[str, torch.Tensor]:
        x = torch.randn(m, n, device=device).to(dtype)
        var, mu = torch.var_mean(x.float(), -1, correction=0)
        g = torch.randn(m, n, device=device).to(dtype)
        return {"a": x, "g": g, "w": torch.randn(n, device=device), "mean": mu, "rstd": (var + 1e-5).rsqrt()}

    def eager(**t: torch.Tensor) -> dict[str, torch.Tensor]:
        a, w = t["a"], t["w"]
        wide = torch.promote_types(a.dtype, F32)
        args = (t["g"].to(wide), a.to(wide), (n,), t["mean"].to(wide)[:, None], t["rstd"].to(wide)[:, None])
        out = torch.ops.aten.native_layer_norm_backward(*args, w.to(wide), None, [True, False, False])
        return {"o": out[0].to(a.dtype)}

    return Case(k.kernel("layer_norm_backward"), k.buffers, inputs, eager)


def column_sum(m: int, n: int, dtype: torch.dtype, chunks: int = 32) -> Case:
    """Partial sums of ``chunks`` blocks of rows: the first half of a split reduction."""
    k = Body({"s": chunks, "j": n}, {"i": m // chunks})
    a, o = k.buffer("a", (m, n), dtype), k.buffer("o", (chunks, n), F32)
    k.store(o, (k["s"], k["j"]), k.fold("sum", k.load(a, k["s"] * (m // chunks) + k["i"], k["j"])))

    def eager(a: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"o": a.view(chunks, m // chunks, n).sum(1, dtype=torch.promote_types(a.dtype, F32))}

    return Case(k.kernel("column_sum"), k.buffers, make(a=rand(m, n, dtype=dtype)), eager)


def row_sum(m: int, n: int, dtype: torch.dtype) -> Case:
    k = Body({"i": m}, {"j": n})
    a, o = k.buffer("a", (m, n), dtype), k.buffer("o", (m,), F32)
    k.store(o, (k["i"],), k.fold("sum", k.load(a, k["i"], k["j"])))

    def eager(a: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"o": a.sum(1, dtype=torch.promote_types(a.dtype, F32))}

    return Case(k.kernel("row_sum"), k.buffers, make(a=rand(m, n, dtype=dtype)), eager)


def batch_norm_stats(m: int, n: int, dtype: torch.dtype) -> Case:
    """Mean and variance of m channels over 4 images of n pixels, NCHW."""
    k = Body({"c": m}, {"b": 4, "p": n})
    a = k.buffer("a", (4, m, n), dtype)
    mean, var = k.buffer("mean", (m,), F32), k.buffer("var", (m,), F32)
    v = k.load(a, k["b"], k["c"], k["p"])
    mu = k.fold("sum", v) / float(4 * n)
    d = v - mu
    k.store(mean, (k["c"],), mu)
    k.store(var, (k["c"],), k.fold("sum", d * d) / float(4 * n))

    def eager(a: torch.Tensor) -> dict[str, torch.Tensor]:
        var, mean = torch.var_mean(a.to(torch.promote_types(a.dtype, F32)), (0, 2), correction=0)
        return {"mean": mean, "var": var}

    return Case(k.kernel("batch_norm_stats"), k.buffers, make(a=rand(4, m, n, dtype=dtype)), eager)


def batch_norm_apply(m: int, n: int, dtype: torch.dtype) -> Case:
    """(a - mean) * rstd * w + c, then relu, NCHW with 4 images, m channels, n pixels."""
    k = Body({"b": 4, "c": m, "p": n})
    a, o = k.buffer("a", (4, m, n), dtype), k.buffer("o", (4, m, n), dtype)
    mean, rstd, w, c = (k.buffer(s, (m,), F32) for s in ("mean", "rstd", "w", "c"))
    h = (k.load(a, k["b"], k["c"], k["p"]) - k.load(mean, k["c"])) * k.load(rstd, k["c"])
    k.store(o, (k["b"], k["c"], k["p"]), (h * k.load(w, k["c"]) + k.load(c, k["c"])).maximum(0.0))
    inputs = make(a=rand(4, m, n, dtype=dtype), mean=rand(m), rstd=rand(m), w=rand(m), c=rand(m))

    def eager(**t: torch.Tensor) -> dict[str, torch.Tensor]:
        a = t["a"].to(torch.promote_types(t["a"].dtype, F32))
        h = (a - t["mean"][:, None]) * t["rstd"][:, None] * t["w"][:, None] + t["c"][:, None]
        return {"o": F.relu(h).to(t["a"].dtype)}

    return Case(k.kernel("batch_norm_apply"), k.buffers, inputs, eager)


def cross_entropy(m: int, n: int, dtype: torch.dtype) -> Case:
    """Each row's loss: log(sum(exp(a - max))) + max - a[target]."""
    k = Body({"i": m}, {"j": n})
    a, t, o = k.buffer("a", (m, n), dtype), k.buffer("t", (m,), I64), k.buffer("o", (m,), F32)
    v = k.load(a, k["i"], k["j"])
    top = k.fold("max", v)
    lse = k.fold("sum", (v - top).exp()).log() + top
    at = k.compute("check_index", k.load(t, k["i"]), size=n)
    e, s = bound("at", n)
    k.store(o, (k["i"],), lse - k.load(a, k["i"], e, indirect=[(s, at.value)]))
    inputs = make(a=rand(m, n, dtype=dtype), t=lambda device: torch.randint(0, n, (m,), device=device))

    def eager(a: torch.Tensor, t: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"o": F.cross_entropy(a.to(torch.promote_types(a.dtype, F32)), t.long(), reduction="none")}

    return Case(k.kernel("cross_entropy"), k.buffers, inputs, eager)


def transpose(m: int, n: int, dtype: torch.dtype) -> Case:
    k = Body({"i": n, "j": m})
    a, o = k.buffer("a", (m, n), dtype), k.buffer("o", (n, m), dtype)
    k.store(o, (k["i"], k["j"]), k.load(a, k["j"], k["i"], wide=False))
    eager: Any = lambda a: {"o": a.t().contiguous()}  # noqa: E731
    return Case(k.kernel("transpose"), k.buffers, make(a=rand(m, n, dtype=dtype)), eager, exact=True)


def channels_last(m: int, n: int, dtype: torch.dtype) -> Case:
    """4 images, m channels of n pixels, NCHW to NHWC."""
    k = Body({"b": 4, "p": n, "c": m})
    a, o = k.buffer("a", (4, m, n), dtype), k.buffer("o", (4, n, m), dtype)
    k.store(o, (k["b"], k["p"], k["c"]), k.load(a, k["b"], k["c"], k["p"], wide=False))
    eager: Any = lambda a: {"o": a.transpose(1, 2).contiguous()}  # noqa: E731
    return Case(k.kernel("channels_last"), k.buffers, make(a=rand(4, m, n, dtype=dtype)), eager, exact=True)


def embedding(m: int, n: int, dtype: torch.dtype, vocabulary: int = 1000) -> Case:
    k = Body({"i": m, "j": n})
    w, t, o = k.buffer("w", (vocabulary, n), dtype), k.buffer("t", (m,), I64), k.buffer("o", (m, n), dtype)
    e, s = bound("at", vocabulary)
    at = k.compute("check_index", k.load(t, k["i"]), size=vocabulary)
    k.store(o, (k["i"], k["j"]), k.load(w, e, k["j"], indirect=[(s, at.value)], wide=False))
    inputs = make(
        w=rand(vocabulary, n, dtype=dtype),
        t=lambda device: torch.randint(-vocabulary, vocabulary, (m,), device=device),
    )
    eager: Any = lambda w, t: {"o": w[t.long()]}  # noqa: E731
    return Case(k.kernel("embedding"), k.buffers, inputs, eager, exact=True)


def embedding_backward(m: int, n: int, dtype: torch.dtype, vocabulary: int = 1000) -> Case:
    k = Body({"i": m, "j": n})
    g, t, o = k.buffer("g", (m, n), dtype), k.buffer("t", (m,), I64), k.buffer("o", (vocabulary, n), F32)
    e, s = bound("at", vocabulary)
    at = k.compute("check_index", k.load(t, k["i"]), size=vocabulary)
    k.store(o, (e, k["j"]), k.load(g, k["i"], k["j"]), "atomic_add", indirect=[(s, at.value)])
    inputs = make(g=rand(m, n, dtype=dtype), t=lambda device: torch.randint(0, vocabulary, (m,), device=device))

    def eager(g: torch.Tensor, t: torch.Tensor) -> dict[str, torch.Tensor]:
        wide = torch.promote_types(g.dtype, F32)
        return {"o": torch.zeros(vocabulary, n, dtype=wide, device=g.device).index_add_(0, t.long(), g.to(wide))}

    return Case(k.kernel("embedding_backward"), k.buffers, inputs, eager, zeroed=("o",))


def dropout(m: int, n: int, dtype: torch.dtype) -> Case:
    """a * (u >= 0.1) / 0.9, u from Philox."""
    k = Body({"i": m, "j": n})
    a, s, o = k.buffer("a", (m, n), dtype), k.buffer("s", (2,), I64), k.buffer("o", (m, n), dtype)
    u = k.compute("philox", k.load(s, 0), k.load(s, 1) + 3, k.index(k["i"] * n + k["j"]), dtype=F32)
    zero = k.load(a, k["i"], k["j"]) * 0.0
    k.store(o, (k["i"], k["j"]), k.compute("where", u.ge(0.1), k.load(a, k["i"], k["j"]) * (1 / 0.9), zero))
    inputs = make(a=rand(m, n, dtype=dtype), s=lambda device: torch.tensor([-5, 2**40 + 7], device=device))

    def eager(a: torch.Tensor, s: torch.Tensor) -> dict[str, torch.Tensor]:
        from braze.prims import PRIMS

        u = PRIMS["philox_uniform"](s.long(), 3, (m, n), s.device)
        return {"o": torch.where(u >= 0.1, a.to(torch.promote_types(a.dtype, F32)) * (1 / 0.9), 0.0).to(a.dtype)}

    return Case(k.kernel("dropout"), k.buffers, inputs, eager)


def argmax(m: int, n: int, dtype: torch.dtype) -> Case:
    k = Body({"i": m}, {"j": n})
    a, o = k.buffer("a", (m, n), dtype), k.buffer("o", (m,), I64)
    k.store(o, (k["i"],), k.fold("argmax", k.load(a, k["i"], k["j"])))
    eager: Any = lambda a: {"o": a.argmax(1)}  # noqa: E731
    return Case(k.kernel("argmax"), k.buffers, make(a=rand(m, n, dtype=dtype)), eager, exact=True)


def pool(m: int, n: int, dtype: torch.dtype) -> Case:
    """The largest of each element and its two neighbours, masked at the ends."""
    k = Body({"i": m, "j": n})
    a, o = k.buffer("a", (m, n), dtype), k.buffer("o", (m, n), dtype)
    best = None
    for step in (-1, 0, 1):
        at = k.index(k["j"] + step)
        inside = k.compute("bitwise_and", at.ge(0), at.lt(n), dtype=torch.bool)
        v = k.load(a, k["i"], k["j"] + step, mask=inside, other=float("-inf"))
        best = v if best is None else best.maximum(v)
    assert best is not None
    k.store(o, (k["i"], k["j"]), best)

    def eager(a: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"o": F.max_pool1d(a[None], 3, 1, 1)[0]}

    return Case(k.kernel("pool"), k.buffers, make(a=rand(m, n, dtype=dtype)), eager, exact=True)


CASES: dict[str, Callable[[int, int, torch.dtype], Case]] = {
    f.__name__: f
    for f in (
        bias_gelu,
        add_relu,
        softmax,
        layer_norm,
        layer_norm_backward,
        column_sum,
        row_sum,
        batch_norm_stats,
        batch_norm_apply,
        cross_entropy,
        transpose,
        channels_last,
        embedding,
        embedding_backward,
        dropout,
        argmax,
        pool,
    )
}
