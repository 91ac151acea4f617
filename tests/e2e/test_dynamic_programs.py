"""Programs over sizes that vary: values, gradients and Python results as in eager, and few compiled versions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import braze
from braze.api import log_of

R = torch.randn
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], list[tuple[Any, ...]]], int]] = {}
SIZES = (5, 8, 9, 30, 20, 31)


def case(calls: Callable[[], list[tuple[Any, ...]]], most: int) -> Callable[[Any], Any]:
    """A program, its calls, and the most graphs that they may compile."""

    def add(f: Any) -> Any:
        PROGRAMS[f.__name__] = f, calls, most
        return f

    return add


@case(lambda: [(R(4), i) for i in range(2, 30)], 3)
def step_counter(x, n):
    return x * n + n // 2


@case(lambda: [(R(40), i) for i in range(2, 30)], 3)
def offset(x, n):
    return x[n:] + n


@case(lambda: [(R(40), i) for i in range(-10, 10)], 6)
def signs(x, n):
    return x * abs(n) if n > 0 else x - n


@case(lambda: [(R(i, 4),) for i in SIZES], 3)
def fstr(x):
    s = f"{x.shape[0]}-{x.shape[0] * 2:04d}"
    return x + 1, s, str(x.shape[0])


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def meta(x):
    return x.numel(), x.shape, x.size(0) // 2, len(x), x.shape[0] % 3, -x.shape[0], x.shape[0] ** 2, x + 1


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def prod(x):
    return x.view(math.prod(x.shape)), x.shape.numel(), x.new_zeros(x.shape), x.shape[:-1] + (7,), list(x.shape)


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def minmax(x):
    n = min(x.shape[0], 1000)
    m = max(x.shape[0], 2)
    return x * n + m


@case(lambda: [(R(i, 4),) for i in (5, 8, 9, 30, 20, 31, 600, 700)], 3)
def minsize(x):
    n = min(x.shape[0], 512)
    return x[:n] * 2


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def divi(x):
    return x / x.shape[0], x.sum(0) / (x.shape[0] - 1), x * (1.0 / x.shape[0]), x.shape[0] / 2


@case(lambda: [(R(i, 4),) for i in SIZES], 4)
def evenodd(x):
    return x * 2 if x.shape[0] % 2 == 0 else x * 3


@case(lambda: [(R(8 * i, 4),) for i in SIZES] + [(R(13, 4),)], 3)
def div8(x):
    assert x.shape[0] % 8 == 0 or x.shape[0] == 13
    return x.reshape(-1, 8, 4).sum(1) if x.shape[0] % 8 == 0 else x


@case(lambda: [(R(i, 4), R(i, 4)) for i in SIZES] + [(R(8, 4), R(9, 4))], 3)
def samesize(x, y):
    return torch.cat([x, y]) if x.shape[0] != y.shape[0] else x + y


@case(lambda: [(R(i, 4),) for i in SIZES], 8)
def loop(x):
    out = 0
    for i in range(x.shape[0]):
        out = out + x[i] * i
    return out


@case(lambda: [([R(4)] * i,) for i in (2, 3, 4, 5)], 4)
def listlen(xs):
    return sum(xs) + len(xs)


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def pos(x):
    return x + torch.arange(x.shape[0])[:, None] + torch.ones(x.shape[0], 1) * x.size(0)


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def causal(x):
    t = x.shape[0]
    m = torch.tril(torch.ones(t, t)).bool()
    return (x @ x.T).masked_fill(~m, float("-inf")).softmax(-1)


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def pad(x):
    return F.pad(x, (0, 0, 0, 40 - x.shape[0]))


@case(lambda: [(R(i, 4),) for i in SIZES], 4)
def padto8(x):
    return F.pad(x, (0, 0, 0, (8 - x.shape[0] % 8) % 8))


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def dictkey(x):
    d = {"n": x.shape[0], "m": [x.shape[0] + 1]}
    d["k"] = d["n"] * 2
    return x * d["k"], d


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def closure(x):
    n = x.shape[0]

    def inner(y):
        return y * n

    return inner(x)


@case(lambda: [(R(i, 4),) for i in SIZES], 8)
def setkey(x):
    return x * len({x.shape[0], 3})


@case(lambda: [(R(i, 4),) for i in SIZES], 4)
def broken(x):
    y = x * 2
    n = x.shape[0]
    print(end="")
    return y[: n - 1] + n


@case(lambda: [(R(50),) for i in range(12)], 5)
def nonzero(x):
    y = x[x > 0]
    return (y * 2).sum() + y.shape[0]


@case(lambda: [(torch.randint(0, i, (30,)),) for i in range(3, 14)], 5)
def unique(x):
    u = torch.unique(x)
    return u * 2 + u.shape[0]


@case(lambda: [(torch.tensor(float(i)), R(40)) for i in range(2, 14)], 5)
def item(t, x):
    n = int(t.item())
    return x[:n] * n


@case(lambda: [(R(i, 4), R(i + 1, 4)) for i in SIZES], 2)
def affine(x, y):
    return x + y[1:]


@case(lambda: [(R(i, 4).t(),) for i in SIZES], 2)
def transposed(x):
    return (x * 2).contiguous(), x.reshape(-1)


@case(lambda: [(R(i, 64)[:, :32],) for i in SIZES], 2)
def sliced(x):
    return x * 2, x.reshape(-1)


@case(lambda: [(R(2, i, 4).transpose(0, 1),) for i in SIZES], 2)
def transp3(x):
    return x * 2, x.reshape(x.shape[0], -1)


@case(lambda: [(R(3, 40)[:, :i],) for i in SIZES], 2)
def prefix(x):
    return x * 2, x.sum(1)


@case(lambda: [(R(3, i + 3)[:, :i],) for i in SIZES], 8)
def ragged(x):
    return x * 2, x.sum(1)


@case(lambda: [(R(1, i).expand(3, i),) for i in SIZES], 2)
def expanded(x):
    return x * 2, x.sum(1)


@case(lambda: [(R(i, 3, 8, 8).to(memory_format=torch.channels_last),) for i in SIZES], 2)
def chlast(x):
    return F.relu(x) * 2, x.mean((2, 3))


@case(lambda: [(R(2, 3, i, i + 1).to(memory_format=torch.channels_last),) for i in SIZES], 2)
def chlast2(x):
    return F.relu(x) * 2, x.mean((2, 3)), F.max_pool2d(x, 2)


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def inplace(x):
    y = x.clone()
    y[1:] += 1
    y[-1] = 0
    y[:, 0].mul_(x.shape[0])
    return y


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def mutate(x):
    x.add_(1)
    x[0] = x.shape[0]
    return x * 2


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def views(x):
    return x[1:], x.t(), x.view(-1), x[:, None].expand(-1, 3, -1), x.unbind(1)


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def red(x):
    return (
        x.max(0),
        x.argmax(0),
        x.sort(0),
        x.cumsum(0),
        x.logsumexp(0),
        x.prod(0),
        x.median(0)[0] if False else x.norm(),
    )


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def rep(x):
    return (
        x.repeat(2, x.shape[0]),
        x.roll(1, 0),
        x.flip(0),
        torch.stack([x, x]),
        x.repeat_interleave(3, 0),
        torch.cat([x, x[:2]]),
    )


# the backward in ATen asks for the size as a float
@case(lambda: [(R(i, 4),) for i in SIZES], 8)
def spread(x: Tensor) -> Any:
    return x.std(0), x.var(1)


@case(lambda: [(R(i, 4),) for i in SIZES], 2)
def ein(x):
    return torch.einsum("ij,kj->ik", x, x), x @ x.t(), torch.einsum("ij->ji", x)


@case(lambda: [(R(i, 4),) for i in (6, 8, 10, 30, 20, 32)], 3)
def chunk2(x):
    a, b = x.chunk(2, 0)
    return a * b


@case(lambda: [(R(i, 6),) for i in (6, 8, 10, 30, 20, 32)], 2)
def chunk1(x):
    a, b = x.chunk(2, 1)
    return a * b


@case(lambda: [(R(i, 6), 3 if i > 9 else 2) for i in (6, 8, 10, 30, 20, 32)], 5)
def dimarg(x, k):
    return x.unsqueeze(k - 2) * k


@case(lambda: [(R(i, 6),) for i in (6, 8, 10, 30, 20, 32)], 2)
def tuplecmp(x):
    return x * 2 if x.shape == (x.shape[0], 6) and x.shape[1:] == (6,) else x


@case(lambda: [(R(i, 6),) for i in (6, 8, 10, 30, 20, 32)], 2)
def nonecmp(x):
    n = x.shape[0]
    return x * 2 if n is not None and n != "a" and n > 2.5 and isinstance(n, int) else x


@case(lambda: [(R(1, 4, i, 8), R(1, 4, i, 8), R(1, 4, i, 8)) for i in (6, 8, 10, 30, 20, 32)], 2)
def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


# ATen asks for plain sizes
@case(lambda: [(R(2, 4, i, 8),) for i in (6, 8, 10, 30, 20, 32)], 8)
def interp(x):
    return F.interpolate(x, scale_factor=2), F.interpolate(x, size=(12, 12), mode="bilinear")


@case(lambda: [(R(i, 5), torch.randint(0, 5, (i,))) for i in (6, 8, 10, 30, 20, 32)], 2)
def ce(x, t):
    return F.cross_entropy(x, t), F.cross_entropy(x, t, reduction="none", label_smoothing=0.1)


@case(lambda: [(R(i, 6),) for i in (6, 8, 10, 30, 20, 32)], 2)
def gath(x):
    i = torch.arange(x.shape[0]).flip(0)
    return (
        x[i],
        x.gather(0, i[:, None].expand(-1, 6)),
        x.index_select(0, i[1:]),
        torch.zeros(x.shape[0], 6).scatter(0, i[:, None].expand(-1, 6), x),
    )


@case(lambda: [(R(i, 6),) for i in (6, 8, 10, 30, 20, 32)], 2)
def where(x):
    return (
        torch.where(x > 0, x, torch.full_like(x, x.shape[0])),
        x.masked_fill(x > 0, x.shape[0]),
        x.clamp(max=x.shape[0]),
    )


@case(lambda: [(R(i, 6).double(),) for i in (6, 8, 10, 30, 20, 32)], 2)
def pw(x):
    return x**2 + x.shape[0] ** 2, torch.pow(x, 3), x * (x.shape[0] - 1), x / x.shape[0], x % x.shape[0]


def tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    items = x.values() if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else ()
    return [t for y in items for t in tensors(y)]


def plain(x: Any) -> Any:
    """Everything but the tensors."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)([plain(y) for y in x]) if type(x) in (tuple, list, torch.Size) else [plain(y) for y in x]
    return None if isinstance(x, Tensor) else x


