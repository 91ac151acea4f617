"""The bench: cases build, workers answer, results are summed up, failures and interrupts keep what there is."""

from __future__ import annotations

import io
import json
import os

import pytest
import torch
from torch import nn

import braze
from braze.bench.about import clock
from braze.bench.models import CASES, build
from braze.bench.plot import save_plot
from braze.bench.result import Result, Results, notes, to_markdown, to_table
from braze.bench.runner import Plan, measure
from braze.bench.worker import Job, serve


@pytest.mark.parametrize("name", list(CASES))
def test_cases_build_and_learn(name: str) -> None:
    case = build(name, "tiny", None)
    loss = case.loss(case.model(*case.inputs), case.target)
    loss.backward()
    assert loss.isfinite() and all(p.grad is not None for p in case.model.parameters())


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ValueError, match="resnet50, bert, hybrid"):
        build("gpt", "tiny", None)
    with pytest.raises(ValueError, match="tiny, small, full"):
        build("bert", "huge", None)


@pytest.mark.parametrize("train", [True, False])
def test_worker_protocol(train: bool) -> None:
    job = Job("hybrid", "braze", size="tiny", train=train)
    commands = [job.message(), json.dumps({"do": "run", "steps": 2}), '{"do": "stop"}']
    answers = io.StringIO()
    serve(io.StringIO("\n".join(commands)), answers)
    *stages, started, ran = (json.loads(x) for x in answers.getvalue().splitlines())
    assert stages and all(set(s) == {"stage"} for s in stages)
    assert started["first_s"] > 0 and started["batch"] == 2
    assert len(ran["times"]) == 2 and ran["breaks"] == 0 and ran["peak_bytes"] > 0


def test_measure_interleaves_and_keeps_failures() -> None:
    said: list[str] = []
    done = 0

    def progress(text: str, units: int) -> None:
        nonlocal done
        said.append(text)
        done += units

    jobs = [
        Job("hybrid", "braze", size="tiny", threads=1),
        Job("hybrid", "nonsense", size="tiny", device="nowhere"),
    ]
    plan = Plan(rounds=2, steps=1, warmup=1, warm=True)
    results: list[Result] = []
    measure(jobs, os.environ, plan, progress, results)
    good, bad = results
    assert not good.error and good.samples_per_s > 0 and len(good.rounds) == 2 and good.breaks == 0
    assert good.warm_s is not None and good.warm_s < good.compile_s
    assert {"capture", "codegen"} <= set(good.stages) and sum(good.stages.values()) < good.compile_s * 3
    assert "nowhere" in bad.error
    assert done == plan.units(jobs)
    assert [s for s in said if "braze, round" in s] == ["hybrid: braze, round 1 of 2", "hybrid: braze, round 2 of 2"]
    assert any(s.startswith("hybrid: braze compiles: ") for s in said)
    assert "failed" in "".join(str(c._cells) for c in to_table([good, bad], "t").columns)


def test_an_interrupt_keeps_the_rounds_so_far() -> None:
    def progress(text: str, units: int) -> None:
        if text.endswith("round 2 of 5"):
            raise KeyboardInterrupt

    results: list[Result] = []
    with pytest.raises(KeyboardInterrupt):
        measure([Job("hybrid", "eager", size="tiny")], os.environ, Plan(5, 1, 1), progress, results)
    (r,) = results
    assert r.partial and len(r.rounds) == 1 and r.samples_per_s > 0 and not r.error
    assert "*" in to_markdown(results, "t")


def test_compile_time_excludes_the_steps_themselves() -> None:
    r = Result("m", "braze", "default", batch=4, compile_s=3.0, warm_s=1.5, rounds=[0.5, 0.5, 0.5]).finish()
    assert (r.step_s, r.samples_per_s, r.compile_s, r.warm_s) == (0.5, 8.0, 2.0, 0.5)


def row(contender: str, rate: float, batch: int = 8, **more: object) -> Result:
    return Result("m", contender, "default", batch=batch, samples_per_s=rate, step_s=batch / rate, **more)


