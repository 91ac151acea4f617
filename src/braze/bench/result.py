"""What was measured, and its forms: JSON, Markdown, a table on the terminal, plots."""

from __future__ import annotations

import io
import json
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass
class Result:
    """One contender on one model. Times in seconds, memory in bytes; ``error`` is set when it failed."""

    model: str
    contender: str
    mode: str
    precision: str = "fp32"
    batch: int = 0
    step_s: float = 0.0
    spread_s: float = 0.0  # inter-quartile range of the rounds' medians
    samples_per_s: float = 0.0
    compile_s: float = 0.0  # first two steps less two steady ones, nothing cached
    warm_s: float | None = None  # the same in a second process that finds the first one's cache
    peak_bytes: int = 0
    breaks: int | None = None
    faults: float = 0.0  # page faults a step
    loss: float = 0.0
    error: str = ""
    rounds: list[float] = field(default_factory=list)
    partial: bool = False  # interrupted: fewer rounds than asked for
    clocks: list[float] = field(default_factory=list)  # MHz after each round, where the machine tells
    stages: dict[str, float] = field(default_factory=dict)  # seconds of the cold compile by stage

    @property
    def label(self) -> str:
        """How tables name the contender."""
        return (
            self.contender if self.contender == "eager" or self.mode == "default" else f"{self.contender} {self.mode}"
        )

    @property
    def case(self) -> tuple[str, str, int]:
        """What it is compared within: model, precision, batch."""
        return self.model, self.precision, self.batch

    def take(self, answer: dict[str, Any]) -> None:
        """An answer of a worker."""
        if "error" in answer:
            self.error = answer["error"] + "\n" + answer.get("traceback", "")
            return
        self.batch = answer.get("batch", self.batch)
        self.compile_s = answer.get("first_s", self.compile_s)
        self.loss = answer.get("loss", self.loss)
        self.peak_bytes = answer.get("peak_bytes", self.peak_bytes)
        self.breaks = answer.get("breaks", self.breaks)
        self.faults = answer.get("faults", self.faults)
        self.stages = answer.get("stages", self.stages)
        if "median_s" in answer:
            self.rounds.append(answer["median_s"])
            self.clocks += [answer["clock_mhz"]] if answer.get("clock_mhz") else []

    def finish(self, rounds: int = 0) -> Result:
        """With the medians over the rounds; ``rounds``: how many were planned."""
        if self.error or not self.rounds:
            return replace(self, error=self.error or "interrupted before the first round")
        step = statistics.median(self.rounds)
        quartiles = statistics.quantiles(self.rounds, n=4) if len(self.rounds) > 1 else [step] * 3
        return replace(
            self,
            step_s=step,
            spread_s=quartiles[2] - quartiles[0],
            samples_per_s=self.batch / step,
            compile_s=max(self.compile_s - 2 * step, 0.0),
            warm_s=None if self.warm_s is None else max(self.warm_s - 2 * step, 0.0),
            partial=len(self.rounds) < rounds,
        )


def _columns(results: list[Result], title: str) -> list[tuple[str, list[str]]]:
    """The table by column: heading and cells. Columns that say nothing are left out."""
    base = {r.case: r.samples_per_s for r in results if r.contender == "eager" and not r.error}
    rows = []
    for r in results:
        row = {"model": r.model, "precision": r.precision, "batch": str(r.batch or "-"), "contender": r.label}
        if r.error:
            rows.append({**row, "samples/s": "failed"})
            continue
        ratio = r.samples_per_s / base[r.case] if base.get(r.case) else 0.0
        compiled = r.contender != "eager"
        rows.append(
            row
            | {
                "samples/s": f"{r.samples_per_s:.1f}" + ("*" if r.partial else ""),
                "± %": f"{100 * r.spread_s / r.step_s:.0f}",
                "x eager": f"{ratio:.2f}" if ratio else "-",
                "ms/step": f"{1e3 * r.step_s:.1f}",
                "cold s": f"{r.compile_s:.2f}" if compiled else "-",
                "warm s": f"{r.warm_s:.2f}" if compiled and r.warm_s is not None else "-",
                "peak MiB": f"{r.peak_bytes / 2**20:.0f}",
                "breaks": "-" if r.breaks is None else str(r.breaks),
            }
        )
    names = list(dict.fromkeys(n for row in rows for n in row))
    if len({r.precision for r in results}) < 2:
        names = [n for n in names if n != "precision"]
    return [(n, [row.get(n, "") for row in rows]) for n in names if any(row.get(n, "-") != "-" for row in rows)]


