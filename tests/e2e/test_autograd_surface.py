"""All that a user does with gradients around and inside of compiled functions, as in eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import braze

sys.path.insert(0, str(Path(__file__).parent))
from eager_cases import as_in_eager  # noqa: E402

CASES: dict[str, Callable[..., Any]] = {}


def case(f: Any) -> Any:
    CASES[f.__name__] = f
    return f


def leafs(n: int = 2) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(4, 5, generator=g, requires_grad=True) for _ in range(n)]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


@case
def retain_graph_twice(wrap):
    x, w = leafs()
    y = wrap(lambda x, w: (x * w).sin().sum())(x, w)
    y.backward(retain_graph=True)
    y.backward()
    return x.grad, w.grad


@case
def twice_without_retain(wrap):
    x, w = leafs()
    y = wrap(lambda x, w: (x * w).sin().sum())(x, w)
    y.backward()
    try:
        y.backward()
    except RuntimeError as e:
        return str(e)[:70]


@case
def twice_without_retain_inputs_only_saved(wrap):
    x, w = leafs()
    y = wrap(lambda x: (x * x).sum())(x)
    y.backward()
    try:
        y.backward()
    except RuntimeError as e:
        return str(e)[:70]


@case
def grad_outputs(wrap):
    x, w = leafs()
    y = wrap(lambda x, w: (x * w).sin())(x, w)
    return torch.autograd.grad(y, [x, w], torch.arange(20.0).view(4, 5))


@case
def allow_unused(wrap):
    x, w = leafs()
    u = torch.randn(2, requires_grad=True)
    y = wrap(lambda x, w, u: (x * w).sin().sum())(x, w, u)
    return torch.autograd.grad(y, [x, u], allow_unused=True)


@case
def unused_error(wrap):
    x, w = leafs()
    u = torch.randn(2, requires_grad=True)
    y = wrap(lambda x, w, u: (x * w).sin().sum() + u.detach().sum())(x, w, u)
    try:
        return torch.autograd.grad(y, [x, u])
    except RuntimeError as e:
        return str(e)[:60]


@case
def materialize_grads(wrap):
    x, w = leafs()
    u = torch.randn(2, requires_grad=True)
    y = wrap(lambda x, w, u: (x * w).sin().sum())(x, w, u)
    return torch.autograd.grad(y, [x, u], allow_unused=True, materialize_grads=True)


@case
def grads_batched(wrap):
    x, w = leafs()
    y = wrap(lambda x, w: (x * w).sin())(x, w)
    torch.manual_seed(3)
    v = torch.randn(6, 4, 5)
    return torch.autograd.grad(y, [x, w], v, is_grads_batched=True)


@case
def partial_outputs(wrap):
    x, w = leafs()
    a, b = wrap(lambda x, w: ((x * w).sin(), x.exp() + w))(x, w)
    g1 = torch.autograd.grad(a.sum(), [x, w], retain_graph=True)
    g2 = torch.autograd.grad(b.sum(), [x, w])
    return g1, g2


@case
def mixed_requires(wrap):
    x, w = leafs()
    w = w.detach()
    a, b = wrap(lambda x, w: ((x * w).sin(), w.exp()))(x, w)
    a.sum().backward()
    return x.grad, w.grad, a.requires_grad, b.requires_grad


@case
def hook_input(wrap):
    x, w = leafs()
    x.register_hook(lambda g: g * 3)
    seen = []
    w.register_hook(lambda g: seen.append(g.clone()))
    wrap(lambda x, w: (x * w).sin().sum())(x, w).backward()
    return x.grad, w.grad, seen


@case
def hook_output(wrap):
    x, w = leafs()
    y = wrap(lambda x, w: (x * w).sin())(x, w)
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
    return x.grad, w.grad


@case
def hook_nonleaf_input(wrap):
    x, w = leafs()
    z = x * 2
    z.retain_grad()
    z.register_hook(lambda g: g * 2)
    wrap(lambda z, w: (z * w).sin().sum())(z, w).backward()
    return x.grad, z.grad


@case
def hook_intermediate_inside(wrap):
    x, w = leafs()

    def f(x, w):
        h = x * w
        h.register_hook(lambda g: g * 3)
        return h.sin().sum()

    wrap(f)(x, w).backward()
    return x.grad


@case
def hook_inside_effect(wrap):
    x, w = leafs()
    seen = []

    def f(x, w):
        h = x * w
        h.register_hook(lambda g: seen.append(g.sum().item()))
        return h.sin().sum()

    wrap(f)(x, w).backward()
    return x.grad, seen


@case
def hook_removed_inside(wrap):
    x, w = leafs()

    def f(x, w):
        h = x * w
        k = h.register_hook(lambda g: g * 3)
        y = h.sin().sum()
        k.remove()
        return y

    wrap(f)(x, w).backward()
    return x.grad


@case
def hook_on_input_inside(wrap):
    x, w = leafs()

    def f(x, w):
        x.register_hook(lambda g: g * 3)
        return (x * w).sum()

    wrap(f)(x, w).backward()
    return x.grad


@case
def retain_grad_inside(wrap):
    x, w = leafs()

    def f(x, w):
        h = x * w
        h.retain_grad()
        return h, h.sin().sum()

    h, y = wrap(f)(x, w)
    y.backward()
    return x.grad, h.grad


@case
def post_accumulate(wrap):
    x, w = leafs()
    seen = []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    wrap(lambda x, w: (x * w).sin().sum())(x, w).backward()
    return x.grad, seen


@case
def double_backward(wrap):
    x, w = leafs()
    y = wrap(lambda x, w: (x * w).sin().sum())(x, w)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return torch.autograd.grad(g.pow(2).sum(), [x, w])


@case
def double_backward_nonleaf_freed(wrap):
    x, w = leafs()
    f = wrap(lambda x, w: (x * w).sin().sum())
    y = f(x * 2, w)
    (g,) = torch.autograd.grad(y, w, create_graph=True)
    return torch.autograd.grad(g.pow(2).sum(), [x, w])


@case
def gradient_penalty(wrap):
    m = model()
    f = wrap(m)
    opt = torch.optim.SGD(m.parameters(), 0.1)
    x = torch.linspace(-1, 1, 20).view(4, 5)
    out = []
    for _ in range(3):
        opt.zero_grad()
        xi = x.clone().requires_grad_()
        y = f(xi)
        (g,) = torch.autograd.grad(y.sum(), xi, create_graph=True)
        loss = y.pow(2).mean() + ((g.norm(dim=1) - 1) ** 2).mean()
        loss.backward()
        opt.step()
        out.append(loss.detach())
    return out, [p.detach().clone() for p in m.parameters()]


@case
def gradient_penalty_inside(wrap):
    m = model()
    x = torch.linspace(-1, 1, 20).view(4, 5)

    def loss(x):
        xi = x.clone().requires_grad_()
        y = m(xi)
        (g,) = torch.autograd.grad(y.sum(), xi, create_graph=True)
        return y.pow(2).mean() + ((g.norm(dim=1) - 1) ** 2).mean()

    l = wrap(loss)(x)
    l.backward()
    return l.detach(), [p.grad for p in m.parameters()]


@case
def gradient_penalty_interp(wrap):  # x_hat non-leaf requires grad input
    m = model()
    x = torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()

    def loss(xh):
        y = m(xh)
        (g,) = torch.autograd.grad(y.sum(), xh, create_graph=True)
        return ((g.norm(dim=1) - 1) ** 2).mean()

    l = wrap(loss)(x * 0.5)
    l.backward()
    return l.detach(), x.grad, [p.grad for p in m.parameters()]


@case
def hvp(wrap):
    x, w = leafs()
    f = wrap(lambda x, w: ((x * w).tanh()).pow(2).sum())
    v = torch.ones(4, 5)
    return torch.autograd.functional.hvp(lambda x: f(x, w.detach()), x.detach(), v)


@case
def jacobian(wrap):
    x, w = leafs()
    f = wrap(lambda x: ((x * 2).tanh()).sum(0))
    return torch.autograd.functional.jacobian(f, x.detach())


@case
def double_with_view_output(wrap):
    x, w = leafs()
    y = wrap(lambda x, w: ((x * w).sin().t(), x.view(-1)))(x, w)
    (g,) = torch.autograd.grad(y[0].sum() + (y[1] ** 2).sum(), x, create_graph=True)
    return torch.autograd.grad(g.pow(2).sum(), [x, w])


@case
def double_with_mutated_buffer(wrap):
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
    f = wrap(m)
    x = leafs()[0]
    y = f(x).pow(2).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    g.pow(2).sum().backward()
    return [p.grad for p in m.parameters()], [b.clone() for b in m.buffers()]


@case
def inplace_leaf_view_error(wrap):
    x, w = leafs()

    def f(x):
        x.view(-1).mul_(2)
        return x

    try:
        wrap(f)(x)
    except RuntimeError as e:
        return str(e)


@case
def inplace_leaf_error(wrap):
    x, w = leafs()
    try:
        wrap(lambda x: x.mul_(2))(x)
    except RuntimeError as e:
        return str(e), x.detach().clone()


@case
def detach_requires_grad(wrap):
    x, w = leafs()

    def f(x, w):
        h = (x * w).detach().requires_grad_()
        return (h * w).sum()

    y = wrap(f)(x, w)
    y.backward()
    return x.grad, w.grad


@case
def new_leaf_returned(wrap):
    x, w = leafs()

    def f(x, w):
        h = (x * w).detach().requires_grad_()
        return h, (h * w).sum()

    h, y = wrap(f)(x, w)
    y.backward()
    return h.grad, w.grad, h.is_leaf


@case
def requires_grad_off(wrap):
    x, w = leafs()

    def f(x, w):
        with torch.no_grad():
            h = x * w
        return h * w

    y = wrap(f)(x, w)
    y.sum().backward()
    return x.grad, w.grad


@case
def saved_hooks_inside(wrap):
    x, w = leafs()
    n = []

    def f(x, w):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (n.append(1), t)[1], lambda t: t):
            return (x * w).sin().sum()

    wrap(f)(x, w).backward()
    return x.grad, len(n) > 0


@case
def save_on_cpu_inside(wrap):
    x, w = leafs()

    def f(x, w):
        with torch.autograd.graph.save_on_cpu():
            return (x * w).sin().sum()

    wrap(f)(x, w).backward()
    return x.grad


@case
def backward_inside(wrap):
    x, w = leafs()

    def f(x, w):
        y = (x * w).sin().sum()
        y.backward()
        return y

    y = wrap(f)(x, w)
    return x.grad, w.grad, y.detach()


@case
def grad_of_input_alias(wrap):
    x, w = leafs()
    y = wrap(lambda a, b: (a * b).sum())(x, x)
    y.backward()
    return x.grad


@case
def param_view_inputs(wrap):
    x, w = leafs()
    a, b = x[:2], x[2:]
    y = wrap(lambda a, b: (a * b).sin().sum())(a, b)
    y.backward()
    return x.grad


@case
def set_grad_enabled_inside(wrap):
    x, w = leafs()

    def f(x, w):
        torch.set_grad_enabled(False)
        h = x * w
        torch.set_grad_enabled(True)
        return h + x * w

    y = wrap(f)(x, w).sum()
    y.backward()
    return x.grad


@case
def inference_mode(wrap):
    x, w = leafs()
    with torch.inference_mode():
        y = wrap(lambda x, w: x * w)(x, w)
    return y.is_inference(), y.requires_grad


@case
def gradcheck(wrap):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    return torch.autograd.gradcheck(wrap(lambda x: x.sin() * x.exp()), (x,)), torch.autograd.gradgradcheck(
        wrap(lambda x: x.sin() * x.exp()), (x,)
    )


@case
def grad_none_then_zero(wrap):
    m = model()
    f = wrap(m)
    x = leafs()[0]
    m[0].requires_grad_(False)
    f(x).sum().backward()
    return [p.grad for p in m.parameters()]


@case
def multi_backward_loss_sum(wrap):
    x, w = leafs()
    f = wrap(lambda x, w: (x * w).tanh().sum())
    (f(x, w) + f(x * 2, w)).backward()
    return x.grad, w.grad


@case
def grad_fn_name(wrap):
    x, w = leafs()
    y = wrap(lambda x, w: x * w)(x, w)
    return y.grad_fn is not None, y.is_leaf


@case
def multi_grad_hook(wrap):
    x, w = leafs()
    seen = []
    torch.autograd.graph.register_multi_grad_hook([x, w], lambda gs: seen.append([g.clone() for g in gs]))
    wrap(lambda x, w: (x * w).sin().sum())(x, w).backward()
    return seen


@case
def node_prehook(wrap):
    x, w = leafs()
    y = wrap(lambda x, w: (x * w).sin().sum())(x, w)
    y.grad_fn.register_prehook(lambda g: (g[0] * 2,))
    y.backward()
    return x.grad


@case
def module_full_backward_hook(wrap):
    m = model()
    seen = []
    m[1].register_full_backward_hook(lambda mod, gi, go: seen.append(gi[0].clone()))
    x = leafs()[0]
    wrap(m)(x).sum().backward()
    return seen, x.grad


@case
def ckpt_nonreentrant(wrap):
    x, w = leafs()
    m = model()
    wrap(lambda x: checkpoint(m, x, use_reentrant=False).sum())(x).backward()
    return x.grad, [p.grad for p in m.parameters()]


@case
def ckpt_reentrant(wrap):
    x, w = leafs()
    m = model()
    wrap(lambda x: checkpoint(m, x, use_reentrant=True).sum())(x).backward()
    return x.grad, [p.grad for p in m.parameters()]


@case
def ckpt_seq(wrap):
    x, w = leafs()
    m = model()
    wrap(lambda x: checkpoint_sequential(m, 2, x, use_reentrant=False).sum())(x).backward()
    return x.grad


@case
def ckpt_kwargs(wrap):
    x, w = leafs()
    m = model()

    def f(x, s=1.0):
        return m(x) * s

    wrap(lambda x: checkpoint(f, x, s=2.0, use_reentrant=False, preserve_rng_state=True).sum())(x).backward()
    return x.grad


@case
def view_out_mutated(wrap):
    x, w = leafs()
    y = wrap(lambda x: (x * 2)[1:])(x)
    y.mul_(3)
    y.sum().backward()
    return x.grad


@case
def out_pair_mutated(wrap):
    x, w = leafs()

    def f(x):
        h = x * 2
        return h, h[1:]

    h, v = wrap(f)(x)
    v.mul_(3)
    h.sum().backward()
    return x.grad, h.detach()


@case
def input_view_mutated(wrap):
    x, w = leafs()
    h = x * 1
    v = wrap(lambda h: h[1:])(h)
    v.mul_(3)
    h.sum().backward()
    return x.grad, h.detach(), v._base is h


@case
def aliased_inputs_read(wrap):
    x, w = leafs()
    h = x * 1
    y = wrap(lambda a, b: a.sum(0) * b.sum(0))(h, h[1:])
    y.sum().backward()
    return x.grad


@case
def aliased_inputs_write(wrap):
    x, w = leafs()
    h = x * 1

    def f(a, b):
        a.mul_(2)
        return b * 3

    y = wrap(f)(h, h[1:])
    y.sum().backward()
    return x.grad, y.detach()


@case
def inplace_input_nonleaf(wrap):
    x, w = leafs()
    h = x * 1

    def f(a, w):
        a.mul_(w)
        return a.sin()

    y = wrap(f, fullgraph=True)(h, w)
    (y.sum() + h.sum()).backward()
    return x.grad, w.grad, h.detach()


@case
def relu_inplace_first(wrap):
    m = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 3))
    torch.manual_seed(0)
    nn.init.normal_(m[1].weight)
    nn.init.zeros_(m[1].bias)
    x, w = leafs()
    h = x * 1
    y = wrap(m, fullgraph=True)(h)
    y.sum().backward()
    return x.grad, h.detach()


@case
def version_error(wrap):
    x, w = leafs()
    y = wrap(lambda x, w: x * w)(x, w)
    with torch.no_grad():
        w.mul_(2)
    try:
        y.sum().backward()
    except RuntimeError as e:
        return str(e)[:60]


BREAKS = {
    "hook_inside_effect", "hook_removed_inside", "hook_on_input_inside",
    "retain_grad_inside", "saved_hooks_inside", "save_on_cpu_inside", "inplace_leaf_view_error", "inplace_leaf_error",
    "new_leaf_returned", "module_full_backward_hook",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    as_in_eager(CASES[name], name not in BREAKS)


def test_what_is_saved_is_freed_after_the_backward() -> None:
    x = torch.randn(30, 30, requires_grad=True)
    y = braze.compile(lambda x: (x.exp() @ x).sin().sum())(x)
    assert y.grad_fn.extras
    y.backward()
    assert y.grad_fn.extras is None
    with pytest.raises(RuntimeError, match="a second time"):
        y.grad_fn.saved_tensors  # noqa: B018


def test_anomaly_mode_names_the_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 0  # here
        return y.sqrt().log().sum()

    fast, m = braze.compile(f), braze.compile(model())
    x = torch.ones(3, requires_grad=True)
    fast(x)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan"):
        m(torch.ones(2, 5)).sum().backward()
        with pytest.warns(UserWarning, match=r"y = x \* 0  # here"):
            fast(x).backward()


def test_second_derivatives_are_refused_where_they_would_be_wrong() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    y = braze.compile(lambda x: nn.functional.dropout(x, 0.5).pow(2).sum())(x)
    with pytest.raises(braze.errors.Unsupported, match="random numbers"):
        torch.autograd.grad(y, x, create_graph=True)
    z = x * 1
    w = torch.randn(4, 5, requires_grad=True)
    y = braze.compile(lambda z, w: (z.exp() * w).sum())(z, w)
    with torch.no_grad():
        z.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, w, create_graph=True)


def test_a_sparse_gradient_arrives_at_a_compiled_function() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    y = braze.compile(lambda x: x.sin())(x)
    (got,) = torch.autograd.grad(y, x, torch.eye(4).to_sparse())
    torch.testing.assert_close(got, torch.eye(4) * x.cos())


def test_is_leaf_is_guarded() -> None:
    fast = braze.compile(lambda x: x * 2 if x.is_leaf else x * 3)
    x = torch.ones(2, requires_grad=True)
    assert fast(x).sum() == 4 and fast(x * 1).sum() == 6 and fast(x).sum() == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("f", [torch.max, torch.min, torch.amax, torch.median], ids=lambda f: f.__name__)
def test_an_infinite_gradient_reaches_only_the_extremes(f: Callable[..., Any], dtype: torch.dtype) -> None:
    found = []
    for g in (f, braze.compile(f)):
        x = torch.tensor([[3.0, 1.0, 3.0], [1.0, -2.0, -2.0]], dtype=dtype, requires_grad=True)
        found.append(torch.autograd.grad(g(x), x, torch.tensor(torch.inf, dtype=dtype)))
    torch.testing.assert_close(*found, equal_nan=True, rtol=0, atol=0)
    assert found[0][0].isinf().any()
