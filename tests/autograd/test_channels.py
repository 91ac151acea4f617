"""Convolutions in channels_last: same values and output layouts, and no layout change between convolutions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import cuda_typed
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze
from braze.autograd import Joint, channels_last, partition, trace_joint, verify_aot, verify_joint
from braze.autograd.dce import eliminate_dead_code
from braze.fake.layout import is_channels_last
from braze.ir import Node, TensorType, interpret, tensor_type

CUDA = torch.device("cuda", 0)
aten = torch.ops.aten
Fn = Callable[..., torch.Tensor]


def block(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = F.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, gain, bias, training=True))
    y = F.max_pool2d(y, 2)
    return F.relu(F.conv2d(y, v, padding=1) + y).mean((2, 3))


def flattened(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> Any:
    y = F.conv2d(x, w, stride=2)
    tokens = y.flatten(2).transpose(1, 2)
    wide = y.view(y.shape[0], -1)  # no view of channels_last
    return tokens.softmax(-1).sum() + (wide * wide).sum(), F.conv2d(y, v), torch.as_strided(y.relu(), (8,), (3,))


SIZES = [(2, 4, 8, 8), (6, 4, 3, 3), (6, 6, 3, 3), (6,), (6,)]


def joint_of(fn: Fn, *, sizes: list[tuple[int, ...]] = SIZES, dtype: torch.dtype = torch.float32) -> Joint:
    cuda_typed.enable()
    types = [tensor_type(n, dtype, CUDA).with_(requires_grad=True) for n in sizes]
    return trace_joint(fn, types)


def values(joint: Joint) -> list[torch.Tensor]:
    torch.manual_seed(0)
    inputs = [torch.randn(n.val.sizes, dtype=torch.float64) for n in joint.graph.inputs]
    graph = eliminate_dead_code(joint.graph)  # cuDNN's scratch memory is asked for on the device
    return [x for x in interpret(graph, inputs) if x is not None]


@pytest.mark.parametrize("fn", [block, flattened])
def test_values_and_layouts_stay(fn: Fn) -> None:
    old = joint_of(fn)
    new = channels_last(old)
    assert new is not old
    verify_joint(new)
    verify_aot(partition(new))
    for a, b, n, m in zip(values(old), values(new), old.graph.outputs, new.graph.outputs):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)
        assert n is None or n.val.strides == m.val.strides or 1 in n.val.sizes


def conversions(joint: Joint) -> list[Node]:
    def turned(n: Node) -> bool:
        a, b = n.args[0].val, n.val
        return a.rank == 4 and is_channels_last(a.sizes, a.strides) != is_channels_last(b.sizes, b.strides)

    return [n for n in joint.graph.calls if n.target is aten.clone.default and turned(n)]


def test_conversions_stand_at_the_edges_alone() -> None:
    joint = channels_last(joint_of(block))
    calls = [n for n in joint.graph.calls if n.target in (aten.convolution.default, aten.convolution_backward.default)]
    assert len(calls) == 4
    for n in calls:
        for a in n.args[:2]:
            assert is_channels_last(a.val.sizes, a.val.strides), n
    sources = [n.args[0] for n in conversions(joint)]
    assert set(joint.graph.inputs[:3]) <= set(sources)  # the image and both weights, once each
    assert len(sources) == 3 + 3  # and the gradients of the same


def test_left_alone() -> None:
    depthwise = joint_of(lambda x, w: F.conv2d(x, w, groups=4).sum(), sizes=[(2, 4, 8, 8), (4, 1, 3, 3)])
    assert channels_last(depthwise) is depthwise
    plain = joint_of(lambda x: x.relu().sum(), sizes=[(2, 4, 8, 8)])
    assert channels_last(plain) is plain


def test_exact_float32_is_left_alone() -> None:
    old = joint_of(lambda x, w: F.conv2d(x, w).sum(), sizes=SIZES[:2])
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert channels_last(old) is old
    half = joint_of(lambda x, w: F.conv2d(x, w).sum(), sizes=SIZES[:2], dtype=torch.bfloat16)
    assert channels_last(half) is not half


def test_a_network_in_channels_last_gains_nothing() -> None:
    cuda_typed.enable()
    sizes = SIZES[:2]
    types = [tensor_type(n, torch.float32, CUDA) for n in sizes]
    types = [TensorType(t.sizes, (t.sizes[1] * 64 if i == 0 else 36, 1, 32 if i == 0 else 12, 4), t.dtype, t.device)
             for i, t in enumerate(types)]  # fmt: skip
    types = [t.with_(requires_grad=True) for t in types]
    joint = channels_last(trace_joint(lambda x, w: F.conv2d(x, w).square().sum(), types))
    assert not conversions(joint)


STEMS = [
    ((2, 3, 14, 14), (8, 3, 7, 7), 2, 3),
    ((2, 3, 13, 10), (8, 3, 3, 3), 2, 1),  # rows at the end that no window reaches
    ((2, 3, 16, 16), (8, 3, 4, 4), 4, 0),  # patches
    ((1, 1, 11, 11), (8, 1, 5, 3), (2, 1), (1, 2)),
    ((2, 4, 9, 9), (8, 4, 1, 1), 2, 0),
]


@pytest.mark.parametrize("x, w, stride, padding", STEMS)
@pytest.mark.parametrize("bias", [False, True])
def test_few_channels_in_blocks(x: Any, w: Any, stride: Any, padding: Any, bias: bool) -> None:
    def stem(weight: torch.Tensor, b: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(image, weight, b if bias else None, stride, padding)
        return (y * y).sum() + y.relu().sum()

    cuda_typed.enable()
    types = [tensor_type(n, torch.float32, CUDA) for n in (w, w[:1], x)]
    old = trace_joint(stem, [t.with_(requires_grad=i < 2) for i, t in enumerate(types)])
    new = channels_last(old)
    verify_joint(new)
    verify_aot(partition(new))
    calls = [n for n in new.graph.calls if n.target in (aten.convolution.default, aten.convolution_backward.default)]
    settings = [n.args[3 if n.target is aten.convolution.default else 4] for n in calls]
    assert settings == [[1, 1]] * 2
    for a, b, n, m in zip(values(old), values(new), old.graph.outputs, new.graph.outputs):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)
        assert n is None or n.val == m.val or 1 in n.val.sizes


def test_an_images_gradient_keeps_its_convolution() -> None:
    joint = channels_last(joint_of(lambda x, w: F.conv2d(x, w, stride=2).sum(), sizes=[(2, 3, 8, 8), (8, 3, 3, 3)]))
    (back,) = [n for n in joint.graph.calls if n.target is aten.convolution_backward.default]
    assert back.args[4] == [2, 2]


def test_constants_stay() -> None:
    """A constant of the graph (a CPU number that meets the images) is still there after the pass."""
    cuda_typed.enable()
    half = torch.tensor(0.5)
    joint = channels_last(joint_of(lambda x, w: (F.conv2d(x, w) * half).sum(), sizes=SIZES[:2]))
    verify_joint(joint)
    assert [n.target for n in joint.graph.nodes if n.op == "const"] == [half]


def grouped(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = F.conv2d(x, w, bias, padding=1)
    y = F.silu(F.group_norm(y, 3, gain, bias))
    y = F.conv2d(F.interpolate(y, scale_factor=2.0), v, gain, padding=1)
    return F.group_norm(y, 2, gain, bias).square().mean((2, 3))


def test_group_norms_follow_and_biases_stand_apart() -> None:
    old = joint_of(grouped)
    new = channels_last(old)
    verify_joint(new)
    aot = partition(new)
    verify_aot(aot)
    for a, b in zip(values(old), values(new)):
        torch.testing.assert_close(b, a, rtol=1e-11, atol=1e-11)
    for n in new.graph.calls:
        if n.target is aten.convolution.default:
            assert n.args[2] is None
        elif n.target is aten.convolution_backward.default:
            assert not n.args[-1][2]
        elif n.target is aten.native_group_norm.default:
            assert is_channels_last(n.val[0].sizes, n.val[0].strides)
    assert len(conversions(new)) == 3 + 3  # the image, the weights, and their gradients
    # Of values as large as an image, the backward gets the convolutions' results and what they read.
    kept = [n.val for n in aot.forward.outputs[1:] if isinstance(n, Node) and n.val.rank == 4]
    assert sum(t.sizes[1] == 6 and t.sizes[2:] != (3, 3) for t in kept) <= 4, kept


class _Halves(nn.Module):
    """Halves of a map's channels, views with gaps, go through a convolution that stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p, q = torch.split(self.norm(self.first(x)).relu(), 8, 1)
        return self.second(self.second(p) + q).mean() + q.flatten(1).square().sum()


