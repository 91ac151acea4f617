"""Networks beyond the bench's three, by name: ``NETWORKS[name](small) -> Network``. ``small`` is for a try on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from braze.bench.models import CASES, build


@dataclass(frozen=True)
class Network:
    """``loss(model(*inputs), target)`` is trained; ``decode`` marks one that is run without gradients instead, where
    ``samples`` counts new tokens."""

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    target: torch.Tensor
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    samples: int
    decode: bool = False


def without_dropout(model: nn.Module) -> nn.Module:
    """The model in training, but without dropout, whose random numbers are not eager's: to compare values."""
    model.train()
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
        elif isinstance(getattr(m, "dropout", None), float):
            m.dropout = 0.0
    return model


def _classify(out: Any, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(getattr(out, "logits", out).float(), target)


def _next_token(out: Any, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out.float().flatten(0, 1), target.flatten())


class Block(nn.Module):
    """Llama's layer: RMS norm, rotary attention over cached keys, gated feed-forward."""

    def __init__(self, d: int, heads: int, groups: int, wide: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, d // heads
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q = nn.Linear(d, d, bias=False)
        self.kv = nn.Linear(d, 2 * groups * self.size, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.gate, self.up = nn.Linear(d, wide, bias=False), nn.Linear(d, wide, bias=False)
        self.down = nn.Linear(wide, d, bias=False)

    def forward(self, x: torch.Tensor, turn: torch.Tensor, past: torch.Tensor | None) -> torch.Tensor:
        b, n, _ = x.shape
        y = self.norm1(x)
        q = rotated(self.q(y).view(b, n, self.heads, self.size), turn).transpose(1, 2)
        k, v = self.kv(y).view(b, n, 2, self.groups, self.size).unbind(2)
        k, v = rotated(k, turn).transpose(1, 2), v.transpose(1, 2)
        if past is not None:
            k, v = torch.cat((past[0].to(k.dtype), k), 2), torch.cat((past[1].to(v.dtype), v), 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=past is None, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, n, -1))
        y = self.norm2(x)
        out: torch.Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Pairs of x (b, n, heads, size) turned by the angles of ``turn`` (n, size / 2)."""
    a, b = x.chunk(2, -1)
    cos, sin = turn.cos()[:, None], turn.sin()[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).type_as(x)


class Decoder(nn.Module):
    """A Llama-style decoder; with ``past`` (layers, 2, b, groups, m, size) it gives the next token's scores."""

    def __init__(self, layers: int, d: int, heads: int, groups: int, wide: int, words: int = 32000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, d)
        self.blocks = nn.ModuleList(Block(d, heads, groups, wide) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, words, bias=False)
        self.register_buffer("speed", 10000 ** (-torch.arange(0, d // heads, 2) / (d // heads)), persistent=False)

    def forward(self, ids: torch.Tensor, past: torch.Tensor | None = None) -> torch.Tensor:
        first = 0 if past is None else past.shape[4]
        at = torch.arange(first, first + ids.shape[1], device=ids.device)
        x, turn = self.words(ids), at[:, None] * self.speed
        for i, block in enumerate(self.blocks):
            x = block(x, turn, None if past is None else past[i])
        out: torch.Tensor = self.head(self.norm(x))
        return out


def llama(small: bool, decode: bool = False) -> Network:
    """1.1 B parameters: 22 layers of 2048; training on 4 x 1024 tokens, decoding after 1024 at batch 8."""
    layers, d, heads, groups, wide = (2, 64, 4, 2, 128) if small else (22, 2048, 32, 4, 5632)
    b, n = ((2, 16) if small else (4, 1024)) if not decode else ((2, 16) if small else (8, 1024))
    model = Decoder(layers, d, heads, groups, wide)
    if decode:
        past = torch.randn(layers, 2, b, groups, n, d // heads)
        return Network(model.eval(), (torch.randint(0, 32000, (b, 1)), past), torch.zeros(()), _next_token, b, True)
    ids = torch.randint(0, 32000, (b, n + 1))
    return Network(model, (ids[:, :-1].contiguous(),), ids[:, 1:].contiguous(), _next_token, b)


def _images(small: bool, batch: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    b, side = (2, 64) if small else (batch, 224)
    return b, torch.randn(b, 3, side, side), torch.randint(0, 1000, (b,))


def vit(small: bool) -> Network:
    """torchvision's ViT-B/16."""
    import torchvision

    b, x, y = _images(small, 64)
    return Network(torchvision.models.vit_b_16(image_size=x.shape[-1]), (x,), y, _classify, b)


def convnext(small: bool) -> Network:
    """torchvision's ConvNeXt-T."""
    import torchvision

    b, x, y = _images(small, 64)
    return Network(torchvision.models.convnext_tiny(), (x,), y, _classify, b)


class Residual(nn.Module):
    """Two convolutions with group norms, and the time's embedding added between them."""

    def __init__(self, c: int, d: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, c), nn.Conv2d(c, d, 3, padding=1)
        self.time = nn.Linear(time, d)
        self.norm2, self.conv2 = nn.GroupNorm(8, d), nn.Conv2d(d, d, 3, padding=1)
        self.skip = nn.Conv2d(c, d, 1) if c != d else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        out: torch.Tensor = self.skip(x) + self.conv2(F.silu(self.norm2(h)))
        return out


class UNet(nn.Module):
    """A diffusion model's U: down and up through ``widths``."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        time = 4 * widths[0]
        self.time, self.first = nn.Linear(32, time), nn.Conv2d(4, widths[0], 3, padding=1)
        pairs = list(zip(widths, widths[1:]))
        self.down = nn.ModuleList(Residual(c, d, time) for c, d in pairs)
        self.middle = Residual(widths[-1], widths[-1], time)
        self.up = nn.ModuleList(Residual(2 * d, c, time) for c, d in reversed(pairs))
        self.last = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        t, x = F.silu(self.time(t)), self.first(x)
        kept = []
        for block in self.down:
            x = block(x, t)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, t)
        for block in self.up:
            x = block(torch.cat((F.interpolate(x, scale_factor=2.0), kept.pop()), 1), t)
        out: torch.Tensor = self.last(x)
        return out


def unet(small: bool) -> Network:
    """A UNet of a latent diffusion's size on 64 x 64 latents."""
    b, side = (2, 16) if small else (32, 64)
    x, t = torch.randn(b, 4, side, side), torch.randn(b, 32)
    model = UNet((16, 32, 32) if small else (128, 256, 512, 512))
    return Network(model, (x, t), torch.randn_like(x), lambda out, y: F.mse_loss(out.float(), y), b)


def _bench(name: str) -> Callable[[bool], Network]:
    def make(small: bool) -> Network:
        batch = None if small or name == "bert" else 64
        case = build(name, "tiny" if small else "full", batch)
        return Network(case.model, case.inputs, case.target, case.loss, case.batch)

    return make


NETWORKS: dict[str, Callable[[bool], Network]] = {
    **{name: _bench(name) for name in CASES},
    "llama": llama,
    "llama-decode": lambda small: llama(small, decode=True),
    "vit": vit,
    "convnext": convnext,
    "unet": unet,
}
