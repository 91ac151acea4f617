"""The examples run under torchrun, learn, and give eager's losses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def losses(example: str, *arguments: str) -> list[float]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "BRAZE_STRICT": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(ROOT / "examples" / example), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return [float(x) for x in re.findall(r"loss (\d+\.\d+)|same batch: (\d+\.\d+)", done.stdout) for x in x if x]


@pytest.mark.parametrize("example", ["ddp_classifier.py", "fsdp_decoder.py"])
def test_example_learns(example: str) -> None:
    got = losses(example)
    assert len(got) >= 4 and got[3] < 0.7 * got[0], got


@pytest.mark.slow
@pytest.mark.parametrize("example", ["ddp_classifier.py", "fsdp_decoder.py"])
def test_example_equals_eager(example: str) -> None:
    got, want = losses(example), losses(example, "--eager")
    assert len(got) == len(want) and all(abs(a - b) < 0.05 + 0.05 * b for a, b in zip(got, want)), (got, want)
