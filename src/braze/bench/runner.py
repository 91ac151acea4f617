"""Drive the workers: all contenders of a model stay loaded, and take turns, so that drift hits them alike."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .result import Result
from .worker import Job

# glibc returns freed blocks over its thresholds to the kernel, and every contender then measures page faults.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
}


@dataclass(frozen=True)
class Plan:
    """How to measure: ``rounds`` rounds of ``steps`` steps after ``warmup`` steps; ``warm``: start each compiler once
    more on its own cache."""

    rounds: int = 5
    steps: int = 3
    warmup: int = 2
    warm: bool = False

    def units(self, jobs: list[Job]) -> int:
        """Steps of a progress bar."""
        again = sum(j.contender != "eager" for j in jobs) if self.warm else 0
        return len(jobs) * (1 + self.rounds) + again


PEER_BREAK = "Graph Break Reason:"  # once for each break in the log that TORCH_LOGS=graph_breaks writes


def _told(job: Job, inherited: Mapping[str, str]) -> dict[str, str]:
    """What has torch.compile say where it breaks."""
    if job.contender != "torch":
        return {}
    return {"TORCH_LOGS": ",".join(filter(None, (inherited.get("TORCH_LOGS"), "graph_breaks")))}


Progress = Callable[[str, int], None]  # what is under way, units done since the last call


class Worker:
    """A contender's process, in a session of its own: an interrupt from the keyboard does not reach it."""

    def __init__(self, job: Job, environ: Mapping[str, str]) -> None:
        self.job, self.log = job, tempfile.NamedTemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "braze.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**environ, **_told(job, environ)},
            start_new_session=True,
        )

    def ask(self, message: str, stage: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        """Send a command and wait for its answer; a dead process answers with its last words."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(message + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        while line := self.process.stdout.readline():
            answer: dict[str, Any] = json.loads(line)
            if "stage" not in answer:
                if self.job.contender == "torch" and "breaks" in answer:
                    answer["breaks"] = self._said().count(PEER_BREAK)
                return answer
            stage(answer["stage"])
        return {"error": f"the worker ended with code {self.process.wait()}", "traceback": self._said()[-4000:]}

    def _said(self) -> str:
        """What the process has written to standard error, read at a place of its own."""
        return Path(self.log.name).read_text(errors="replace")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


def measure(jobs: list[Job], environ: Mapping[str, str], plan: Plan, progress: Progress, into: list[Result]) -> None:
    """Measure the jobs (all of one model) in turns and append their results. An interrupt ends it with what there is:
    the results so far are appended before KeyboardInterrupt goes on."""
    pairs: list[tuple[Worker, Result]] = []
    try:
        with tempfile.TemporaryDirectory() as fresh:
            cold = {"BRAZE_CACHE_DIR": f"{fresh}/braze", "TORCHINDUCTOR_CACHE_DIR": f"{fresh}/torch"}
            env = {**environ, **MALLOC, **cold, "TRITON_CACHE_DIR": f"{fresh}/triton"}
            for job in jobs:
                worker, result = Worker(job, env), new_result(job)
                pairs.append((worker, result))
                _start(worker, result, plan, progress)
            for i in range(plan.rounds):
                for worker, result in pairs:
                    progress(f"{named(worker.job)}, round {i + 1} of {plan.rounds}", 0)
                    if not result.error:
                        result.take(worker.ask(json.dumps({"do": "run", "steps": plan.steps})))
                    progress(named(worker.job), 1)
            for worker, result in pairs if plan.warm else ():
                if worker.job.contender != "eager":
                    worker.stop()
                    _warm(worker.job, result, env, progress)
    finally:
        for worker, _ in pairs:
            worker.stop()
        into += [result.finish(plan.rounds) for _, result in pairs]


def _start(worker: Worker, result: Result, plan: Plan, progress: Progress) -> None:
    name = named(worker.job)
    verb = "compiles" if worker.job.contender != "eager" else "starts"
    progress(f"{name} {verb}", 0)
    result.take(worker.ask(worker.job.message(), lambda stage: progress(f"{name} {verb}: {stage}", 0)))
    if not result.error:
        result.take(worker.ask(json.dumps({"do": "run", "steps": plan.warmup})))
    result.rounds.clear()
    progress(name, 1)


def _warm(job: Job, result: Result, env: Mapping[str, str], progress: Progress) -> None:
    """The start of another process that finds a filled cache."""
    progress(f"{named(job)} starts again, cache filled", 0)
    if not result.error:
        worker = Worker(job, env)
        try:
            result.warm_s = worker.ask(job.message()).get("first_s")
        finally:
            worker.stop()
    progress(named(job), 1)


def named(job: Job) -> str:
    """How progress names a job."""
    mode = "" if job.mode in (None, "default") or job.contender == "eager" else f" {job.mode}"
    return f"{job.model.rsplit(':', 1)[-1]}: {job.contender}{mode}"


def new_result(job: Job) -> Result:
    """An empty result for a job."""
    model = job.model.rsplit(":", 1)[-1].rsplit(".", 1)[-1]
    return Result(model, job.contender, job.mode or "default", job.precision, job.batch or 0)
