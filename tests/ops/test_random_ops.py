"""Every random operator of torch's table under ``strict_random``: eager's numbers and eager's generator afterwards."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.api import log_of

sys.path.insert(0, str(Path(__file__).parent))
import samples  # noqa: E402

RANDOM = """
bernoulli cauchy exponential geometric log_normal multinomial nn.functional.alpha_dropout nn.functional.dropout
nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout.with_train
nn.functional.multi_head_attention_forward nn.functional.rrelu nn.functional.scaled_dot_product_attention
normal normal.in_place normal.number_mean rand_like randint randint_like randn randn_like uniform svd_lowrank
nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
""".split()


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("variant", ["function", "inplace"])
def test_eager_draws(name: str, variant: str) -> None:
    op = samples.operators().get(name)
    if op is None or not samples.applies(op, torch.float32, variant):
        pytest.skip("no such operator or variant in this torch")
    backward = samples.differentiable(op, torch.float32, variant)
    seen = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(samples._samples(op, torch.float32, variant, backward))
        for sample in found[:: -(-len(found) // 4) or 1]:
            compiled, eager = samples._program(op, variant)
            fast = braze.compile(compiled, options={"strict_random": True})
            try:
                want = samples.run(eager, sample, None, backward, 3)
            except RuntimeError:
                continue
            state = torch.get_rng_state()
            got = samples.run(fast, sample, None, backward, 3)
            assert torch.equal(torch.get_rng_state(), state), f"{name}: the generator is elsewhere"
            tols = lambda x: samples.tolerances(op, x.dtype)  # noqa: E731
            bad = samples.compare(got, want, lambda: want, tols)  # noqa: B023
            assert not bad, f"{name} {sample.summary()}: {bad}"
            log = log_of(fast)
            assert log is not None
            seen += not log.breaks and not any(g.fallback for g in log.graphs)
    assert seen, f"{name}: no sample is one graph"


def test_a_seed_set_in_the_region_starts_eager_s_numbers() -> None:
    def program(x: torch.Tensor) -> Any:
        before = torch.rand_like(x)
        torch.manual_seed(11)
        drawn = [torch.nn.functional.dropout(x, 0.4), torch.randn(3), torch.bernoulli(x.sigmoid())]
        return before, drawn, torch.randint(0, 9, (4,))

    fast = braze.compile(lambda x: program(x), options={"strict_random": True})
    x = torch.linspace(-1, 1, 12)
    results = []
    for f in (program, fast):
        torch.manual_seed(5)
        results.append((f(x), torch.get_rng_state()))
    torch.testing.assert_close(results[1], results[0])


DRAWS = {
    "normal of two tensors": lambda x: torch.normal(x, x.exp()),
    "normal_": lambda x: torch.empty(3).normal_(),
    "random_ in a range": lambda x: torch.empty(3).random_(0, 1000),
    "rrelu": lambda x: torch.rrelu(-x.abs(), training=True),
    "geometric_": lambda x: torch.empty(9).geometric_(0.1),
    "cauchy_": lambda x: torch.empty(3).cauchy_(),
    "bernoulli_": lambda x: torch.empty(40).bernoulli_(torch.full((40,), 0.5)),
    "multinomial": lambda x: torch.multinomial(x.exp(), 9, True),
    "standard gamma": lambda x: torch._standard_gamma(x.exp()),
    "poisson": lambda x: torch.poisson(100 * x.exp()),
}


@pytest.mark.parametrize("name", DRAWS)
def test_two_draws_alike_are_two(name: str) -> None:
    """An operator that overwrites its argument is a call on a copy, and as random as before: calls are not merged."""
    draw = DRAWS[name]
    x = torch.linspace(-1, 1, 3)
    for strict in (True, False):
        fast = braze.compile(lambda x: (draw(x), draw(x)), options={"strict_random": strict})
        torch.manual_seed(3)
        a, b = fast(x)
        assert not torch.equal(a, b)
        if strict:
            torch.manual_seed(3)
            torch.testing.assert_close((a, b), (draw(x), draw(x)))
        log = log_of(fast)
        assert log is not None and not log.breaks and not any(g.fallback for g in log.graphs)


def test_draws_keep_their_order() -> None:
    """Fusion would run the second draw first: what reads it and what the first one reads is one kernel."""

    def program(x: torch.Tensor) -> Any:
        p = (x - x.logsumexp(-1, keepdim=True)).softmax(-1)
        kept = torch.multinomial(p, 1, True)
        return kept, (x - x.logsumexp(-1, keepdim=True) - (-torch.rand_like(x).clamp(1e-6, 1 - 1e-6).log()).log()).exp()

    fast = braze.compile(lambda x: program(x), options={"strict_random": True})
    x = torch.linspace(-1, 1, 6).view(2, 3)
    for _ in range(2):
        torch.manual_seed(4)
        want = program(x)
        torch.manual_seed(4)
        torch.testing.assert_close(fast(x), want)
