"""The bench cases: model, inputs and loss of the three networks that the first article about braze measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Case:
    """A training case: ``loss(model(*inputs, **kwargs), target)`` is minimised; ``batch`` is the number of samples a
    step."""

    model: nn.Module
    inputs: tuple[Any, ...]
    target: Any
    loss: Callable[[Any, Any], torch.Tensor]
    batch: int
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Size:
    """What a named size means: image side in pixels, sequence length in tokens, samples a step, network depth."""

    image: int
    tokens: int
    batch: int
    layers: int | None = None  # None: the published depth


SIZES = {
    "tiny": Size(image=64, tokens=16, batch=2, layers=2),
    "small": Size(image=64, tokens=32, batch=4),
    "full": Size(image=224, tokens=128, batch=32),
}


class Hybrid(nn.Module):
    """A convolutional stem, a transformer body and a gated head."""

    def __init__(self, tokens: int, d: int = 512, depth: int = 6, heads: int = 8, classes: int = 1000) -> None:
        super().__init__()
        widths = (3, 64, 128, 256)
        stem: list[nn.Module] = []
        for i in range(3):
            k, pad = (7, 3) if i == 0 else (3, 1)
            conv = nn.Conv2d(widths[i], widths[i + 1], k, 2, pad, bias=False)
            stem += [conv, nn.BatchNorm2d(widths[i + 1]), nn.GELU()]
        self.stem = nn.Sequential(*stem, nn.Conv2d(widths[3], d, 3, 2, 1))
        self.pos = nn.Parameter(torch.randn(1, tokens, d) * 0.02)
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(d, heads, 4 * d, 0.1, F.gelu, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.gate, self.up = nn.Linear(d, 4 * d), nn.Linear(d, 4 * d)
        self.head = nn.Linear(4 * d, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2) + self.pos
        for layer in self.body:
            x = layer(x)
        x = x.mean(1)
        out: torch.Tensor = self.head(F.silu(self.gate(x)) * self.up(x))
        return out


def _classify(out: Any, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(getattr(out, "logits", out).float(), target)


def _images(size: Size, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, size.image, size.image), torch.randint(0, 1000, (batch,))


def resnet50(size: Size, batch: int) -> Case:
    """torchvision's ResNet-50 on random images."""
    import torchvision

    x, y = _images(size, batch)
    model = torchvision.models.resnet18() if size.layers else torchvision.models.resnet50()
    return Case(model, (x,), y, _classify, batch)


def bert(size: Size, batch: int) -> Case:
    """transformers' BERT-base sequence classifier on random tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    config: Any = BertConfig(num_labels=2, num_hidden_layers=size.layers or 12)  # type: ignore[call-arg]
    if size.layers:
        config.hidden_size, config.intermediate_size, config.num_attention_heads = 64, 128, 2
    ids, y = torch.randint(0, 30522, (batch, size.tokens)), torch.randint(0, 2, (batch,))
    return Case(BertForSequenceClassification(config), (ids,), y, _classify, batch)


def hybrid(size: Size, batch: int) -> Case:
    """A CNN stem with a transformer body."""
    x, y = _images(size, batch)
    tokens = (size.image // 16) ** 2
    model = Hybrid(tokens, d=64, depth=2, heads=2) if size.layers else Hybrid(tokens)
    return Case(model, (x,), y, _classify, batch)


CASES: dict[str, Callable[[Size, int], Case]] = {"resnet50": resnet50, "bert": bert, "hybrid": hybrid}


def build(name: str, size: str, batch: int | None, seed: int = 0) -> Case:
    """A case by name. ValueError lists the names when there is none such."""
    if name not in CASES:
        raise ValueError(f"unknown model {name!r}. Available: {', '.join(CASES)}")
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}. Available: {', '.join(SIZES)}")
    torch.manual_seed(seed)
    return CASES[name](SIZES[size], batch or SIZES[size].batch)
