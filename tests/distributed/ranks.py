"""A pool of gloo processes that run functions of test modules, one result a rank.

The processes stay up between tests (importing torch costs seconds). A rank that fails is reported with its traceback
and the pool is started anew; one that hangs fails the test after ``timeout`` seconds (its start not counted).
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)
COLLECTIVE_TIMEOUT = 300  # seconds; a busy machine may starve a rank for long
START_TIMEOUT = 300


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def worker(rank: int, world: int, port: int, env: dict[str, str], patience: int, pipe: Any) -> None:
    os.environ.update(env, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    sys.path.insert(0, HERE)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0, timeout=timedelta(seconds=START_TIMEOUT))
    store.set(f"up {rank}", "")
    store.wait([f"up {k}" for k in range(world)])  # a busy machine imports torch at very different speeds
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=patience))
    pipe.send("ready")
    while True:
        job = pipe.recv()
        if job is None:
            break
        module, name, kwargs = job
        try:
            torch.manual_seed(0)
            pipe.send(("ok", getattr(importlib.import_module(module), name)(**kwargs)))
        except BaseException:
            pipe.send(("failed", traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """``ranks.run("cases", "ddp", steps=3) -> [result of rank 0, …]``. A collective waits ``patience`` seconds."""

    def __init__(self, world: int, env: dict[str, str] | None = None, patience: int = COLLECTIVE_TIMEOUT) -> None:
        self.world, self.env, self.patience = world, env or {}, patience
        self.processes: list[Any] = []
        self.pipes: list[Any] = []

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        port = free_port()
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            args = (rank, self.world, port, self.env, self.patience, theirs)
            process = context.Process(target=worker, args=args, daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        end = time.monotonic() + START_TIMEOUT
        for pipe, process in zip(self.pipes, self.processes):
            answer = self._answer(pipe, process, end)
            assert answer == "ready", f"a rank does not start: {answer}"

    def stop(self) -> None:
        for pipe, process in zip(self.pipes, self.processes):
            try:
                pipe.send(None)
            except OSError:
                pass
            pipe.close()
            process.join(0.2)
            if process.is_alive():
                process.kill()
                process.join()
        self.processes, self.pipes = [], []

    def run(self, module: str, function: str, timeout: float = 600.0, **kwargs: Any) -> list[Any]:
        answers = self.answers(module, function, timeout, **kwargs)
        failed = [f"rank {k} {kind}:\n{value}" for k, (kind, value) in enumerate(answers) if kind != "ok"]
        if failed:
            self.stop()
            raise AssertionError("\n".join(failed))
        return [value for _, value in answers]

    def answers(self, module: str, function: str, timeout: float, **kwargs: Any) -> list[tuple[str, Any]]:
        """("ok", result), ("failed", traceback), ("died", exit code) or ("hangs", seconds) of each rank."""
        if not self.processes:
            self.start()
        for pipe in self.pipes:
            pipe.send((module, function, kwargs))
        end = time.monotonic() + timeout
        return [self._answer(pipe, p, end) for pipe, p in zip(self.pipes, self.processes)]

    def _answer(self, pipe: Any, process: Any, end: float) -> Any:
        try:
            if pipe.poll(max(0.0, end - time.monotonic())):
                return pipe.recv()
        except EOFError:
            process.join(5)
            return "died", process.exitcode
        return "hangs", "no answer in time"
