"""``braze cache``: what the on-disk cache holds; emptying it; filling it for a script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from braze.config import Config
from braze.doctor.watch import warm as run_compiled
from braze.runtime.cache import opened
from braze.runtime.cache_folder import Entry, clear, entries

from .options import console

app = typer.Typer(help="The on-disk cache of compiled kernels.", no_args_is_help=True)


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.2f} MiB"


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


@app.command("list")
def list_(
    full: Annotated[bool, typer.Option("--full", help="every entry")] = False,
) -> None:
    """What is in the cache, by kind."""
    root, out = Config.from_env().cache_path, console()
    found = entries(root)
    table = Table(title=str(root))
    if full:
        for name in ("kind", "entry", "size", "written"):
            table.add_column(name)
        for e in found:
            table.add_row(e.kind, e.path.name, f"{e.nbytes} B", _ago(e.age))
    else:
        for name in ("kind", "entries", "size", "newest", "oldest"):
            table.add_column(name, justify="left" if name == "kind" else "right")
        for kind in sorted({e.kind for e in found}):
            rows: list[Entry] = [e for e in found if e.kind == kind]
            size = _mib(sum(e.nbytes for e in rows))
            table.add_row(kind, str(len(rows)), size, _ago(rows[0].age), _ago(rows[-1].age))
    out.print(table if found else f"{root} is empty")


@app.command()
def size() -> None:
    """The cache's size in bytes, and its folder."""
    root = Config.from_env().cache_path
    found = entries(root)
    typer.echo(f"{sum(e.nbytes for e in found)} bytes in {len(found)} entries, {root}")


@app.command("clear")
def clear_(
    days: Annotated[float, typer.Option(help="only entries older than so many days", min=0)] = 0.0,
) -> None:
    """Delete the entries. Files that braze did not write stay."""
    count, nbytes = clear(Config.from_env().cache_path, days * 86400)
    typer.echo(f"deleted {count} entries, {_mib(nbytes)}")


@app.command()
def warm(
    script: Annotated[Path, typer.Argument(help="a script that uses braze.compile or torch.compile; it is run")],
    steps: Annotated[int, typer.Option(help="optimizer steps, then the script is ended", min=1)] = 2,
    args: Annotated[str, typer.Option(help="arguments for the script")] = "",
) -> None:
    """Run a script for a few steps, compiled, so that the next start finds its kernels."""
    if not script.is_file():
        raise typer.BadParameter(f"there is no file {script}")
    error = run_compiled(script, args.split(), steps)
    written = sum(c.written for c in opened().values())
    hits = sum(c.hits for c in opened().values())
    typer.echo(f"{written} entries written, {hits} were there")
    if error:
        typer.echo(f"the script stopped: {error}", err=True)
        raise typer.Exit(1)
