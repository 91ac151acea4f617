"""The report as data and text: bytes, arithmetic, memory, times, source lines, events."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import braze
from braze.config import Config
from braze.report import machine
from braze.report.machine import Rates, rates
from braze.report.measure import _Marks, _on_cuda, memory_over_time, unchanged
from braze.report.text import size


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.BatchNorm1d(64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(x))
        return self.fc(x)


@pytest.fixture(scope="module")
def small() -> braze.report.Explanation:
    torch.manual_seed(0)
    return braze.explain(Small(), backward=True, measure=True, quiet=True)(torch.randn(128, 64))


def test_bytes_and_flops() -> None:
    x, w = torch.randn(128, 64), torch.randn(64, 32)
    e = braze.explain(lambda x, w: torch.sin(x @ w) * 2, quiet=True)(x, w)
    product, kernel = (s for side in e.report.sides for s in side.steps)
    assert (product.kind, product.flops) == ("vendor", 2 * 128 * 64 * 32)
    assert product.nbytes == 4 * (128 * 64 + 64 * 32 + 128 * 32)
    assert (kernel.kind, kernel.flops, kernel.nbytes) == ("kernel", 2 * 128 * 32, 2 * 4 * 128 * 32)
    assert kernel.lines == product.lines and kernel.lines[0][0] == __file__


def test_times_cover_every_step(small: braze.report.Explanation) -> None:
    for side in small.report.sides:
        assert side.steps and all(0 < s.seconds < 1 for s in side.steps)
        assert all(0 < s.share for s in side.steps if s.nbytes)
    assert {s.side for s in small.report.sides} == {"forward", "backward"}


def test_measuring_leaves_state_as_it_was() -> None:
    model, x = Small(), torch.randn(8, 64)
    twin = Small()
    twin.load_state_dict(model.state_dict())
    torch.manual_seed(3)
    braze.explain(model, backward=True, measure=True, quiet=True)(x)
    after = torch.rand(3)
    torch.manual_seed(3)
    twin(x)
    torch.testing.assert_close(torch.rand(3), after, rtol=0, atol=0)
    for a, b in zip(model.buffers(), twin.buffers()):
        torch.testing.assert_close(a, b)
    assert all(p.grad is None for p in model.parameters())
    with unchanged(model):
        model(x)
    for a, b in zip(model.buffers(), twin.buffers()):
        torch.testing.assert_close(a, b)


def test_memory_counts_what_is_held() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x) @ w) @ w

    e = braze.explain(f, quiet=True)(torch.randn(256, 256), torch.randn(256, 256))
    (side,) = e.report.sides
    one = 256 * 256 * 4
    assert [m.nbytes for m in side.memory] == [one, 2 * one, 2 * one]


def test_source_lines(small: braze.report.Explanation) -> None:
    block = next(b for b in small.report.sources if b.name == "Small.forward")
    relu = next(line for line in block.lines if "torch.relu" in line.text)
    assert relu.calls["graph_0"] >= 2 and relu.kernels >= 2 and relu.seconds > 0
    assert not next(line for line in block.lines if "def forward" in line.text).calls


def test_break_and_recompile_stand_at_their_lines() -> None:
    def talks(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        print("half way")
        return y * 2

    fast = braze.compile(talks)
    fast(torch.randn(3))
    e = braze.explain(fast, quiet=True)(torch.randn(3).double())
    block = next(b for b in e.report.sources if "talks" in b.name)
    notes = {kind for line in block.lines for kind, _ in line.notes}
    assert "break" in notes
    text = str(e)
    assert "The graph breaks at test_report.py" in text and "Recompiles:" in text and "float64" in text


def test_json_is_plain_and_complete(small: braze.report.Explanation) -> None:
    data = json.loads(small.json())
    assert data["title"] == "Small" and len(data["verdict"]) == 3
    assert data["machine"]["bandwidth"] > 0
    assert {"capture", "joint trace", "codegen"} <= set(data["stages"])
    stages = [r["stage"] for r in data["timeline"]]
    assert stages[0] == "capture" and all(r["end"] >= r["start"] >= 0 for r in data["timeline"])
    assert data["cache"] and set(data["memory"]) == {"graph_0: forward", "graph_0: backward"}


def test_rates_are_kept_and_a_broken_file_is_measured_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(cache_dir=str(tmp_path))
    first = rates(torch.device("cpu"), config)
    assert rates(torch.device("cpu"), config) == first
    for text in ("{", "[]", json.dumps(dict.fromkeys(json.loads((tmp_path / "machine.json").read_text()), {"x": 1}))):
        (tmp_path / "machine.json").write_text(text)
        assert rates(torch.device("cpu"), config).bandwidth > 0


def test_a_second_start_says_that_it_hit_the_cache() -> None:
    """A hit gives the same report: steps, times, levels."""

    def once() -> braze.report.Explanation:
        torch.manual_seed(0)
        return braze.explain(Small(), backward=True, measure=True, quiet=True)(torch.randn(31, 64))

    first, second = once(), once()
    assert second.log.graphs[0].cache == {"forward": "hit", "backward": "hit"}, first.log.graphs[0].cache
    steps = [
        [(s.side, s.name, s.nbytes, s.flops) for side in e.report.sides for s in side.steps] for e in (first, second)
    ]
    assert steps[0] == steps[1] and "forward hit" in str(second)
    assert all(s.seconds > 0 for side in second.report.sides for s in side.steps)
    assert set(first.log.graphs[0].levels) == set(second.log.graphs[0].levels)


def test_memory_is_measured() -> None:
    one = 1 << 20
    kept: list[torch.Tensor] = []

    def run() -> None:
        a = torch.ones(one, dtype=torch.uint8)
        b = torch.ones(2 * one, dtype=torch.uint8)
        del a
        kept.append(b)

    held = memory_over_time(run, cuda=False)
    sizes = [nbytes for _, nbytes in held]
    assert sizes == [one, 3 * one, 2 * one] and [t for t, _ in held] == sorted(t for t, _ in held)
    assert memory_over_time(run, cuda=True) == []  # nothing on a GPU
    with torch.autograd.profiler_legacy.profile(profile_memory=True):
        assert memory_over_time(run, cuda=False) == []  # the program's own profile goes on


def test_the_peak_is_in_every_form(small: braze.report.Explanation, tmp_path) -> None:
    data = json.loads(small.json())["measured_memory"]
    assert data["peak"] == small.report.peak >= 4 * 128 * 64 and len(data["held"]) > 4
    assert "of tensors beyond" in str(small)
    page = small.html(tmp_path / "r.html").read_text()
    assert "measured peak" in page and "planned peak" in page


@pytest.mark.parametrize("nbytes, text", [(3, "3 B"), (2048, "2.0 KiB"), (3 << 20, "3.0 MiB")])
def test_sizes(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


class Clock:
    """A CUDA event of a stream on which each step takes 2 ms."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Clock.now += 2.0
        self.at = Clock.now

    def elapsed_time(self, end: Clock) -> float:
        return end.at - self.at


