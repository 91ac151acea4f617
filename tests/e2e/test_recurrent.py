"""Recurrent modules: outputs and gradients as eager's, in graphs that do not fall back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import braze
from braze.api import log_of


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("proj", [0, 2])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_lstm(bias: bool, proj: int, bidirectional: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.LSTM(5, 3, 2, bias=bias, bidirectional=bidirectional, proj_size=proj, batch_first=True)
    _agree(model, torch.randn(4, 6, 5))


@pytest.mark.parametrize("make", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
def test_layers(make: Any) -> None:
    torch.manual_seed(0)
    _agree(make(5, 3, 2), torch.randn(6, 4, 5))


def _agree(model: Any, x: torch.Tensor) -> None:
    twin = copy.deepcopy(model)
    fast = braze.compile(twin)
    for training in (True, False):
        with torch.set_grad_enabled(training):
            a, b = (x.clone().requires_grad_(training) for _ in range(2))
            got, want = fast(a)[0], model(b)[0]
            torch.testing.assert_close(got, want)
            if training:
                got.square().sum().backward()
                want.square().sum().backward()
                torch.testing.assert_close(a.grad, b.grad)
                for p, q in zip(twin.parameters(), model.parameters()):
                    torch.testing.assert_close(p.grad, q.grad)
    log = log_of(fast)
    assert log is not None and not log.breaks and not any(g.fallback for g in log.graphs)
