"""What is compiled keeps working as what it was: hooks, parametrizations, checkpointing, threads; and can be freed."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import braze
from braze.api import log_of

B = "aot_eager"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


def x() -> torch.Tensor:
    return torch.randn(3, 4)


def same_gradients(m: nn.Module, n: nn.Module) -> None:
    for p, q in zip(m.parameters(), n.parameters()):
        torch.testing.assert_close(p.grad, q.grad)


def test_a_compiled_module_is_freed() -> None:
    m = Net()
    refs = [weakref.ref(m), weakref.ref(m.a.weight)]
    f = braze.compile(m, backend="inductor")
    f(x()).sum().backward()
    del f, m
    gc.collect()
    assert [r() for r in refs] == [None, None]


def test_a_compiled_function_does_not_keep_its_arguments() -> None:
    @braze.compile(backend=B)
    def call(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return m(x).sum()

    m = Net()
    refs = [weakref.ref(m), weakref.ref(m.a.weight)]
    call(m, x()).backward()
    del m
    gc.collect()
    assert [r() for r in refs] == [None, None]


def test_a_training_step_does_not_keep_model_and_optimizer() -> None:
    @braze.compile(backend=B)
    def step(m: nn.Module, o: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        loss = m(x).sum()
        loss.backward()
        o.step()
        o.zero_grad()
        return loss.detach()

    m = Net()
    o = torch.optim.AdamW(m.parameters())
    step(m, o, x())
    refs = [weakref.ref(m), weakref.ref(o), weakref.ref(m.a.weight)]
    del m, o
    gc.collect()
    gc.collect()  # what the first one ended held more
    assert [r() for r in refs] == [None, None, None]
    m = Net()
    o = torch.optim.AdamW(m.parameters())
    step(m, o, x())


def test_hooks_before_and_after() -> None:
    m = Net()
    m.a.register_forward_hook(lambda mod, i, o: o * 2)
    f, inputs = braze.compile(m, backend=B, fullgraph=True), x()
    torch.testing.assert_close(f(inputs), m(inputs))
    m.b.register_forward_pre_hook(lambda mod, i: (i[0] + 1,))
    torch.testing.assert_close(f(inputs), m(inputs))
    f.register_forward_hook(lambda mod, i, o: o - 1)
    torch.testing.assert_close(f(inputs), m(inputs))


@pytest.mark.parametrize("whole", [False, True])
def test_full_backward_hooks(whole: bool) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        m = Net()
        m.b.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 3,))
        return m

    m, n, inputs = make(), make(), x()

    def step(m: nn.Module, x: torch.Tensor) -> None:
        m(x).sum().backward()

    if whole:
        braze.compile(step, backend=B)(m, inputs)
    else:
        step(braze.compile(m, backend=B), inputs)
    step(n, inputs)
    same_gradients(m, n)


def test_tensor_hook_registered_inside() -> None:
    def f(w: torch.Tensor) -> torch.Tensor:
        h = w * 2
        h.register_hook(lambda g: g * 3)
        return h.sin().sum()

    w = torch.randn(4, requires_grad=True)
    v = w.detach().clone().requires_grad_()
    braze.compile(f, backend=B)(w).backward()
    f(v).backward()
    torch.testing.assert_close(w.grad, v.grad)


def test_parametrizations() -> None:
    m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    f, inputs = braze.compile(m, backend=B, fullgraph=True), x()
    torch.testing.assert_close(f(inputs), m(inputs))
    m.parametrizations.weight.original0.data.mul_(2)
    torch.testing.assert_close(f(inputs), m(inputs))


def test_spectral_norm_updates_its_buffers() -> None:
    torch.manual_seed(0)
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    n, inputs = copy.deepcopy(m), x()
    f = braze.compile(m, backend=B)
    for _ in range(3):
        torch.testing.assert_close(f(inputs), n(inputs))


def test_checkpoint() -> None:
    m, inputs = Net(), x()
    n = copy.deepcopy(m)

    def run(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False).sum()

    braze.compile(run, backend=B, fullgraph=True)(m, inputs).backward()
    run(n, inputs).backward()
    same_gradients(m, n)


class Scale(torch.autograd.Function):
    """A number as an argument, a result without a gradient, a backward that is not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: float) -> Any:
        ctx.save_for_backward(x)
        ctx.k = k
        index = x.argmax()
        ctx.mark_non_differentiable(index)
        return x * k, index

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: torch.Tensor, _: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.k + x * 0, None


