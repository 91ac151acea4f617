"""Convolutions on the CPU: channels_last where it pays, products for single pixels; values, gradients and strides."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze
from braze.api import log_of
from braze.autograd.layout import same_strides


class Gated(nn.Module):
    """An inverted bottleneck with a gate over channels, as in mobile networks; smooth, so that rounding stays small."""

    def __init__(self, wide: int, kernel: int, stride: int, bias: bool) -> None:
        super().__init__()
        self.up = nn.Conv2d(8, wide, 1, bias=bias)
        self.each = nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=bias)
        self.norm = nn.BatchNorm2d(wide)
        self.gate = nn.Conv2d(wide, wide, 1)
        self.down = nn.Conv2d(wide, 8, 1, bias=bias)
        self.dense = nn.Conv2d(8, 6, 3, padding=1, bias=bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.silu(self.norm(self.each(F.gelu(self.up(x)))))
        y = self.down(y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True))))
        return self.dense(y), y


class Heavy(nn.Module):
    """Weights that outweigh the image between two convolutions that they do not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 40, 3, padding=1)
        self.heavy = nn.Conv2d(40, 48, 3, padding=1)
        self.turned = nn.ConvTranspose2d(48, 4, 2, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.gelu(self.first(x))
        y = F.softplus(self.heavy(F.max_pool2d(y, 2)))
        return self.turned(y), y.flatten(1)


def results(fn: nn.Module, module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    outs = fn(x)
    sum((y * torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view(y.shape)).sum() for y in outs).backward()
    return [*outs, x.grad, *(p.grad for p in module.parameters())]


def check(module: nn.Module, x: torch.Tensor) -> braze.events.GraphRecord:
    """Values against float64; strides those of eager."""
    exact, twin = copy.deepcopy(module).double(), copy.deepcopy(module)
    fast = braze.compile(twin, fullgraph=True)
    got, eager, want = results(fast, twin, x), results(module, module, x), results(exact, exact, x.double())
    scale = 0.1 * max(float(c.detach().abs().max()) for c in want)  # a bias before a batch norm has no gradient
    for a, b, c in zip(got, eager, want):
        theirs = float((b - c).detach().abs().max())
        assert float((a - c).detach().abs().max()) <= 20 * theirs + 2e-5 * max(float(c.detach().abs().max()), scale)
        assert same_strides(a.shape, a.stride(), b.stride())
    record = log_of(fast).graphs[0]
    assert not record.fallback
    return record


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kernel", "stride", "side"), [(3, 1, 6), (5, 2, 7), (3, 2, 1), (3, 1, 24)])
def test_gated_block(kernel: int, stride: int, side: int, bias: bool) -> None:
    check(Gated(20, kernel, stride, bias), torch.randn(6, 8, side, side))


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_heavy_weights_between_light_ones(form: torch.memory_format) -> None:
    check(Heavy(), torch.randn(2, 3, 8, 8).to(memory_format=form))


def test_inference_without_gradients() -> None:
    for module, x in ((Gated(20, 3, 1, True), torch.randn(2, 8, 6, 6)), (Heavy(), torch.randn(2, 3, 8, 8))):
        module.eval()
        with torch.no_grad():
            want = copy.deepcopy(module).double()(x.double())
            eager, got = module(x), braze.compile(module)(x)
        for a, b, c in zip(got, eager, want):
            torch.testing.assert_close(a.double(), c, rtol=1e-5, atol=1e-5)
            assert a.stride() == b.stride()


def host(record: braze.events.GraphRecord, side: str) -> str:
    return str(record.compiled[side].source)


def test_single_pixels_are_products() -> None:
    record = check(Gated(20, 3, 1, True), torch.randn(2, 8, 6, 6))
    assert host(record, "forward").count("torch.convolution(") == 2  # the depthwise one and the dense one
    assert host(record, "backward").count("convolution_backward.default(") == 2


@pytest.mark.parametrize("channels", [3, 17])
@pytest.mark.parametrize("stride", [2, (3, 1)])
def test_strided_pixels_are_products(stride: int | tuple[int, int], channels: int) -> None:
    """The pixels between get no gradient. Of few channels, where the library's channels_last is wrong, too."""

    class Down(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.down = nn.Conv2d(5, channels, 1), nn.Conv2d(channels, 9, 1, stride)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.down(F.gelu(self.first(x))), self.down(self.first(x).exp())

    record = check(Down(), torch.randn(2, 5, 7, 8))
    assert "convolution(" not in host(record, "forward")
    assert "convolution_backward.default(" not in host(record, "backward")


def test_many_pixels_stay_a_convolution() -> None:
    record = check(Gated(20, 3, 1, True), torch.randn(2, 8, 24, 24))
    assert host(record, "forward").count("torch.convolution(") == 4  # all but the gate's


def test_layouts_change_only_where_they_pay() -> None:
    from braze.fake.layout import is_channels_last

    joint = check(Heavy(), torch.randn(2, 3, 8, 8)).levels["joint"]
    convolutions = [n for n in joint.calls if n.target is torch.ops.aten.convolution.default]
    last = [is_channels_last(n.args[0].val.sizes, n.args[0].val.strides) for n in convolutions]
    assert last == [True, False, False]


def test_double_precision_and_symbolic_sizes() -> None:
    module = nn.Conv2d(4, 6, 3).double()
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(braze.compile(module)(x), module(x))
    module.float()
    fast = braze.compile(module, dynamic=True)
    for side in (8, 11):
        x = torch.randn(2, 4, side, side)
        torch.testing.assert_close(fast(x), module(x))
