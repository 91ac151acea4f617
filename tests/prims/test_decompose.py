"""Decomposition as a pass: layouts, aliasing, policies, dtypes that primitives do not take, errors, sharing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aten_trace import record

from braze.errors import Unsupported
from braze.ir import Graph, Loc, interpret, tensor_type, verify
from braze.prims import Policy, Prim, decompose

aten = torch.ops.aten


def lowered(fn: Any, *inputs: torch.Tensor, policy: Policy | None = None) -> Graph:
    graph, want = record(fn, inputs)
    low = verify(decompose(graph, policy))
    got = interpret(low, inputs)
    for w, g in zip(want if isinstance(want, tuple) else (want,), got if isinstance(got, tuple) else (got,)):
        torch.testing.assert_close(g, w, equal_nan=True)
    return low


def names(graph: Graph) -> list[str]:
    return [n.target.name if isinstance(n.target, Prim) else str(n.target) for n in graph.calls]


def test_running_example() -> None:
    x, w = torch.randn(64, 256), torch.randn(256, 256)
    low = lowered(lambda x, w: torch.softmax(torch.relu(x @ w), -1).sum(), x, w)
    assert names(low) == "aten.mm.default maximum amax reshape expand sub exp sum reshape expand div sum".split()


def test_only_primitives_and_opaque_calls() -> None:
    x, w, b = torch.randn(4, 3, 8, 8), torch.randn(5, 3, 3, 3), torch.randn(5)
    low = lowered(lambda x, w, b: F.gelu(F.group_norm(F.conv2d(x, w, b), 5)), x, w, b)
    assert [n for n in names(low) if n.startswith("aten")] == ["aten.convolution.default"]


def test_channels_last_reaches_convolution_and_output() -> None:
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    w = torch.randn(4, 8, 3, 3).to(memory_format=torch.channels_last)
    low = lowered(lambda x, w: F.relu(F.conv2d(F.relu(x) * 2, w)), x, w)
    conv = next(n for n in low.calls if "convolution" in str(n.target))
    assert conv.args[0].val.strides == (288, 1, 48, 8)
    assert low.outputs.val.strides == (64, 1, 16, 4)


def test_contiguous_is_a_copy_with_the_promised_strides() -> None:
    low = lowered(lambda x: x.t().contiguous() + 0.5, torch.randn(3, 4))
    clone = next(n for n in low.calls if n.target.name == "clone")
    assert clone.val.strides == (3, 1)


def test_outputs_do_not_alias() -> None:
    x = torch.randn(3)
    low = lowered(lambda x: (x + 1, x + 1, (x + 1).view(3, 1), x.clone(), x.view(1, 3)), x)
    out = interpret(low, [x])
    pointers = [t.untyped_storage().data_ptr() for t in out]
    assert len(set(pointers[:4])) == 4 and x.untyped_storage().data_ptr() not in pointers[:4]
    assert pointers[4] == x.untyped_storage().data_ptr()


def test_views_of_one_value_may_alias() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return y, y.view(-1)

    low = lowered(fn, torch.randn(2, 2))
    assert names(low) == ["add", "reshape"]


def test_equal_calls_are_shared() -> None:
    low = lowered(lambda x: torch.exp(x) + torch.exp(x) * 2, torch.randn(3))
    assert names(low).count("exp") == 1


def test_addmm_policy() -> None:
    args = torch.randn(4), torch.randn(3, 5), torch.randn(5, 4)
    whole = lowered(torch.addmm, *args)
    split = lowered(torch.addmm, *args, policy=Policy(split_addmm=True))
    assert names(whole) == ["aten.addmm.default"] and "aten.mm.default" in names(split)


def test_exotic_dtypes_stay_opaque() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    assert names(lowered(lambda x: x * 2 + 1, x)) == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert names(lowered(lambda x: torch.view_as_real(x).sum(), x)) == ["aten.view_as_real_copy.default", "sum"]
    assert names(lowered(lambda x: x.conj() * x, x)) == ["aten._conj_physical.default", "aten.mul.Tensor"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_floats_round_once(dtype: torch.dtype) -> None:
    x = torch.randn(1000).to(dtype)
    for fn in (F.gelu, F.silu, lambda x: torch.softmax(x, 0), lambda x: F.layer_norm(x, (1000,)), torch.mean):
        graph, _ = record(fn, [x])
        low = decompose(graph)
        got, exact = interpret(low, [x]), fn(x.double())
        assert (got.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()


def test_mutation_is_refused_and_names_the_line() -> None:
    g = Graph()
    x = g.input("x", tensor_type((3,)))
    g.outputs = (g.call(aten.relu_.default, (x,), val=x.val, loc=Loc("model.py", 7, "h.relu_()")),)
    with pytest.raises(Unsupported, match="model.py:7"):
        decompose(g)


def test_origin_and_location_are_kept() -> None:
    g = Graph()
    x = g.input("x", tensor_type((3,)))
    y = g.call(aten.gelu.default, (x,), val=x.val, loc=Loc("model.py", 3))
    y.tags["backward"] = True
    g.outputs = (y,)
    for n in decompose(g).calls:
        assert n.loc == Loc("model.py", 3) and n.tags == {"origin": "gelu", "backward": True}


def test_dead_results_are_dropped_and_effects_kept() -> None:
    g = Graph()
    x = g.input("x", tensor_type((3,), torch.bool))
    g.call(aten.logical_not.default, (x,), val=x.val)
    g.call(aten._assert_async.default, (x,), val=None)
    g.outputs = (x,)
    assert names(decompose(g)) == ["aten._assert_async.default"]


def test_batch_norm_updates_running_statistics() -> None:
    x, mean, var = torch.randn(4, 3, 5), torch.randn(3), torch.rand(3) + 0.5
    w, b = torch.randn(3), torch.randn(3)
    bn = aten._native_batch_norm_legit_functional.default
    lowered(lambda *t: bn(*t, True, 0.1, 1e-5), x, w, b, mean, var)
    lowered(lambda *t: bn(*t, False, 0.1, 1e-5)[0], x, w, b, mean, var)
    with pytest.raises(Unsupported, match="running statistics"):
        record_and_decompose(lambda *t: aten.native_batch_norm.default(*t, True, 0.1, 1e-5), x, w, b, mean, var)


def record_and_decompose(fn: Any, *inputs: torch.Tensor) -> Graph:
    return decompose(record(fn, inputs)[0])


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss_ignores(reduction: int, weighted: bool) -> None:
    x, target = torch.randn(6, 5), torch.tensor([1, -100, 4, 0, -100, 2])
    w = (torch.rand(5),) if weighted else ()

    def fn(x: torch.Tensor, target: torch.Tensor, *w: torch.Tensor) -> Any:
        weight = w[0] if w else None
        loss, total = aten.nll_loss_forward.default(x, target, weight, reduction, -100)
        grad = torch.ones_like(loss)
        return loss, aten.nll_loss_backward.default(grad, x, target, weight, reduction, -100, total)

    lowered(fn, x, target, *w)


def test_embedding_backward_adds_up_and_skips_padding() -> None:
    g, i = torch.randn(2, 5, 4), torch.tensor([[0, 1, 1, 2, 3], [1, 0, 3, 3, 2]])
    for padding in (-1, 1):
        lowered(lambda g, i, p=padding: aten.embedding_dense_backward.default(g, i, 6, p, False), g, i)


def test_foreach_is_taken_apart() -> None:
    xs = [torch.randn(3), torch.randn(2, 2)]
    low = lowered(lambda *t: tuple(torch._foreach_add(torch._foreach_mul(list(t), 2.0), list(t), alpha=0.5)), *xs)
    assert not [n for n in names(low) if n.startswith("aten")]


def test_index_with_gaps_and_masks() -> None:
    x, i, j = torch.randn(4, 5, 6), torch.tensor([[0, -1], [2, 3]]), torch.tensor([1, 2])
    lowered(lambda x, i, j: x[i, :, j], x, i, j)
    lowered(lambda x, i, j: aten.index_put.default(x, [i, None, j], torch.ones_like(x[i, :, j]), True), x, i, j)
    low = lowered(lambda x: aten.index_put.default(x, [x > 0], torch.zeros_like(x[0, 0, 0])), x)
    assert "where" in names(low)


def test_as_strided_reads_storage_order() -> None:
    x = torch.randn(4, 6)
    lowered(lambda x: aten.as_strided.default(x, [3, 2], [6, 2], 1) + 1, x)
    lowered(lambda x: aten.as_strided.default(x.t(), [3, 2], [6, 2], 1) + 1, x)
    lowered(lambda x: aten.as_strided.default(aten.relu.default(x.t()), [3, 2], [6, 2], 1) + 1, x)
    with pytest.raises(Unsupported, match="all of its storage"):
        record_and_decompose(lambda x: aten.as_strided.default(x[::2], [3, 2], [6, 2], 1), x)


def test_a_cpu_scalar_joins_another_device() -> None:
    g = Graph()
    x, s = g.input("x", tensor_type((3,), device="cuda")), g.input("s", tensor_type((), torch.float64))
    calls = [g.call(op, a, val=x.val) for op, a in ((aten.add.Tensor, (x, s)), (aten.mul.Tensor, (s, x)))]
    calls.append(g.call(aten.addcmul.default, (x, x, s), val=x.val))
    g.outputs = tuple(calls)
    for n in decompose(g).calls:
        if isinstance(n.target, Prim) and n.target.name in ("add", "mul"):
            assert all(a.val.device.type == "cuda" for a in n.args)


def test_one_pass_statistics_are_accurate() -> None:
    torch.manual_seed(0)
    bn, policy = aten._native_batch_norm_legit.no_stats, Policy(one_pass_statistics=True)
    for scale, shift in ((1.0, 0.0), (1.0, 1e3), (1e-3, 1.0), (1e3, 5.0)):
        x = torch.randn(16, 4, 20, 20) * scale + shift
        x[0, 1, 0, 0] += 1e4 * scale  # one of the three samples that the shift is the median of
        graph, theirs = record(lambda x: bn(x, None, None, True, 0.1, 1e-9), [x])
        low = decompose(graph, policy)
        exact = bn(x.double(), None, None, True, 0.1, 1e-9)
        for mine, other, truth in zip(interpret(low, [x]), theirs, exact):
            error = (mine.double() - truth).abs().max()
            unit = torch.finfo(torch.float32).eps * truth.abs().max()
            assert error <= 2 * (other.double() - truth).abs().max() + 4 * unit
    assert names(low).count("sum") == 2


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("shape", "groups"), [((3, 6, 5, 4), 3), ((2, 8, 7), 2), ((4, 6), 2), ((2, 6, 3, 3, 2), 6)])
def test_group_norm_and_its_gradients(shape: tuple[int, ...], groups: int, affine: bool, one_pass: bool) -> None:
    torch.manual_seed(0)
    x, g = torch.randn(shape, dtype=torch.float64) + 2, torch.randn(shape, dtype=torch.float64)
    w, v = torch.randn(2, shape[1], dtype=torch.float64) if affine else (None, None)
    n, c, hw = shape[0], shape[1], x[0, 0].numel()

    def both(x: torch.Tensor, g: torch.Tensor, *wv: torch.Tensor) -> Any:
        w, v = wv or (None, None)
        out, mean, rstd = aten.native_group_norm(x, w, v, n, c, hw, groups, 1e-5)
        mask = [True, affine, affine]
        return out, *aten.native_group_norm_backward(g, x, mean, rstd, w, n, c, hw, groups, mask)[: 3 if affine else 1]

    low = lowered(both, x, g, *([w, v] if affine else []), policy=Policy(one_pass_statistics=one_pass))
    sums = [n.args[0].val.numel for n in low.calls if isinstance(n.target, Prim) and n.target.name == "sum"]
    # The forward's two sums over the images and the backward's two: everything else is made of these.
    assert sums.count(x.numel()) == 4 or hw == 1