def test_autograd_function() -> None:
    def f(x: torch.Tensor) -> Any:
        y, i = Scale.apply(x, 3.0)
        return y.sum(), i

    w = torch.randn(4, requires_grad=True)
    v = w.detach().clone().requires_grad_()
    a, i = braze.compile(f, backend=B, fullgraph=True)(w)
    b, j = f(v)
    a.backward()
    b.backward()
    torch.testing.assert_close(w.grad, v.grad)
    assert i == j and not i.requires_grad


def test_threads_and_async_callers() -> None:
    m = Net()
    f = braze.compile(m, backend=B)
    inputs = [torch.randn(k, 4) for k in (2, 3, 4, 5)] * 2
    out: list[Any] = [None] * len(inputs)

    def work(i: int) -> None:
        out[i] = f(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    torch.testing.assert_close(out, [m(v) for v in inputs])

    async def one(v: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return f(v)

    async def every() -> Any:
        return await asyncio.gather(*map(one, inputs))

    torch.testing.assert_close(list(asyncio.run(every())), [m(v) for v in inputs])


@pytest.mark.parametrize("backend", [B, "inductor"])
def test_a_float_that_changes_becomes_an_input(backend: str) -> None:
    def f(x: torch.Tensor, t: float) -> Any:
        return torch.softmax(x / t, -1), t + 1.5, -x * t**2

    fast, inputs = braze.compile(f, backend=backend, fullgraph=True), x()
    for t in (1.0, 2.0, 0.5, 0.25, 3.0):
        torch.testing.assert_close(fast(inputs, t), f(inputs, t))
    log = log_of(fast)
    assert log is not None and len(log.graphs) == 2


def test_a_float_promotes_like_a_number() -> None:
    def f(x: torch.Tensor, t: float) -> Any:
        return x * t, x.float().sum() * t, x.bfloat16() * t, x.double() + t, torch.add(x.float(), x.float(), alpha=t)

    fast, inputs = braze.compile(f, backend=B, fullgraph=True), torch.arange(3)
    for t in (1.5, 2.5, 0.25):
        got, want = fast(inputs, t), f(inputs, t)
        assert [v.dtype for v in got] == [v.dtype for v in want]
        torch.testing.assert_close(got, want)


def test_a_branch_on_a_changing_float_guards_the_outcome() -> None:
    def f(x: torch.Tensor, t: float) -> torch.Tensor:
        return x * t if t > 1 else x + t

    fast, inputs = braze.compile(f, backend=B, fullgraph=True), x()
    for t in (0.5, 0.25, 2.0, 3.0, 4.0, 0.75):
        torch.testing.assert_close(fast(inputs, t), f(inputs, t))
    log = log_of(fast)
    assert log is not None and len(log.graphs) == 3


def test_an_item_stays_in_the_graph() -> None:
    def f(x: torch.Tensor) -> Any:
        total = x.sum()
        n = total.item()
        total.add_(1)
        return n, n * 2 + 1, x / n

    fast, inputs = braze.compile(f, backend="inductor", fullgraph=True), x()
    got, want = fast(inputs), f(inputs)
    assert type(got[0]) is float
    torch.testing.assert_close(got, want, rtol=2e-6, atol=2e-6)  # floats, but of a float32 sum in another order


def test_grad_scaler_is_right() -> None:
    def make() -> Any:
        torch.manual_seed(0)
        m = Net()
        return m, torch.optim.SGD(m.parameters(), lr=0.1), torch.amp.GradScaler("cpu")

    def step(m: nn.Module, o: Any, s: Any, x: torch.Tensor) -> torch.Tensor:
        o.zero_grad()
        loss = m(x).sum()
        s.scale(loss).backward()
        s.step(o)
        s.update()
        return loss.detach()

    one, two, inputs = make(), make(), x()
    fast = braze.compile(step, backend=B)
    for _ in range(3):
        torch.testing.assert_close(fast(*one, inputs), step(*two, inputs))
    for p, q in zip(one[0].parameters(), two[0].parameters()):
        torch.testing.assert_close(p, q)
