"""``braze bisect``: the first stage that makes a wrong answer, with a repro."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from braze.bench.target import load, to_device
from braze.bisect import bisect as run

from .options import on_device, users_code, writable


def bisect(
    model: Annotated[str, typer.Argument(help="path.py:make_model, an import path, or resnet50, bert, hybrid")],
    out: Annotated[Path, typer.Option(help="where the repro goes")] = Path("repro.py"),
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the GPU where there is one")] = None,
    batch: Annotated[int | None, typer.Option(help="samples", min=1)] = None,
    size: Annotated[str, typer.Option(help="tiny, small or full inputs of the built-in models")] = "tiny",
    input: Annotated[list[str] | None, typer.Option(help="an input's sizes and dtype; repeatable")] = None,  # noqa: A002
) -> None:
    """Run every stage's interpreter on the same inputs and name the first that differs. Exit status 1 when one does."""
    device = on_device(device)
    writable(out)
    with users_code(model):
        case = to_device(load(model, size, batch, tuple(input or ())), device)
    if isinstance(case.model, torch.nn.Module):
        case.model.train()
    with users_code(model):
        found = run(case.model, out)(*case.inputs, **case.kwargs)
    typer.echo(str(found))
    if found.stage:
        raise typer.Exit(1)
