"""A report as text for a terminal."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .data import Report
from .steps import Step


def plural(n: int, word: str) -> str:
    """``1 graph``, ``2 graphs``."""
    return f"{n} {word}" + ("" if n == 1 else "s")


def size(nbytes: int) -> str:
    """``3.4 MiB``; in KiB or bytes where that is less than 0.1."""
    if nbytes < 1024:
        return f"{nbytes} B"
    return f"{nbytes / 2**10:.1f} KiB" if nbytes < 2**20 / 10 else f"{nbytes / 2**20:.1f} MiB"


def rate(per_second: float) -> str:
    """``1.2 TFLOP/s`` or ``34 GFLOP/s``."""
    return f"{per_second / 1e12:.1f} TFLOP/s" if per_second >= 1e12 else f"{per_second / 1e9:.0f} GFLOP/s"


def verdict(report: Report) -> list[str]:
    """Three sentences: what was captured and how long it took, what stands in the way, what to do next."""
    log = report.log
    kernels, graphs, breaks = sum(len(g.kernels) for g in log.graphs), len(log.graphs), sum(b.count for b in log.breaks)
    counts = [plural(graphs, "graph"), plural(breaks, "break"), plural(kernels, "kernel")]
    counts[2:2] = [plural(len(log.recompiles), "recompile")] if log.recompiles else []
    first = f"{', '.join(counts)}, {report.compile_seconds:.2f} s to compile."
    if not graphs:
        first = f"Nothing was captured: the function ran as plain Python ({plural(breaks, 'break')})."
    return [first, _obstacle(report), _advice(report)]


def _obstacle(report: Report) -> str:
    log = report.log
    eager = [g for g in log.graphs if g.fallback]
    if eager:
        return f"Runs in eager after a compile failure: {', '.join(g.name for g in eager)} ({eager[0].fallback})."
    if log.gave_up:
        return f"It was compiled too often and runs in eager when no version fits: {log.gave_up[-1]}."
    if log.breaks:
        b = max(log.breaks, key=lambda b: b.count)
        return f"The graph breaks at {b.loc or 'an unknown line'}: {b.reason}."
    if log.recompiles:
        r = log.recompiles[-1]
        return f"It was compiled {plural(len(log.recompiles), 'more time')}, last because {r.reason}."
    return (
        "All of it runs compiled, without a graph break or a recompile." if log.graphs else "No tensor call was seen."
    )


def _advice(report: Report) -> str:
    log = report.log
    hints = [b.hint for b in log.breaks if b.hint] + [r.hint for r in log.recompiles if r.hint]
    if hints:
        return f"To do: {hints[0]}" + ("" if hints[0].endswith(".") else ".")
    steps = [s for side in report.sides for s in side.steps if s.seconds]
    if steps:
        return _where_time_goes(steps)
    return "Nothing to do." if log.graphs and not log.breaks else "See the graph breaks below."


def _where_time_goes(steps: list[Step]) -> str:
    total = sum(s.seconds for s in steps)
    vendor = sum(s.seconds for s in steps if s.kind == "vendor")
    own = [s for s in steps if s.kind == "kernel"]
    text = f"Of {1e3 * total:.2f} ms, {100 * vendor / total:.0f}% are vendor calls (products, convolutions, attention)"
    if not own:
        return text + "."
    s = max(own, key=lambda s: s.seconds)
    where = f" from {s.lines[0][0].rsplit('/', 1)[-1]}:{s.lines[0][1]}" if s.lines else ""
    part = f"{100 * s.seconds / total:.0f}%, {100 * s.share:.0f}% of the roofline"
    return f"{text}; the slowest kernel is {s.name}{where} ({part})."


def top_steps(report: Report, n: int) -> list[Step]:
    """The steps that took longest, where times were measured."""
    steps = [s for side in report.sides for s in side.steps if s.seconds]
    return sorted(steps, key=lambda s: -s.seconds)[:n]


def to_text(report: Report) -> str:
    """Everything but the graphs' own text."""
    parts = ["\n".join(verdict(report)), *map(_graph, report.graphs()), _breaks(report), _recompiles(report)]
    parts += [_sizes(report), _steps(report), _memory(report), _guards(report), _stages(report)]
    return "\n\n".join(filter(None, parts))


