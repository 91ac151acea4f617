"""Autocast around, inside and switched off inside of compiled code: results, gradients and dtypes as eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.amp import custom_bwd, custom_fwd

import braze
from braze.api import log_of

W = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)) / 4


class Linear(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: Any) -> Any:
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


class Wide(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.exp()


def plain(x: Any, w: Any) -> Any:
    return F.layer_norm(F.gelu(x @ w), (8,)) + F.softmax(x @ w, -1)


def nested(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        a = x @ w
        with torch.autocast("cpu", enabled=False):
            b = a.float() @ w
            with torch.autocast("cpu", torch.bfloat16):
                c = b @ w
        d = F.linear(c, w)
    return a, b, c, d.float() @ w


def custom(x: Any, w: Any) -> Any:
    return Linear.apply(x, w).sum() + Wide.apply(x @ w).sum()


def several(x: Any, w: Any) -> Any:
    loss = F.cross_entropy(x @ w, torch.arange(8) % 8)
    return loss, torch.cat([x @ w, x]), (x @ w).sum(), torch.stack([x @ w, x @ w.t()])


@pytest.mark.parametrize("fn", [plain, nested, custom, several], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, None], ids=str)
def test_as_eager(fn: Any, dtype: torch.dtype | None) -> None:
    if fn is nested and dtype is torch.float16:
        pytest.skip("eager's cache of cast weights mixes the two dtypes")
    fast = braze.compile(fn)
    found = []
    for f in (fn, fast):
        x, w = torch.linspace(-1, 1, 64).view(8, 8).requires_grad_(), W.clone().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            out = f(x, w)
        outs = out if isinstance(out, tuple) else (out,)
        grads = torch.autograd.grad(outs, (x, w), [torch.ones_like(o) for o in outs])
        found.append((*outs, *grads))
    for want, got in zip(*found):
        assert got.dtype == want.dtype
        narrow = dtype is not None or fn is nested
        torch.testing.assert_close(got, want, **({"rtol": 3e-2, "atol": 3e-2} if narrow else {}))
    log = log_of(fast)
    assert log is not None and not [g.fallback for g in log.graphs if g.fallback]


def test_modes_are_guarded() -> None:
    fast = braze.compile(lambda x, w: x @ w)
    x = torch.randn(8, 8)
    for dtype in (None, torch.bfloat16, torch.float16, None):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            assert fast(x, W).dtype == (dtype or torch.float32)