def test_markdown_and_ratio() -> None:
    text = to_markdown([row("eager", 10.0), row("braze", 25.0, breaks=1, warm_s=0.25)], "title")
    lines = text.splitlines()
    assert lines[0] == "**title**" and lines[2].startswith("| model | batch | contender |")
    cells = dict(zip(lines[2].split("|")[1:-1], lines[5].split("|")[1:-1]))
    assert {k.strip(): v.strip() for k, v in cells.items()} | {"x eager": "2.50", "warm s": "0.25", "breaks": "1"} == {
        k.strip(): v.strip() for k, v in cells.items()
    }


def test_notes_tell_of_noise() -> None:
    text = to_markdown([row("eager", 10.0, spread_s=0.5, faults=5e4)], "t")
    assert "spread by over 10%" in text and "50000 page faults" in text


def test_notes_tell_of_the_clock_and_of_drift() -> None:
    slower = [1.0, 1.0, 1.3, 1.3]
    text = notes([row("eager", 1.0, rounds=slower, clocks=[2000.0, 1500.0]), row("braze", 2.0, rounds=slower)])
    assert "between 1500 and 2000 MHz" in text and "became slower during the run" in text
    assert notes([row("eager", 1.0, rounds=slower), row("braze", 2.0, rounds=slower[::-1], clocks=[2000.0])]) == ""
    assert clock("cpu") >= 0


def test_the_table_says_where_the_compile_went() -> None:
    text = str(Results([row("eager", 1.0), row("braze", 2.0, stages={"capture": 0.5, "plan": 0.001})], "t"))
    assert "m braze compiled (s): capture 0.50" in text and "plan" not in text


@pytest.mark.slow
def test_the_peer_says_how_often_it_breaks(tmp_path) -> None:
    text = "import torch\nclass M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    text += "        self.fc = torch.nn.Linear(4, 4)\n    def forward(self, x):\n        y = self.fc(x)\n"
    text += "        print('half way')\n        return y.relu()\ndef make():\n    return M(), torch.randn(3, 4)\n"
    (tmp_path / "m.py").write_text(text)
    jobs = [Job(f"{tmp_path}/m.py:make", c, train=False) for c in ("braze", "torch")]
    results: list[Result] = []
    measure(jobs, os.environ, Plan(1, 1, 1), lambda text, n: None, results)
    assert [(r.breaks, r.error) for r in results] == [(1, ""), (1, "")]


@pytest.mark.parametrize("sweep", [False, True])
def test_plots(tmp_path, sweep: bool) -> None:
    pytest.importorskip("matplotlib")
    results = [row(c, s * b, b) for b in ((1, 8) if sweep else (8,)) for c, s in (("eager", 1.0), ("braze", 2.0))]
    for suffix in ("png", "svg"):
        assert Results(results, "title").plot(tmp_path / f"p.{suffix}").stat().st_size > 1000
    text = (tmp_path / "p.svg").read_text()
    assert "samples/s" in text if sweep else "relative to eager" in text
    with pytest.raises(ValueError, match="nothing to draw"):
        save_plot([], tmp_path / "q.png", "t")


def test_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    before = [p.clone() for p in model.parameters()]
    out = braze.bench(model, torch.randn(4, 8), lambda y: y.sum(), rounds=2, steps=1)
    assert [r.contender for r in out.rows] == ["eager", "braze"] and all(r.samples_per_s > 0 for r in out.rows)
    assert "Sequential" in capsys.readouterr().out
    assert json.loads(out.json())["results"][1]["breaks"] == 0
    for p, old in zip(model.parameters(), before):
        torch.testing.assert_close(p, old, rtol=0, atol=0)


def test_from_python_keeps_errors_and_interrupts() -> None:
    calls = 0

    class Stops(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls > 12:
                raise KeyboardInterrupt
            return x * 2

    out = braze.bench(Stops(), torch.randn(4), train=False, rounds=50, steps=1, quiet=True, modes=("nonsense",))
    eager, fast = out.rows
    assert eager.partial and eager.samples_per_s > 0
    assert "unknown mode" in fast.error