def _graph(g: dict[str, Any]) -> str:
    ops = list(g["ops"].items())
    top = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in ops[:8])
    more = f", … ({len(ops) - 8} more kinds)" if len(ops) > 8 else ""
    lines = [f"{g['name']}: {plural(g['inputs'], 'input')}, {plural(g['calls'], 'call')}: {top}{more}"]
    if g["fallback"]:
        lines.append(f"  runs in eager: {g['fallback']}")
    lines += [f"  CUDA graph: {note}" for note in g["notes"]]
    if g["cache"]:
        lines.append("  disk cache: " + ", ".join(f"{side} {what}" for side, what in g["cache"].items()))
    if g["choice"]:
        lines.append(f"  never slower: {g['choice']}")
    if g["kernels"]:
        lines.append(f"  {plural(g['kernels'], 'kernel')}, {g['distinct']} distinct")
    return "\n".join(lines)


def _breaks(report: Report) -> str:
    lines = []
    for b in report.log.breaks:
        spent = f", {b.seconds:.2f} s" if b.seconds else ""
        lines.append(f"  {b.loc or 'unknown line'}  (x{b.count}{spent})\n    why:    {b.reason}")
        if b.hint:
            lines.append(f"    remedy: {b.hint}")
    return "\n".join(["Graph breaks:", *lines]) if lines else ""


def _recompiles(report: Report) -> str:
    lines = []
    for r in report.log.recompiles:
        lines.append(f"  {r.frame}: {r.reason} ({r.seconds:.2f} s)")
        lines += [f"    line:   {r.loc}"] if r.loc else []
        lines += [f"    remedy: {r.hint}"] if r.hint else []
    return "\n".join(["Recompiles:", *lines]) if lines else ""


def _sizes(report: Report) -> str:
    """Which sizes and Python ints are symbolic, and why others that vary are not."""
    lines = []
    for frame, notes in report.log.sizes.items():
        lines += [f"  {frame}", *(f"    {note}" for note in notes.values())] if notes else []
    return "\n".join(["Symbolic sizes:", *lines]) if lines else ""


def _steps(report: Report) -> str:
    rows = top_steps(report, 12)
    if not rows:
        names = Counter(str(k) for g in report.log.graphs for k in g.kernels)
        shown = [f"  kernel {name}" + (f" x{n}" if n > 1 else "") for name, n in names.most_common(12)]
        more = [f"  … and {len(names) - 12} more"] if len(names) > 12 else []
        return "\n".join(["Kernels:", *shown, *more]) if shown else ""
    lines = [f"  {'ms':>8} {'MB':>8} {'GFLOP':>8} {'roofline':>8}  step"]
    for s in rows:
        where = f"  ({s.lines[0][0].rsplit('/', 1)[-1]}:{s.lines[0][1]})" if s.lines else ""
        numbers = f"{1e3 * s.seconds:8.3f} {s.nbytes / 1e6:8.2f} {s.flops / 1e9:8.3f} {100 * s.share:7.0f}%"
        lines.append(f"  {numbers}  {s.side} {s.name}{where}")
    return "\n".join(["Slowest steps:", *lines])


def _memory(report: Report) -> str:
    if not report.peak:
        return ""
    return f"Memory: at most {size(report.peak)} of tensors beyond what there was before the call."


def _guards(report: Report) -> str:
    guards = report.log.guards
    if not guards:
        return ""
    more = [f"  … and {len(guards) - 20} more lines"] if len(guards) > 20 else []
    return "\n".join(["Guards:", *(f"  {g}" for g in guards[:20]), *more])


def _stages(report: Report) -> str:
    lines = [f"  {name:12} {1e3 * seconds:8.1f} ms" for name, seconds in report.stages.items()]
    return "\n".join(["Time by stage:", *lines]) if lines else ""
