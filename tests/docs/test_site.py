"""Every Python block of the documentation runs, page by page; the site builds without a warning."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> str:
    """The page's blocks as one program, each at its own line."""
    text, out, at = page.read_text(), "", 1
    for m in BLOCK.finditer(text):
        line = text.count("\n", 0, m.start(1)) + 1
        out += "\n" * (line - at) + m[1]
        at = line + m[1].count("\n")
    return out


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / f"{page.stem}_page.py"  # a file: capture reads the source of what it compiles
    script.write_text(blocks(page))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", ROOT / "mkdocs.yml", "-d", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "tutorial.html").exists()
