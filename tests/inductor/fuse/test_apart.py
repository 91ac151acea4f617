"""The reasons why kernels stay apart can be read."""

from __future__ import annotations

import torch

import braze
from braze.api import log_of


def test_reasons_are_a_level_of_the_report() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        return y.sum(0) * y.flip(0).sum(1)[:8]

    fast = braze.compile(fn, fullgraph=True)
    x = torch.randn(16, 8)
    torch.testing.assert_close(fast(x), fn(x))
    text = str(log_of(fast).graphs[0].levels["forward: apart"])
    lines = text.splitlines()
    assert lines and all(" | " in line and ": " in line for line in lines)
    assert any("reduce over different axes" in line or "no one-to-one map" in line for line in lines)


def test_what_fuses_gives_no_reason() -> None:
    fast = braze.compile(lambda x: (x * 2).relu() + 1, fullgraph=True)
    fast(torch.randn(8))
    assert str(log_of(fast).graphs[0].levels["forward: apart"]).strip() == ""
