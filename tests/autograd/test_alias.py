"""Programs that overwrite and alias: all that eager does with memory, the compiled pair does too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from autograd_harness import check_program, compile_program

from braze.errors import Unsupported

PROGRAMS: dict[str, tuple[Callable[..., Any], str]] = {}


def program(kinds: str) -> Callable[[Any], Any]:
    """Register a program. ``kinds``, one letter an input: g requires grad, n does not, i int64, t a transposed g."""

    def add(fn: Any) -> Any:
        PROGRAMS[fn.__name__] = (fn, kinds)
        return fn

    return add


def make(kinds: str) -> list[torch.Tensor]:
    gen = torch.Generator().manual_seed(1)
    out = []
    for k in kinds:
        x = torch.randn(4, 6, generator=gen)
        if k == "i":
            x = torch.randint(0, 4, (5,), generator=gen)
        if k == "t":
            x = torch.randn(6, 4, generator=gen).t()
        if k == "s":
            x = torch.randn(4, 12, generator=gen)[:, ::2]
        if k == "c":
            x = torch.randn(2, 3, 4, 5, generator=gen).contiguous(memory_format=torch.channels_last)
        out.append(x.requires_grad_(k in "gtc"))
    return out


# --- in place on intermediates


@program("gg")
def add_in_place(x, w):
    y = x * 2
    y.add_(w)
    return y


@program("gg")
def chain_in_place(x, w):
    return (x + w).mul_(3).sub_(w).clamp_(max=2.0)


@program("g")
def sigmoid_in_place(x):
    y = x.clone()
    y.sigmoid_()
    return y * y


@program("gg")
def write_row(x, w):
    y = x.clone()
    y[1] = w[0] * 2
    return y


@program("gg")
def write_column_slice(x, w):
    y = x * 1
    y[:, 1:4] = w[:, :3]
    y[:, ::2].mul_(2)
    return y


@program("gg")
def add_to_view_of_view(x, w):
    y = x * 1
    v = y[1:].t()[2:4]
    v.add_(w[:2, :3])
    return y, v


@program("g")
def view_sees_base_change(x):
    y = x * 1
    v = y.view(-1)
    y.mul_(2)
    return v + 1


@program("g")
def base_sees_view_change(x):
    y = x * 1
    v = y.view(2, 12)
    v.exp_()
    return y.sum()


@program("gg")
def two_views_overlap(x, w):
    y = x * 1
    a, b = y[:3], y[1:]
    a.mul_(w[:3])
    b.add_(w[1:])
    return a, b


@program("g")
def reshape_of_transpose_copies(x):
    y = x * 1
    r = y.t().reshape(-1)
    r.add_(1)
    return y, r


@program("g")
def split_in_place(x):
    y = x.detach() * 1  # eager refuses in-place writes to views of several under autograd
    a, b, c = y.split(2, 1)
    a.add_(1), b.mul_(a), c.zero_()
    return y * x


@program("g")
def unbind_in_place(x):
    y = x.detach() * 1
    for i, r in enumerate(y.unbind(0)):
        r.add_(i)
    return y * x


@program("g")
def chunk_outputs(x):
    return (x * 2).chunk(2, 0)


@program("gg")
def diagonal_in_place(x, w):
    y = x * 1
    y.diagonal().copy_(w[0, :4])
    return y


@program("gg")
def select_assign_loop(x, w):
    y = torch.zeros(4, 6)
    for i in range(4):
        y[i] = x[i] * w[3 - i]
    return y


@program("gg")
def copy_broadcast(x, w):
    y = torch.empty(4, 6)
    y.copy_(w[0])
    return y + x


@program("gg")
def copy_casts(x, w):
    y = torch.zeros(4, 6, dtype=torch.float64)
    y.copy_(w)
    y.add_(x)
    return y.float()


@program("tg")
def copy_keeps_layout(x, w):
    y = x * 1
    y.copy_(w)
    return y.t().view(-1), y


@program("g")
def masked_fill_in_place(x):
    y = x * 1
    y.masked_fill_(y > 0.5, 0.25)
    return y


@program("gg")
def index_put_in_place(x, w):
    y = x * 1
    y[torch.tensor([0, 2])] = w[:2]
    return y


@program("gi")
def index_add_in_place(x, i):
    y = torch.zeros(4, 6)
    y.index_add_(0, i, torch.ones(5, 6))
    return y * x


@program("gg")
def where_out(x, w):
    y = torch.empty(4, 6)
    z = torch.add(x.detach(), w.detach(), out=y)
    return z * x


@program("g")
def expand_view_read(x):
    y = x[0:1] * 1
    e = y.expand(4, 6)
    y.add_(1)
    return e * x


@program("g")
def unsqueeze_squeeze_write(x):
    y = x * 1
    y.unsqueeze(1).squeeze(1).mul_(2)
    y.unsqueeze(-1)[..., 0].add_(1)
    return y


@program("g")
def as_strided_write(x):
    y = x * 1
    y.as_strided((2, 3), (6, 2), 1).add_(10)
    return y


@program("g")
def permute_write(x):
    y = (x * 1).view(2, 2, 6)
    y.permute(2, 0, 1)[1].mul_(3)
    return y


@program("g")
def complex_views(x):
    z = torch.view_as_complex((x * 1).view(4, 3, 2))
    r = torch.view_as_real(z)
    r[..., 0].mul_(2)
    return r


@program("n")
def view_dtype_write(x):
    y = x * 1
    y.view(torch.int32).add_(1)
    return y


@program("g")
def reshape_in_place(x):
    y = x * 2
    y.t_().unsqueeze_(0)
    y.add_(1)
    return y * 1


@program("g")
def return_reshaped_in_place(x):
    return (x * 2).transpose_(0, 1)


# --- inputs overwritten


@program("ng")
def mutate_plain_input(x, w):
    x.add_(1)
    return x * w


@program("gg")
def mutate_grad_input(x, w):
    x.mul_(w)
    return x + 1


@program("gg")
def mutate_input_twice(x, w):
    x.mul_(2)
    y = x + w
    x.mul_(w)
    return y


@program("ng")
def input_becomes_differentiable(x, w):
    x.copy_(w * 2)
    return x.sum()


@program("ng")
def mutate_through_view(x, w):
    x[1:3].copy_(w[:2].detach())
    return x * w


@program("gg")
def mutate_grad_input_through_view(x, w):
    x.t()[2].mul_(w[:, 0])
    return x * 2


@program("nn")
def swap_inputs(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return x + y


@program("tg")
def mutate_transposed_input(x, w):
    x.add_(w)
    return x.t().reshape(-1) * 2


@program("sg")
def mutate_input_with_gaps(x, w):
    x.add_(1)
    return x * w, x.t()


@program("ng")
def no_grad_update(x, w):
    y = (x + w).exp().sum()
    with torch.no_grad():
        x.mul_(0.5)
    return y


@program("ng")
def running_average(avg, w):
    out = w * 2
    avg.mul_(0.9).add_(out.detach(), alpha=0.1)
    return out


@program("nn")
def foreach_in_place(x, y):
    torch._foreach_add_([x, y], [y * 2, x * 2])
    torch._foreach_mul_([x, y], 0.5)
    return x + y


@program("ig")
def counter(n, w):
    n.add_(1)
    return w * n.sum()


@program("cg")
def mutate_channels_last(x, w):
    x.add_(1)
    return x * 2


@program("ng")
def mutate_and_return_nothing_else(x, w):
    x.zero_()
    return (w * 3,)


# --- outputs that alias


@program("g")
def return_input(x):
    return x, x * 2


@program("g")
def return_view_of_input(x):
    return x.view(-1), x[1:], x.t()


@program("g")
def return_detached_input(x):
    return x.detach(), x * 2


@program("n")
def return_input_twice(x):
    return x, x, x.view(-1)


@program("gg")
def return_view_of_mutated_input(x, w):
    x.mul_(w)
    return x, x.view(-1), x[0]


@program("g")
def return_base_and_views(x):
    y = x * 2
    return y, y.view(-1), y[1]


@program("g")
def return_views_of_hidden_base(x):
    y = x * 2
    return y[1:], y[:2]


@program("g")
def return_same_twice(x):
    y = x * 2
    return y, y


@program("g")
def return_detached_twin(x):
    y = x * 2
    return y, y.detach()


@program("g")
def equal_but_apart(x):
    return x + 1, x + 1


@program("g")
def clones_apart(x):
    y = x + 1
    return y, y.clone(), x.clone()


@program("g")
def unchanged_cast(x):
    y = x * 2
    return y, y.to(torch.float32, copy=True)


@program("g")
def views_and_writes(x):
    y = x * 2
    v = y.view(-1)
    v[3:7].add_(1)
    return y, v[2:9]


@program("g")
def split_outputs_alias(x):
    y = x * 2
    a, b = y.split(3, 1)
    return a, b, y


@program("g")
def expand_output(x):
    return (x[0] * 2).expand(3, 6), x.expand(2, 4, 6)


@program("gn")
def constants_and_none(x, y):
    return x * 2, None, 3, y + 1


@program("gi")
def integer_output(x, i):
    return x * 2, i + 1, x.argmax()


@program("g")
def nothing_differentiable(x):
    return (x.detach() * 2, x.argmax())


@program("g")
def no_grad_region(x):
    with torch.no_grad():
        y = x * 2
    return y, y * x


@program("g")
def no_grad_view_of_input(x):
    with torch.no_grad():
        v = x.view(-1)
    return v, x * 2


@program("gg")
def unused_input(x, w):
    return x * 2


@program("gg")
def gradient_is_tangent(x, w):
    return x + w, (x + w).view(-1) * 1


@program("g")
def inner_gradient(x):
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return (g * x).sum()


@program("g")
def data_attribute(x):
    y = x * 2
    y.data.add_(1)
    return y * 1


class Negate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k, x.detach() + k

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * ctx.k + 0 * x, None


@program("g")
def custom_function(x):
    a, b = Scaled.apply(x, 3.0)
    return a * 2, b


@program("g")
def gradient_reversal_inside(x):
    return Negate.apply(x * 2) * 3


@program("gg")
def linear_relu_dropout0(x, w):
    return F.dropout(F.relu(x @ w.t(), inplace=True), 0.0, True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    fn, kinds = PROGRAMS[name]
    check_program(fn, make(kinds))


@pytest.mark.parametrize("name", ["add_in_place", "return_input", "no_grad_update", "views_and_writes", "unused_input"])
def test_program_on_leaves(name):
    fn, kinds = PROGRAMS[name]
    check_program(fn, make(kinds), leaf=True)


def test_custom_function_over_a_view_is_not_replayed():
    """The view that Negate returns is of the input; replaying it would lose Negate's backward."""
    (x,) = make("g")
    f, aot = compile_program(lambda x: Negate.apply(x), [x])
    (y,) = f(x)
    y.sum().backward()
    assert torch.equal(y, x) and torch.equal(x.grad, -torch.ones_like(x))


def test_parameter_updated_in_no_grad():
    def step(p, x):
        y = (p * x).sum()
        (g,) = torch.autograd.grad(y, p)
        with torch.no_grad():
            p.sub_(0.1 * g)
        return y.detach()

    check_program(step, make("gn"), leaf=True)


UNSUPPORTED = {
    "resize": lambda x: (x * 1).resize_(2, 2),
    "write to expanded": lambda x: (x[0] * 1).expand(4, 6).add_(1),
    "returns a new leaf": lambda x: (x * 2).detach().requires_grad_(),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported(name):
    with pytest.raises((Unsupported, RuntimeError)):
        compile_program(UNSUPPORTED[name], make("g"))
