"""``braze doctor``: what slows a script down, and what to change."""

from __future__ import annotations

import contextlib
import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from braze.doctor import Finding, check_machine, check_run, observe, this_machine
from braze.doctor.script import INTERRUPTED

from .options import choice, console, writable


def doctor(
    scripts: Annotated[list[Path] | None, typer.Argument(help="training or inference scripts; they are run")] = None,
    assume: Annotated[str | None, typer.Option(help="cuda: judge as if it ran on a GPU")] = None,
    steps: Annotated[int, typer.Option(help="optimizer steps to watch", min=1)] = 30,
    args: Annotated[str, typer.Option(help="arguments for the script")] = "",
    json: Annotated[Path | None, typer.Option(help="write the findings here")] = None,
) -> None:
    """Check the installation and, for each script, what slows it down. Exit status 1 when there is any finding.

    Scripts really run (twice, at most so many steps; what they print goes to standard error). Ctrl-C ends a script and
    judges what was seen.
    """
    if assume is not None:
        choice(assume, ("cuda", "cpu"), "--assume")
    for script in scripts or []:
        if not script.is_file():
            raise typer.BadParameter(f"there is no file {script}")
    writable(json)
    out = console()
    groups = {"this machine": check_machine(this_machine(assume))}
    _show(out, "this machine", groups["this machine"])
    for script in scripts or []:
        with contextlib.redirect_stdout(sys.stderr):  # what the script prints
            seen = observe(script, args.split(), assume, steps)
        groups[str(script)] = check_run(seen)
        _show(out, str(script), groups[str(script)])
        if seen.error == INTERRUPTED:
            out.print("[yellow]interrupted; that is what was seen so far[/]")
            break
    if json is not None:
        data = {name: [asdict(f) for f in found] for name, found in groups.items()}
        json.write_text(json_module.dumps(data, indent=2))
    if any(groups.values()):
        raise typer.Exit(1)


def _show(out: Console, name: str, findings: list[Finding]) -> None:
    said = f"{len(findings)} to look at" if findings else "[green]nothing to report[/]"
    out.print(f"[bold]{escape(name)}[/]: {said}", soft_wrap=True)
    for f in findings:
        where = f"  [cyan]{escape(f.where)}[/]" if f.where else ""
        out.print(f"  [yellow]{f.check}[/]{where}  {escape(f.what)}", highlight=False)
        out.print(f"    cost: {escape(f.cost)}\n    fix:  {escape(f.fix)}", highlight=False)
