"""The bench: cases build, workers answer, results are summed up, failures are shown and kept."""

from __future__ import annotations

import io
import json
import os

import pytest

from braze.bench.models import CASES, build
from braze.bench.runner import Result, _finish, measure
from braze.bench.table import save_plot, to_table
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


def test_worker_protocol() -> None:
    commands = [Job("hybrid", "eager", size="tiny").message(), json.dumps({"do": "run", "steps": 2}), '{"do": "stop"}']
    answers = io.StringIO()
    serve(io.StringIO("\n".join(commands)), answers)
    started, ran = (json.loads(x) for x in answers.getvalue().splitlines())
    assert started["first_s"] > 0 and started["batch"] == 2
    assert len(ran["times"]) == 2 and ran["loss"] > 0


def test_measure_interleaves_and_keeps_failures() -> None:
    said: list[str] = []
    jobs = [Job("hybrid", "eager", size="tiny", threads=1), Job("hybrid", "nonsense", size="tiny", device="nowhere")]
    good, bad = measure(jobs, os.environ, rounds=2, steps=1, warmup=1, progress=said.append)
    assert not good.error and good.samples_per_s > 0 and len(good.rounds) == 2
    assert "nowhere" in bad.error
    assert [s for s in said if "round" in s] == ["hybrid: eager, round 1 of 2", "hybrid: eager, round 2 of 2"]
    assert "failed" in "".join(str(c._cells) for c in to_table([good, bad], "t").columns)


def test_compile_time_excludes_the_steps_themselves() -> None:
    r = _finish(Result("m", "braze", "default", batch=4, compile_s=3.0, rounds=[0.5, 0.5, 0.5]))
    assert (r.step_s, r.samples_per_s, r.compile_s) == (0.5, 8.0, 2.0)


def test_plot(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    results = [Result("m", c, "default", samples_per_s=s, step_s=1 / s) for c, s in (("eager", 1.0), ("braze", 2.0))]
    for suffix in ("png", "svg"):
        save_plot(results, tmp_path / f"p.{suffix}", "title")
        assert (tmp_path / f"p.{suffix}").stat().st_size > 1000
