"""Minimum cuts against brute force, and what the partitioner saves."""

from __future__ import annotations

import itertools
import random

import cuda_typed
import pytest
import torch
import torch.nn.functional as F
from autograd_harness import compile_program

from braze.autograd import budget_curve, curve_text, partition, trace_joint
from braze.autograd.flow import INFINITE, Network
from braze.ir import interpret, tensor_type

aten = torch.ops.aten


def brute_force(n, edges):
    """The least capacity of edges from a side with node 0 to a side with node 1."""
    best = None
    for rest in itertools.product([True, False], repeat=n - 2):
        side = [True, False, *rest]
        cost = sum(c for a, b, c in edges if side[a] and not side[b])
        best = cost if best is None else min(best, cost)
    return best


@pytest.mark.parametrize("seed", range(30))
def test_min_cut(seed):
    rng = random.Random(seed)
    n = rng.randint(3, 9)
    edges = [(rng.randrange(n), rng.randrange(n), rng.randint(1, 20)) for _ in range(rng.randint(2, 25))]
    edges = [(a, b, c) for a, b, c in edges if a != b]
    net = Network()
    for _ in range(n - 2):
        net.node()
    for a, b, c in edges:
        net.edge(a, b, c)
    cost, near = net.min_cut()
    assert cost == brute_force(n, edges)
    assert near[0] and not near[1]
    assert cost == sum(c for a, b, c in edges if near[a] and not near[b])


def test_no_finite_cut():
    net = Network()
    a = net.node()
    net.edge(0, a, INFINITE)
    net.edge(a, 1, INFINITE)
    with pytest.raises(ValueError):
        net.min_cut()


def split(fn, *types, budget=1.0):
    return partition(trace_joint(fn, list(types)), budget)


def saved(aot):
    return [n.name for n, r in zip(aot.backward.inputs, aot.signature.saved) if r.kind != "input"]


def t(*sizes, grad=True, dtype=torch.float32):
    return tensor_type(sizes, dtype, requires_grad=grad)


def test_pointwise_chain_saves_only_the_input():
    aot = split(lambda x: x.sin().exp().tanh().sum(), t(1000))
    assert [r.kind for r in aot.signature.saved] == ["input"]


def test_matrix_products_are_not_repeated():
    aot = split(lambda x, w: F.gelu(F.gelu(x @ w) @ w).sum(), t(64, 64), t(64, 64))
    backward = [n.target for n in aot.backward.calls]
    assert backward.count(aten.mm.default) == 4
    assert saved(aot) == ["mm", "mm_1"]  # the gelus are computed again


def test_residual_stream_is_saved_not_chained():
    def fn(x, *ws):
        for w in ws:
            x = x + F.relu(x @ w)
        return x.sum()

    aot = split(fn, t(256, 64), *[t(64, 64) for _ in range(4)])
    adds = [n for n in aot.backward.calls if n.target is aten.add.Tensor]
    assert sum("add" in s for s in saved(aot)) == 3
    assert len(adds) == 4  # the gradients' own


def test_what_a_norm_at_the_end_of_a_layer_reads_is_saved_in_place_of_what_it_is_made_of():
    def fn(x, *ws):
        for a, b in zip(ws[::2], ws[1::2]):
            x = F.layer_norm(x + x @ a, (64,))
            x = F.layer_norm(x + F.gelu(x @ b), (64,))
        return x.sum()

    aot = split(fn, t(256, 64), *[t(64, 64) for _ in range(4)])
    pairs = zip(aot.backward.inputs, aot.signature.saved)
    large = [n.name for n, r in pairs if r.kind == "extra" and n.val.numel == 256 * 64]
    assert large == ["add", "mm_1", "add_1", "add_2", "mm_3"]  # sums, and what the gelus read
    assert not any(n.target is aten.native_layer_norm.default for n in aot.backward.calls)


def test_masks_are_saved_as_bytes():
    aot = split(lambda x, w: (F.dropout(x @ w, 0.1) ** 2).sum(), t(64, 64), t(64, 64))
    types = {n.val.dtype for n, r in zip(aot.backward.inputs, aot.signature.saved) if r.kind == "extra"}
    assert types == {torch.float32, torch.bool}


@pytest.mark.parametrize("device, post", [("cuda:0", True), ("cuda:0", False), ("cpu", True)])
def test_masks_are_drawn_again_where_a_gpu_walks_rows(device, post):
    def fn(x, w, v):
        y = x + F.dropout(x @ w, 0.1)
        y = F.layer_norm(y, (64,)) if post else F.gelu(y)
        return (y @ v).sum()

    cuda_typed.enable()
    there = [tensor_type(n, device=torch.device(device), requires_grad=True) for n in ((256, 64), (64, 64), (64, 64))]
    aot = split(fn, *there)
    masks = [r for n, r in zip(aot.backward.inputs, aot.signature.saved) if n.val.dtype is torch.bool]
    assert len(masks) == (0 if device != "cpu" and post else 1)


