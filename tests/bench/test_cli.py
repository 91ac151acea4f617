"""The command line, run as a user does."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from braze.cli.main import app

run = CliRunner().invoke


def test_env() -> None:
    out = run(app, ["env"]).output
    assert "torch" in out and "threads" in out


def test_bench_refuses_unknown_words() -> None:
    for arguments in (["gpt"], ["--size", "huge"], ["--mode", "x"], ["--peer", "jax"]):
        result = run(app, ["bench", *arguments])
        assert result.exit_code == 2 and "must be one of" in result.output


def test_bench_writes_json(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    result = run(app, ["bench", "hybrid", "--size", "tiny", "--rounds", "1", "--steps", "1", "--json", str(path)])
    assert result.exit_code == 0, result.output
    data = json.loads(path.read_text())
    assert [r["contender"] for r in data["results"]] == ["eager", "braze"] and data["about"]["torch"]
    assert "x eager" in result.output
