"""On a real GPU: the operators that only CUDA dispatches to, through interpreted graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from autograd_harness import compile_program
from torch.func import functional_call

pytestmark = pytest.mark.gpu


def run(module: nn.Module, x: torch.Tensor, amp: bool, check: bool = True) -> Any:
    module.cuda()
    names = [n for n, _ in module.named_parameters()] + [n for n, _ in module.named_buffers()]

    def fn(x: torch.Tensor, *state: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            return functional_call(module, dict(zip(names, state)), (x,)).float().pow(2).mean()

    def inputs() -> list[torch.Tensor]:
        state = [*module.parameters(), *module.buffers()]
        return [x.cuda(), *[t.detach().clone().requires_grad_(t.requires_grad) for t in state]]

    ours, eager = inputs(), inputs()
    f, aot = compile_program(fn, ours)
    (loss,) = f(*ours)
    loss.backward()
    want = fn(*eager)
    want.backward()
    if check:
        torch.testing.assert_close(loss, want, rtol=1e-2 if amp else 1e-4, atol=1e-4)
        for a, b in zip(ours, eager):
            if b.grad is not None:
                assert (a.grad - b.grad).norm() <= (5e-2 if amp else 1e-3) * b.grad.norm() + 1e-6
            else:
                torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)
    assert all(a.grad is not None and a.grad.isfinite().all() for a in ours if a.requires_grad)
    return aot


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convnet(amp: bool, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 8),
    ).to(memory_format=layout)
    aot = run(net, torch.randn(8, 3, 32, 32).contiguous(memory_format=layout), amp)
    assert not any("cudnn_batch_norm" in str(n.target) for n in aot.forward.calls + aot.backward.calls)


@pytest.mark.parametrize("amp", [False, True])
def test_encoder(amp: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, activation=F.gelu, batch_first=True, norm_first=True)
    run(layer, torch.randn(4, 32, 64), amp)


def test_encoder_with_dropout() -> None:
    """Dropout inside of the fused attention, and outside of it."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.2, activation=F.gelu, batch_first=True)
    aot = run(layer, torch.randn(4, 32, 64), True, check=False)
    assert not any("dropout" in str(n.target) for n in aot.forward.calls + aot.backward.calls)


def test_dropout_mask_of_the_backward() -> None:
    x = torch.ones(100_000, device="cuda", requires_grad=True)
    f, _ = compile_program(lambda x: F.dropout(x, 0.25), [x])
    (y,) = f(x)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0) and abs((y != 0).float().mean() - 0.75) < 0.01
