"""Triton kernels to machine code: parallel worker processes, remembered in the process and on disk.

Measured (one kernel, Triton 3.6 and 3.8): 95 to 120 ms, of which LLVM takes half and ptxas a third.  Triton's LLVM
step holds the GIL while it links libdevice (28 ms) and its front end is Python, so threads in one process do not scale:
a worker is a process that imports triton alone (0.15 s).  Workers start with the first job, end after ``IDLE`` seconds
without one, and end with this process, since their input closes.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from braze.config import Config

from . import cuda_worker
from .cache import DiskCache
from .cuda_kernel import TritonKernel

IDLE = 20.0  # seconds
Exclusive = Callable[[], AbstractContextManager[Any]]
MOST_WORKERS = 32
_WORKER = Path(__file__).with_name("cuda_worker.py")


@dataclass(frozen=True)
class Binary:
    """Machine code of one kernel. ``name`` is its entry, ``threads`` a program's, ``shared`` its dynamic shared memory
    in bytes, ``scratch`` the bytes of global memory that each program wants (for TMA descriptors)."""

    image: bytes
    name: str
    threads: int
    shared: int
    scratch: int = 0


class CompileError(RuntimeError):
    """Triton refused a kernel, or its compiler crashed: a bug in braze's generator or in Triton."""


def request(kernel: TritonKernel, target: str) -> dict[str, Any]:
    """The worker's request for a kernel."""
    return {
        "name": kernel.name,
        "source": kernel.source,
        "signature": kernel.signature,
        "constants": dict(kernel.launch.blocks),
        "num_warps": kernel.launch.num_warps,
        "num_stages": kernel.launch.num_stages,
        "aligned": kernel.aligned,
        "divisible": kernel.divisible,
        "assertions": kernel.assertions,
        "target": target,
    }


