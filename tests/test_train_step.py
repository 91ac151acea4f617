"""A whole training step in one compiled function: forward, loss, backward, optimizer, as one region."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import braze
from braze.api import log_of

O = torch.optim
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: O.SGD(p, lr=0.1),
    "sgd_decay": lambda p: O.SGD(p, lr=0.1, weight_decay=0.1, maximize=True),
    "momentum": lambda p: O.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: O.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: O.AdamW(p, lr=0.01),
    "amsgrad": lambda p: O.AdamW(p, lr=0.01, amsgrad=True),
    "adagrad": lambda p: O.Adagrad(p, lr=0.1, lr_decay=0.1),
    "rmsprop": lambda p: O.RMSprop(p, lr=0.01),
    "rmsprop_centered": lambda p: O.RMSprop(p, lr=0.01, centered=True, momentum=0.9),
    "adadelta": lambda p: O.Adadelta(p),
    "adamax": lambda p: O.Adamax(p),
    "nadam": lambda p: O.NAdam(p),
    "radam": lambda p: O.RAdam(p),
    "asgd": lambda p: O.ASGD(p),
    "rprop": lambda p: O.Rprop(p),
}
FOREACH = ("momentum", "adamw", "rmsprop", "nadam", "radam", "asgd")


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(dtype)


def with_foreach(make: Callable[[Any], torch.optim.Optimizer]) -> Callable[[Any], torch.optim.Optimizer]:
    def made(params: Any) -> torch.optim.Optimizer:
        opt = make(params)
        opt.param_groups[0]["foreach"] = True
        return opt

    return made


def stepper(model: nn.Module, opt: torch.optim.Optimizer) -> Callable[[Any, Any], torch.Tensor]:
    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    return train_step


def close(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """As near to the float64 run as eager is, with a margin for another order of rounding."""
    scale = float(exact.detach().abs().max()) + 1e-6
    ours, theirs = [float((t.double() - exact).detach().abs().max()) for t in (got, eager)]
    assert ours <= 4 * theirs + 3e-6 * scale, (ours, theirs, scale)


def run_both(make: Callable[[Any], torch.optim.Optimizer], steps: int, backend: str = "inductor") -> Any:
    models = [net(), net(), net(torch.float64)]
    opts = [make(list(m.parameters())) for m in models]
    rates = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in opts]
    runs = [stepper(m, o) for m, o in zip(models, opts)]
    runs[0] = braze.compile(runs[0], backend=backend, fullgraph=True)
    g = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x, y = torch.randn(5, 8, generator=g), torch.randint(0, 4, (5,), generator=g)
        losses = [f(x.to(m[0].weight.dtype), y) for f, m in zip(runs, models)]
        close(*losses)
        for r in rates:
            r.step()
    for p, q, r in zip(*(m.parameters() for m in models)):
        close(p, q, r)
        state, other, third = [o.state[t] for o, t in zip(opts, (p, q, r))]
        assert list(state) == list(other)
        for k in state:
            assert type(state[k]) is type(other[k])
            if isinstance(state[k], torch.Tensor):
                assert state[k].dtype == other[k].dtype
                close(state[k], other[k], third[k])
    return log_of(runs[0])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_equal_eager(name: str) -> None:
    log = run_both(OPTIMIZERS[name], 10)
    assert len(log.graphs) == 1 and not log.breaks  # the first step's state is made before it
    assert not any(g.fallback for g in log.graphs)


@pytest.mark.parametrize("name", FOREACH)
def test_foreach_equals_eager(name: str) -> None:
    log = run_both(with_foreach(OPTIMIZERS[name]), 4, backend="aot_eager")
    assert len(log.graphs) == 1 and not log.breaks


@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_groups_of_parameters_are_one_program(name: str) -> None:
    def make(params: list[Any]) -> torch.optim.Optimizer:
        opt = OPTIMIZERS[name](params[:1])
        opt.add_param_group({"params": params[1:], "weight_decay": 0.0})
        return opt

    log = run_both(make, 4, backend="aot_eager")
    assert len(log.graphs) == 1 and not log.breaks


def test_dampened_momentum_and_a_look_at_the_state_before_the_step() -> None:
    def look(opt: torch.optim.Optimizer, p: torch.Tensor, x: torch.Tensor) -> int:
        before = len(opt.state)
        (p * x).sum().backward()
        opt.step()
        opt.zero_grad()
        return before

    for make in (
        lambda p: O.SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
        lambda p: O.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: O.AdamW(p, lr=0.1),
    ):
        params = [nn.Parameter(torch.arange(4.0)) for _ in range(2)]
        opts = [make([p]) for p in params]
        fast, x = braze.compile(look, backend="aot_eager"), torch.tensor([1.0, -2.0, 3.0, 0.5])
        for k in range(3):
            assert look(opts[1], params[1], x * k) == min(k, 1)
            fast(opts[0], params[0], x * k)
            torch.testing.assert_close(*params)


def test_lbfgs_breaks_and_is_right() -> None:
    models = [net(), net()]
    opts = [O.LBFGS(m.parameters(), lr=0.1, max_iter=3) for m in models]
    x, y = torch.randn(5, 8), torch.randint(0, 4, (5,))

    def make(model: nn.Module, opt: Any) -> Any:
        def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            def closure() -> torch.Tensor:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            return opt.step(closure)

        return train_step

    fast, slow = braze.compile(make(models[0], opts[0]), backend="aot_eager"), make(models[1], opts[1])
    for _ in range(2):
        torch.testing.assert_close(fast(x, y), slow(x, y))
    for p, q in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(p, q)
    log = log_of(fast)
    # Why depends on whether torch's own compiler was loaded before: it then marks the step as not to be traced.
    assert log is not None and any("step()" in b.reason and "LBFGS" in str(b) for b in log.breaks)
    assert len(log.graphs) <= 4  # the closure's parts; nothing of the search


def compare(make: Callable[[nn.Module], Callable[..., Any]], steps: int = 3, backend: str = "aot_eager") -> Any:
    """``make(model)`` gives a step; it is run compiled and in eager. Returns the log."""
    models = [net(), net()]
    fast, slow = braze.compile(make(models[0]), backend=backend, fullgraph=True), make(models[1])
    for i in range(steps):
        x, y = torch.randn(5, 8), torch.randint(0, 4, (5,))
        torch.testing.assert_close(fast(x, y, i), slow(x, y, i))
        for p, q in zip(models[0].parameters(), models[1].parameters()):
            torch.testing.assert_close(p, q)
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                torch.testing.assert_close(p.grad, q.grad)
                assert p.grad.stride() == q.grad.stride() and not p.grad.requires_grad
    return log_of(fast)


def test_gradients_accumulate() -> None:
    def make(model: nn.Module) -> Any:
        def f(x: torch.Tensor, y: torch.Tensor, i: Any) -> torch.Tensor:
            for half in (slice(0, 2), slice(2, 5)):
                (F.cross_entropy(model(x[half]), y[half]) / 2).backward()
            return sum(p.grad.abs().sum() for p in model.parameters())

        return lambda x, y, i: f(x, y, 0)

    log = compare(make)
    assert len(log.graphs) == 2  # without and with gradients at entry


def test_existing_gradients_are_written_in_place() -> None:
    model = net()
    f = braze.compile(lambda x: model(x).sum().backward(), backend="inductor", fullgraph=True)
    f(torch.ones(2, 8))
    before = [p.grad for p in model.parameters()]
    kept = [g.clone() for g in before]
    f(torch.ones(2, 8))
    for p, g, k in zip(model.parameters(), before, kept):
        assert p.grad is g
        torch.testing.assert_close(g, 2 * k)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_clipping_schedule_and_zero_grad(set_to_none: bool) -> None:
    def make(model: nn.Module) -> Any:
        opt = O.AdamW(model.parameters(), lr=0.01)

        def f(x: torch.Tensor, y: torch.Tensor, i: Any) -> torch.Tensor:
            opt.zero_grad(set_to_none=set_to_none)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            opt.step()
            return loss, norm

        return lambda x, y, i: f(x, y, 0)

    assert len(compare(make, backend="inductor").graphs) == (1 if set_to_none else 2)


def test_param_groups_and_changed_settings() -> None:
    def make(model: nn.Module) -> Any:
        opt = O.SGD(
            [{"params": model[0].parameters(), "lr": 0.3}, {"params": model[3].parameters(), "weight_decay": 0.1}],
            lr=0.1,
        )
        rate = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=[0.3, 0.1], total_steps=20)

        def f(x: torch.Tensor, y: torch.Tensor, i: int) -> torch.Tensor:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss

        def call(x: Any, y: Any, i: int) -> Any:
            out = f(x, y, 0)
            rate.step()
            return out

        return call

    compare(make, steps=6)


def test_the_loss_returned_is_used_up() -> None:
    model = net()

    @braze.compile(backend="aot_eager", fullgraph=True)
    def f(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss

    loss = f(torch.ones(2, 8))
    assert loss.requires_grad
    total = loss * 2
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()
    loss.detach_()


def test_what_is_not_used_up_can_be_differentiated() -> None:
    w = torch.randn(4, requires_grad=True)

    @braze.compile(backend="aot_eager", fullgraph=True)
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = (x * w).sin()
        (x * w).cos().sum().backward()
        return a, a.detach() * 2

    x = torch.randn(4)
    a, _ = f(x)
    torch.testing.assert_close(w.grad, -x * (x * w).sin())
    a.sum().backward()
    torch.testing.assert_close(w.grad, -x * (x * w).sin() + x * (x * w).cos())


def test_autograd_grad_first_and_second_order() -> None:
    w = torch.randn(4, requires_grad=True)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (w * x).exp().sum()
        (g,) = torch.autograd.grad(y, [w], create_graph=True)
        penalty = g.square().sum()
        penalty.backward()
        return y.detach(), g.detach(), penalty.detach()

    x = torch.randn(4)
    want = f(x)
    grad, w.grad = w.grad, None
    got = braze.compile(f, backend="inductor", fullgraph=True)(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(w.grad, grad)


def test_retain_graph_and_retain_grad() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        h = x * w
        h.retain_grad()
        y = h.sin().sum()
        y.backward(retain_graph=True)
        y.backward(torch.tensor(2.0))
        return h.grad, w.grad

    x = torch.randn(4)
    w, v = torch.randn(4, requires_grad=True), None
    v = w.detach().clone().requires_grad_()
    torch.testing.assert_close(braze.compile(f, backend="aot_eager", fullgraph=True)(x, w), f(x, v))
    torch.testing.assert_close(w.grad, v.grad)


def test_requires_grad_of_an_input_is_set() -> None:
    def attack(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        model(x).sum().backward()
        return x + 0.1 * x.grad.sign()

    a, b = torch.randn(2, 8), None
    b = a.clone()
    m, n = net(), net()
    got = braze.compile(attack, backend="inductor", fullgraph=True)(m, a).detach()
    torch.testing.assert_close(got, attack(n, b).detach())
    assert a.requires_grad and a.is_leaf
    torch.testing.assert_close(a.grad, b.grad)


def test_tensor_and_parameter_hooks_of_leaves() -> None:
    def make() -> tuple[nn.Module, list[int]]:
        model, seen = net(), []
        model[0].weight.register_hook(lambda g: g * 2)
        model[3].weight.register_post_accumulate_grad_hook(lambda p: seen.append(1))
        return model, seen

    (m, seen), (n, seen2) = make(), make()
    x = torch.randn(3, 8)

    def f(model: nn.Module, x: torch.Tensor) -> None:
        model(x).square().sum().backward()

    braze.compile(f, backend="aot_eager", fullgraph=True)(m, x)
    f(n, x)
    for p, q in zip(m.parameters(), n.parameters()):
        torch.testing.assert_close(p.grad, q.grad)
    assert seen == seen2 == [1]


def test_a_graph_from_outside_breaks() -> None:
    model = net()
    calls = []

    def f(x: torch.Tensor) -> torch.Tensor:
        loss = x * 2
        loss.backward()
        calls.append(1)
        return loss * 3

    fast = braze.compile(f, backend="aot_eager")
    fast(model(torch.ones(1, 8)).sum())
    assert all(p.grad is not None for p in model.parameters()) and calls == [1]
    log = log_of(fast)
    assert log is not None and "outside" in log.breaks[0].reason


def test_frozen_parameters_and_unused_ones_keep_no_gradient() -> None:
    def make(model: nn.Module) -> Any:
        model[0].weight.requires_grad_(False)
        opt = O.Adam(model.parameters(), lr=0.01)

        def f(x: torch.Tensor, y: torch.Tensor, i: Any) -> torch.Tensor:
            loss = F.cross_entropy(model[3](model[2](torch.relu(model[0](x)))), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss

        return lambda x, y, i: f(x, y, 0)

    compare(make)


def test_the_step_alone() -> None:
    models = [net(), net(), net()]
    opts = [O.AdamW(m.parameters(), lr=0.01) for m in models]
    opts[0].step = braze.compile(opts[0].step, backend="inductor", fullgraph=True)  # type: ignore[method-assign]
    step = braze.compile(opts[1].step, backend="inductor", fullgraph=True)
    for _ in range(3):
        x = torch.randn(5, 8)
        for m, o, f in zip(models, opts, (opts[0].step, step, opts[2].step)):
            m(x).square().mean().backward()
            f()
            o.zero_grad()
    for p, q, r in zip(*(m.parameters() for m in models)):
        torch.testing.assert_close(p, r)
        torch.testing.assert_close(q, r)
    log = log_of(step)
    assert log is not None and len(log.graphs) == 1


def test_deep_copies_of_a_compiled_step_are_apart() -> None:
    model = net()
    opt = O.SGD(model.parameters(), lr=0.1)
    f = braze.compile(stepper(model, opt), backend="aot_eager", fullgraph=True)
    before = copy.deepcopy(model)
    f(torch.ones(2, 8), torch.zeros(2, dtype=torch.long))
    assert not torch.equal(before[0].weight, model[0].weight)


@pytest.mark.parametrize("of", ["optimizer", "module"])
def test_zero_grad_before_the_backward_needs_no_version_for_the_first_step(of: str) -> None:
    """Gradients become None whatever they were; those of parameters that the loss does not reach, too."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    def steps(compiled: bool) -> tuple[Any, ...]:
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        net.unused.weight.grad = torch.ones(2, 3)

        def step(x: torch.Tensor) -> torch.Tensor:
            (optimizer if of == "optimizer" else net).zero_grad(set_to_none=True)
            loss = net(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = braze.compile(step) if compiled else step
        losses = [run(torch.ones(4, 3)) for _ in range(3)]
        if compiled:
            log = log_of(run)
            assert log is not None and not log.breaks and len(log.graphs) == 1
        grads = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
        kept = net.unused.weight.grad
        (optimizer if of == "optimizer" else net).zero_grad(set_to_none=False)
        return losses, list(net.parameters()), grads, kept is None

    got, want = steps(True), steps(False)
    assert [g is None for g in got[2]] == [g is None for g in want[2]] and got[3] and want[3]
    torch.testing.assert_close((got[0], got[1]), (want[0], want[1]))
    torch.testing.assert_close(*[[g for g in side[2] if g is not None] for side in (got, want)])


@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_a_second_optimizer_gets_no_state_of_the_first(name: str) -> None:
    """Guards of a version that was made for the first look at the second's state, a defaultdict: they add nothing."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled, x = braze.compile(step), torch.randn(4, 3)
    kept: list[tuple[nn.Module, torch.optim.Optimizer]] = []
    for _ in range(3):
        model = nn.Linear(3, 2)
        kept.append((model, OPTIMIZERS[name](model.parameters())))
        for _ in range(2):
            compiled(*kept[-1], x)
        assert set(kept[-1][1].state) == set(model.parameters())
