"""Each planted problem is found, nothing is reported on a clean script, and every check is planted once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from braze.cli.main import app
from braze.doctor import check_machine, diagnose, this_machine
from braze.doctor.environment import Machine
from scripts import CLEAN, CLEAN_GPU, PLANTED

GOOD = Machine((3, 12), (2, 12), True, True, True, True, Path.cwd(), 2, 2)
MACHINES = {
    "versions": replace(GOOD, torch=(2, 9)),
    "triton": replace(GOOD, triton=False),
    "llvmlite": replace(GOOD, llvmlite=False),
    "cache": replace(GOOD, cache=Path("/proc/none")),
    "threads": replace(GOOD, threads=64),
}


@pytest.fixture(autouse=True)
def _settings_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own test library, which other tests import, forbids scripts to set ``torch.backends`` flags."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)


def written(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", list(PLANTED))
def test_planted(name: str, tmp_path: Path) -> None:
    text, assume = PLANTED[name]
    found = diagnose(written(tmp_path, text), assume=assume, steps=6)
    hit = [f for f in found if f.check == name]
    assert hit, [f.check for f in found]
    for f in hit:
        assert f.fix and "\n" not in f.fix and f.cost
    if assume is None:
        assert {f.check for f in found} == {name}, found


@pytest.mark.parametrize("text, assume", [(CLEAN, None), (CLEAN_GPU, "cuda")], ids=["cpu", "gpu"])
def test_a_clean_script_is_clean(text: str, assume: str | None, tmp_path: Path) -> None:
    before = torch.Tensor.item, torch.nn.Module.__call__, torch.compile
    assert diagnose(written(tmp_path, text), assume=assume) == []
    assert (torch.Tensor.item, torch.nn.Module.__call__, torch.compile) == before


def test_findings_name_the_line(tmp_path: Path) -> None:
    path = written(tmp_path, PLANTED["host-sync"][0])
    (f,) = (f for f in diagnose(path, assume="cuda", steps=6) if f.check == "host-sync")
    assert path.read_text().splitlines()[f.line - 1].strip() == "last = loss.item()"
    assert "5 times in 6 steps" in f.what and f.cost.startswith("estimated")


@pytest.mark.parametrize("name", list(MACHINES))
def test_machines(name: str) -> None:
    assert {f.check for f in check_machine(MACHINES[name])} == {name}


def test_a_good_machine() -> None:
    assert check_machine(GOOD) == []
    assert check_machine(replace(GOOD, disk_cache=False))[0].check == "cache"
    assert this_machine().torch >= (2, 11)


def test_the_command(tmp_path: Path) -> None:
    path, data = written(tmp_path, PLANTED["zero-grad"][0]), tmp_path / "found.json"
    result = CliRunner().invoke(app, ["doctor", str(path), "--json", str(data)])
    assert result.exit_code == 1 and "zero-grad" in result.output and "fix:" in result.output
    assert [f["check"] for f in json.loads(data.read_text())[str(path)]] == ["zero-grad"]
    assert CliRunner().invoke(app, ["doctor", "no/such.py"]).exit_code == 2
