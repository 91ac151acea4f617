"""Whole training steps: the same ATen calls with the same result types as in eager, strides included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aten_record import eager_calls, fake_calls, functional
from torch import nn


def same(model: nn.Module, inputs: list[Any], loss: Any) -> int:
    fn, tensors = functional(model, loss)
    want = eager_calls(fn, [*tensors, *inputs])
    got = fake_calls(fn, [*tensors, *inputs])
    for i, (a, b) in enumerate(zip(want, got)):
        assert a == b, f"call {i}: eager {a}, traced {b}"
    assert len(want) == len(got)
    return len(got)


def mlp() -> tuple[nn.Module, list[Any], Any]:
    m = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.LayerNorm(30), nn.Dropout(0.1), nn.Linear(30, 5), nn.Softmax(-1))
    return m, [torch.randn(7, 20)], lambda o: o.square().mean()


def encoder() -> tuple[nn.Module, list[Any], Any]:
    m = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, activation=F.gelu, batch_first=True, norm_first=True)
    return m, [torch.randn(2, 10, 32)], lambda o: o.sum()


def convnet() -> tuple[nn.Module, list[Any], Any]:
    m = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 4, 3),
        nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    return m, [torch.randn(2, 3, 32, 32)], lambda o: F.cross_entropy(o, torch.tensor([0, 2]))


def convnet_last() -> tuple[nn.Module, list[Any], Any]:
    m, (x,), loss = convnet()
    return m.to(memory_format=torch.channels_last), [x.to(memory_format=torch.channels_last)], loss


@pytest.mark.parametrize("build", [mlp, encoder, convnet, convnet_last])
def test_small(build: Any) -> None:
    same(*build())


@pytest.mark.parametrize("build", [mlp, encoder, convnet, convnet_last])
def test_autocast(build: Any) -> None:
    model, inputs, loss = build()

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return self.inner(x)

    same(Cast(), inputs, loss)


def test_eval() -> None:
    model, inputs, loss = convnet()
    same(model.eval(), inputs, loss)


@pytest.mark.slow
def test_resnet50() -> None:
    tv = pytest.importorskip("torchvision")
    model = tv.models.resnet50()
    assert same(model, [torch.randn(2, 3, 64, 64)], lambda o: F.cross_entropy(o, torch.tensor([0, 2]))) > 500


@pytest.mark.slow
def test_bert() -> None:
    tf = pytest.importorskip("transformers")
    model = tf.BertForSequenceClassification(tf.BertConfig(num_labels=2, num_hidden_layers=2, vocab_size=100))
    ids = torch.randint(0, 100, (2, 16))
    assert same(model, [ids], lambda o: F.cross_entropy(o.logits, torch.tensor([0, 1]))) > 100


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("form", ["plain", "heads inside", "expanded"])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize(
    "causal, dropout, gqa", [(False, 0.0, False), (True, 0.0, False), (False, 0.5, False), (False, 0.0, True)]
)
def test_attention_backend(grad: bool, form: str, mask: str | None, causal: bool, dropout: float, gqa: bool) -> None:
    """Torch picks the kernel by looking at the tensors: the same for tracing ones."""
    if causal and mask:
        pytest.skip("torch allows one of the two")
    b, h, t, d = 2, 4, 6, 16

    def tensor(heads: int) -> torch.Tensor:
        if form == "heads inside":
            x = torch.randn(b, t, heads, d).transpose(1, 2)
        else:
            x = torch.randn(1, heads, t, d).expand(b, -1, -1, -1) if form == "expanded" else torch.randn(b, heads, t, d)
        return x.requires_grad_(grad)

    extra = {"bool": torch.ones(t, t, dtype=torch.bool), "float": torch.zeros(b, 1, t, t)}

    def run(q: Any, k: Any, v: Any, m: Any) -> None:
        out = F.scaled_dot_product_attention(q, k, v, m, dropout, causal, enable_gqa=gqa)
        if grad:
            torch.autograd.grad(out.sum(), (q, k, v))

    inputs = [tensor(h), tensor(h // 2 if gqa else h), tensor(h // 2 if gqa else h), extra.get(mask or "")]
    assert eager_calls(run, inputs) == fake_calls(run, inputs)