_TEXT = ("model", "contender", "precision")


def to_table(results: list[Result], title: str) -> Table:
    """One row a contender; ratios are to eager on the same model (higher is faster)."""
    caption = "\n".join(filter(None, (notes(results), compile_stages(results))))
    table = Table(title=title, caption=caption, caption_justify="left")
    columns = _columns(results, title)
    for name, _ in columns:
        table.add_column(name, justify="left" if name in _TEXT else "right", no_wrap=True)
    for k, cells in enumerate(zip(*(cells for _, cells in columns))):
        style = "red" if results[k].error else None
        last = k + 1 == len(results) or results[k].case != results[k + 1].case
        table.add_row(*cells, style=style, end_section=last)
    return table


def to_markdown(results: list[Result], title: str) -> str:
    """The same table as Markdown."""
    columns = _columns(results, title)
    lines = [
        f"| {' | '.join(name for name, _ in columns)} |",
        f"|{'|'.join('---' if name in _TEXT else '---:' for name, _ in columns)}|",
    ]
    lines += [f"| {' | '.join(row)} |" for row in zip(*(cells for _, cells in columns))]
    note = notes(results)
    return "\n".join([f"**{title}**", "", *lines, *(["", note] if note else [])]) + "\n"


def notes(results: list[Result]) -> str:
    """What a reader has to know about the figures."""
    out = []
    if any(r.partial for r in results):
        out.append("*: interrupted, fewer rounds")
    noisy = [r for r in results if r.step_s and r.spread_s / r.step_s > 0.1]
    if noisy:
        out.append(f"{len(noisy)} of {len(results)} spread by over 10%: a busy machine, or a clock that changes")
    clocks = [c for r in results for c in r.clocks]
    if clocks and max(clocks) > 1.1 * min(clocks):
        out.append(f"the clock went between {min(clocks):.0f} and {max(clocks):.0f} MHz")
    drift = [later / earlier for earlier, later in (_halves(r.rounds) for r in results if len(r.rounds) > 3)]
    if drift and (min(drift) > 1.1 or max(drift) < 0.9):
        out.append(f"all contenders became {'slower' if drift[0] > 1 else 'faster'} during the run; the ratios hold")
    if any(r.faults > 1000 for r in results):
        worst = max(results, key=lambda r: r.faults)
        out.append(f"{worst.model} {worst.label}: {worst.faults:.0f} page faults a step, memory is not reused")
    return "; ".join(out)


def _halves(rounds: list[float]) -> tuple[float, float]:
    """The medians of the first and of the second half."""
    middle = len(rounds) // 2
    return statistics.median(rounds[:middle]), statistics.median(rounds[middle:])


def compile_stages(results: list[Result]) -> str:
    """One line a contender that tells: where its cold compile went."""
    lines = []
    for r in results:
        top = sorted(r.stages.items(), key=lambda kv: -kv[1])
        parts = [f"{name} {seconds:.2f}" for name, seconds in top if seconds >= 0.01][:6]
        if parts and not r.error:
            lines.append(f"{r.model} {r.label} compiled (s): {', '.join(parts)}")
    return "\n".join(lines)


def to_json(results: list[Result], about: dict[str, Any]) -> str:
    """The results and what they were measured on, as JSON."""
    return json.dumps({"about": about, "results": [asdict(r) for r in results]}, indent=2)


@dataclass
class Results:
    """What ``braze.bench(...)`` gives: printable, and writable in every form."""

    rows: list[Result]
    title: str
    about: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        out = io.StringIO()
        Console(width=140, file=out).print(to_table(self.rows, self.title))
        return out.getvalue()

    def json(self) -> str:
        return to_json(self.rows, self.about)

    def markdown(self) -> str:
        return to_markdown(self.rows, self.title)

    def plot(self, path: str | Path) -> Path:
        """Draw the results; the format is the path's suffix (png, svg, pdf)."""
        from .plot import save_plot

        save_plot(self.rows, Path(path), self.title)
        return Path(path)
