"""Frozen inference programs: the values of eager, and weights that change are seen."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of
from braze.runtime.packed import available

pytestmark = pytest.mark.skipif(not available(), reason="torch without oneDNN")


class Block(nn.Module):
    def __init__(self, width: int, down: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, 2 if down else 1, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width)
        self.down = nn.Sequential(nn.Conv2d(width, width, 1, 2, bias=False), nn.BatchNorm2d(width)) if down else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (x if self.down is None else self.down(x))).relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.blocks = nn.Sequential(Block(16, False), Block(16, True))
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.stem(x).relu(), 3, 2, 1)
        x = self.depthwise(self.blocks(x))
        return self.head(x.sigmoid().mean((2, 3)))


def frozen(model: Any) -> Any:
    return braze.compile(model, options={"freeze": True, "strict": True})


def packed(compiled: Any) -> int:
    log = log_of(compiled)
    assert log is not None
    return len(re.findall(r"= packed_\w+\(", str(log.graphs[-1].levels["forward: host"])))


def model() -> Net:
    torch.manual_seed(0)
    net = Net()
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.normal_(m.bias)
            m.running_mean = torch.randn(m.num_features)
            m.running_var = torch.rand(m.num_features) + 0.5
    return net.eval()


@torch.no_grad()
def test_values() -> None:
    net, x = model(), torch.randn(2, 3, 32, 32)
    fast = frozen(net)
    for _ in range(3):
        torch.testing.assert_close(fast(x), net(x), atol=1e-4, rtol=1e-4)
    assert packed(fast) == 7  # the convolution of single pixels is a plain product
    host = str(log_of(fast).graphs[-1].levels["forward: prims"])  # type: ignore[union-attr]
    assert "batch_norm" not in host


@torch.no_grad()
@pytest.mark.parametrize(
    "last", [nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.Hardswish(), nn.Hardtanh(-0.5, 0.25), nn.GELU()], ids=str
)
@pytest.mark.parametrize("add", [False, True])
def test_activations(last: nn.Module, add: bool) -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), last

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.conv(x))
            return self.last(y + x if add else y)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    net, x = One().eval(), torch.randn(2, 8, 9, 9) * 4
    before = x.clone()
    fast = frozen(net)
    for _ in range(2):
        torch.testing.assert_close(fast(x), net(x), atol=2e-5, rtol=2e-5)
    assert torch.equal(x, before) and packed(fast) == 1


@torch.no_grad()
def test_changed_weights_are_seen() -> None:
    net, x = model(), torch.randn(2, 3, 32, 32)
    fast = frozen(net)
    fast(x)
    for change in (net.stem.weight, net.blocks[0].bn1.running_var, net.head.weight, net.blocks[1].conv2.bias):
        assert change is not None
        before = net(x)
        change.mul_(1.5)
        assert not torch.allclose(before, net(x), atol=1e-5)
        torch.testing.assert_close(fast(x), net(x), atol=1e-4, rtol=1e-4)


def test_training_is_untouched() -> None:
    net, x = model().train(), torch.randn(2, 3, 32, 32)
    fast = frozen(net)
    fast(x).sum().backward()
    assert packed(fast) == 0 and net.stem.weight.grad is not None


@torch.no_grad()
def test_computed_weights_and_other_types_stay() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.conv2d(x, self.conv.weight * 2)

    for net, x in (
        (Scaled(), torch.randn(1, 3, 8, 8)),
        (nn.Conv2d(3, 4, 3).double(), torch.randn(1, 3, 8, 8).double()),
    ):
        fast = frozen(net.eval())
        torch.testing.assert_close(fast(x), net(x))
        assert packed(fast) == 0
