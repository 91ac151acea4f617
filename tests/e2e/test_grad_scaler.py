"""A whole mixed-precision step in one compiled function: GradScaler's skips without a graph break; fused optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch import optim as O

import braze
from braze.api import log_of

BAD = {0: float("inf"), 3: float("nan"), 4: float("-inf")}
OPTIMIZERS: dict[str, Callable[[Any], O.Optimizer]] = {
    "sgd": lambda p: O.SGD(p, 0.1),
    "adamw": lambda p: O.AdamW(p, 0.01),
    "foreach": lambda p: O.AdamW(p, 0.01, foreach=True),
    "rmsprop": lambda p: O.RMSprop(p, 0.01, momentum=0.9),
    "radam": O.RAdam,
    "asgd": O.ASGD,
}
FUSED: dict[str, Callable[[Any], O.Optimizer]] = {
    "adamw": lambda p: O.AdamW(p, 0.01, fused=True),
    "amsgrad": lambda p: O.Adam(p, 0.01, fused=True, amsgrad=True),
    "sgd": lambda p: O.SGD(p, 0.1, fused=True),  # with momentum, a first skipped step leaves garbage in eager
    "adagrad": lambda p: O.Adagrad(p, 0.1, fused=True),
}


def plain(f: Any) -> Any:
    return f


def train(
    wrap: Callable[..., Any], make: Callable[[Any], O.Optimizer], dtype: torch.dtype | None = None, unscale: bool = True
) -> tuple[list[Any], list[torch.Tensor], Any]:
    """(losses and scales, parameters and state, the step) of seven steps, some of which overflow."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    opt = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

    def step(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(x).float().square().mean() * k
        opt.zero_grad()
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss.detach()

    run = wrap(step)
    out: list[Any] = []
    data = torch.Generator().manual_seed(1)
    for i in range(7):
        out += [run(torch.randn(3, 4, generator=data), torch.tensor(BAD.get(i, 1.0))), scaler.get_scale()]
    state = [v for s in opt.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return out, [p.detach() for p in model.parameters()] + state, run


def agree(got: Any, want: Any, tolerance: float) -> Any:
    assert got[0][1::2] == want[0][1::2] and min(want[0][1::2]) < 2.0**10 < max(want[0][1::2]) * 4
    torch.testing.assert_close(got[0][::2], want[0][::2], rtol=tolerance, atol=tolerance, equal_nan=True)
    torch.testing.assert_close(got[1], want[1], rtol=tolerance, atol=tolerance)
    assert all(t.isfinite().all() for t in got[1])
    log = log_of(got[2])
    assert not any(g.fallback for g in log.graphs)
    return log


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=str)
def test_a_step_is_one_region_and_skips_where_eager_does(dtype: torch.dtype | None) -> None:
    tolerance = 1e-5 if dtype is None else 3e-2
    make = OPTIMIZERS["sgd"]
    log = agree(train(braze.compile, make, dtype), train(plain, make, dtype), tolerance)
    assert not log.breaks and len(log.graphs) == 2  # the first call makes the scale


@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, unscale: bool) -> None:
    def aot(f: Any) -> Any:
        return braze.compile(f, backend="aot_eager")

    make = OPTIMIZERS[name]
    log = agree(train(aot, make, None, unscale), train(plain, make, None, unscale), 1e-4)
    assert not log.breaks and len(log.graphs) == 2


def test_a_first_step_that_makes_state_breaks_and_is_right() -> None:
    def make(p: Any) -> O.Optimizer:
        return O.SGD(p, 0.1, momentum=0.9, dampening=0.1)

    log = agree(train(braze.compile, make), train(plain, make), 1e-5)
    assert len(log.breaks) == 1 and "makes or changes more than tensors" in log.breaks[0].reason


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", FUSED)
def test_fused_optimizers_skip_in_their_kernel(name: str, backend: str) -> None:
    def wrap(f: Any) -> Any:
        return braze.compile(f, backend=backend)

    log = agree(train(wrap, FUSED[name]), train(plain, FUSED[name]), 1e-4)
    assert not log.breaks and len(log.graphs) == 2


def test_a_fused_optimizer_takes_a_rate_that_changes() -> None:
    runs = []
    for wrap in (plain, lambda f: braze.compile(f, fullgraph=True)):
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        opt = O.AdamW(model.parameters(), 0.1, fused=True)

        def step(x: torch.Tensor, model: nn.Module = model, opt: Any = opt) -> None:
            model(x).square().mean().backward()
            opt.step()
            opt.zero_grad()

        run = wrap(step)
        for i in range(5):
            opt.param_groups[0]["lr"] = 0.1 / (i + 1)
            run(torch.ones(2, 4) * i)
        runs.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-5, atol=1e-6)
    assert len(log_of(run).graphs) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_scalers_kernels_are_exact(dtype: torch.dtype) -> None:
    def f(grads: Any, found: Any, inverse: Any, scale: Any, tracker: Any) -> None:
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 3)

    fast = braze.compile(f, fullgraph=True)
    values = [None, float("inf"), float("-inf"), float("nan")]
    for bad, steps, scale in [(b, t, s) for b in values for t in (0, 2) for s in (1024.0, 3e38)]:
        grads = [torch.randn(4, 5, dtype=dtype), torch.randn(7, dtype=dtype), torch.randn((), dtype=dtype)]
        if bad is not None:
            grads[1][2] = bad
        rest = [torch.zeros(()), torch.tensor(1 / 512), torch.tensor(scale), torch.tensor(steps, dtype=torch.int32)]
        sides = [([g.clone() for g in grads], *[t.clone() for t in rest]) for _ in range(2)]
        f(*sides[0])
        fast(*sides[1])
        torch.testing.assert_close(sides[1], sides[0], rtol=0, atol=0, equal_nan=True)
