"""BERT with a padding mask: the attention kernels that take a mask, and the plain one, against float64."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import braze
from braze.api import log_of

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def run(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    logits = model(ids, attention_mask=mask).logits
    logits.square().sum().backward()
    return [t.detach().double().cpu() for t in (logits, *(p.grad for p in model.parameters()))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_padded_batch(kind: str, device: str) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        num_labels=2, num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=2,
        attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0, attn_implementation=kind,
    )  # fmt: skip
    model = BertForSequenceClassification(config).train().to(device)
    twin, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    fast = braze.compile(twin, fullgraph=True)
    ids = torch.randint(0, 30522, (4, 40), device=device)
    mask = (torch.arange(40, device=device) < torch.tensor([[40], [17], [3], [33]], device=device)).long()
    got, eager, want = run(fast, ids, mask), run(model, ids, mask), run(exact, ids, mask)
    scale = max(float(w.abs().max()) for w in want)
    for a, b, w in zip(got, eager, want):
        assert float((a - w).abs().max()) <= 3 * float((b - w).abs().max()) + 1e-6 * scale
    assert len(log_of(fast).graphs) == 1 and not log_of(fast).graphs[0].fallback