def test_steps_on_a_gpu_are_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[bool] = []
    capturing = [False]
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(True))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    marks = _Marks(cuda=True)
    for step in (-1, 0, -1, 1):
        marks(step)
    capturing[0] = True
    marks(2)  # recorded into a CUDA graph: not timed
    assert marks.seconds() == {0: 0.002, 1: 0.002} and waited


def test_a_program_of_vendor_calls_alone_is_timed_where_it_runs() -> None:
    def log(device: str) -> SimpleNamespace:
        buffer = SimpleNamespace(type=SimpleNamespace(device=torch.device(device)))
        program = SimpleNamespace(steps=[SimpleNamespace(outputs=[None, buffer])])
        return SimpleNamespace(graphs=[SimpleNamespace(name="g", programs={"forward": program})])

    assert _on_cuda(log("cuda"), ("g", "forward")) and not _on_cuda(log("cpu"), ("g", "forward"))


def test_the_roofline_of_a_gpu_is_kept_for_its_precision(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(
        machine, "_measure", lambda device, name: Rates(name, 1e12, {"float32": 5e13, "bfloat16": 5e14})
    )
    config, kinds = Config(cache_dir=str(tmp_path)), ("highest", "high")
    for kind in kinds:
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda kind=kind: kind)
        found = rates(torch.device("cuda"), config)
    kept = json.loads((tmp_path / "machine.json").read_text())
    assert len(kept) == 2 and all("cuda a card" in key for key in kept)
    assert found.bound(10**12, 0, "bfloat16") == 1.0 and found.bound(0, 5 * 10**14, "bfloat16") == 1.0
    assert found.bound(0, 5 * 10**13, "int32") == 1.0  # of a dtype without a rate: float32's