def leaf(name: str, x: Any) -> Any:
    if isinstance(x, Tensor) and x.is_floating_point() and name != "mutate":
        return x.detach().requires_grad_()
    return copy.deepcopy(x)


def run(f: Any, name: str, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """The result and the gradients of the arguments, or the error's type."""
    given = [leaf(name, a) for a in args]
    try:
        out = f(*given)
    except Exception as e:
        return type(e), None
    loss = sum(((t.double() * t.double().cos().detach()).sum() for t in tensors(out) if t.requires_grad), R(()) * 0)
    wanted = [a for a in tensors(given) if a.requires_grad]
    return out, torch.autograd.grad(loss, wanted, allow_unused=True) if loss.requires_grad else None


def check(name: str, dynamic: bool | None, backend: str) -> None:
    f, calls, most = PROGRAMS[name]
    g = braze.compile(f, dynamic=dynamic, backend=backend)
    torch.manual_seed(0)
    for args in calls():
        want, want_grads = run(f, name, args)
        got, got_grads = run(g, name, args)
        if isinstance(want, type):
            assert got is want
            continue
        assert plain(got) == plain(want)
        torch.testing.assert_close(tensors(got), tensors(want), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got_grads, want_grads, rtol=1e-3, atol=1e-4)
    log = log_of(g)
    assert log is not None
    assert not any(x.fallback or x.notes for x in log.graphs), [x.fallback or x.notes for x in log.graphs]
    assert not any(p.failure for p in g._braze_session._policies.values())
    assert len(log.graphs) <= most, [r.reason for r in log.recompiles]


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_that_change(name: str) -> None:
    check(name, None, "inductor")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_symbolic_at_once(name: str) -> None:
    check(name, True, "inductor")


@pytest.mark.parametrize("name", ["offset", "fstr", "prod", "div8", "views", "chunk1", "item"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_backends(name: str, backend: str) -> None:
    check(name, None, backend)


def test_a_write_may_settle_the_size_of_what_is_written() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.lerp_(torch.ones(8) * y.sum(), 0.5)
        return x + 1

    x, y = R(8), R(5)
    want = f(x.clone(), y)
    torch.testing.assert_close(braze.compile(f, dynamic=True, fullgraph=True)(x.clone(), y), want)
