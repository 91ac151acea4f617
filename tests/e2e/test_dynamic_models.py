"""Models whose batch, sequence length or image size changes: values and gradients, and few compiled versions."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import braze
from braze.api import log_of


class Tiny(nn.Module):
    """Embedding, causal attention, layer norms and an MLP."""

    def __init__(self, by_hand: bool, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.by_hand, self.heads = by_hand, heads
        self.embed, self.place = nn.Embedding(100, width), nn.Embedding(512, width)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, ids: Tensor) -> Tensor:
        b, t = ids.shape
        x = self.embed(ids) + self.place(torch.arange(t))
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).chunk(3, -1))
        if self.by_hand:
            mask = torch.ones(t, t, dtype=torch.bool).triu(1)
            y = (q @ k.transpose(-1, -2) * 0.3).masked_fill(mask, float("-inf")).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.down(F.gelu(self.up(self.n2(x))))


def agree(compiled: Any, model: nn.Module, exact: nn.Module, inputs: Any, loss: Any) -> None:
    """Values and gradients: as eager, and as close to float64 as eager."""
    got, want, best = (loss(m, inputs) for m in (compiled, model, exact))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    got.backward(), want.backward(), best.backward()
    for (name, p), q in zip(model.named_parameters(), exact.parameters()):
        mine = compiled.get_parameter(name)
        ours, eager = (float((x.grad - q.grad).abs().max()) for x in (mine, p))
        assert ours <= 8 * eager + 1e-5 * float(q.grad.abs().max()) + 1e-6, name
        mine.grad = p.grad = q.grad = None


def trio(model: nn.Module) -> tuple[Any, nn.Module, nn.Module]:
    return braze.compile(copy.deepcopy(model)), model, copy.deepcopy(model).double()


def few(compiled: Any, most: int) -> None:
    log = log_of(compiled)
    assert log is not None and not any(g.fallback or g.notes for g in log.graphs)
    assert len(log.graphs) <= most, [r.reason for r in log.recompiles]


def lengths(values: Any, by_hand: bool) -> None:
    torch.manual_seed(0)
    compiled, model, exact = trio(Tiny(by_hand))
    for n in values:
        agree(compiled, model, exact, torch.randint(0, 100, (2, n)), lambda m, ids: m(ids).square().mean())
    few(compiled, 2)


@pytest.mark.parametrize("by_hand", [False, True])
def test_lengths(by_hand: bool) -> None:
    lengths([1, 2, 3, 17, 64, 100, 511, 512, 33], by_hand)


@pytest.mark.slow
def test_every_length() -> None:
    lengths(range(1, 513), False)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # 16 channels: of a strided 1x1 convolution of 8, channels last, oneDNN's weight gradient on several threads
        # writes beyond its memory (torch 2.14.1 without braze: a crash)
        self.stem, self.norm = nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16)
        self.c1, self.b1 = nn.Conv2d(16, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.side, self.head = nn.Conv2d(16, 16, 1, 2), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = F.relu(self.b1(self.c1(x)) + self.side(x))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batches_and_images(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    compiled, model, exact = trio(ConvNet())
    sizes = [(4, 32, 32), (6, 32, 32), (6, 40, 32), (3, 64, 48), (2, 33, 35), (5, 128, 64), (7, 31, 64)]
    for step, (b, h, w) in enumerate(sizes):
        for m in (compiled, model, exact):
            m.train(step % 3 != 2)
        x = torch.randn(b, 3, h, w).to(memory_format=layout)
        t = torch.randint(0, 10, (b,))
        agree(compiled, model, exact, (x, t), lambda m, xt: F.cross_entropy(m(xt[0].to(m.head.weight.dtype)), xt[1]))
        for mine, theirs in zip(compiled.buffers(), model.buffers()):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    few(compiled, 5)


@pytest.mark.parametrize("masked", [False, True])
def test_bert(masked: bool) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=100,
        max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )  # fmt: skip
    compiled, model, exact = trio(transformers.BertForSequenceClassification(config))
    for b, n in [(4, 16), (4, 20), (6, 20), (3, 33), (5, 128), (7, 64)]:
        inputs = {"input_ids": torch.randint(0, 100, (b, n)), "labels": torch.randint(0, 2, (b,))}
        if masked:
            inputs["attention_mask"] = torch.ones(b, n, dtype=torch.long)
            inputs["attention_mask"][0, n // 2 :] = 0
        agree(compiled, model, exact, inputs, lambda m, kw: m(**kw).loss)
    few(compiled, 3)


def test_rows_longer_than_what_a_kernel_keeps() -> None:
    """Softmax keeps its exponentials on the stack where a row fits, and computes them again where it does not."""
    f = braze.compile(lambda x: torch.softmax(x, -1), dynamic=True)
    for rows, n in [(3, 10), (5, 4096), (2, 4097), (4, 9001)]:
        x = torch.randn(rows, n)
        torch.testing.assert_close(f(x), torch.softmax(x, -1))
    few(f, 1)


def test_transposes_of_symbolic_blocks() -> None:
    f = braze.compile(lambda x: x.transpose(1, 2).contiguous() * 2, dynamic=True)
    for sizes in [(4, 64, 64), (3, 17, 33), (2, 5, 100), (2, 100, 3), (2, 16, 48)]:
        x = torch.randn(sizes)
        torch.testing.assert_close(f(x), x.transpose(1, 2).contiguous() * 2)
    few(f, 1)
