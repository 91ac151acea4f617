"""Compile work grows with what is different, not with depth: identical layers share their kernels."""

from __future__ import annotations

import torch
from torch import nn

import braze
from braze.api import log_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def kernels(layers: int) -> tuple[int, int]:
    """(kernel calls, distinct kernels) of a training step."""
    model = nn.Sequential(*[Block() for _ in range(layers)])
    compiled = braze.compile(model, options={"strict": True, "disk_cache": False})
    compiled(torch.randn(4, 8, 32)).square().mean().backward()
    log = log_of(compiled)
    assert log is not None
    (graph,) = log.graphs
    return len(graph.kernels), sum(len(c.kernels) for c in graph.compiled.values())


def test_48_layers_compile_no_more_kernels_than_12() -> None:
    calls12, distinct12 = kernels(12)
    calls48, distinct48 = kernels(48)
    assert calls48 > 3 * calls12
    assert distinct48 < 2 * distinct12 and distinct48 - distinct12 <= 2
