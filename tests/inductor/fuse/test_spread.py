"""Norms over groups of channels of pixels in channels_last: summed a memory row at a time, spread over the channels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.autograd import partition, trace_joint
from braze.inductor.fuse import fuse
from braze.inductor.fuse.traits import CPU
from braze.inductor.loops import Kernel, Program, interpret_program, lower
from braze.ir import type_of
from braze.prims import decompose


def norm(groups: int, channels: int, dtype: torch.dtype = torch.float32) -> nn.GroupNorm:
    torch.manual_seed(1)
    m = nn.GroupNorm(groups, channels, dtype=dtype)
    for p in m.parameters():
        nn.init.normal_(p)
    return m


def program(f: Any, *args: torch.Tensor) -> Program:
    graph = partition(trace_joint(f, [type_of(t) for t in args])).forward
    return lower(decompose(graph, None))


@pytest.mark.parametrize("groups, channels", [(8, 32), (4, 40), (16, 32), (3, 51)])
@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_group_norm_in_channels_last(groups: int, channels: int, mean: float) -> None:
    m, exact = norm(groups, channels), norm(groups, channels).double()
    x = (torch.randn(2, channels, 33, 35) + mean).contiguous(memory_format=torch.channels_last)
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_(), x.double().requires_grad_()]
    outs = [nn.functional.silu(f(t)) for f, t in zip((m, m, exact), inputs)]
    outs[0] = braze.compile(lambda t: nn.functional.silu(m(t)), fullgraph=True)(inputs[0])
    g = torch.randn_like(x)
    grads = [
        torch.autograd.grad(o, (t, *f.parameters()), g.to(o.dtype)) for o, t, f in zip(outs, inputs, (m, m, exact))
    ]
    for got, eager, want in zip(*((o, *gs) for o, gs in zip(outs, grads))):
        scale = float(want.detach().abs().max())
        bound = 4 * float((eager.double() - want).detach().abs().max()) + 1e-5 * scale
        assert float((got.double() - want).detach().abs().max()) <= bound
    assert outs[0].stride() == outs[1].stride()


def test_a_large_kernel_walks_all_channels_together() -> None:
    x = torch.randn(2, 32, 33, 35).contiguous(memory_format=torch.channels_last)
    m = norm(8, 32)
    lowered = program(lambda t, w, b: nn.functional.silu(nn.functional.group_norm(t, 8, w, b)), x, m.weight, m.bias)
    fused = fuse(lowered, CPU)
    large = [k for k in fused.steps if isinstance(k, Kernel) and any(b.type.numel == x.numel() for b in k.reads)]
    assert len(large) == 3  # a sum, a sum of squares, the result
    for k in large:
        small = [b for b in k.reads if b.type.numel != x.numel()]
        assert all(b.type.numel in (32, 64) for b in small)  # for each channel, not for each group
    inputs = [x, m.weight.detach(), m.bias.detach()]
    want = interpret_program(lowered, inputs)[0]
    torch.testing.assert_close(interpret_program(fused, inputs)[0], want)


def test_values_of_groups_that_are_written_in_the_same_kernel_stay() -> None:
    def f(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * s[:, None, :, None], s + 1

    x, s = torch.randn(2, 700, 8, 4), torch.randn(2, 8)
    got = braze.compile(f, fullgraph=True)(x, s)
    torch.testing.assert_close(got, f(x, s))


def test_group_norm_in_memory_order_is_not_split() -> None:
    x, m = torch.randn(2, 32, 33, 35), norm(8, 32)
    fused = fuse(program(lambda t, w, b: nn.functional.group_norm(t, 8, w, b), x, m.weight, m.bias), CPU)
    assert not [k.name for k in fused.steps if isinstance(k, Kernel) and ("_part" in k.name or "_each" in k.name)]
