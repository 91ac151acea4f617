"""The cache of whole programs: hits give the same results, and what cannot be kept says why."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of
from braze.backends import aot, program_cache
from braze.ir import load_python

CODE = """
import json, sys, torch, braze
from braze.api import log_of
torch.manual_seed(0)
m = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Dropout(0.3))
x = torch.randn(4, 8)
c = braze.compile(m, options={"strict": True, "cache_dir": sys.argv[1]})
torch.manual_seed(1)
y = c(x)
y.sum().backward()
print(json.dumps([log_of(c).graphs[0].cache, y.tolist(), m[0].weight.grad.tolist()]))
"""


def compiled(fn: Any, folder: Path, **options: Any) -> Any:
    return braze.compile(fn, options={"strict": True, "cache_dir": str(folder), **options})


def outcome(c: Any) -> dict[str, str]:
    log = log_of(c)
    assert log is not None
    return log.graphs[-1].cache


def test_a_new_process_hits(tmp_path: Path) -> None:
    runs = [
        subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (eval(r.stdout) for r in runs)
    assert set(first[0].values()) == {"miss"} and set(second[0].values()) == {"hit"}
    assert first[1:] == second[1:]


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


def mixed(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return Twice.apply(x @ x).float().relu()  # type: ignore[no-any-return]


def test_functions_and_autocast_are_kept(tmp_path: Path) -> None:
    x = torch.randn(8, 8, requires_grad=True)
    results = []
    for want in ("miss", "hit"):
        x.grad = None
        c = compiled(mixed, tmp_path)
        c(x).sum().backward()
        assert outcome(c) == {"forward": want, "backward": want}
        results.append(x.grad)
    assert torch.equal(*results)


@pytest.mark.parametrize("change", ["dtype", "sizes", "strides", "constant", "flag", "grad"])
def test_what_makes_another_program(change: str, tmp_path: Path) -> None:
    def fn(x: torch.Tensor, k: float = 2.0) -> torch.Tensor:
        return (x * k).sum(-1)

    x = torch.randn(8, 4)
    compiled(fn, tmp_path)(x)
    again = compiled(fn, tmp_path)
    again(x)
    assert outcome(again) == {"forward": "hit"}
    other: dict[str, Any] = {"dtype": x.double(), "sizes": x[:3].clone(), "strides": x.t().contiguous().t()}
    value = other.get(change, x)
    options = {"strict_random": True} if change == "flag" else {}
    c = compiled((lambda x: fn(x, 3.0)) if change == "constant" else fn, tmp_path, **options)
    got = c(value.clone().requires_grad_() if change == "grad" else value)
    assert outcome(c)["forward"] == "miss"
    torch.testing.assert_close(got.detach(), fn(value, 3.0) if change == "constant" else fn(value))


def test_constants_travel(tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0])

    x = torch.randn(3)
    for want in ("miss", "hit"):
        c = compiled(fn, tmp_path)
        torch.testing.assert_close(c(x), fn(x))
        assert outcome(c)["forward"] == want or outcome(c)["forward"].startswith("bypass")


def test_bypass_says_why(tmp_path: Path) -> None:
    @torch.library.custom_op("braze_cache_test::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @double.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    c = compiled(lambda x: double(x) + 1, tmp_path)
    x = torch.randn(3)
    torch.testing.assert_close(c(x), x * 2 + 1)
    assert "braze_cache_test.double" in outcome(c)["forward"]
    assert outcome(c)["forward"].startswith("bypass: ")


def test_a_damaged_entry_is_made_again(tmp_path: Path) -> None:
    x = torch.randn(5)
    compiled(lambda x: x.sin() + 1, tmp_path)(x)
    (entry,) = (tmp_path / "programs").iterdir()
    entry.write_bytes(entry.read_bytes()[:-7])
    c = compiled(lambda x: x.sin() + 1, tmp_path)
    torch.testing.assert_close(c(x), x.sin() + 1)
    assert outcome(c)["forward"] == "miss"


def test_reports_of_a_hit_are_whole(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(2, 4)
    compiled(model, tmp_path)(x)
    c = compiled(model, tmp_path)
    c(x)
    report = str(braze.explain(c)(x))
    assert "disk cache: forward hit" in report
    log = log_of(c)
    assert log is not None
    record = log.graphs[0]
    assert len(record.programs["forward"].steps) >= len(record.kernels) >= 1
    assert "def " in str(record.levels["forward: kernels"])


def test_nothing_is_unpickled() -> None:
    text = Path(program_cache.__file__).read_text()
    assert not re.search(r"import pickle|pickle\.load|torch\.load|marshal", text)


def test_compiling_does_not_wait_for_the_garbage_collector(tmp_path: Path) -> None:
    """Neither the trace nor the guards: no full collection between the call and the first kernel. One over a large
    program's objects takes as long as a quarter of a warm start."""
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(60)))
    c = compiled(layers, tmp_path)
    before, full = gc.get_threshold(), []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            full.append([f.name for f in traceback.extract_stack()])

    gc.callbacks.append(note)
    gc.set_threshold(50, 1, 1)
    try:
        c(torch.randn(2, 8))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
    assert not [names for names in full if {"capture", "compile_guards", "compile_graph"} & set(names)]


def test_the_program_in_eager_is_written_when_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(aot, "load_python", lambda graph: written.append(graph.name) or load_python(graph))

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    x = torch.randn(4, requires_grad=True)
    c = compiled(f, tmp_path)
    c(x).backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert not written
    (g,) = torch.autograd.grad(c(x), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(h, -x.sin())
    assert written
