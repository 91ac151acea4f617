"""All measurements of this folder on a card, the most wanted first, within a time limit.

    python benchmarks/gpu/all.py [--minutes 15] [--only train,step] [--out results/NAME.jsonl] [--small]

Prints JSON lines: those of the scripts it runs, each with the job's name, and one a job with its exit code and seconds.
A job that does not fit into the rest of the time is cut short or left out, and says so. ``--small`` tries all of it out
on a machine without a card.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BENCH = ["resnet50", "bert", "hybrid"]
OTHERS = ["llama", "vit", "convnext", "unet"]


@dataclass(frozen=True)
class Job:
    """One process. ``limit``: seconds; ``small``: its arguments without a card, None where it needs one."""

    name: str
    arguments: list[str]
    limit: float
    small: list[str] | None = None


def script(file: str, *arguments: str) -> list[str]:
    return [str(HERE / file), *arguments]


def jobs() -> Iterator[Job]:
    """The measurements, the most wanted first."""
    braze = ["--compilers", "braze"]
    yield Job("gradients", script("gradients.py", *BENCH), 120, script("gradients.py", "bert", "--small"))
    modes = ["--modes", "default,reduce-overhead,max-autotune"]
    yield Job("train", script("train.py", *BENCH, *braze, *modes), 150, script("train.py", "hybrid", *braze, "--small"))
    steps = "eager-fused,module:,whole"
    yield Job("step", script("step.py", *BENCH, "--only", steps), 200, script("step.py", "bert", "--device", "cpu"))
    budgets = ["--modes", "reduce-overhead@0.95,reduce-overhead@0.9"]
    yield Job("memory", script("train.py", *BENCH, *braze, *budgets), 100)
    yield Job("tf32", script("train.py", *BENCH, *braze, "--precision", "tf32"), 100)
    both = ["--compilers", "braze,torch", "--limit", "90"]
    yield Job("networks", script("train.py", *OTHERS, *both, "--modes", "reduce-overhead"), 300)
    yield Job("decode", script("train.py", "llama-decode", *both, "--modes", "default,reduce-overhead"), 100)
    tests = ["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", str(ROOT / "tests")]
    yield Job("tests", tests, 240)
    yield Job("tf32 gradients", script("gradients.py", *BENCH, "--precision", "tf32", "--modes", "default"), 60)
    yield Job("kernels", script("kernels.py"), 60)
    yield Job("products", script("matmul.py", "--seconds", "40"), 70)
    yield Job("steps", script("steps.py", *BENCH), 120)
    yield Job("eager", script("train.py", *BENCH, *OTHERS, "--compilers", "eager"), 120)


def run(job: Job, arguments: list[str], limit: float, out: TextIO) -> dict[str, Any]:
    """Run a job, passing on its JSON lines at once; the rest of its text goes along, shortened."""
    start = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=environment,
        cwd=ROOT,
    )
    alarm = _ended_after(process, limit)
    text: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        try:
            row = json.loads(line) if line.startswith("{") else None
        except ValueError:
            row = None
        if row is None:
            text.append(line.rstrip())
        else:
            say({"job": job.name, **row}, out)
    code = process.wait()
    alarm.cancel()
    seconds = time.monotonic() - start
    return {"job": job.name, "code": code, "seconds": round(seconds, 1), "cut": seconds >= limit, "text": text[-60:]}


def _ended_after(process: subprocess.Popen[str], limit: float) -> Any:
    """Ends the process and its children at the limit, unless cancelled."""
    import threading

    def end() -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    alarm = threading.Timer(limit, end)
    alarm.daemon = True
    alarm.start()
    return alarm


def say(row: dict[str, Any], out: TextIO) -> None:
    for stream in {sys.stdout, out}:
        print(json.dumps(row), file=stream, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--only", default="", help="names of jobs")
    parser.add_argument("--out", default="", help="also write the lines to this file")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    with open(options.out or os.devnull, "w") as out:
        for job in jobs():
            arguments = job.small if options.small else job.arguments
            if arguments is None or options.only and job.name not in options.only.split(","):
                continue
            left = end - time.monotonic()
            if left < 20:
                say({"job": job.name, "left_out": "no time left"}, out)
                continue
            say(run(job, arguments, min(job.limit, left), out), out)


if __name__ == "__main__":
    main()
