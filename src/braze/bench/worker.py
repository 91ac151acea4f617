"""One contender in its own process: reads commands as JSON lines, answers with JSON lines.

Commands: ``{"do": "start", ...Job}`` builds the case and runs the first two steps; ``{"do": "run", "steps": n}`` times
n steps; ``{"do": "stop"}`` ends. Run as ``python -m braze.bench.worker``.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import torch

from .models import Case, build


@dataclass(frozen=True)
class Job:
    """What one worker measures. ``contender`` is "eager", "braze" or "torch"."""

    model: str
    contender: str
    device: str = "cpu"
    precision: str = "fp32"
    mode: str | None = None
    size: str = "small"
    batch: int | None = None
    threads: int | None = None

    def message(self) -> str:
        return json.dumps({"do": "start", **asdict(self)})


class Contender:
    """A model under one compiler, with its optimizer; ``step`` is forward, loss, backward, update."""

    def __init__(self, job: Job) -> None:
        self.job = job
        if job.threads:
            torch.set_num_threads(job.threads)
        if job.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.precision != "fp32"
            torch.backends.cudnn.benchmark = True
        case = build(job.model, job.size, job.batch)
        self.case = Case(
            case.model.to(job.device).train(),
            tuple(x.to(job.device) for x in case.inputs),
            case.target.to(job.device),
            case.loss,
            case.batch,
        )
        self.optimizer = torch.optim.AdamW(self.case.model.parameters(), lr=1e-4)
        self.forward = _compiled(self.case.model, job)

    def step(self) -> torch.Tensor:
        case = self.case
        with torch.autocast(self.job.device, torch.bfloat16, enabled=self.job.precision == "bf16"):
            loss = case.loss(self.forward(*case.inputs), case.target)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def sync(self) -> None:
        if self.job.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, steps: int) -> tuple[list[float], float]:
        """Seconds of each step, and the last loss."""
        times, loss = [], torch.tensor(0.0)
        self.sync()
        for _ in range(steps):
            start = time.perf_counter()
            loss = self.step()
            self.sync()
            times.append(time.perf_counter() - start)
        return times, float(loss.detach())


def _compiled(model: torch.nn.Module, job: Job) -> Any:
    mode = None if job.mode in (None, "default") else job.mode
    if job.contender == "eager":
        return model
    if job.contender == "torch":
        return torch.compile(model, mode=mode)
    import braze

    return braze.compile(model, mode=mode)


def _peak_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(commands: TextIO, answers: TextIO) -> None:
    """Answer commands until "stop" or the end of input. An exception is answered as ``{"error": …}``."""
    contender: Contender | None = None
    for line in commands:
        command = json.loads(line)
        do = command.pop("do")
        if do == "stop":
            return
        answer: dict[str, Any]
        try:
            if do == "start":
                contender = Contender(Job(**command))
                base = _peak_bytes(contender.job.device)
                first, _ = contender.timed(2)
                answer = {"first_s": sum(first), "batch": contender.case.batch, "base_bytes": base}
                if contender.job.device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
            else:
                assert contender is not None
                times, loss = contender.timed(command["steps"])
                peak = _peak_bytes(contender.job.device)
                answer = {"median_s": statistics.median(times), "times": times, "loss": loss, "peak_bytes": peak}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}", "traceback": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # a model that prints must not break the protocol
        serve(sys.stdin, out)
