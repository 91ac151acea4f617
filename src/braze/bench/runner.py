"""Drive the workers: all contenders of a model stay loaded, and take turns, so that drift hits them alike."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .worker import Job

# glibc returns freed blocks over its thresholds to the kernel, and every contender then measures page faults.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}
Progress = Callable[[str], None]


@dataclass
class Result:
    """One contender on one model. Times in seconds, memory in bytes; ``error`` is set when it failed."""

    model: str
    contender: str
    mode: str
    batch: int = 0
    step_s: float = 0.0
    spread_s: float = 0.0  # inter-quartile range of the rounds' medians
    samples_per_s: float = 0.0
    compile_s: float = 0.0  # first two steps less two steady ones
    peak_bytes: int = 0
    loss: float = 0.0
    error: str = ""
    rounds: list[float] = field(default_factory=list)


class Worker:
    """A contender's process."""

    def __init__(self, job: Job, environ: Mapping[str, str]) -> None:
        self.job, self.log = job, tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "braze.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=dict(environ),
        )

    def ask(self, message: str) -> dict[str, Any]:
        """Send a command and wait for its answer; a dead process answers with its last words."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(message + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.log.seek(0)
            return {"error": f"the worker ended with code {self.process.wait()}", "traceback": self.log.read()[-4000:]}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


def measure(
    jobs: list[Job], environ: Mapping[str, str], rounds: int, steps: int, warmup: int, progress: Progress
) -> list[Result]:
    """Results of the jobs (all of one model), measured in turns: ``rounds`` rounds of ``steps`` steps each."""
    workers: list[tuple[Worker, Result]] = []
    try:
        with tempfile.TemporaryDirectory() as fresh:
            cold = {"BRAZE_CACHE_DIR": f"{fresh}/braze", "TORCHINDUCTOR_CACHE_DIR": f"{fresh}/torch"}
            env = {**environ, **MALLOC, **cold, "TRITON_CACHE_DIR": f"{fresh}/triton"}
            for job in jobs:
                progress(f"{job.model}: {job.contender} compiles")
                worker = Worker(job, env)
                result = Result(job.model, job.contender, job.mode or "default")
                workers.append((worker, result))
                _take(result, worker.ask(job.message()))
                if not result.error:
                    _take(result, worker.ask(json.dumps({"do": "run", "steps": warmup})))
                result.rounds.clear()
            for i in range(rounds):
                for worker, result in workers:
                    if not result.error:
                        progress(f"{result.model}: {result.contender}, round {i + 1} of {rounds}")
                        _take(result, worker.ask(json.dumps({"do": "run", "steps": steps})))
    finally:
        for worker, _ in workers:
            worker.stop()
    return [_finish(result) for _, result in workers]


def _take(result: Result, answer: dict[str, Any]) -> None:
    if "error" in answer:
        result.error = answer["error"] + "\n" + answer.get("traceback", "")
        return
    result.batch = answer.get("batch", result.batch)
    result.compile_s = answer.get("first_s", result.compile_s)
    result.loss = answer.get("loss", result.loss)
    result.peak_bytes = answer.get("peak_bytes", result.peak_bytes)
    if "median_s" in answer:
        result.rounds.append(answer["median_s"])


def _finish(result: Result) -> Result:
    if result.error or not result.rounds:
        return result
    step = statistics.median(result.rounds)
    quartiles = statistics.quantiles(result.rounds, n=4) if len(result.rounds) > 1 else [step] * 3
    return replace(
        result,
        step_s=step,
        spread_s=quartiles[2] - quartiles[0],
        samples_per_s=result.batch / step,
        compile_s=max(result.compile_s - 2 * step, 0.0),
    )


def to_json(results: list[Result], about: dict[str, Any]) -> str:
    """The results and what they were measured on, as JSON."""
    return json.dumps({"about": about, "results": [asdict(r) for r in results]}, indent=2)
