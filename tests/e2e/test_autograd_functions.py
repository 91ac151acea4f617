"""``torch.autograd.Function`` in all its forms, as in eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

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


class Attr(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k, flag=True, name="a"):
        ctx.k = k
        ctx.flag = flag
        ctx.shape = x.shape
        ctx.save_for_backward(x)
        return x * k if flag else x + k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        assert ctx.shape == x.shape
        return (g * ctx.k + 0 * x if ctx.flag else g), None, None, None


@case
def fn_attr(wrap):
    x, w = leafs()
    wrap(lambda x: Attr.apply(x, 3.0, True, "z").sin().sum() + Attr.apply(x, 2, False).sum())(x).backward()
    return x.grad


class SaveOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


@case
def fn_saveout(wrap):
    x, w = leafs()
    y = wrap(lambda x: SaveOut.apply(x))(x)
    y.sum().backward()
    return x.grad, y.detach()


@case
def fn_saveout_double(wrap):
    x, w = leafs()
    y = wrap(lambda x: SaveOut.apply(x))(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)


class NonDiff(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        v, i = x.max(1)
        m = x > 0
        ctx.mark_non_differentiable(i, m)
        ctx.save_for_backward(i)
        ctx.n = x.shape
        return v, i, m

    @staticmethod
    def backward(ctx, g, gi, gm):
        (i,) = ctx.saved_tensors
        return torch.zeros(ctx.n).scatter(1, i[:, None], g[:, None])


@case
def fn_nondiff(wrap):
    x, w = leafs()
    v, i, m = wrap(lambda x: NonDiff.apply(x))(x)
    v.sum().backward()
    return x.grad, i, m, i.requires_grad, m.requires_grad


class NonDiffF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a = x * 2
        b = x * 3
        ctx.mark_non_differentiable(b)
        return a, b

    @staticmethod
    def backward(ctx, g, gb):
        return g * 2


@case
def fn_nondiff_float(wrap):
    x, w = leafs()
    a, b = wrap(lambda x: NonDiffF.apply(x))(x)
    a.sum().backward()
    return x.grad, b.requires_grad, b


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


@case
def fn_dirty(wrap):
    x, w = leafs()

    def f(x):
        h = x * 1
        y = Dirty.apply(h)
        return y.sin(), h

    y, h = wrap(f)(x)
    (y.sum() + h.sum()).backward()
    return x.grad, h.detach()


@case
def fn_dirty_input(wrap):
    x, w = leafs()
    h = x * 1
    y = wrap(lambda h: Dirty.apply(h).sin())(h)
    (y.sum() + h.sum()).backward()
    return x.grad, h.detach()


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


@case
def fn_once(wrap):
    x, w = leafs()
    wrap(lambda x: Once.apply(x).sum())(x).backward()
    return x.grad


@case
def fn_once_double(wrap):
    x, w = leafs()
    y = wrap(lambda x: Once.apply(x).sum())(x)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    try:
        torch.autograd.grad(g.sum(), x)
    except RuntimeError as e:
        return str(e)[:40]


class NoMat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        g = None
        if a is not None:
            g = a * 2
        if b is not None:
            g = b * 3 if g is None else g + b * 3
        return g


@case
def fn_nomat(wrap):
    x, w = leafs()
    a, b = wrap(lambda x: NoMat.apply(x))(x)
    b.sum().backward()
    return x.grad


@case
def fn_nomat_unused_inside(wrap):
    x, w = leafs()
    a = wrap(lambda x: NoMat.apply(x)[0] * 3)(x)
    a.sum().backward()
    return x.grad


class Needs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.n = ctx.needs_input_grad
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (g * w if ctx.needs_input_grad[0] else None), (g * x if ctx.needs_input_grad[1] else None)


@case
def fn_needs(wrap):
    x, w = leafs()
    w = w.detach()
    y = wrap(lambda x, w: Needs.apply(x, w))(x, w)
    y.sum().backward()
    return x.grad


class Setup(torch.autograd.Function):
    @staticmethod
    def forward(x, k):
        return x * k, x.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, k = inputs
        ctx.k = k
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g, gs):
        (x,) = ctx.saved_tensors
        return g * ctx.k + gs.expand_as(x), None


@case
def fn_setup(wrap):
    x, w = leafs()
    a, b = wrap(lambda x: Setup.apply(x, 4.0))(x)
    (a.sin().sum() + b).backward()
    return x.grad


class SetupV(Setup):
    generate_vmap_rule = True


class VmapS(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()

    @staticmethod
    def vmap(info, in_dims, x):
        return VmapS.apply(x), in_dims[0]

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t


@case
def fn_vmap_static(wrap):
    x, w = leafs()
    y = wrap(lambda x: VmapS.apply(x))(x)
    y.sum().backward()
    return x.grad


@case
def fn_vmap_static_in_vmap(wrap):
    x, w = leafs()
    return wrap(lambda x: torch.func.vmap(lambda r: VmapS.apply(r) * 2)(x))(x.detach())


class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return SaveOut.apply(x) * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return SaveOut.apply(x) * 2 * g


@case
def fn_nested(wrap):
    x, w = leafs()
    wrap(lambda x: Outer.apply(x).sum())(x).backward()
    return x.grad


class InnerGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            z = (y**2).sum()
            (g,) = torch.autograd.grad(z, y)
        ctx.save_for_backward(g)
        return z.detach()

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return g * s


@case
def fn_inner_grad(wrap):
    x, w = leafs()
    wrap(lambda x: InnerGrad.apply(x))(x).backward()
    return x.grad


class ListArg(torch.autograd.Function):
    @staticmethod
    def forward(ctx, n, *xs):
        ctx.n = n
        return sum(xs) * n

    @staticmethod
    def backward(ctx, g):
        return (None,) + tuple(g * ctx.n for _ in range(2))


@case
def fn_varargs(wrap):
    x, w = leafs()
    wrap(lambda x, w: ListArg.apply(3, x, w).sum())(x, w).backward()
    return x.grad, w.grad


class NoneOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, None, "tag"

    @staticmethod
    def backward(ctx, g, *r):
        return g * 2


@case
def fn_none_out(wrap):
    x, w = leafs()
    y, n, t = wrap(lambda x: NoneOut.apply(x))(x)
    y.sum().backward()
    return x.grad, n, t


class ModAttr(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mod):
        ctx.mod = mod
        ctx.save_for_backward(x)
        return mod(x).detach()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            z = ctx.mod(y)
        return torch.autograd.grad(z, y, g)[0], None


@case
def fn_module_arg(wrap):
    x, w = leafs()
    m = model()
    wrap(lambda x: ModAttr.apply(x, m).sum())(x).backward()
    return x.grad


class WrongShape(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g[:2]


@case
def fn_wrong_shape(wrap):
    x, w = leafs()
    try:
        wrap(lambda x: WrongShape.apply(x).sum())(x).backward()
    except RuntimeError as e:
        return str(e)[30:60]


class Intermediates(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        t = x.exp()
        ctx.t = t
        return t.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.t.cos() * ctx.t


@case
def fn_ctx_tensor(wrap):
    x, w = leafs()
    wrap(lambda x: Intermediates.apply(x).sum())(x).backward()
    return x.grad


class InplaceBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        h = g.clone()
        h.mul_(2)
        h[0] = 0
        return h


@case
def fn_inplace_back(wrap):
    x, w = leafs()
    wrap(lambda x: InplaceBack.apply(x).sum())(x).backward()
    return x.grad


class ReturnInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 5


@case
def fn_return_input(wrap):
    x, w = leafs()
    y = wrap(lambda x: ReturnInput.apply(x))(x)
    y.sum().backward()
    return x.grad, y is x, y.data_ptr() == x.data_ptr()


class PrintBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * (2 if g.sum() > 0 else 3)


@case
def fn_branch_back(wrap):
    x, w = leafs()
    f = wrap(lambda x: PrintBack.apply(x))
    f(x).sum().backward()
    a = x.grad.clone()
    x.grad = None
    (-f(x)).sum().backward()
    return a, x.grad


class CountBack(torch.autograd.Function):
    n = 0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        CountBack.n += 1
        return g * 2


@case
def fn_effect_back(wrap):
    CountBack.n = 0
    x, w = leafs()
    f = wrap(lambda x: CountBack.apply(x).sum())
    for _ in range(3):
        f(x).backward()
    return CountBack.n, x.grad


class GlobalBack(torch.autograd.Function):
    scale = 2.0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * GlobalBack.scale


@case
def fn_global_back(wrap):
    GlobalBack.scale = 2.0
    x, w = leafs()
    f = wrap(lambda x: GlobalBack.apply(x).sum())
    f(x).backward()
    a = x.grad.clone()
    x.grad = None
    GlobalBack.scale = 5.0
    f(x).backward()
    GlobalBack.scale = 2.0
    return a, x.grad


BREAKS = {"fn_module_arg", "fn_wrong_shape", "fn_branch_back", "fn_effect_back"}


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    as_in_eager(CASES[name], name not in BREAKS)
