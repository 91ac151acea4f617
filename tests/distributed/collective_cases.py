"""Collectives in compiled functions: one graph, and eager's values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import braze
from braze.api import log_of

Tensor = torch.Tensor


def reduced(x: Tensor, w: Tensor) -> Any:
    return fc.all_reduce(x @ w, "sum", dist.group.WORLD).sin(), fc.all_reduce(x, "sum", dist.group.WORLD)


def gathered(x: Tensor, w: Tensor) -> Any:
    rows = fc.all_gather_tensor(w, 0, dist.group.WORLD)
    return fc.all_gather_tensor(x.tanh(), 1, dist.group.WORLD) @ rows, rows


def scattered(x: Tensor, w: Tensor) -> Any:
    return fc.reduce_scatter_tensor(x @ w, "sum", 0, dist.group.WORLD).relu(), w * 2


def exchanged(x: Tensor, w: Tensor) -> Any:
    return fc.all_to_all_single(x * 2, None, None, dist.group.WORLD).exp(), w + 1


def unused(x: Tensor, w: Tensor) -> Any:
    """Eager issues a collective that nobody reads."""
    fc.all_reduce(x * 3, "sum", dist.group.WORLD)
    return (x @ w).relu(), fc.all_reduce(w, "sum", dist.group.WORLD)


def raw(x: Tensor, w: Tensor) -> Any:
    ops = torch.ops._c10d_functional
    pending = ops.all_reduce(x, "sum", "0")
    other = (x @ w).relu()
    return ops.wait_tensor(pending) + 1, other


def many(x: Tensor, w: Tensor) -> Any:
    """Starts in the program's order, though the last ones could run first."""
    h = x
    for _ in range(3):
        h = fc.all_reduce(h @ w * 0.2, "sum", dist.group.WORLD).tanh()
        w = fc.all_reduce(w * 0.5, "sum", dist.group.WORLD)
    return h, w


DIFFERENTIABLE: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (reduced, gathered, scattered, exchanged, unused, raw, many)
}


def coalesced(x: Tensor, w: Tensor) -> Any:
    a, b = fc.all_reduce_coalesced([x, w], "sum", dist.group.WORLD)
    return a * 2, b * 3


def by_mesh(x: Tensor, w: Tensor) -> Any:
    mesh = MESH[0]
    return fc.all_reduce(x, "sum", mesh) + 1, fc.all_gather_tensor(w, 0, (mesh, 0))


def in_place(x: Tensor, w: Tensor) -> Any:
    t = x * 2
    dist.all_reduce(t)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    n = dist.get_world_size()
    whole = torch.empty(n * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(whole, x)
    parts = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(parts, x + dist.get_rank())
    sent = x.clone()
    dist.broadcast(sent, 1)
    part = torch.empty(x.shape[0] // n, x.shape[1])
    dist.reduce_scatter_tensor(part, x)
    exchange = torch.empty_like(x)
    dist.all_to_all_single(exchange, t)
    return t + 1, whole, *parts, sent, part, exchange


PLAIN: dict[str, Callable[..., Any]] = {f.__name__: f for f in (coalesced, by_mesh, in_place)}
MESH: list[Any] = []


def outcome(f: Callable[..., Any], differentiate: bool) -> list[Tensor]:
    """Results, gradients, and what became of the inputs."""
    torch.manual_seed(dist.get_rank())
    x = torch.randn(8, 8)
    w = torch.randn(8, 8, requires_grad=differentiate)
    x.requires_grad_(differentiate)
    out = f(x, w)
    if differentiate:
        sum(o.square().sum() for o in out).backward()
    return [o.detach().clone() for o in out] + [t.detach() for t in (x, w)] + [t.grad for t in (x, w) if differentiate]


def equals_eager(name: str, differentiate: bool, backend: str) -> list[str]:
    """Two calls of one graph; gives the host programs."""
    MESH[:] = [init_device_mesh("cpu", (dist.get_world_size(),))]
    f = {**DIFFERENTIABLE, **PLAIN}[name]
    want = outcome(f, differentiate)
    fast = braze.compile(f, fullgraph=True, backend=backend)
    for _ in range(2):
        for got, right in zip(outcome(fast, differentiate), want, strict=True):
            if right is None or got is None:
                assert right is None and got is None
            else:
                torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)
    log = log_of(fast)
    assert len(log.graphs) == 1
    return [str(v) for k, v in log.graphs[0].levels.items() if k.endswith("host")]


def break_reason(what: str) -> str:
    """Why a function cannot be one graph; without ``fullgraph`` it runs and is right."""

    def asynchronous(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y, async_op=True).wait()
        return y + 1

    def barrier(x: Tensor) -> Tensor:
        y = x * 2
        dist.barrier()
        return y + 1

    def differentiable(x: Tensor) -> Tensor:
        y = x * W[0]
        dist.all_reduce(y)
        return y + 1

    f = {"async": asynchronous, "barrier": barrier, "differentiable": differentiable}[what]
    x = torch.ones(4) * (dist.get_rank() + 1)
    torch.testing.assert_close(braze.compile(f)(x.clone()), f(x.clone()))
    try:
        braze.compile(f, fullgraph=True)(x.clone())
    except braze.errors.Unsupported as e:
        return str(e)
    return ""


W = [torch.ones(4, requires_grad=True)]


class Parallel(nn.Module):
    """A tensor-parallel MLP and attention of local weights and functional collectives: columns, then rows."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        n, k = dist.get_world_size(), dist.get_rank()
        torch.manual_seed(0)
        self.heads = heads // n
        self.norm = nn.LayerNorm(width)
        shapes = {"q": (width, width), "k": (width, width), "v": (width, width), "up": (4 * width, width)}
        whole = {name: torch.randn(s) / width**0.5 for name, s in shapes.items()}
        for name, w in whole.items():
            setattr(self, name, nn.Parameter(w.chunk(n, 0)[k].clone()))
        self.out = nn.Parameter((torch.randn(width, width) / width**0.5).chunk(n, 1)[k].clone())
        self.down = nn.Parameter((torch.randn(width, 4 * width) / width).chunk(n, 1)[k].clone())

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (nn.functional.linear(h, w).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in self.qkv())
        a = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = x + fc.all_reduce(nn.functional.linear(a, self.out), "sum", dist.group.WORLD)
        y = nn.functional.gelu(nn.functional.linear(x, self.up))
        return x + fc.all_reduce(nn.functional.linear(y, self.down), "sum", dist.group.WORLD)

    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v


def tensor_parallel() -> int:
    """A compiled tensor-parallel layer trains as eager does; the number of graphs."""
    found = []
    for compiled in (False, True):
        model: nn.Module = Parallel()
        fast = braze.compile(model, fullgraph=True) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch.manual_seed(1)
        losses = []
        for _ in range(5):
            loss = fast(torch.randn(2, 6, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        found.append((losses, [p.detach() for p in model.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    return len(log_of(fast).graphs)


def averaged_step() -> int:
    """A whole training step with its own gradient averaging (``dist.all_reduce`` on gradients) is one graph."""
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)

        def step(x: Tensor, model: Any = model, optimizer: Any = optimizer) -> Tensor:
            loss = model(x).square().mean()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG if not gloo() else dist.ReduceOp.SUM)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        fast = braze.compile(step, fullgraph=True) if compiled else step
        torch.manual_seed(dist.get_rank() + 1)
        losses = [fast(torch.randn(4, 8)) for _ in range(5)]
        found.append((losses, [p.detach() for p in model.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    return len(log_of(fast).graphs)


def gloo() -> bool:
    return dist.get_backend() == "gloo"
