"""Random operators: distributions, and that the backward sees the forward's numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from autograd_harness import compile_program

from braze.autograd import trace_joint
from braze.ir import tensor_type
from braze.prims.rng import philox_seed, philox_uniform

N = 20000


def run(fn, *inputs, budget=1.0):
    torch.manual_seed(0)
    return compile_program(fn, list(inputs), budget)[0](*inputs)


@pytest.mark.parametrize("budget", [1.0, 0.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_backward_uses_the_forward_mask(dtype, budget):
    x = torch.ones(N, dtype=dtype, requires_grad=True)
    y, h = run(lambda x: (lambda h: (F.dropout(h.sin() * 0 + x, 0.25, True), h))(x * 2), x, budget=budget)
    kept = y != 0
    assert abs(kept.float().mean() - 0.75) < 0.02
    assert torch.equal(y[kept], torch.full_like(y[kept], 1 / 0.75))
    y.sum().backward()
    assert torch.equal(x.grad != 0, kept)


def test_native_dropout_keeps_the_mask():
    x = torch.ones(N, requires_grad=True)
    y, mask = run(lambda x: torch.native_dropout(x, 0.5, True), x)
    assert mask.dtype == torch.bool and torch.equal(y != 0, mask)
    y.sum().backward()
    assert torch.equal(x.grad, mask * 2.0)
    (z, full) = run(lambda x: torch.native_dropout(x, 0.5, False), x)
    assert torch.equal(z, x) and full.all()


def test_draws_differ_between_calls_and_places():
    f, _ = compile_program(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)), [torch.ones(1000)])
    a, b = f(torch.ones(1000))
    c, d = f(torch.ones(1000))
    assert not torch.equal(a, b) and not torch.equal(a, c) and not torch.equal(b, d)
    torch.manual_seed(3)
    e, _ = f(torch.ones(1000))
    torch.manual_seed(3)
    assert torch.equal(f(torch.ones(1000))[0], e)


def test_one_seed_a_graph():
    joint = trace_joint(lambda x: F.dropout(F.dropout(x, 0.5), 0.5) + torch.rand(4), [tensor_type((4,))])
    targets = [n.target for n in joint.graph.calls]
    assert targets.count(philox_seed) == 1 and targets.count(philox_uniform) == 3
    streams = [n.args[1] for n in joint.graph.calls if n.target is philox_uniform]
    assert sorted(streams) == [0, 1, 2]


MOMENTS = {  # program: mean, variance, low, high
    "rand": (lambda x: torch.rand(N), 0.5, 1 / 12, 0, 1),
    "rand f64": (lambda x: torch.rand(N, dtype=torch.float64), 0.5, 1 / 12, 0, 1),
    "rand bf16": (lambda x: torch.rand(N, dtype=torch.bfloat16), 0.5, 1 / 12, 0, 1 - 2**-9),
    "rand f16": (lambda x: torch.rand(N, dtype=torch.float16), 0.5, 1 / 12, 0, 1 - 2**-12),
    "uniform_": (lambda x: x.clone().uniform_(-2, 4), 1.0, 3.0, -2, 4),
    "randn": (lambda x: torch.randn(N), 0.0, 1.0, -7, 7),
    "randn_like f64": (lambda x: torch.randn_like(x, dtype=torch.float64), 0.0, 1.0, -7, 7),
    "normal_": (lambda x: x.clone().normal_(3, 2), 3.0, 4.0, -20, 20),
    "normal tensors": (lambda x: torch.normal(x * 0 + 1, x * 0 + 0.5), 1.0, 0.25, -5, 5),
    "randint": (lambda x: torch.randint(3, 9, (N,)), 5.5, 35 / 12, 3, 8),
    "randint wide": (lambda x: torch.randint(2**40, (N,)), 2.0**39, 2.0**80 / 12, 0, 2**40),
    "randint_like": (lambda x: torch.randint_like(x, 4), 1.5, 15 / 12, 0, 3),
    "random_": (lambda x: torch.empty(N, dtype=torch.int64).random_(0, 2), 0.5, 0.25, 0, 1),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.3), 0.3, 0.21, 0, 1),
    "bernoulli p": (lambda x: torch.bernoulli(x, 0.3), 0.3, 0.21, 0, 1),
    "bernoulli_": (lambda x: x.clone().bernoulli_(x * 0 + 0.3), 0.3, 0.21, 0, 1),
    "exponential_": (lambda x: x.clone().exponential_(2.0), 0.5, 0.25, 0, 20),
    "multinomial": (lambda x: torch.multinomial(torch.tensor([1.0, 0, 3]), N, replacement=True), 1.5, 0.75, 0, 2),
    "rrelu": (lambda x: F.rrelu(x - 1, 0.25, 0.75, True), -0.5, 0.25 / 12, -0.75, -0.25),
    "dropout": (lambda x: F.dropout(x * 0 + 1, 0.2, True), 1.0, 0.25, 0, 1.25),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name):
    fn, mean, variance, low, high = MOMENTS[name]
    (out,) = run(lambda x: (fn(x),), torch.zeros(N))
    eager = fn(torch.zeros(N))
    assert (out.dtype, out.shape, out.stride()) == (eager.dtype, eager.shape, eager.stride())
    v = out.double()
    assert v.min() >= low and v.max() <= high
    assert abs(v.mean() - mean) < 0.03 * variance**0.5 and abs(v.var() / variance - 1) < 0.05


def test_randperm_and_multinomial_without_replacement():
    (p,) = run(lambda x: (torch.randperm(1000),), torch.zeros(1))
    assert torch.equal(p.sort().values, torch.arange(1000)) and not torch.equal(p, torch.arange(1000))
    weights = torch.tensor([[0.0, 1, 2, 3, 0, 4]]).repeat(5000, 1)
    (m,) = run(lambda w: (torch.multinomial(w, 4),), weights)
    assert torch.equal(m.sort(1).values, torch.tensor([1, 2, 3, 5]).expand(5000, 4))
    first = torch.bincount(m[:, 0], minlength=6) / 5000
    assert (first - torch.tensor([0, 0.1, 0.2, 0.3, 0, 0.4])).abs().max() < 0.03


def test_memory_format_of_draws():
    x = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    (out,) = run(lambda x: (torch.rand_like(x),), x)
    assert out.stride() == x.stride()


def test_draws_from_a_generator_stay_library_calls():
    gen = torch.Generator()
    x = torch.zeros(64)
    f, _ = compile_program(lambda x: (torch.rand(64, generator=gen) + x, x.clone().bernoulli_(0.5, generator=gen)), [x])
    a, b = f(x)
    c, d = f(x)
    assert not torch.equal(a, c) and not torch.equal(b, d)
    gen.manual_seed(1)
    assert torch.equal(f(x)[0], torch.rand(64, generator=torch.Generator().manual_seed(1)))
