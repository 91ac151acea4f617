"""Which vendor routine multiplies matrices, and that all of them give the product."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import braze
from braze.api import log_of
from braze.inductor.codegen import externs
from braze.runtime.cpu import host_target
from braze.runtime.packed import available

needs_onednn = pytest.mark.skipif(not available(), reason="torch without oneDNN")


def on(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = dataclasses.replace(host_target(), cpu=cpu)
    monkeypatch.setattr(externs, "host_target", lambda: target)
    monkeypatch.setenv("BRAZE_DISK_CACHE", "0")


def compiled(fn: object, *inputs: torch.Tensor) -> tuple[torch.Tensor, str]:
    fast = braze.compile(fn)
    got = fast(*inputs)
    return got, log_of(fast).graphs[0].compiled["forward"].source


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    return torch.nn.functional.linear(x, w, b)


CASES = {
    "large": ((128, 256), (1024, 256), "onednn"),
    "small": ((64, 64), (64, 64), "torch"),
    "few rows": ((4, 1024), (1024, 1024), "onednn"),
}


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", list(CASES))
def test_linear(name: str, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    on("znver4", monkeypatch)
    left, right, routine = CASES[name]
    x, w, b = torch.randn(left), torch.randn(right), torch.randn(right[0]) if bias else None
    got, text = compiled(linear, x, w, b)
    want = torch.nn.functional.linear(x.double(), w.double(), b.double() if b is not None else None)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
    assert f"{routine + '_' if routine == 'onednn' else 'torch.'}{'addmm' if bias else 'mm'}(" in text
    assert got.is_contiguous()


@needs_onednn
def test_few_terms_and_turned_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    on("znver4", monkeypatch)
    a, b, c = torch.randn(3, 1024), torch.randn(3, 1100), torch.randn(1024, 200)
    got, text = compiled(lambda a, b: a.t() @ b, a, b)
    torch.testing.assert_close(got.double(), a.double().t() @ b.double(), rtol=1e-5, atol=1e-5)
    assert "onednn_mm(" in text
    got, text = compiled(lambda b, c: b.t() @ c, torch.randn(1024, 300), c)
    assert "torch.mm(" in text  # a left operand in columns


@needs_onednn
def test_rows_with_gaps_and_a_bias_that_is_no_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    on("znver4", monkeypatch)
    x, w, full = torch.randn(128, 400)[:, 30:286], torch.randn(1024, 256), torch.randn(128, 1024)
    for bias in (full, full[:1], full[:, :1], torch.randn(1)):
        got, text = compiled(lambda b, x, w: torch.addmm(b, x, w.t()), bias, x, w)
        torch.testing.assert_close(got.double(), bias.double() + x.double() @ w.double().t(), rtol=1e-4, atol=1e-4)
        assert "onednn" not in text
    got, text = compiled(lambda x, w: x @ w.t(), x, w)
    torch.testing.assert_close(got.double(), x.double() @ w.double().t(), rtol=1e-4, atol=1e-4)
    assert "onednn_mm(" in text
    got, text = compiled(lambda b, x, w: torch.addmm(b, x, w.t(), beta=2, alpha=0.5), full[0], x, w)
    torch.testing.assert_close(
        got.double(), 2 * full[0].double() + 0.5 * (x.double() @ w.double().t()), rtol=1e-4, atol=1e-4
    )


def test_mkl_stays_on_its_makers_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    on("sapphirerapids", monkeypatch)
    _, text = compiled(linear, torch.randn(128, 256), torch.randn(1024, 256))
    assert "onednn" not in text


@needs_onednn
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_stay(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    on("znver4", monkeypatch)
    x, w = torch.randn(128, 256, dtype=dtype), torch.randn(1024, 256, dtype=dtype)
    got, text = compiled(linear, x, w)
    torch.testing.assert_close(got, torch.nn.functional.linear(x, w))
    assert "onednn" not in text
