"""Every kernel of whole networks compiled for cards that are not there: what is refused, spills, or is too large.

    python benchmarks/gpu/compiles.py [resnet50 bert …] [--kinds training,step,dynamic] [--targets cuda:90,hip:gfx942]
        [--small] [--candidates] [--precision bf16|tf32] [--until ttgir]

One JSON line a network, kind and target: distinct kernels, the refused ones, those with registers spilled to memory
(bytes of stack a thread; 32 in a kernel with sin or cos are the library's own), those that a card could not launch, and
the largest number of registers and of bytes of shared memory. The exit code is 1 where a kernel is refused or could not
be launched.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captured import Part, program_of, training, whole_step
from networks import NETWORKS

from braze.config import Config
from braze.inductor.codegen.host import HostWriter
from braze.inductor.codegen.program import kernel_order
from braze.inductor.codegen.triton_emit import emit_triton
from braze.inductor.fuse.group import members
from braze.inductor.loops import Kernel
from braze.runtime.cuda_compile import Binary, compiler, request
from braze.runtime.cuda_kernel import TritonKernel
from braze.runtime.cuda_worker import compile_source, configure, describe

__all__ = ["KINDS", "Found", "audit", "emit_triton", "kernels_of", "program_of", "refusals"]
KINDS: dict[str, Callable[..., list[Part]]] = {
    "training": training,
    "step": whole_step,
    "dynamic": lambda *args, **kwargs: training(*args, dynamic=True, **kwargs),
}
MOST_SHARED = {"cuda:90": 232448, "hip:gfx942": 65536}  # bytes a program may have
MOST_THREADS = 1024


@dataclass
class Found:
    """What the kernels of one network are like on one target."""

    kernels: int = 0
    refused: list[str] = field(default_factory=list)
    impossible: list[str] = field(default_factory=list)
    spilled: dict[str, int] = field(default_factory=dict)
    registers: int = 0
    shared: int = 0

    @property
    def bad(self) -> list[str]:
        return self.refused + self.impossible


def kernels_of(parts: Iterable[Part], candidates: bool = False) -> list[TritonKernel]:
    """The distinct GPU kernels; with ``candidates`` in every launch that tuning may choose, and for any alignment."""
    out: dict[TritonKernel, None] = {}
    for part in parts:
        writer = HostWriter(part.program, kernel_order)
        writer.write()
        for group in writer.groups.values():
            out |= dict.fromkeys(group.kernels)
        grouped = members(part.program)
        for k, step in enumerate(part.program.steps):
            if isinstance(step, Kernel) and step.device.type == "cuda" and k not in grouped:
                code = emit_triton(step).code
                out[code] = None
                for launch in code.candidates if candidates else ():
                    out[code.with_launch(launch)] = None
                if candidates:
                    out[code.unaligned()] = None
    return list(out)


def audit(kernels: list[TritonKernel], target: str, config: Config | None = None) -> Found:
    """Compile all of them and look at the machine code."""
    make, found = compiler(target, config or Config.from_env()), Found(len(kernels))
    for code, job in [(c, make.submit(c)) for c in kernels]:
        shape = f"{code.name} {dict(code.launch.blocks)} {code.launch.num_warps} warps"
        error = job.exception()
        if error is not None:
            found.refused.append(f"{shape}: {str(error)[:400]}")
            continue
        binary = job.result()
        found.impossible += [f"{shape}: {text}" for text in limits(code, binary, target)]
        registers, stack = resources(binary, target)
        found.registers, found.shared = max(found.registers, registers), max(found.shared, binary.shared)
        if stack:
            found.spilled[shape] = stack
    return found


def refusals(kernels: Iterable[TritonKernel], target: str, until: str) -> list[str]:
    """What Triton says to the kernels that do not get to a stage before machine code ("ttir", "ttgir", "llir")."""
    configure()
    out = []
    for code in kernels:
        try:
            compile_source({**request(code, target), "until": until})
        except Exception as e:
            out.append(f"{code.name} {dict(code.launch.blocks)}: {describe(e)[:400]}")
    return out


def limits(code: TritonKernel, binary: Binary, target: str) -> list[str]:
    """Why the kernel could not be launched: nothing, usually."""
    out = [f"{n} = {b} is no power of two" for n, b in code.launch.blocks if b & (b - 1) or b < 1]
    if binary.shared > MOST_SHARED.get(target, MOST_SHARED["cuda:90"]):
        out.append(f"{binary.shared} bytes of shared memory")
    if code.launch.num_warps * (64 if target.startswith("hip") else 32) > MOST_THREADS:
        out.append("too many threads")
    if all(isinstance(g.numel, int) for g in code.grid) and code.programs() >= 2**31:
        out.append(f"{code.programs()} programs")
    return out


def resources(binary: Binary, target: str) -> tuple[int, int]:
    """(registers a thread, bytes a thread that live in memory for lack of registers)."""
    if target.startswith("hip"):
        return _entry(binary.image, b".vgpr_count"), _entry(binary.image, b".private_segment_fixed_size")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(binary.image)
        f.flush()
        done = subprocess.run([cuobjdump(), "-res-usage", f.name], capture_output=True, text=True, check=True)
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", done.stdout)[-1]
    return int(registers), int(stack)


def cuobjdump() -> str:
    """The tool that Triton brings with it."""
    from importlib.util import find_spec

    spec = find_spec("triton")
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump")


def _entry(image: bytes, name: bytes) -> int:
    """A number in the MessagePack notes of AMD machine code."""
    at = image.find(bytes((0xA0 + len(name),)) + name if len(name) < 32 else b"\xd9" + bytes((len(name),)) + name)
    if at < 0:
        return 0
    at = image.index(name, at) + len(name)
    size = {0xCC: 1, 0xCD: 2, 0xCE: 4}.get(image[at], 0)
    return int.from_bytes(image[at + 1 : at + 1 + size], "big") if size else image[at]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--kinds", default="training,step,dynamic")
    parser.add_argument("--targets", default="cuda:90")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "tf32"))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--candidates", action="store_true", help="every launch, and the variants for odd pointers")
    parser.add_argument("--until", default="", help="stop at a stage of Triton's (ttgir, llir): a fraction of the time")
    options = parser.parse_args()
    failed = False
    for name in options.networks:
        for kind in options.kinds.split(","):
            if kind == "step" and name == "llama-decode":
                continue
            start = time.perf_counter()
            row: dict[str, Any] = {"network": name, "kind": kind, "precision": options.precision}
            try:
                kernels = kernels_of(KINDS[kind](name, options.small, precision=options.precision), options.candidates)
            except Exception as e:
                print(json.dumps({**row, "failed": f"{type(e).__name__}: {str(e)[:400]}"}), flush=True)
                failed = True
                continue
            row["planned_s"] = round(time.perf_counter() - start, 1)
            for target in options.targets.split(","):
                row["target"] = target
                if options.until:
                    refused = refusals(kernels, target, options.until)
                    row |= {"kernels": len(kernels), "until": options.until, "refused": refused}
                    failed |= bool(refused)
                else:
                    found = audit(kernels, target)
                    row |= vars(found)
                    failed |= bool(found.bad)
                print(json.dumps(row), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
