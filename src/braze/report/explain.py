"""``braze.explain(fn)(*args)``: what became of a function, as text, JSON and one self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from braze.api import compile as braze_compile
from braze.api import log_of
from braze.events import CompileLog

from .data import Report, cache_counts
from .html import to_html
from .measure import backward_of, measure_steps, memory_over_time, tensors_in, unchanged
from .text import to_text


@dataclass(frozen=True)
class Explanation:
    """The report of a compiled call, printable. ``output`` is what the call returned."""

    report: Report
    output: Any

    @property
    def log(self) -> CompileLog:
        return self.report.log

    def __str__(self) -> str:
        return to_text(self.report)

    def json(self) -> str:
        """Everything in the report as JSON, without the graphs' text."""
        return json.dumps(self.report.as_dict(), indent=1)

    def html(self, path: str | Path) -> Path:
        """Write one HTML page that needs nothing else; returns its path."""
        out = Path(path)
        out.write_text(to_html(self.report), encoding="utf-8")
        return out

    def source(self, level: str) -> str:
        """Every graph at one level ("capture", "joint", "forward: kernels", …) as Python. ValueError lists them."""
        found = [f"# {g.name}: {level}\n{g.levels[level]}" for g in self.log.graphs if level in g.levels]
        if not found:
            have = list(dict.fromkeys(name for g in self.log.graphs for name in g.levels))
            raise ValueError(f"no graph has the level {level!r}; there are {', '.join(have)}")
        return "\n\n".join(found)


def explain(
    fn: Callable[..., Any], *, backward: bool = False, measure: bool = False, quiet: bool = False, **options: Any
) -> Callable[..., Explanation]:
    """Compile ``fn`` (a function or module; ``options`` as for ``braze.compile``), call it, print and give the report.

    A function or module that ``braze.compile`` already made is called as it is, and its whole log is shown.
    ``backward=True`` also runs a backward pass from the sum of the outputs (no ``.grad`` changes), so that its kernels
    are shown. ``measure=True`` calls the function five more times to time every kernel and to watch its memory; random
    state and a module's buffers are put back. ``quiet=True`` prints nothing.
    """

    def call(*args: Any, **kwargs: Any) -> Explanation:
        compiled = fn if log_of(fn) is not None else braze_compile(fn, **options)

        def run() -> Any:
            out = compiled(*args, **kwargs)
            if backward:
                backward_of(out)
            return out

        output = run()
        log = log_of(compiled)
        assert log is not None
        log.guards = compiled._braze_session.describe_guards()  # type: ignore[union-attr]
        report = Report(log, cache=cache_counts(), title=log.name or name_of(fn))
        report.cuda = any(t.is_cuda for t in tensors_in((output, args, kwargs)))
        if measure:
            with unchanged(fn):
                run()
                report.times = measure_steps(log, run)
                report.memory = memory_over_time(run, report.cuda)
        out = Explanation(report, output)
        if not quiet:
            print(out)
        return out

    return call


def name_of(fn: Any) -> str:
    """What a report calls a function or module."""
    return type(fn).__name__ if isinstance(fn, torch.nn.Module) else getattr(fn, "__qualname__", type(fn).__name__)
