"""One contender in its own process: reads commands as JSON lines, answers with JSON lines.

Commands: ``{"do": "start", ...Job}`` builds the case and runs the first two steps; ``{"do": "run", "steps": n}`` times
n steps; ``{"do": "stop"}`` ends. Lines ``{"stage": …}`` before an answer say what a compile is doing. Run as
``python -m braze.bench.worker``.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import torch

from braze.api import compile as braze_compile
from braze.api import log_of

from .about import clock
from .models import Case
from .target import load, tensors_of, to_device, users_traceback


@dataclass(frozen=True)
class Job:
    """What one worker measures. ``contender`` is "eager", "braze" or "torch"; ``model`` as ``target.load`` takes it."""

    model: str
    contender: str
    device: str = "cpu"
    precision: str = "fp32"
    mode: str | None = None
    size: str = "small"
    batch: int | None = None
    threads: int | None = None
    train: bool = True
    shapes: tuple[str, ...] = ()

    def message(self) -> str:
        return json.dumps({"do": "start", **asdict(self)})


class Contender:
    """A model under one compiler. ``step`` is forward, loss, backward and update, or only the forward pass."""

    def __init__(self, job: Job, case: Case | None = None, watch: Any = None) -> None:
        self.job = job
        if job.threads:
            torch.set_num_threads(job.threads)
        if job.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.precision != "fp32"
            torch.backends.cudnn.benchmark = True
        self.case = to_device(case or load(job.model, job.size, job.batch, job.shapes), job.device)
        module = isinstance(self.case.model, torch.nn.Module)
        if module:
            self.case.model.train(job.train)
        parameters = [p for p in self.case.model.parameters() if p.requires_grad] if module else []
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-4) if parameters and job.train else None
        self.forward = _compiled(self.case.model, job)
        log = log_of(self.forward)
        if log is not None:
            log.watch = watch

    def step(self) -> torch.Tensor:
        case = self.case
        cast = torch.autocast(self.job.device, torch.bfloat16, enabled=self.job.precision == "bf16")
        if not self.job.train:
            with cast, torch.no_grad():
                return tensors_of(self.forward(*case.inputs, **case.kwargs))[0]
        with cast:
            out = self.forward(*case.inputs, **case.kwargs)
            loss = case.loss(out, case.target)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss

    def sync(self) -> None:
        if self.job.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, steps: int) -> tuple[list[float], float]:
        """Seconds of each step, and the last loss (or the mean of the output)."""
        times, loss = [], torch.tensor(0.0)
        self.sync()
        for _ in range(steps):
            start = time.perf_counter()
            loss = self.step()
            self.sync()
            times.append(time.perf_counter() - start)
        return times, float(loss.detach().float().mean())

    def breaks(self) -> int | None:
        """Graph breaks so far; None where the compiler does not tell."""
        log = log_of(self.forward)
        return None if log is None else sum(b.count for b in log.breaks) + sum(bool(g.fallback) for g in log.graphs)

    def stages(self) -> dict[str, float]:
        """Seconds of compiling by stage so far; nothing where the compiler does not tell."""
        log = log_of(self.forward)
        total: Counter[str] = Counter(log.seconds) if log is not None else Counter()
        for g in log.graphs if log is not None else ():
            total.update({k: v for k, v in g.seconds.items() if k != "backend"})
        return dict(total)

    def start(self) -> dict[str, Any]:
        """The first two steps: what compiling costs."""
        first, _ = self.timed(2)
        if self.job.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        return {"first_s": sum(first), "batch": self.case.batch}

    def run(self, steps: int) -> dict[str, Any]:
        faults = _faults()
        times, loss = self.timed(steps)
        return {
            "median_s": statistics.median(times),
            "times": times,
            "loss": loss,
            "peak_bytes": _peak_bytes(self.job.device),
            "breaks": self.breaks(),
            "faults": (_faults() - faults) / steps,
            "clock_mhz": clock(self.job.device),
            "stages": self.stages(),
        }


def _compiled(model: Any, job: Job) -> Any:
    mode = None if job.mode in (None, "default") else job.mode
    if job.contender == "eager":
        return model
    if job.contender == "torch":
        return torch.compile(model, mode=mode)
    return braze_compile(model, mode=mode)


def _peak_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _faults() -> int:
    """Page faults of this process that needed no disk: memory that the kernel had to hand out."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class _Stages:
    """Tells the parent what a compile is doing, at most ten times a second."""

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        self.say, self.last = say, 0.0

    def enter(self, stage: str) -> None:
        if time.perf_counter() - self.last > 0.1:
            self.last = time.perf_counter()
            self.say({"stage": stage})

    def leave(self) -> None:
        return


def serve(commands: TextIO, answers: TextIO) -> None:
    """Answer commands until "stop" or the end of input. An exception is answered as ``{"error": …}``."""

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    contender: Contender | None = None
    for line in commands:
        command = json.loads(line)
        do = command.pop("do")
        if do == "stop":
            return
        try:
            if do == "start":
                command["shapes"] = tuple(command.get("shapes", ()))
                contender = Contender(Job(**command), watch=_Stages(say))
                say(contender.start())
            else:
                assert contender is not None
                say(contender.run(command["steps"]))
        except Exception as e:
            say({"error": f"{type(e).__name__}: {e}", "traceback": users_traceback(e)})


if __name__ == "__main__":
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # a model that prints must not break the protocol
        serve(sys.stdin, out)
