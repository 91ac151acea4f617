"""What this machine can do at best, measured once and kept: the two lines of the roofline."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from braze.config import Config


@dataclass(frozen=True)
class Rates:
    """``bandwidth``: bytes a second, reads and writes counted, of a large copy; ``flops``: operations a second of a
    large matrix product, by dtype."""

    device: str
    bandwidth: float
    flops: dict[str, float]

    def bound(self, nbytes: int, flops: int, dtype: str) -> float:
        """Seconds that a step takes at least at these rates."""
        rate = self.flops.get(dtype) or self.flops["float32"]
        return max(nbytes / self.bandwidth, flops / rate)


def processor() -> str:
    """The processor's name."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    found = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")
    return found or platform.processor() or platform.machine()


def rates(device: torch.device, config: Config | None = None) -> Rates:
    """The device's rates: from the cache folder, or measured (about half a second) and kept there."""
    config = config or Config.from_env()
    gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if gpu else processor()
    how = f"{torch.get_float32_matmul_precision()} precision" if gpu else f"{torch.get_num_threads()} threads"
    key = f"{device.type} {name}, {how}, torch {torch.__version__}"
    path = config.cache_path / "machine.json"
    known = _read(path)
    found = _parse(known.get(key))
    if found is None:
        found = _measure(device, name)
        _write(path, {**known, key: asdict(found)})
    return found


def _parse(row: Any) -> Rates | None:
    """None for a row that is missing or of another version's form."""
    try:
        out = Rates(**row)
        return out if out.bandwidth > 0 and out.flops["float32"] > 0 else None
    except (TypeError, KeyError):
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _write(path: Path, data: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1))
    except OSError:
        return


def _measure(device: torch.device, name: str) -> Rates:
    gpu = device.type == "cuda"
    n = min(1 << 28, torch.cuda.mem_get_info(device)[0] // 16) if gpu else 1 << 25
    a, b = torch.ones(n, device=device), torch.empty(n, device=device)
    copy = 2 * a.numel() * a.element_size() / _best(lambda: b.copy_(a), device)
    side = 8192 if gpu else 1536
    flops = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16) if gpu else (torch.float32,):
        x = torch.randn(side, side, device=device).to(dtype)
        flops[str(dtype).removeprefix("torch.")] = 2 * side**3 / _best(partial(torch.mm, x, x), device)
    return Rates(name, copy, flops)


def _best(run: Callable[[], object], device: torch.device, times: int = 5) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best
