"""A report as data: everything that text, JSON and HTML show, computed once from a log."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch

from braze.config import Config
from braze.events import CompileLog
from braze.runtime.cache import opened

from .machine import Rates, rates
from .measure import Key
from .sources import Listing, listings
from .steps import Side, sides_of

SIDES = ("forward", "backward")
STAGES = ("prims", "loops", "kernels", "host", "code")


@dataclass
class Report:
    """What a compiled function did. ``times``: seconds of each step, by graph and side, where they were measured."""

    log: CompileLog
    times: dict[Key, dict[int, float]] = field(default_factory=dict)
    cuda: bool = False
    cache: dict[str, dict[str, int]] = field(default_factory=dict)
    title: str = "report"
    memory: list[tuple[float, int]] = field(default_factory=list)  # measure.memory_over_time

    @property
    def peak(self) -> int:
        """Most bytes of tensors that a call held beyond what there was before it; 0 when not measured."""
        return max((nbytes for _, nbytes in self.memory), default=0)

    @cached_property
    def machine(self) -> Rates | None:
        """The roofline, where steps were measured."""
        return rates(torch.device("cuda" if self.cuda else "cpu")) if self.times else None

    @cached_property
    def sides(self) -> list[Side]:
        out = [side for record in self.log.graphs for side in sides_of(record)]
        for side in out:
            took = self.times.get((side.graph, side.side), {})
            for step in side.steps:
                step.seconds = took.get(step.index, 0.0)
                if self.machine is not None:
                    step.bound = self.machine.bound(step.nbytes, step.flops, step.dtype)
        return out

    @cached_property
    def sources(self) -> list[Listing]:
        return listings(self.log, self.sides)

    @property
    def compile_seconds(self) -> float:
        backends = sum(g.seconds.get("backend", 0.0) for g in self.log.graphs)
        return sum(self.log.seconds.values()) + backends + self._late

    @property
    def _late(self) -> float:
        """Backward programs, compiled at the first backward pass, after the backend had returned."""
        out = 0.0
        for g in self.log.graphs:
            whole = [s for s in g.spans if s.stage == "backend"]
            out += sum(s.end - s.start for s in g.spans if whole and s.start > whole[-1].end)
        return out

    @property
    def stages(self) -> dict[str, float]:
        """Seconds by stage, over all graphs."""
        total: Counter[str] = Counter(self.log.seconds)
        for g in self.log.graphs:
            total.update({k: v for k, v in g.seconds.items() if k != "backend"})
        return dict(total)

    def timeline(self) -> list[dict[str, Any]]:
        """Every stage's span, in seconds from the first one's start."""
        spans = [("", s) for s in self.log.spans]
        spans += [(g.name, s) for g in self.log.graphs for s in g.spans]
        if not spans:
            return []
        start = min(s.start for _, s in spans)
        rows = [{"graph": g, "stage": s.stage, "start": s.start - start, "end": s.end - start} for g, s in spans]
        return sorted(rows, key=lambda r: (r["start"], -r["end"]))

    def graphs(self) -> list[dict[str, Any]]:
        """One row a graph; the text of each level is made on demand."""
        out = []
        for g in self.log.graphs:
            calls = [n for n in g.graph.nodes if n.op == "call"]
            ops = Counter(getattr(n.target, "__name__", str(n.target)) for n in calls)
            out.append(
                {
                    "name": g.name,
                    "inputs": len(g.graph.inputs),
                    "calls": len(calls),
                    "ops": dict(ops.most_common()),
                    "kernels": len(g.kernels),
                    "distinct": sum(len(c.kernels) for c in g.compiled.values()),
                    "fallback": g.fallback,
                    "notes": list(g.notes),
                    "cache": dict(g.cache),
                    "choice": g.choice,
                    "levels": list(g.levels),
                }
            )
        return out

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as ``json()`` writes it."""
        from .text import verdict

        return {
            "title": self.title,
            "verdict": verdict(self),
            "compile_seconds": self.compile_seconds,
            "stages": self.stages,
            "timeline": self.timeline(),
            "graphs": self.graphs(),
            "breaks": [_event(b) for b in self.log.breaks],
            "recompiles": [_event(r) for r in self.log.recompiles],
            "sizes": {frame: [asdict(n) for n in notes.values()] for frame, notes in self.log.sizes.items() if notes},
            "guard_failures": [_event(f) for f in self.log.guard_failures],
            "guards": list(self.log.guards),
            "gave_up": list(self.log.gave_up),
            "steps": [s.as_dict() for side in self.sides for s in side.steps],
            "memory": {f"{s.graph}: {s.side}": [asdict(m) for m in s.memory] for s in self.sides},
            "measured_memory": {"peak": self.peak, "held": self.memory},
            "source": [x.as_dict() for x in self.sources],
            "machine": asdict(self.machine) if self.machine is not None else None,
            "cache": self.cache,
            "versions": versions(),
        }


def _event(e: Any) -> dict[str, Any]:
    out = asdict(e)
    out["loc"] = None if e.loc is None else {"file": e.loc.file, "line": e.loc.line, "text": e.loc.text}
    return out


def versions() -> dict[str, str]:
    """What the report was made with."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
        "gpu": gpu,
        "cache folder": str(Config.from_env().cache_path),
    }


def cache_counts() -> dict[str, dict[str, int]]:
    """Hits, misses, damaged and written entries of each cache folder in this process."""
    return {folder: asdict(counts) for folder, counts in opened().items()}
