"""One case for each public issue that compiled PyTorch programs ran into: the part of the whole pipeline.

Capture's part is in ``tests/capture/test_public_issues.py``; :func:`test_every_issue_has_a_case` lists the numbers.
"""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import braze
from braze.api import log_of

ISSUES = """
172547 150706 192555 114511 174704 125641 191753 185886 160757 157458 167062 104601 111180 138908 132301 118735 94855
170604 188150 155558 108966 107076 133898 139789 93363 91469 118260 101107 20233 105832
"""


def test_every_issue_has_a_case() -> None:
    here = Path(__file__)
    texts = [here.read_text(), (here.parents[1] / "capture" / "test_public_issues.py").read_text()]
    named = {n for t in texts for name in re.findall(r"^def test_(\w+)", t, re.M) for n in name.split("_")}
    named |= {
        n for t in texts for line in re.findall(r"^def test_\d+\S*", t, re.M) for n in re.findall(r"\d{4,}", line)
    }
    assert set(ISSUES.split()) <= named, set(ISSUES.split()) - named


def fresh(tmp_path: Path) -> dict[str, str]:
    return {"cache_dir": str(tmp_path)}


def test_125641_a_mark_that_does_not_hold_raises_nothing() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] == 5 else x + 1

    fast = braze.compile(f, fullgraph=True)
    for n in (5, 6, 7, 5):
        x = torch.randn(n)
        braze.mark_dynamic(x, 0)
        torch.testing.assert_close(fast(x), f(x))
    assert len(log_of(fast).graphs) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_132301_fused_low_precision_is_no_worse_than_eager(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.layer_norm(x * 1.1 + 0.3, (64,), w)
        return torch.nn.functional.gelu(h) * torch.sigmoid(h) - h.softmax(-1)

    x, w = torch.randn(32, 64).to(dtype), torch.randn(64).to(dtype)
    exact = f(x.double(), w.double())
    got, eager = (g(x, w) for g in (braze.compile(f, fullgraph=True), f))
    assert got.dtype is dtype
    assert (got.double() - exact).norm() <= 1.05 * (eager.double() - exact).norm()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_170604_results_of_one_call_outlive_the_next(mode: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    fast = braze.compile(model, mode=mode)
    inputs = [torch.randn(4, 8) for _ in range(4)]
    outs = [fast(x) for x in inputs]
    for x, y in zip(inputs, outs):
        torch.testing.assert_close(y, model(x), rtol=1e-5, atol=1e-5)
    sum(y.square().sum() for y in outs).backward()  # type: ignore[union-attr]


def test_188150_padding_to_the_longest_of_a_batch_compiles_few_times() -> None:
    fast = braze.compile(nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8)), mode="reduce-overhead")
    for n in (12, 7, 31, 19, 5, 40, 23, 11, 9):
        fast(torch.randint(50, (4, n))).sum().backward()
    assert len(log_of(fast).graphs) <= 2  # type: ignore[union-attr]


def test_108966_a_model_under_ddp_is_one_graph(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(6)])
    plain, x = copy.deepcopy(model), torch.randn(4, 16)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        ddp = DistributedDataParallel(braze.compile(model), bucket_cap_mb=0.001)  # type: ignore[arg-type]
        ddp(x).square().sum().backward()
    finally:
        dist.destroy_process_group()
    plain(x).square().sum().backward()
    for p, q in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
    log = log_of(ddp.module)
    assert log is not None and len(log.graphs) == 1 and not log.breaks


def children() -> set[str]:
    return {c for t in Path("/proc/self/task").iterdir() for c in (t / "children").read_text().split()}


def test_105832_no_process_stays_after_a_compile(tmp_path: Path) -> None:
    before = children()
    fast = braze.compile(lambda x: (x.sin() * 3).softmax(-1), options=fresh(tmp_path))
    fast(torch.randn(7, 9))
    assert children() <= before


def test_157458_167062_no_compiler_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise FileNotFoundError("no such program")

    monkeypatch.setattr(subprocess, "Popen", missing)
    monkeypatch.setattr(shutil, "which", lambda *a, **k: None)
    fast = braze.compile(lambda x: (x.cos() * 5).log_softmax(-1), options=fresh(tmp_path), fullgraph=True)
    x = torch.randn(6, 11)
    torch.testing.assert_close(fast(x), (x.cos() * 5).log_softmax(-1))
    assert not any(g.fallback for g in log_of(fast).graphs)  # type: ignore[union-attr]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 3


def test_192555_custom_functions_and_autocast_are_cached(tmp_path: Path) -> None:
    found = []
    for _ in range(2):

        def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return Double.apply(x @ w).float().tanh()  # type: ignore[no-any-return, no-untyped-call]

        fast = braze.compile(f, options=fresh(tmp_path))
        x = torch.ones(4, 4, requires_grad=True)
        fast(x, torch.eye(4)).sum().backward()
        assert x.grad is not None and torch.allclose(x.grad, 3 * (1 - torch.tanh(torch.tensor(2.0)) ** 2), rtol=2e-2)
        found.append(log_of(fast).graphs[0].cache)  # type: ignore[union-attr]
    assert set(found[1].values()) == {"hit"} and "hit" not in found[0].values()


def test_111180_what_is_slower_than_eager_is_not_used() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    fast = braze.compile(f, options={"never_slower": True})
    x = torch.randn(64)
    torch.testing.assert_close(fast(x), f(x))
    assert log_of(fast).graphs[0].choice  # type: ignore[union-attr]
