"""A list of sizes compiles at most three times: text lengths, image sizes, batches, recurrent steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of

LENGTHS = [1, 2, 3, 4, 7, 8, 16, 17, 31, 64, 100, 127, 128, 255, 256, 300, 511, 512]


class Steps(nn.Module):
    """A loop over time with a cell."""

    def __init__(self, cell: Callable[..., nn.Module], bias: bool = True) -> None:
        super().__init__()
        self.cell = cell(6, 8, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[0], 8)
        for t in range(3):
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(x[:, t], (h, c))
            else:
                h = self.cell(x[:, t], h)
        return h + c


def bert() -> nn.Module:
    t = pytest.importorskip("transformers")
    config = t.BertConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    return t.BertModel(config).eval()


def conv() -> nn.Module:
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any], list[int]]] = {
    "bert, length": (bert, lambda n: (torch.randint(0, 100, (2, n)), torch.ones(2, n, dtype=torch.long)), LENGTHS),
    "bert, length and batch": (bert, lambda n: (torch.randint(0, 100, (n % 5 + 1, n)),), LENGTHS[:12]),
    "convolutions, image size": (conv, lambda n: (torch.randn(2, 3, n + 8, 2 * n + 8),), LENGTHS[:10]),
    "encoder, length": (encoder, lambda n: (torch.randn(2, n, 16),), LENGTHS[:14]),
    "gru steps, batch": (lambda: Steps(nn.GRUCell), lambda n: (torch.randn(n, 4, 6),), LENGTHS),
    "lstm steps, batch": (lambda: Steps(nn.LSTMCell, bias=False), lambda n: (torch.randn(n, 4, 6),), LENGTHS),
    "rnn steps, batch": (lambda: Steps(nn.RNNCell), lambda n: (torch.randn(n, 4, 6),), LENGTHS),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("order", ["rising", "shuffled"])
@pytest.mark.parametrize("name", CASES)
def test_lengths(name: str, order: str) -> None:
    make, inputs, lengths = CASES[name]
    if order == "shuffled":
        lengths = random.Random(1).sample(lengths, len(lengths))
    model = make()
    fast = braze.compile(model, backend="aot_eager")
    for n in lengths:
        args = inputs(n)
        want, got = model(*args), fast(*args)
        if not isinstance(want, torch.Tensor):
            want, got = want.last_hidden_state, got.last_hidden_state
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    log = log_of(fast)
    limit = 4 if "and" in name else 3  # two sizes, each of which may be 1
    assert log is not None and len(log.graphs) <= limit and not log.breaks, [r.reason for r in log.recompiles]


@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_gradients_of_steps_with_a_symbolic_batch(cell: Any) -> None:
    model = Steps(cell)
    fast = braze.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)
    for n in (3, 5):
        x = torch.randn(n, 4, 6)
        got, want = (torch.autograd.grad(f(x).sum(), list(model.parameters())) for f in (fast, model))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    log = log_of(fast)
    assert log is not None and len(log.graphs) == 1


def test_rates_and_temperatures() -> None:
    fast = braze.compile(lambda x, rate, t: x * rate + torch.softmax(x / t, -1), backend="aot_eager")
    for i in range(12):
        fast(torch.randn(3), 0.1 / (i + 1), 1.0 + i * 0.3)
    log = log_of(fast)
    assert log is not None and len(log.graphs) <= 2
