"""Transforms of torch.func inside of compiled code: values and gradients as in eager, in one graph, and where not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

import braze
from braze.api import log_of

torch.manual_seed(0)
LINEAR = nn.Linear(4, 3)
MLP = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))
TIED = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
TIED[1].weight = TIED[0].weight


def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
    return functional_call(MLP, p, (x,)).pow(2).sum()  # type: ignore[no-any-return]


def state() -> dict[str, Tensor]:
    return {k: v.detach() for k, v in MLP.named_parameters()}


def bare_loss(w: Tensor, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    y = x @ w
    return y.sin().sum(), {"y": y, "n": y.norm()}


def attention(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.t() / 2).softmax(-1) @ k


WHOLE: dict[str, Callable[[Tensor], Any]] = {
    "functional_call": lambda x: functional_call(LINEAR, {"weight": LINEAR.weight * 2, "bias": LINEAR.bias}, (x,)),
    "functional_call, part": lambda x: functional_call(LINEAR, {"bias": x.sum() * LINEAR.bias}, (x,)),
    "functional_call, tied": lambda x: functional_call(TIED, {"0.weight": TIED[0].weight * 2}, (x,)),
    "functional_call, strict": lambda x: functional_call(LINEAR, dict(LINEAR.named_parameters()), (x,), strict=True),
    "grad": lambda x: grad(lambda x: (x.sin() * x).sum())(x),
    "grad, two arguments": lambda x: grad(lambda x, y: (x * y.exp()).sum(), argnums=(0, 1))(x, x + 1),
    "grad, the second": lambda x: grad(lambda x, y: (x * y.exp()).sum(), 1)(x, x + 1),
    "grad, has_aux": lambda x: grad(bare_loss, has_aux=True)(LINEAR.weight.t() * 2, x),
    "grad of a dict": lambda x: grad(loss)(state(), x),
    "grad of parameters": lambda x: grad(loss)(dict(MLP.named_parameters()), x),
    "grad of what a closure holds": lambda x: grad(lambda y: (y * LINEAR(x).sum()).sin().sum())(x * 2),
    "grad of grad": lambda x: grad(grad(lambda y: (y**3).sin()))(x[0, 0]),
    "grad, decorated": lambda x: _decorated(x),
    "grad_and_value": lambda x: grad_and_value(lambda x: x.exp().sum())(x),
    "grad of a convolution": lambda x: grad(
        lambda w: F.conv1d(x.view(1, 2, 10), w).relu().sum()
    )(torch.linspace(-1, 1, 18).view(3, 2, 3)),
    "vmap": lambda x: vmap(lambda r: r.sin().sum() * r)(x),
    "vmap, in_dims and out_dims": lambda x: vmap(lambda a, b: a.exp() + b, in_dims=(1, None), out_dims=1)(x, x[:, 0]),
    "vmap, nested arguments": lambda x: vmap(lambda d: d["a"] * d["b"][0].sum(), in_dims=({"a": 0, "b": (1,)},))(
        {"a": x[:4], "b": (x,)}
    ),
    "vmap, several results": lambda x: vmap(lambda r: (r.max(), {"low": r.min(), "all": [r * 2]}))(x),
    "vmap of a product": lambda x: vmap(lambda a, b: a @ b, in_dims=(0, None))(x, LINEAR.weight.t()),
    "vmap of attention": lambda x: vmap(attention)(x.view(2, 5, 2), x.view(2, 5, 2).flip(1)),
    "vmap of a norm": lambda x: vmap(lambda r: F.layer_norm(r, (4,)))(x),
    "vmap of a choice": lambda x: vmap(lambda r: torch.where(r > 0, r, r.mean()), out_dims=1)(x),
    "vmap of an index": lambda x: vmap(lambda r, i: r.index_select(0, i.view(1)))(x, torch.tensor([0, 3, 1, 2, 0])),
    "vmap of a model": lambda x: vmap(MLP)(x),
    "vmap of a write to its own": lambda x: vmap(lambda r: r.clone().mul_(2).add_(r))(x),
    "vmap of vmap": lambda x: vmap(vmap(lambda r: r.cos() * 2))(x),
    "vmap of vmap, other axes": lambda x: vmap(vmap(torch.mul, (0, None)), (None, 0))(x[0], x[:, 1]),
    "vmap in pieces": lambda x: vmap(lambda r: r.sin().sum(), chunk_size=2)(x),
    "gradients of each example": lambda x: vmap(grad(loss), in_dims=(None, 0))(state(), x),
    "jvp": lambda x: jvp(lambda x: x.sin() * x, (x,), (x * 2,)),
    "jvp of a product": lambda x: jvp(torch.matmul, (x, x.t()), (x + 1, x.t() * 2)),
    "jvp, has_aux": lambda x: jvp(lambda x: (x.sin(), x + 1), (x,), (x * 2,), has_aux=True),
    "vjp": lambda x: _vjp(x),
    "jacrev": lambda x: jacrev(lambda r: r.sin() * r.sum())(x[0]),
    "jacfwd": lambda x: jacfwd(lambda r: r.sin() * r.sum())(x[0]),
    "hessian": lambda x: hessian(lambda r: (r.sin() * r).sum() * r.prod())(x[0]),
    "hessian of a model": lambda x: hessian(lambda r: MLP(r).sum())(x[0]),
    "jacrev over the batch": lambda x: vmap(jacrev(lambda r: torch.tanh(r @ LINEAR.weight.t())))(x),
}  # fmt: skip
BROKEN: dict[str, Callable[[Tensor], Any]] = {
    "random numbers": lambda x: vmap(lambda r: F.dropout(r, 0.5) * 0, randomness="different")(x),
    "a branch": lambda x: grad(lambda r: (r * 2 if r.sum() > 0 else r * 3).sum())(x),
    "an index by a number": lambda x: vmap(lambda r, i: r[i])(x, torch.tensor([0, 3, 1, 2, 0])),
    "a tensor kept": lambda x: _keeps(x),
    "chosen dims": lambda x: vmap(lambda r: r * 2, in_dims=int(x.shape[0] > 1))(x),
}


@grad
def _decorated(x: Tensor) -> Tensor:
    return x.tanh().sum()


def _vjp(x: Tensor) -> Any:
    y, pull = vjp(lambda a, b: (a @ b).sin(), x, x.t())
    return y, pull(torch.ones_like(y)), pull(y)


def _keeps(x: Tensor) -> Tensor:
    found = []

    def f(r: Tensor) -> Tensor:
        found.append(r.detach().sin())
        return r.sum()

    return grad(f)(x) + len(found)


def check(f: Callable[[Tensor], Any], whole: bool, **options: Any) -> None:
    x = torch.linspace(-1, 1.3, 20).view(5, 4)
    fast = braze.compile(f, fullgraph=whole, **options)
    params = [*LINEAR.parameters(), *MLP.parameters(), *TIED.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(fast(x), f(x), rtol=1e-4, atol=1e-5)
        found = []
        for g in (f, fast):
            y = x.clone().requires_grad_()
            outs = [o for o in torch.utils._pytree.tree_leaves(g(y)) if isinstance(o, Tensor)]
            flags = [o.requires_grad for o in outs]
            heads = [o.square().sum() for o in outs if o.requires_grad]
            grads = torch.autograd.grad(sum(heads), [y, *params], allow_unused=True) if heads else ()
            found.append((flags, [torch.zeros(()) if v is None else v for v in grads]))
    assert found[1][0] == found[0][0]
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-3, atol=1e-4)
    log = log_of(fast)
    assert log is not None and not any(g.fallback for g in log.graphs)
    assert not whole or log.graphs


@pytest.mark.parametrize("name", WHOLE)
def test_in_one_graph(name: str) -> None:
    check(WHOLE[name], True, backend="aot_eager")


@pytest.mark.parametrize("name", ["grad of a dict", "gradients of each example", "hessian", "jvp", "vmap of attention"])
def test_generated_code(name: str) -> None:
    check(WHOLE[name], True)


@pytest.mark.parametrize("name", BROKEN)
def test_with_a_break(name: str) -> None:
    check(BROKEN[name], False, backend="aot_eager")


def test_sizes_that_change() -> None:
    fast = braze.compile(WHOLE["gradients of each example"], fullgraph=True, dynamic=True)
    for n in (5, 7, 9):
        x = torch.randn(n, 4)
        torch.testing.assert_close(fast(x), WHOLE["gradients of each example"](x), rtol=1e-4, atol=1e-5)


def test_what_eager_refuses() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.zeros(3)
        return grad(lambda r: (r + y.add_(1).sum()).sum())(x)

    with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
        braze.compile(f)(torch.ones(3))


def test_a_transform_that_outlives_a_break() -> None:
    def f(x: Tensor) -> Tensor:
        g, (y, pull) = grad(lambda r: (r.sin() * x).sum()), vjp(torch.sin, x)
        braze.graph_break()
        return g(x) + pull(y)[0]

    x = torch.randn(3, 4)
    torch.testing.assert_close(braze.compile(f)(x), f(x))


def test_what_the_function_reads_is_guarded() -> None:
    class Scale:
        by = 2.0

    fast = braze.compile(lambda x: vmap(lambda r: r * Scale.by)(x))
    x = torch.ones(2, 3)
    assert fast(x).sum() == 12
    Scale.by = 3.0
    assert fast(x).sum() == 18