def test_base_is_saved_rather_than_its_views():
    aot = split(lambda x, w: ((x @ w).view(-1, 2).t() * 3).exp().sum(), t(64, 64), t(64, 64))
    assert saved(aot) == ["mm"]


def test_small_view_is_copied():
    """A row of a large value must not keep all of it alive."""
    aot = split(lambda x, w: ((x @ w)[:, 0] ** 2).sum(), t(64, 512), t(512, 512))
    extras = [n for n, r in zip(aot.backward.inputs, aot.signature.saved) if r.kind == "extra"]
    assert extras and all(n.val.numel <= 64 for n in extras)


def test_positions_are_packed():
    def fn(x):
        return (F.max_pool2d(x.sin(), 2) ** 2).sum()

    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    f, aot = compile_program(fn, [x])
    dtypes = [n.val.dtype for n in aot.backward.inputs]
    assert torch.int16 in dtypes and torch.int64 not in dtypes
    f(x)[0].backward()
    (want,) = torch.autograd.grad(fn(x), x)
    torch.testing.assert_close(x.grad, want)


def test_overwritten_input_is_saved_as_a_copy():
    def fn(x, n):
        y = (x * n).sum()
        n.add_(1)
        return y

    # eager saves n itself and refuses; ours has the old value
    x, n = torch.randn(4, requires_grad=True), torch.randn(4)
    old = n.clone()
    f, aot = compile_program(lambda x, n: (lambda y: (n.detach().add_(0), y)[1])((x * n.clone()).sum()), [x, n])
    f(x, n)[0].backward()
    torch.testing.assert_close(x.grad, old)


def test_order_and_determinism():
    fn = lambda x, w: F.gelu(F.layer_norm(x @ w, (64,))).sum()  # noqa: E731
    a, b = (split(fn, t(64, 64), t(64, 64)) for _ in range(2))
    assert str(a.forward) == str(b.forward) and str(a.backward) == str(b.backward)
    order = [n.name for n in a.forward.nodes]
    places = [order.index(n.name) for n in a.backward.inputs[: len(a.signature.saved)]]
    assert places == sorted(places)


def test_nothing_to_differentiate():
    aot = split(lambda x: x * 2, t(4, grad=False))
    assert aot.backward is None and not aot.signature.differentiable


def test_no_grad_mode():
    with torch.no_grad():
        aot = split(lambda x: x * 2, t(4))
    assert aot.backward is None


def residual(x, *ws):
    for w in ws:
        x = torch.relu(x + torch.tanh(x @ w))
    return x.sum()


def test_a_budget_is_used_and_not_more():
    """The residual stream is computed again in parts, evenly, as far as the budget asks, that lowers the peak, and no
    further."""
    joint = trace_joint(residual, [t(64, 64)] + [t(64, 64)] * 10)
    curve = budget_curve(joint)
    saved = [p.saved for p in curve]
    assert saved == sorted(saved, reverse=True)
    assert [p.again for p in curve] == sorted(p.again for p in curve)
    unit = 64 * 64 * 4
    assert saved[0] == 19 * unit  # products and blocks
    for point in curve[2:4]:
        assert point.saved <= point.budget * saved[0] < point.saved + 2 * unit
    assert 11 * unit <= saved[-1] <= 14 * unit  # products are never repeated, and blocks that the rest follows from
    text = curve_text(curve)
    assert len(text.splitlines()) == 1 + len(curve) and "0.95" in text
    none = trace_joint(lambda x: x.sum(), [t(4, grad=False)])
    assert budget_curve(none) == []


@pytest.mark.parametrize("budget", [0.9, 0.7, 0.5])
def test_values_under_a_budget(budget):
    ws = [torch.randn(8, 8, dtype=torch.float64) * 0.3 for _ in range(6)]
    x = torch.randn(4, 8, dtype=torch.float64)
    types = [t(*v.shape, dtype=torch.float64) for v in (x, *ws)]
    aot = partition(trace_joint(residual, types), budget)
    given = [v.requires_grad_() for v in (x, *ws)]
    want = torch.autograd.grad(residual(*given), given)
    outs = interpret(aot.forward, [v.detach() for v in given])
    places = {"input": given, "result": outs, "extra": outs[aot.signature.n_results :]}
    args = [places[r.kind][r.index].detach() for r in aot.signature.saved]
    got = interpret(aot.backward, [*args, torch.ones((), dtype=torch.float64)])
    torch.testing.assert_close(list(got), list(want))
