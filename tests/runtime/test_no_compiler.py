"""CPU kernels are made without any compiler or assembler on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import shutil, torch, braze
assert not any(map(shutil.which, ("cc", "gcc", "g++", "c++", "clang", "clang++", "as", "ld", "make", "ninja")))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4))
fast = braze.compile(model, options={"strict": True, "disk_cache": False})
x = torch.randn(4, 8)
y = fast(x)
y.sum().backward()
assert torch.allclose(y, model(x), atol=1e-5)
graph = braze.api.log_of(fast).graphs[0]
assert not graph.fallback and len(graph.kernels) > 1
print("ran", len(graph.kernels), "kernels")
"""


def test_runs_without_a_compiler_on_the_path(tmp_path: Path) -> None:
    """An empty PATH, and compiler variables that would fail."""
    env = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX", "LD_PRELOAD")}
    env |= {
        "PATH": str(tmp_path),
        "CC": "/nonexistent/cc",
        "CXX": "/nonexistent/c++",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    out = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith("ran ")