class _Process:
    """One worker process, which gets ready for a target if one is given."""

    def __init__(self, target: str = "") -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-P", str(_WORKER), *filter(None, [target])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

    def compile(self, message: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """The answer and the binary. CompileError when the process died."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            cuda_worker.write_message(self.process.stdin, message)  # type: ignore[arg-type]
            answer = cuda_worker.read_message(self.process.stdout)  # type: ignore[arg-type]
        except OSError:
            answer = None
        if answer is None:
            raise CompileError(f"the Triton compiler died (exit code {self.process.wait()}) on {message['name']}")
        return answer, self.process.stdout.read(answer["size"])

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except OSError:
            pass
        self.process.terminate()  # it holds nothing that could be lost
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Pool:
    """Compiles in up to ``workers`` processes, each with a thread here that talks to it."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.target = ""
        self.jobs: queue.SimpleQueue[tuple[dict[str, Any] | None, Future[Any], Exclusive]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.threads = 0
        self.busy = 0  # threads with a job
        self.waiting = 0  # jobs not yet taken
        self.processes: set[_Process] = set()

    def submit(
        self, message: dict[str, Any], exclusive: Exclusive = nullcontext
    ) -> Future[tuple[dict[str, Any], bytes] | bytes]:
        """Compile in the background, inside ``exclusive()``; what that gives, if anything, is the result instead."""
        future: Future[Any] = Future()
        with self.lock:
            self.waiting += 1
            start = self.threads < self.workers and self.waiting > self.threads - self.busy
            self.threads += start
        self.jobs.put((message, future, exclusive))
        if start:
            self._start()
        return future

    def warm(self, count: int, target: str = "") -> None:
        """Start processes ahead of the jobs, which will be for ``target``."""
        with self.lock:
            self.target = target
            more = max(0, min(count, self.workers) - self.threads)
            self.threads += more
        for _ in range(more):
            self._start()

    def _start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="braze-compile").start()

    def _run(self) -> None:
        process = self._spawn()
        try:
            while True:
                try:
                    message, future, exclusive = self.jobs.get(timeout=IDLE)
                except queue.Empty:
                    return
                if message is None:
                    return
                with self.lock:
                    self.waiting, self.busy = self.waiting - 1, self.busy + 1
                process = self._serve(process, message, future, exclusive)
                with self.lock:
                    self.busy -= 1
        finally:
            with self.lock:
                self.threads -= 1
            if process is not None:
                process.close()
                self.processes.discard(process)

    def _spawn(self) -> _Process | None:
        try:
            process = _Process(self.target)
        except OSError:  # no processes here: compile in this one
            return None
        self.processes.add(process)
        return process

    def _serve(
        self, process: _Process | None, message: dict[str, Any], future: Future[Any], exclusive: Exclusive
    ) -> _Process | None:
        try:
            with exclusive() as result:
                if result is None:
                    result = cuda_worker.compile_source(message) if process is None else process.compile(message)
                future.set_result(result)
            return process
        except BaseException as e:  # noqa: BLE001 (goes to whoever waits)
            future.set_exception(e)
        if process is not None and process.process.poll() is not None:
            self.processes.discard(process)
            return self._spawn()
        return process

    def close(self) -> None:
        """End all processes; jobs in flight fail."""
        for p in list(self.processes):
            p.close()


class Compiler:
    """Kernels to binaries, each distinct one once."""

    def __init__(self, target: str, cache: DiskCache, pool: Pool) -> None:
        self.target, self.cache, self.pool = target, cache, pool
        self.lock = threading.Lock()
        self.known: dict[str, Future[Binary]] = {}
        self.compiled = 0

    def submit(self, kernel: TritonKernel) -> Future[Binary]:
        """The kernel's binary, when it is ready."""
        key = kernel.key(f"{self.target} triton {triton_version()}")
        with self.lock:
            future = self.known.get(key)
            if future is not None:
                return future
            future = self.known[key] = Future()
        stored = self.cache.get(key)
        if stored is not None:
            future.set_result(unpack(stored))
            return future
        self.compiled += 1
        job = self.pool.submit(request(kernel, self.target), partial(self.cache.exclusive, key))
        job.add_done_callback(lambda done: self._finish(key, kernel, done, future))
        return future

    def _finish(self, key: str, kernel: TritonKernel, done: Future[Any], future: Future[Binary]) -> None:
        error = done.exception()
        if error is None:
            result = done.result()
            if isinstance(result, bytes):  # another process has made it
                future.set_result(unpack(result))
                return
            answer, image = result
            if "error" not in answer:
                payload = pack(answer, image)
                self.cache.put(key, payload)
                future.set_result(unpack(payload))
                return
            error = CompileError(f"Triton cannot compile {kernel.name}: {answer['error']}\n{kernel.source}")
        with self.lock:
            self.known.pop(key, None)
        future.set_exception(error)

    def compile(self, kernels: Sequence[TritonKernel]) -> list[Binary]:
        """All of them, in parallel. CompileError for the first that fails."""
        return [f.result() for f in [self.submit(k) for k in kernels]]


def pack(answer: dict[str, Any], image: bytes) -> bytes:
    """A cache entry."""
    if answer.get("profile_scratch_size"):
        raise CompileError(f"{answer['name']} wants memory for profiles, which the launcher does not give")
    kept = {k: answer.get(k) for k in ("name", "num_warps", "shared", "global_scratch_size")}
    head = json.dumps(kept).encode()
    return struct.pack("<q", len(head)) + head + image


def unpack(payload: bytes) -> Binary:
    """A cache entry's binary."""
    (n,) = struct.unpack("<q", payload[:8])
    head = json.loads(payload[8 : 8 + n])
    scratch = head.get("global_scratch_size") or 0
    return Binary(payload[8 + n :], head["name"], head["num_warps"] * 32, head["shared"] or 0, scratch)


@lru_cache(maxsize=1)
def triton_version() -> str:
    """Triton's version without importing it, "" when it is not installed."""
    for name in ("triton", "pytorch-triton", "triton-windows"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def worker_count(config: Config) -> int:
    """Processes to use: ``compile_workers``, else one a core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return config.compile_workers or max(1, min(MOST_WORKERS, cores))


@lru_cache(maxsize=4)
def pool(workers: int) -> Pool:
    """The process' pool."""
    made = Pool(workers)
    atexit.register(made.close)
    return made


@lru_cache(maxsize=8)
def compiler(target: str, config: Config) -> Compiler:
    """The process' compiler for a target such as "cuda:90"."""
    folder = config.cache_path / target.replace(":", "-") if config.disk_cache else None
    return Compiler(target, DiskCache(folder), pool(worker_count(config)))
