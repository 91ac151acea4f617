"""The command line, run as a user does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from braze.cli.main import app

run = CliRunner().invoke


def test_env() -> None:
    out = run(app, ["env"]).output
    assert "torch" in out and "threads" in out


def test_bench_refuses_unknown_words() -> None:
    for arguments in (["--size", "huge"], ["--mode", "x"], ["--peer", "jax"], ["--precision", "fp32,fp7"]):
        result = run(app, ["bench", *arguments])
        assert result.exit_code == 2 and "must be one of" in result.output
    for arguments, said in (
        (["gpt"], "is no model"),
        (["--batch", "0"], "positive"),
        (["--input", "3y3"], "is no input"),
    ):
        result = run(app, ["bench", *arguments])
        assert result.exit_code == 2 and said in result.output


def test_bench_a_user_model(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\ndef make_model():\n    return torch.nn.Linear(4, 4), torch.randn(2, 4), lambda y: y.sum()\n"
    )
    paths = {k: tmp_path / f"r.{k}" for k in ("json", "md", "png")}
    spec = f"{tmp_path}/mine.py:make_model"
    options = ["--rounds", "1", "--steps", "1", "--batch", "3", "--no-warm", "--json", str(paths["json"])]
    result = run(app, ["bench", spec, *options, "--markdown", str(paths["md"]), "--plot", str(paths["png"])])
    assert result.exit_code == 0, result.output
    data = json.loads(paths["json"].read_text())
    assert [(r["contender"], r["batch"]) for r in data["results"]] == [("eager", 3), ("braze", 3)]
    assert data["about"]["torch"] and data["results"][1]["breaks"] == 0
    assert "x eager" in result.output and "make_model" in paths["md"].read_text() and paths["png"].exists()


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    command = [sys.executable, "-m", "braze.cli.main", "bench", "hybrid", "--size", "tiny", "--no-warm"]
    process = subprocess.Popen(
        [*command, "--rounds", "100000", "--steps", "1", "--json", str(path)], stdout=subprocess.PIPE, text=True
    )
    time.sleep(18)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert "interrupted" in out
    rows = json.loads(path.read_text())["results"]
    assert rows[0]["contender"] == "eager" and (rows[0]["partial"] or rows[0]["error"])


def test_explain_a_user_model(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(
        "import torch\ndef make_model():\n    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())\n"
    )
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    spec = f"{tmp_path}/theirs.py:make_model"
    result = run(app, ["explain", spec, "--html", str(page), "--json", str(data)])
    assert result.exit_code == 0, result.output
    assert "1 graph, 0 breaks" in result.output and "Slowest steps:" in result.output
    assert "braze: Sequential" in page.read_text()
    assert {s["side"] for s in json.loads(data.read_text())["steps"]} == {"forward", "backward"}
    result = run(app, ["explain", spec, "--infer", "--no-measure", "--level", "forward: kernels"])
    assert result.exit_code == 0 and "@kernel" in result.output
    result = run(app, ["explain", spec, "--no-measure", "--level", "nope"])
    assert result.exit_code == 2 and "there are capture" in result.output.replace("\n", " ")
