"""Tensor parallelism by ``parallelize_module`` and DTensors in compiled functions: what each rank runs."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from models import full
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import braze
from braze.api import log_of

Tensor = torch.Tensor
WIDTH, HEADS, TOKENS = 16, 4, 8


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


class RMSNorm(nn.Module):
    """A norm of the user's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    """Heads are divided: the number of local heads follows from the local width."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=b) for b in (True, False, True, True))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(a.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = RMSNorm(WIDTH), Attention(), RMSNorm(WIDTH), MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """Tokens to logits."""

    def __init__(self, depth: int = 2, checkpointed: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.norm, self.head = RMSNorm(WIDTH), nn.Linear(WIDTH, 32, bias=False)
        self.checkpointed = checkpointed

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.head(self.norm(x))


def replicated(model: nn.Module, over: DeviceMesh, embedding: bool = True) -> None:
    """Columns, then rows; what lies between the layers is whole on every rank."""
    plan: dict[str, Any] = {"head": ColwiseParallel(output_layouts=Replicate())}
    if embedding:
        plan["tokens"] = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(model, over, plan)
    for layer in model.layers:
        columns = {f"attention.{n}": ColwiseParallel() for n in "qkv"}
        columns |= {"mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel()}
        parallelize_module(layer, over, {**columns, "attention.out": RowwiseParallel(), "mlp.down": RowwiseParallel()})


def sequence(model: nn.Module, over: DeviceMesh) -> None:
    """Activations between the layers are divided along the tokens; DTensors go from module to module."""
    parallelize_module(
        model,
        over,
        {
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for layer in model.layers:
        plan: dict[str, Any] = {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        plan |= {"attention": gathered, "mlp": gathered}
        plan |= {f"attention.{n}": ColwiseParallel() for n in "qkv"}
        plan |= {"mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel()}
        plan |= {n: RowwiseParallel(output_layouts=Shard(1)) for n in ("attention.out", "mlp.down")}
        parallelize_module(layer, over, plan)


PLANS: dict[str, Callable[[nn.Module, DeviceMesh], None]] = {"replicated": replicated, "sequence": sequence}


def trained(model: nn.Module, steps: int, dtype: torch.dtype | None) -> list[Any]:
    """Losses, gradients and the final state, whole."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    losses = []
    for step in range(steps):
        ids = torch.randint(32, (2, TOKENS + 1), generator=torch.Generator().manual_seed(step))
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    grads = {n: full(p.grad) for n, p in model.named_parameters()}
    grads["placements"] = {
        n: str(getattr(p.grad, "placements", None)) for n, p in model.named_parameters() if n != "tokens.weight"
    }
    return [torch.stack(losses), grads, {n: full(p) for n, p in model.state_dict().items()}]


def decoder(plan: str, bf16: bool, checkpointed: bool) -> list[str]:
    """A decoder in one graph trains as in eager. The functional collectives of the graphs, by name."""
    found, model = [], None
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Decoder(checkpointed=checkpointed)
        names = list(model.state_dict())
        PLANS[plan](model, mesh())
        fast = braze.compile(model, fullgraph=True) if compiled else model
        found.append(trained(fast, 20, torch.bfloat16 if bf16 else None))
        assert list(fast.state_dict()) == names
        assert isinstance(fast.state_dict()["layers.0.mlp.up.weight"], DTensor)
    close = dict(rtol=0.06, atol=0.03) if bf16 else dict(rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found[1][0], found[0][0], **close)
    for got, want in zip(found[1][1:], found[0][1:]):
        assert got.keys() == want.keys()
        for n in want:
            if n == "placements":  # partial sums stay partial, as in eager: ranks in eager take part in the same calls
                assert got[n] == want[n]
            elif bf16:
                assert (got[n] - want[n]).norm() <= 0.1 * want[n].norm() + 0.05, n
            else:
                torch.testing.assert_close(got[n], want[n], **close)
    (graph,) = log_of(fast).graphs
    assert not graph.fallback
    text = "".join(str(v) for k, v in graph.levels.items() if k.endswith("host"))
    return [n for n in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor") if f"start_{n}(" in text]


def two_dimensions(plan: str, how: str) -> int:
    """FSDP2 over one dim of the mesh, tensor parallel over the other, layer by layer. The number of graphs a layer."""
    found, model = [], None
    for compiled in (False, True):
        torch.manual_seed(0)
        both = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
        model = Decoder()
        PLANS[plan](model, both["tensor"])
        for i, layer in enumerate(model.layers):
            if compiled and how == "before":
                model.layers[i] = layer = braze.compile(layer, fullgraph=True)
            fully_shard(layer, mesh=both["data"])
            if compiled and how == "after":
                model.layers[i] = braze.compile(layer, fullgraph=True)
        fully_shard(model, mesh=both["data"])
        found.append(trained(model, 8, None))
    assert found[1][1].pop("placements") == found[0][1].pop("placements")
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)
    logs = [log_of(layer) for layer in model.layers]
    assert not any(b for log in logs for b in log.breaks) and not any(g.fallback for log in logs for g in log.graphs)
    return max(len(log.graphs) for log in logs)


# ---- DTensors in functions


def inside(x: Tensor, w: Tensor) -> Any:
    """DTensors that a function makes itself."""
    m = MESH[0]
    a = DTensor.from_local(x, m, [Replicate()], run_check=False)
    b = DTensor.from_local(w, m, [Shard(0)], run_check=False)
    c = (b.redistribute(m, [Shard(1)]).sum(0) * a).relu()
    return c.full_tensor(), c.to_local(), c.sum().full_tensor()


def given(x: Any, w: Any) -> Any:
    """DTensors come in and go out."""
    y = x @ w
    return y.redistribute(placements=[Replicate()]), y.sin(), w * 2


def partial(x: Tensor, w: Tensor) -> Any:
    m = MESH[0]
    y = DTensor.from_local(x * w, m, [Partial()], run_check=False)
    return y.redistribute(placements=[Shard(0)]).to_local(), y.redistribute(placements=[Replicate()]).to_local()


def broken(x: Any, w: Any) -> Any:
    """A DTensor lives through a graph break."""
    y = (x @ w).sin()
    torch.distributed.barrier()
    return y.redistribute(placements=[Replicate()]).to_local() * 2


MESH: list[DeviceMesh] = []
FUNCTIONS: dict[str, tuple[Callable[..., Any], bool, bool]] = {
    # name -> (function, whether its inputs are DTensors, whether it is one graph)
    "inside": (inside, False, True),
    "given": (given, True, True),
    "partial": (partial, False, True),
    "broken": (broken, True, False),
}


def outcome(f: Callable[..., Any], sharded: bool, differentiate: bool) -> list[Any]:
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    if sharded:
        x, w = distribute_tensor(x, MESH[0], [Shard(0)]), distribute_tensor(w, MESH[0], [Replicate()])
    x.requires_grad_(differentiate)
    w.requires_grad_(differentiate)
    out = f(x, w)
    out = out if isinstance(out, tuple) else (out,)
    if differentiate:
        for o in out:
            (o.to_local() if isinstance(o, DTensor) else o).square().sum().backward(retain_graph=True)
    placements = [getattr(o, "placements", None) for o in out]
    return [full(o) for o in out] + placements + [full(t.grad) for t in (x, w)]


def function_equals_eager(name: str, differentiate: bool) -> int:
    """The number of graphs."""
    warnings.simplefilter("error", braze.CompileWarning)
    MESH[:] = [mesh()]
    f, sharded, one = FUNCTIONS[name]
    fast = braze.compile(f, fullgraph=one)
    for seed in range(3):
        torch.manual_seed(seed)
        want = outcome(f, sharded, differentiate)
        torch.manual_seed(seed)
        for got, right in zip(outcome(fast, sharded, differentiate), want, strict=True):
            if isinstance(right, Tensor):
                torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)
            else:
                assert got == right
    return len(log_of(fast).graphs)


def placements_are_guarded() -> int:
    """Another placement of one shape is another program. The number of graphs."""
    m = mesh()
    fast = braze.compile(lambda x: (x * 2).redistribute(placements=[Replicate()]).to_local())
    whole = torch.randn(8, 8)
    for placement in (Shard(0), Shard(1), Replicate(), Shard(0)):
        torch.testing.assert_close(fast(distribute_tensor(whole, m, [placement])), whole * 2)
    return len(log_of(fast).graphs)


def batches_of_different_sizes() -> None:
    model: nn.Module = MLP()
    over = mesh()
    parallelize_module(model, over, {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()})
    fast = braze.compile(model)
    for n in (3, 5, 3, 7, 2):
        x = torch.randn(n, WIDTH)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def output_layouts() -> None:
    """``PrepareModuleOutput`` and DTensors that leave the compiled module."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        m = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        parallelize_module(m[0], MESH[0], ColwiseParallel(use_local_output=False))
        parallelize_module(m[1], MESH[0], RowwiseParallel(output_layouts=Shard(0), use_local_output=False))
        layouts: dict[str, Any] = dict(output_layouts=(Shard(0),), desired_output_layouts=(Replicate(),))
        return parallelize_module(m, MESH[0], PrepareModuleOutput(**layouts, use_local_output=False))

    MESH[:] = [mesh()]
    want, model = build(), build()
    fast = braze.compile(model, fullgraph=True)
    x = torch.randn(4, WIDTH)
    for m in (want, fast):
        y = m(x)
        assert isinstance(y, DTensor) and y.placements == (Replicate(),)
        y.to_local().square().sum().backward()
    torch.testing.assert_close(full(fast(x)), full(want(x)))
    for a, b in zip(fast.parameters(), want.parameters()):
        torch.testing.assert_close(full(a.grad), full(b.grad))


def dropout_breaks() -> list[str]:
    """Random numbers in DTensors are left to eager, with the reason."""
    m = mesh()

    def f(x: Tensor) -> Tensor:
        y = DTensor.from_local(x.sin(), m, [Replicate()], run_check=False)
        return nn.functional.dropout(y * 2, 0.5).to_local() + 1

    fast = braze.compile(f)
    out = fast(torch.ones(64))
    assert out.shape == (64,) and set((out - 1).unique().tolist()) <= {0.0, (torch.ones(1).sin() * 4).item()}
    return [b.reason for b in log_of(fast).breaks]


# ---- ranks that are not alike


def one_rank_differs(how: str, plan: str, seconds: float = 0.0) -> float:
    """Rank 1 runs in eager ("eager"), cannot compile ("refuses") or compiles late ("late"): every rank still takes part
    in the same collectives, and the steps are eager's. How long they took. The gradient of a divided embedding is
    reduced at another time than in eager, so that there is none beside a rank in eager."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        model = Decoder()
        if how == "eager":
            replicated(model, mesh(), embedding=False)
        else:
            PLANS[plan](model, mesh())
        return model

    want = trained(build(), 5, None)
    model = build()
    fast = model if how == "eager" and dist.get_rank() == 1 else braze.compile(model)
    if dist.get_rank() == 1 and how != "eager":
        pipeline = fast._braze_session.pipeline
        backend = pipeline._backend

        def other(*args: Any) -> Any:
            if how == "refuses":
                raise braze.Unsupported("no kernels on this rank")
            pipeline._backend = backend
            time.sleep(seconds)
            return backend(*args)

        pipeline._backend = other
    warnings.simplefilter("ignore", braze.CompileWarning)
    start = time.perf_counter()
    got = trained(fast, 5, None)
    assert got[1].pop("placements") == want[1].pop("placements")
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    return time.perf_counter() - start


def dies(at: int) -> None:
    """Rank 1 is killed while all train."""
    model = Decoder()
    PLANS["sequence"](model, mesh())
    fast = braze.compile(model)
    for step in range(1000):
        if step == at and dist.get_rank() == 1:
            os._exit(9)
        trained(fast, 1, None)
