"""``braze doctor``: what slows a script down, and what to change."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from braze.doctor import Finding, check_machine, diagnose, this_machine

from .options import choice, console


def doctor(
    scripts: Annotated[list[Path] | None, typer.Argument(help="training or inference scripts; they are run")] = None,
    assume: Annotated[str | None, typer.Option(help="cuda: judge as if it ran on a GPU")] = None,
    steps: Annotated[int, typer.Option(help="optimizer steps to watch", min=1)] = 30,
    args: Annotated[str, typer.Option(help="arguments for the script")] = "",
    json: Annotated[Path | None, typer.Option(help="write the findings here")] = None,
) -> None:
    """Check the installation and, for each script, what slows it down. Exit status 1 when there is any finding."""
    if assume is not None:
        choice(assume, ("cuda", "cpu"), "--assume")
    out = console()
    groups: list[tuple[str, list[Finding]]] = [("this machine", check_machine(this_machine(assume)))]
    for script in scripts or []:
        if not script.is_file():
            raise typer.BadParameter(f"there is no file {script}")
        groups.append((str(script), diagnose(script, args.split(), assume, steps)))
    for name, findings in groups:
        out.print(
            f"[bold]{escape(name)}[/]: "
            + (f"{len(findings)} to look at" if findings else "[green]nothing to report[/]")
        )
        for f in findings:
            where = f"  [cyan]{escape(f.where)}[/]" if f.where else ""
            out.print(f"  [yellow]{f.check}[/]{where}  {escape(f.what)}", highlight=False)
            out.print(f"    cost: {escape(f.cost)}\n    fix:  {escape(f.fix)}", highlight=False)
    if json is not None:
        json.write_text(json_module.dumps({name: [asdict(f) for f in found] for name, found in groups}, indent=2))
    if any(found for _, found in groups):
        raise typer.Exit(1)
