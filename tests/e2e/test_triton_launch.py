"""Triton kernels that user code launches, captured as calls of the graph, under Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_launches_are_calls_of_one_graph() -> None:
    pytest.importorskip("triton")
    script = Path(__file__).parent / "triton_programs.py"  # a process of its own: the interpreter is chosen at import
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    out = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=300)
    assert out.returncode == 0 and out.stdout.strip().endswith("done"), out.stderr[-3000:]


def test_the_example() -> None:
    pytest.importorskip("triton")
    script = Path(__file__).parents[2] / "examples" / "triton_kernels.py"
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert out.returncode == 0 and "as in eager" in out.stdout, out.stderr[-3000:]