def test_views_with_gaps_keep_their_layout() -> None:
    torch.manual_seed(0)
    model = _Halves().double()
    twin = copy.deepcopy(model).float()
    x = torch.randn(2, 8, 12, 12)
    loss = braze.compile(twin, options={"strict": True})(x)
    loss.backward()
    want = model(x.double())
    want.backward()
    torch.testing.assert_close(loss.double(), want, rtol=1e-4, atol=1e-5)
    for p, q in zip(twin.parameters(), model.parameters()):
        torch.testing.assert_close(p.grad.double(), q.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("channels", "stride", "side", "last"),
    [(3, 2, 48, False), (3, 2, 16, True), (3, 1, 48, True), (16, 2, 48, True)],
)
def test_strided_single_pixels_of_few_channels_stay_contiguous(
    channels: int, stride: int, side: int, last: bool
) -> None:
    """oneDNN's backward of such a convolution in channels_last writes beyond its memory. Few pixels are products."""

    def f(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, v, padding=1).relu(), w, stride=stride).square().sum()

    sizes = [(2, 4, side, side), (48, channels, 1, 1), (channels, 4, 3, 3)]
    types = [tensor_type(s).with_(requires_grad=True) for s in sizes]
    graph = channels_last(trace_joint(f, types)).graph
    calls = [n for n in graph.nodes if n.op == "call" and "convolution" in str(n.target)]
    for n in calls:
        lead = 2 if "backward" in str(n.target) else 1
        if list(n.args[lead].val.sizes[2:]) == [1, 1]:
            x = n.args[lead - 1].val
            assert is_channels_last(x.sizes, x.strides) == last
