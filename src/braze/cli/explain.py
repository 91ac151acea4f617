"""``braze explain``: what becomes of a model, on the terminal and as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from braze.bench.target import load, to_device
from braze.report import explain as explain_call

from .options import MODES, choice, console, on_device, users_code, writable


def explain(
    model: Annotated[str, typer.Argument(help="path.py:make_model, an import path, or resnet50, bert, hybrid")],
    html: Annotated[Path | None, typer.Option(help="write the report here, one page that needs nothing else")] = None,
    json: Annotated[Path | None, typer.Option(help="write the report's data here")] = None,
    level: Annotated[str | None, typer.Option(help='print one stage, such as "capture" or "forward: kernels"')] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the GPU where there is one")] = None,
    batch: Annotated[int | None, typer.Option(help="samples a step", min=1)] = None,
    size: Annotated[str, typer.Option(help="tiny, small or full inputs of the built-in models")] = "small",
    input: Annotated[  # noqa: A002
        list[str] | None, typer.Option(help="an input's sizes and dtype, such as 8x3x224x224; repeatable")
    ] = None,
    infer: Annotated[bool, typer.Option("--infer", help="the forward pass only, without gradients")] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="under bfloat16 autocast")] = False,
    mode: Annotated[str, typer.Option(help="the mode of braze.compile")] = "default",
    measure: Annotated[bool, typer.Option(help="time every kernel")] = True,
) -> None:
    """Compile a model, run it, and show its graphs, breaks, guards, kernels, memory and times."""
    device = on_device(device)
    choice(mode, MODES, "--mode")
    writable(html, json)
    with users_code(model):
        case = to_device(load(model, size, batch, tuple(input or ())), device)
    if isinstance(case.model, torch.nn.Module):
        case.model.train(not infer)
    run = explain_call(
        case.model, backward=not infer, measure=measure, quiet=True, mode=None if mode == "default" else mode
    )
    with users_code(model), torch.set_grad_enabled(not infer), torch.autocast(device, torch.bfloat16, enabled=bf16):
        out = run(*case.inputs, **case.kwargs)
    if level is not None:
        try:
            print(out.source(level))
        except ValueError as e:
            raise typer.BadParameter(str(e)) from None
    else:
        console().print(str(out), highlight=False, markup=False, soft_wrap=True)
    if html is not None:
        typer.echo(f"\nwrote {out.html(html)}")
    if json is not None:
        json.write_text(out.json())
