"""Automatic mixed precision: autocast around, inside and as a decorator, and GradScaler's skipped steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze

DTYPES = [torch.float16, torch.bfloat16]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.nn.functional.gelu(self.norm(self.a(x))))


def around(model: nn.Module, dtype: torch.dtype, wrap: Callable[..., Any]) -> Callable[..., Any]:
    fast = wrap(model)

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype):
            return fast(x)

    return run


def inside(model: nn.Module, dtype: torch.dtype, wrap: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype):
            y = model(x)
        with torch.autocast("cpu", enabled=False):
            return y.float() * model.b.bias

    return wrap(run)


def decorator(model: nn.Module, dtype: torch.dtype, wrap: Callable[..., Any]) -> Callable[..., Any]:
    @torch.autocast("cpu", dtype)
    def run(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    return wrap(run)


def decorated_outside(model: nn.Module, dtype: torch.dtype, wrap: Callable[..., Any]) -> Callable[..., Any]:
    return torch.autocast("cpu", dtype)(wrap(model))


def compiled(f: Any) -> Any:
    return braze.compile(f)


def plain(f: Any) -> Any:
    return f


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", [around, inside, decorator, decorated_outside])
def test_autocast_gives_eager_types_and_values(how: Callable[..., Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(8, 16)
    results = []
    for wrap in (plain, compiled):
        m = copy.deepcopy(model)
        y = how(m, dtype, wrap)(x)
        y.float().square().mean().backward()
        results.append((y.detach(), [p.grad for p in m.parameters()]))
    (want, want_grads), (got, got_grads) = results
    assert got.dtype is want.dtype
    exact = copy.deepcopy(model).double()
    out = exact(x.double())
    out = out * exact.b.bias if how is inside else out
    out.square().mean().backward()
    for g, w, e in zip([got, *got_grads], [want, *want_grads], [out, *(p.grad for p in exact.parameters())]):
        assert g.dtype is w.dtype
        error, eager_error = (g.double() - e).norm(), (w.double() - e).norm()
        assert error <= 1.5 * eager_error + 1e-3 * e.norm(), (error, eager_error)


class Full(nn.Module):
    """Matrix products in float32 inside a region that the caller runs in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        with torch.autocast("cpu", enabled=False):
            z = torch.bmm(self.b(y.float()).view(2, 4, 16), x.view(2, 16, 4))
        return z


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("whole", [False, True], ids=["forward", "backward too"])
def test_library_calls_are_not_cast_again(backend: str, whole: bool) -> None:
    torch.manual_seed(0)
    plain_model, x = Full(), torch.randn(8, 16)
    model = copy.deepcopy(plain_model)
    fast = braze.compile(model, backend=backend, fullgraph=True)
    for m in (plain_model, fast):
        with torch.autocast("cpu", torch.bfloat16):
            y = m(x)
            loss = y.square().sum()
            assert y.dtype is torch.float32
            if whole:
                loss.backward()
        if not whole:
            loss.backward()
    want = [p.grad for p in plain_model.parameters()]
    if not whole:  # else eager casts in its backward, too, which braze does not
        torch.testing.assert_close(model.b.bias.grad, want[3], rtol=1e-5, atol=1e-5)
    for p, w in zip(model.parameters(), want):
        assert (p.grad - w).norm() <= 1e-2 * w.norm()


def scaled_training(
    wrap: Callable[..., Any], dtype: torch.dtype, bad: set[int]
) -> tuple[list[float], list[float], Any]:
    """(losses, scales, parameters) of ten steps; the batches of the steps in ``bad`` overflow."""
    torch.manual_seed(0)
    model = Net()
    fast = wrap(model)
    opt = torch.optim.AdamW(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
    losses, scales = [], []
    for step in range(10):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        with torch.autocast("cpu", dtype):
            loss = fast(x).float().square().mean()
        if step in bad:
            loss = loss * float("inf") if step % 2 else loss * float("nan")
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_grad_scaler_skips_the_same_steps(dtype: torch.dtype) -> None:
    bad = {3, 6}
    want = scaled_training(plain, dtype, bad)
    got = scaled_training(compiled, dtype, bad)
    assert got[1] == want[1] and min(want[1]) < 2.0**12 < max(want[1])
    torch.testing.assert_close(got[0], want[0], rtol=2e-2, atol=2e-2, equal_nan=True)
    for a, b in zip(got[2], want[2]):
        assert a.isfinite().all()
        assert (a - b).norm() <= 0.05 * b.norm() + 0.02


def curve(wrap: Callable[..., Any], seed: int, steps: int) -> torch.Tensor:
    """The losses of an MLP classifier of two interleaved rings."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))
    fast = wrap(model)
    opt = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    data = torch.Generator().manual_seed(7)
    for _ in range(steps):
        label = torch.randint(2, (128,), generator=data)
        angle = torch.rand(128, generator=data) * 6.2832
        radius = 1 + label + 0.2 * torch.randn(128, generator=data)
        x = torch.stack([angle.cos() * radius, angle.sin() * radius], -1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(fast(x), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return torch.tensor(losses)


@pytest.mark.slow
def test_loss_curves_stay_within_the_spread_of_seeds() -> None:
    """200 steps: smoothed over 20, the compiled curve of a seed is nearer to the eager curve of that seed than eager
    curves of different seeds are to one another."""

    def smooth(c: torch.Tensor) -> torch.Tensor:
        return c.unfold(0, 20, 10).mean(1)

    eager = torch.stack([smooth(curve(plain, s, 200)) for s in range(5)])
    spread = eager.max(0).values - eager.min(0).values
    fast = smooth(curve(compiled, 0, 200))
    assert ((fast - eager[0]).abs() <= spread + 1e-3).all(), ((fast - eager[0]).abs(), spread)
    assert fast[-1] < 0.5 * fast[0]
