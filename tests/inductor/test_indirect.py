"""One gather evaluated at several places of a kernel: each place has its own index values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze


def shifted(ids: Any, w: Any) -> Any:
    """The trigram input of MobileBERT: a token's embedding between its neighbours'."""
    x = F.embedding(ids, w)
    return torch.cat([F.pad(x[:, 1:], [0, 0, 0, 1, 0, 0]), x, F.pad(x[:, :-1], [0, 0, 1, 0, 0, 0])], dim=2)


def differences(ids: Any, w: Any) -> Any:
    x = w[ids]
    return x[:, 1:] * 2 - x[:, :-1] + x[:, 1:].flip(1)


def nested(ids: Any, w: Any) -> Any:
    x = F.embedding(ids, w.sin())
    return x[:, [2, 0, 1]] + x[:, [0, 0, 3]]


@pytest.mark.parametrize("fn", [shifted, differences, nested], ids=lambda f: f.__name__)
@pytest.mark.parametrize("width", [3, 4, 16, 40])
def test_gathers_at_several_places(fn: Any, width: int) -> None:
    torch.manual_seed(0)
    ids, w = torch.randint(0, 50, (3, 9)), torch.randn(50, width, dtype=torch.float64)
    torch.testing.assert_close(braze.compile(fn, fullgraph=True)(ids, w), fn(ids, w))
