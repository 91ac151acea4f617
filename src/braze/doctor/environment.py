"""Checks of the machine and the installation. Facts first, as data, so that each check can be shown any machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from braze.config import Config

from .finding import Finding, estimated

TORCH = ((2, 11), (2, 14))
PYTHON = ((3, 11), (3, 13))
LLVMLITE = (0, 45)  # the oldest


@dataclass(frozen=True)
class Machine:
    """Facts about an installation."""

    python: tuple[int, int]
    torch: tuple[int, int]
    cuda: bool
    triton: bool
    llvmlite: bool
    disk_cache: bool
    cache: Path
    threads: int
    cores: int
    nvidia: bool = False  # the driver shows a GPU, whether torch can use it or not
    llvmlite_version: tuple[int, ...] = LLVMLITE
    checking: tuple[str, ...] = ()  # options that make compiling or every call slower


def this_machine(assume: str | None = None) -> Machine:
    """The facts here; ``assume="cuda"`` pretends that there is a GPU."""
    config = Config.from_env()
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    assert found is not None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        sys.version_info[:2],
        (int(found[1]), int(found[2])),
        torch.cuda.is_available() or assume == "cuda",
        importlib.util.find_spec("triton") is not None,
        importlib.util.find_spec("llvmlite") is not None,
        config.disk_cache,
        config.cache_path,
        torch.get_num_threads(),
        cores,
        Path("/dev/nvidia0").exists(),
        _version("llvmlite") or LLVMLITE,
        tuple(f"BRAZE_{name.upper()}" for name in ("debug", "verify") if getattr(config, name)),
    )


def _version(package: str) -> tuple[int, ...]:
    """The numbers of an installed package's version; none where there is no such package."""
    try:
        return tuple(int(n) for n in re.findall(r"\d+", importlib.metadata.version(package))[:2])
    except importlib.metadata.PackageNotFoundError:
        return ()


def versions(m: Machine) -> Iterator[Finding]:
    """Python and torch that braze is tested with."""
    for name, have, (low, high) in (("Python", m.python, PYTHON), ("torch", m.torch, TORCH)):
        if not low <= have <= high:
            span = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
            yield Finding(
                "versions",
                f"{name} {have[0]}.{have[1]} is outside of {span}",
                estimated("braze may refuse to load, or fall back to eager"),
                f"install {name} {high[0]}.{high[1]}",
            )

    if m.llvmlite and m.llvmlite_version < LLVMLITE:
        yield Finding(
            "versions",
            f"llvmlite {'.'.join(map(str, m.llvmlite_version))} is older than {'.'.join(map(str, LLVMLITE))}",
            estimated("CPU kernels may fail to compile: those graphs run in eager"),
            "pip install -U llvmlite",
        )


def driver(m: Machine) -> Iterator[Finding]:
    """A GPU that torch sees."""
    if m.nvidia and not m.cuda:
        yield Finding(
            "driver",
            "there is an NVIDIA GPU that this torch cannot use",
            estimated("everything runs on the CPU"),
            "install a CUDA build of torch, and a driver that is new enough for it",
        )


def checking(m: Machine) -> Iterator[Finding]:
    """Debugging left on."""
    for name in m.checking:
        yield Finding("checking", f"{name} is set", estimated("compiling takes up to twice as long"), f"unset {name}")


def triton(m: Machine) -> Iterator[Finding]:
    """A GPU needs Triton."""
    if m.cuda and not m.triton:
        yield Finding(
            "triton",
            "there is a GPU but no Triton",
            estimated("nothing is compiled on the GPU: all of it runs in eager"),
            "pip install triton",
        )


def llvmlite(m: Machine) -> Iterator[Finding]:
    """A CPU needs llvmlite."""
    if not m.llvmlite:
        yield Finding(
            "llvmlite",
            "llvmlite is not installed",
            estimated("nothing is compiled on the CPU: all of it runs in eager"),
            "pip install llvmlite",
        )


def cache(m: Machine) -> Iterator[Finding]:
    """The disk cache can be written."""
    cost = estimated("every process compiles everything again")
    if not m.disk_cache:
        yield Finding("cache", "the disk cache is switched off", cost, "unset BRAZE_DISK_CACHE")
        return
    folder = m.cache
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not _writable(folder):
        yield Finding(
            "cache", f"the cache folder {m.cache} cannot be written", cost, "set BRAZE_CACHE_DIR to a folder that can"
        )


def _writable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def threads(m: Machine) -> Iterator[Finding]:
    """As many threads as cores, at most."""
    if m.threads > m.cores:
        yield Finding(
            "threads",
            f"{m.threads} threads on {m.cores} cores",
            estimated("threads wait for each other at the end of every kernel"),
            f"torch.set_num_threads({m.cores}), or OMP_NUM_THREADS={m.cores}",
        )


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    versions,
    driver,
    triton,
    llvmlite,
    cache,
    threads,
    checking,
)


def check_machine(machine: Machine) -> list[Finding]:
    """All findings about an installation."""
    return [f for check in CHECKS for f in check(machine)]
