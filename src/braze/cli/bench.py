"""``braze bench``: training steps or forward passes under eager, braze and, on request, torch.compile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from braze.bench.about import about
from braze.bench.models import CASES, SIZES
from braze.bench.result import Result, to_json, to_markdown, to_table
from braze.bench.runner import Plan, measure
from braze.bench.target import resolve, tensor
from braze.bench.worker import Job

from .options import MODES, PRECISIONS, choice, choices, console, numbers, on_device, users_code, writable


def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="resnet50, bert, hybrid (all by default), path.py:make_model or an import path"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the GPU where there is one")] = None,
    batch: Annotated[str | None, typer.Option(help="samples a step, or several: 1,8,32")] = None,
    size: Annotated[
        str | None,
        typer.Option(help="tiny, small (on the CPU) or full (on a GPU) inputs of the built-in models"),
    ] = None,
    input: Annotated[  # noqa: A002
        list[str] | None,
        typer.Option(help="an input's sizes and dtype, such as 8x3x224x224 or 8x128:int64; repeatable"),
    ] = None,
    infer: Annotated[bool, typer.Option("--infer", help="forward passes instead of training steps")] = False,
    precision: Annotated[str, typer.Option(help="fp32, tf32, bf16 (autocast), or several")] = "fp32",
    mode: Annotated[str, typer.Option(help="the compilers' mode, or several, comma-separated")] = "default",
    peer: Annotated[str | None, typer.Option(help="torch: measure torch.compile too")] = None,
    rounds: Annotated[int, typer.Option(help="interleaved rounds", min=1)] = 5,
    steps: Annotated[int, typer.Option(help="steps a round", min=1)] = 3,
    warm: Annotated[bool, typer.Option(help="measure a second start, with the cache filled")] = True,
    threads: Annotated[int | None, typer.Option(help="CPU threads", min=1)] = None,
    json: Annotated[Path | None, typer.Option(help="write the results here")] = None,
    markdown: Annotated[Path | None, typer.Option(help="write the table here")] = None,
    plot: Annotated[list[Path] | None, typer.Option(help="draw the results here (png, svg, pdf); repeatable")] = None,
) -> None:
    """Time training steps (forward, loss, backward, AdamW) with and without braze. Ctrl-C keeps what was measured."""
    device = on_device(device)
    size = choice(size or ("full" if device == "cuda" else "small"), tuple(SIZES), "--size")
    peers = [choice(peer, ("torch",), "--peer")] if peer else []
    modes, precisions = choices(mode, MODES, "--mode"), choices(precision, PRECISIONS, "--precision")
    batches, shapes = numbers(batch, "--batch"), tuple(input or ())
    _check(models or [], shapes)
    writable(json, markdown, *(plot or []))
    contenders = [("eager", "default"), *((c, m) for c in ["braze", *peers] for m in modes)]
    groups = [
        [Job(name, c, device, p, m, size, b, threads, not infer, shapes) for c, m in contenders]
        for name in models or CASES
        for p in precisions
        for b in batches
    ]
    out = console()
    results = _run(groups, Plan(rounds, steps, warm=warm), out)
    what = "forward pass" if infer else "training step"
    title = f"{what}, {device}, {', '.join(precisions)}"
    _show(results, title, out)
    if json is not None:
        json.write_text(to_json(results, about()))
    if markdown is not None:
        markdown.write_text(to_markdown(results, title))
    for path in plot or []:
        _draw(results, path, title, out)
    if any(r.error for r in results):
        raise typer.Exit(1)


def _check(models: list[str], shapes: tuple[str, ...]) -> None:
    """Usage errors before any process starts."""
    for text in shapes:
        with users_code(text):
            tensor(text)
    for name in models:
        if name not in CASES:
            with users_code(name):
                resolve(name)


def _run(groups: list[list[Job]], plan: Plan, out: Console) -> list[Result]:
    results: list[Result] = []
    columns = (
        SpinnerColumn(),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("starting", total=sum(plan.units(jobs) for jobs in groups))
        try:
            for jobs in groups:
                measure(jobs, os.environ, plan, lambda text, n: bar.update(task, description=text, advance=n), results)
        except KeyboardInterrupt:
            out.print("[yellow]interrupted; what was measured follows[/]")
    return results


def _show(results: list[Result], title: str, out: Console) -> None:
    if results:
        out.print(to_table(results, title))
    for r in results:
        if r.error:
            out.print(f"[red]{r.model} {r.label}[/]\n{r.error}", highlight=False)


def _draw(results: list[Result], path: Path, title: str, out: Console) -> None:
    from braze.bench.plot import save_plot

    try:
        save_plot(results, path, title)
    except ImportError:
        out.print("[red]--plot needs matplotlib: pip install 'braze\\[bench]'[/]")
    except ValueError as e:
        out.print(f"[red]{path}: {e}[/]")
