"""The cache as a whole: listing, size, clearing; a foreign file is never touched; warming fills it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from braze.cli.main import app
from braze.runtime.cache import DiskCache
from braze.runtime.cache_folder import clear, entries

run = CliRunner().invoke


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / "cache"))
    for kind in ("cpu", "tuned"):
        DiskCache(tmp_path / "cache" / kind).put("ab" * 32, b"x" * 1000)
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    (tmp_path / "cache" / "cpu" / ".tmp-1").write_bytes(b"half")
    return tmp_path / "cache"


def test_entries_and_clear(root: Path) -> None:
    found = entries(root)
    assert sorted(e.kind for e in found) == ["cpu", "cpu", "tuned"] and sum(e.nbytes for e in found) > 2000
    old = time.time() - 3600
    os.utime(root / "cpu" / ("ab" * 32), (old, old))
    assert clear(root, older_than=1800)[0] == 1
    assert clear(root)[0] == 2 and entries(root) == []
    assert (root / "notes.txt").read_text() == "mine"
    assert entries(root / "none") == []


def test_a_link_out_of_the_folder_stays(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    DiskCache(outside).put("cd" * 32, b"y")
    (root / "link").symlink_to(outside / ("cd" * 32))
    clear(root)
    assert (outside / ("cd" * 32)).exists() and (root / "link").is_symlink()


def test_commands(root: Path) -> None:
    out = run(app, ["cache", "list"]).output
    assert "cpu" in out and "tuned" in out
    assert "ab" * 8 in run(app, ["cache", "list", "--full"]).output
    assert "3 entries" in run(app, ["cache", "size"]).output
    assert "deleted 0" in run(app, ["cache", "clear", "--days", "2"]).output
    assert "deleted 3" in run(app, ["cache", "clear"]).output
    assert "is empty" in run(app, ["cache", "list"]).output


def test_warm(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(7, 5)\n"
        "fast = torch.compile(model)\n"
        "opt = torch.optim.SGD(model.parameters())\n"
        "while True:\n"
        "    (fast(torch.randn(3, 7)).tanh().sum()).backward()\n"
        "    opt.step()\n"
    )
    run(app, ["cache", "clear"])
    result = run(app, ["cache", "warm", str(script)])
    assert result.exit_code == 0 and "written" in result.output
    assert any(e.kind == "cpu" for e in entries(root))
    script.write_text("raise ValueError('no')")
    result = run(app, ["cache", "warm", str(script)])
    assert result.exit_code == 1 and "ValueError: no" in result.output
    assert run(app, ["cache", "warm", "nope.py"]).exit_code == 2
