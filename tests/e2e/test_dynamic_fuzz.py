"""Random small programs over random sequences of sizes: values and gradients as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, seed, settings
from torch import Tensor

import braze
from braze.api import log_of

# (x: [n, m], y: [n, m], k: int) -> [*, *]
STEPS: list[Callable[[Tensor, Tensor, int], Tensor]] = [
    lambda x, y, k: x * x.shape[0] + k,
    lambda x, y, k: x.t(),
    lambda x, y, k: x[1:],
    lambda x, y, k: x[:, : x.shape[1] // 2 + 1],
    lambda x, y, k: x[:: 2 if k > 3 else 1],
    lambda x, y, k: torch.cat([x, x], k % 2),
    lambda x, y, k: x.softmax(k % 2),
    lambda x, y, k: x - x.mean(0, keepdim=True),
    lambda x, y, k: x / (x.shape[1] + 1),
    lambda x, y, k: x @ x.t() if x.shape[0] > 3 else x,
    lambda x, y, k: F.layer_norm(x, (x.shape[-1],)),
    lambda x, y, k: x.reshape(-1, x.shape[0]),
    lambda x, y, k: F.pad(x, (0, k % 3, 0, 1)),
    lambda x, y, k: x + y if x.shape == y.shape else x,
    lambda x, y, k: x + y[: x.shape[0], :1] if x.shape[0] <= y.shape[0] else x * 2,
    lambda x, y, k: x.flip(0).cumsum(0).tanh(),
    lambda x, y, k: torch.where(x > 0, x, x.new_full((), x.shape[0] - k)),
    lambda x, y, k: x.roll(k, 0) if len(x) % 2 else x.roll(1, 1),
    lambda x, y, k: x.expand(x.shape[0], x.shape[1]).clone().mul_(max(x.shape[0], k)),
    lambda x, y, k: x[torch.arange(x.shape[0] - 1, -1, -1)],
    lambda x, y, k: x.tril(k - 3).sigmoid(),
    lambda x, y, k: x.unsqueeze(1).repeat(1, 2, 1).flatten(0, 1),
    lambda x, y, k: (x.view(x.shape[0], 2, -1) if x.shape[1] % 2 == 0 else x[:, None]).sum(1),
    lambda x, y, k: torch.stack([x, -x], -1).amax(-1) * (x.numel() % 7),
]


def program(picked: tuple[int, ...]) -> Callable[[Tensor, Tensor, int], Tensor]:
    steps = [STEPS[i] for i in picked]

    def run(x: Tensor, y: Tensor, k: int) -> Tensor:
        for step in steps:
            x = step(x, y, k)
        return x

    return run


def outcome(f: Any, x: Tensor, y: Tensor, k: int) -> Any:
    x = x.clone().requires_grad_()
    try:
        out = f(x, y, k)
    except Exception as e:
        return type(e)
    return out, torch.autograd.grad((out * out.detach().cos()).sum(), x)[0]


def check(picked: list[int], calls: list[tuple[int, int, int]], dynamic: bool | None, backend: str) -> None:
    plain = program(tuple(picked))
    f = braze.compile(plain, dynamic=dynamic, backend=backend)
    for n, m, k in calls:
        torch.manual_seed(n * 100 + m)
        x, y = torch.randn(n, m), torch.randn(n, m)
        want, got = outcome(plain, x, y, k), outcome(f, x, y, k)
        assert isinstance(want, type) == isinstance(got, type), (want, got)
        if not isinstance(want, type):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    log = log_of(f)
    assert log is not None and not any(g.fallback for g in log.graphs), [g.fallback for g in log.graphs]


PICKED = st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=6)
CALLS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 6)), min_size=2, max_size=5)
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@seed(20261130)
@settings(max_examples=25, deadline=None, suppress_health_check=SLOW, database=None)
@given(PICKED, CALLS, st.sampled_from([None, True]))
def test_joint_graphs_of_random_programs(picked: Any, calls: Any, dynamic: bool | None) -> None:
    check(picked, calls, dynamic, "aot_eager")


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
@given(PICKED, CALLS, st.sampled_from([None, True]))
def test_kernels_of_random_programs(picked: Any, calls: Any, dynamic: bool | None) -> None:
    check(picked, calls, dynamic, "inductor")
