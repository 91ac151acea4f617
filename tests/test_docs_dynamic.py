"""The blocks of docs/dynamic_shapes.md run, one after another, and print what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

TEXT = (Path(__file__).parent.parent / "docs" / "dynamic_shapes.md").read_text()


def test_blocks_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    for n, block in enumerate(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)):
        path = tmp_path / f"block_{n}.py"  # a file, so that reports can quote its lines
        path.write_text(block)
        exec(compile(block, str(path), "exec"), scope)  # noqa: S102
    out = capsys.readouterr().out
    for text in (
        "2 <= x.shape[0] <= 512",
        "y.shape[0] == x.shape[0]",
        "t.shape[0] was marked dynamic (strict), but the program needs it to be 8",
        "x.shape[0] = s0: 2 to 512",
        "y.shape[0] = x.shape[0]: equal, which",
    ):
        assert text in out, text
