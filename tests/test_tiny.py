"""The whole compiler on one small program, in seconds: the first test to run."""

from __future__ import annotations

import pytest
import torch

import braze


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.relu(x @ w)
    return (torch.softmax(h, -1) * h).sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_forward_and_backward(backend: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(64, 32), torch.randn(32, 48)
    want = [t.double().requires_grad_() for t in (x, w)]
    program(*want).backward()
    got = [t.clone().requires_grad_() for t in (x, w)]
    fast = braze.compile(program, backend=backend, fullgraph=True)
    out = fast(*got)
    out.backward()
    torch.testing.assert_close(out.double(), program(*want), rtol=1e-5, atol=1e-5)
    for g, t in zip(got, want):
        torch.testing.assert_close(g.grad.double(), t.grad, rtol=1e-4, atol=1e-5)


def test_explain_prints(capsys: pytest.CaptureFixture[str]) -> None:
    report = braze.explain(program)(torch.randn(8, 4), torch.randn(4, 4))
    text = capsys.readouterr().out
    assert text.startswith("1 graph, 0 breaks")
    assert "Time by stage:" in text and "matmul" in text
    assert "torch.softmax" in report.source("capture") and "aten" in report.source("forward")
