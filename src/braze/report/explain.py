"""``braze.explain(fn)(*args)``: graphs, breaks with the user's lines, guards, kernels, time by stage, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from braze.api import compile as braze_compile
from braze.api import log_of
from braze.events import CompileLog, GraphRecord


@dataclass(frozen=True)
class Explanation:
    """The log of a compiled call, printable. ``output`` is what the call returned."""

    log: CompileLog
    output: Any

    def __str__(self) -> str:
        parts = [verdict(self.log), *(_graph(g) for g in self.log.graphs), _breaks(self.log), _recompiles(self.log)]
        return "\n\n".join(filter(None, [*parts, _guards(self.log), _times(self.log)]))

    def source(self, level: str) -> str:
        """Every graph at one level ("capture", "joint", "forward: kernels", …) as Python. ValueError lists them."""
        found = [f"# {g.name}: {level}\n{g.levels[level]}" for g in self.log.graphs if level in g.levels]
        if not found:
            have = list(dict.fromkeys(name for g in self.log.graphs for name in g.levels))
            raise ValueError(f"no graph has the level {level!r}; there are {', '.join(have)}")
        return "\n\n".join(found)


def explain(fn: Callable[..., Any], **options: Any) -> Callable[..., Explanation]:
    """Compile ``fn`` (a function or module; ``options`` as for ``braze.compile``), call it, print and give the report.

    A function or module that ``braze.compile`` already made is called as it is, and its whole log is shown.
    """

    def call(*args: Any, **kwargs: Any) -> Explanation:
        compiled = fn if log_of(fn) is not None else braze_compile(fn, **options)
        output = compiled(*args, **kwargs)
        log = log_of(compiled)
        assert log is not None
        log.guards = compiled._braze_session.describe_guards()  # type: ignore[union-attr]
        out = Explanation(log, output)
        print(out)
        return out

    return call


def verdict(log: CompileLog) -> str:
    """The report's first lines: is it one graph, does all of it run compiled, how long did it take."""
    graphs, breaks = len(log.graphs), sum(b.count for b in log.breaks)
    kernels = sum(len(g.kernels) for g in log.graphs)
    eager = [g.name for g in log.graphs if g.fallback]
    total = sum(log.seconds.values()) + sum(g.seconds.get("backend", 0.0) for g in log.graphs)
    counts = [_plural(graphs, "graph"), _plural(breaks, "break"), _plural(kernels, "kernel")]
    lines = [f"{', '.join(counts)}, {total:.2f} s to compile."]
    if eager:
        lines.append(f"Runs in eager after a compile failure: {', '.join(eager)}.")
    if not graphs:
        lines.append("Nothing was captured: the function ran as plain Python.")
    return "\n".join(lines)


def _plural(n: int, word: str) -> str:
    return f"{n} {word}" + ("" if n == 1 else "s")


def _graph(g: GraphRecord) -> str:
    calls = [n for n in g.graph.nodes if n.op == "call"]
    ops = Counter(getattr(n.target, "__name__", str(n.target)) for n in calls)
    top = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in ops.most_common(8))
    lines = [f"{g.name}: {len(g.graph.inputs)} inputs, {_plural(len(calls), 'call')}: {top}"]
    if g.fallback:
        lines.append(f"  runs in eager: {g.fallback}")
    lines += [f"  CUDA graph: {note}" for note in g.notes]
    names = Counter(str(k) for k in g.kernels)
    lines += [f"  kernel {name}" + (f" x{n}" if n > 1 else "") for name, n in names.items()]
    return "\n".join(lines)


def _breaks(log: CompileLog) -> str:
    lines = []
    for b in log.breaks:
        lines.append(f"  {b.loc or 'unknown line'}  (x{b.count}, {b.seconds:.2f} s)\n    why:    {b.reason}")
        if b.hint:
            lines.append(f"    remedy: {b.hint}")
    return "\n".join(["Graph breaks:", *lines]) if lines else ""


def _recompiles(log: CompileLog) -> str:
    lines = []
    for r in log.recompiles:
        lines.append(f"  {r.frame}: {r.reason} ({r.seconds:.2f} s)")
        if r.loc is not None:
            lines.append(f"    needed: {r.loc}")
        if r.hint:
            lines.append(f"    remedy: {r.hint}")
    return "\n".join(["Recompiles:", *lines]) if lines else ""


def _guards(log: CompileLog) -> str:
    if not log.guards:
        return ""
    shown = [f"  {g}" for g in log.guards[:20]]
    more = len(log.guards) - len(shown)
    return "\n".join(["Guards:", *shown, *([f"  … and {more} more lines"] if more else [])])


def _times(log: CompileLog) -> str:
    stages: Counter[str] = Counter(log.seconds)
    for g in log.graphs:
        stages.update({k: v for k, v in g.seconds.items() if k != "backend"})
    lines = [f"  {name:12} {1e3 * seconds:8.1f} ms" for name, seconds in stages.items()]
    return "\n".join(["Time by stage:", *lines]) if lines else ""
