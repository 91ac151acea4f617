"""BRAZE_DEBUG prints more with each level; explain shows what a user asks for."""

from __future__ import annotations

import logging

import pytest
import torch

import braze


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x).sum() * 2


@pytest.mark.parametrize(
    "level, shown, hidden",
    [
        (1, ["compiled in"], ["def forward"]),
        (2, ["compiled in", "torch.relu(x)", "aten.relu"], ["def call"]),
        (3, ["reduce_sum", "def call(args)"], ["guards:"]),
        (4, ["guards:", "joint trace took"], ["= prims.sum("]),
        (5, ["= prims.sum(", "define"], []),
    ],
)
def test_levels(level: int, shown: list[str], hidden: list[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "braze"):
        braze.compile(program, options={"debug": level})(torch.randn(3, 4))
    for text in shown:
        assert text in caplog.text, text
    for text in hidden:
        assert text not in caplog.text, text


def test_explain_names_the_break_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    def talks(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        print("half way")
        return y * 2

    report = braze.explain(talks)(torch.randn(3))
    text = capsys.readouterr().out
    assert "2 graphs, 1 break" in text and 'print("half way")' in text and "why:" in text
    assert "Guards:" in text and "Time by stage:" in text
    assert "torch.relu" in report.source("capture")
    with pytest.raises(ValueError, match="no graph has the level 'nope'; there are capture"):
        report.source("nope")


def test_explain_shows_a_recompile(capsys: pytest.CaptureFixture[str]) -> None:
    fast = braze.compile(program)
    fast(torch.randn(3))
    braze.explain(fast)(torch.randn(3).double())
    text = capsys.readouterr().out
    assert "Recompiles:" in text and "float64" in text
