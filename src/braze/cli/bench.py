"""``braze bench``: training steps of the bench models under eager, braze and, on request, torch.compile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from braze.bench.models import CASES, SIZES
from braze.bench.runner import Result, measure, to_json
from braze.bench.table import save_plot, to_table
from braze.bench.worker import Job

from .env import about

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _choice(value: str, allowed: tuple[str, ...], what: str) -> str:
    if value not in allowed:
        raise typer.BadParameter(f"{what} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def bench(
    models: Annotated[list[str] | None, typer.Argument(help="resnet50, bert, hybrid; all by default")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    batch: Annotated[int | None, typer.Option(help="samples a step; by size when not given")] = None,
    size: Annotated[str, typer.Option(help="tiny, small or full inputs")] = "small",
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16 (autocast)")] = "fp32",
    mode: Annotated[str, typer.Option(help="the compilers' mode")] = "default",
    peer: Annotated[str | None, typer.Option(help="torch: measure torch.compile too")] = None,
    rounds: Annotated[int, typer.Option(help="interleaved rounds")] = 5,
    steps: Annotated[int, typer.Option(help="training steps a round")] = 3,
    threads: Annotated[int | None, typer.Option(help="CPU threads")] = None,
    json: Annotated[Path | None, typer.Option(help="write the results here")] = None,
    plot: Annotated[Path | None, typer.Option(help="draw the results here (png, svg, pdf)")] = None,
) -> None:
    """Time training steps (forward, loss, backward, AdamW) with and without braze."""
    _choice(device, ("cpu", "cuda"), "--device")
    _choice(size, tuple(SIZES), "--size")
    _choice(precision, ("fp32", "tf32", "bf16"), "--precision")
    _choice(mode, MODES, "--mode")
    contenders = ["eager", "braze"] + ([_choice(peer, ("torch",), "--peer")] if peer else [])
    names = [_choice(m, tuple(CASES), "MODEL") for m in models or CASES]
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    results: list[Result] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        try:
            for name in names:
                jobs = [Job(name, c, device, precision, mode, size, batch, threads) for c in contenders]
                results += measure(jobs, os.environ, rounds, steps, 2, lambda text: bar.update(task, description=text))
        except KeyboardInterrupt:
            console.print("[yellow]interrupted; what was measured follows[/]")
    title = f"training step, {device}, {precision}, {size} inputs"
    console.print(to_table(results, title))
    for r in results:
        if r.error:
            console.print(f"[red]{r.model} {r.contender}[/]\n{r.error}", highlight=False)
    if json is not None:
        json.write_text(to_json(results, about()))
    if plot is not None:
        save_plot([r for r in results if not r.error], plot, title)
    if any(r.error for r in results):
        raise typer.Exit(1)
