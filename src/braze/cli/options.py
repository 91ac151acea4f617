"""Option types that several commands share, and their checks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import typer
from rich.console import Console

from braze.api import MODES as API_MODES
from braze.bench.target import TargetError, users_traceback

MODES = tuple(API_MODES)
PRECISIONS = ("fp32", "tf32", "bf16")


def choice(value: str, allowed: Sequence[str], what: str) -> str:
    """The value, or a usage error that lists what is allowed."""
    if value not in allowed:
        raise typer.BadParameter(f"{what} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def choices(values: str, allowed: Sequence[str], what: str) -> list[str]:
    """A comma-separated list of them."""
    return [choice(v.strip(), allowed, what) for v in values.split(",")]


def on_device(device: str | None) -> str:
    """ "cpu" or "cuda", by default what there is; a usage error where there is no GPU."""
    there = torch.cuda.is_available()
    chosen = choice(device or ("cuda" if there else "cpu"), ("cpu", "cuda"), "--device")
    if chosen == "cuda" and not there:
        raise typer.BadParameter("--device cuda: torch finds no CUDA device here")
    return chosen


def writable(*paths: Path | None) -> None:
    """A usage error for a file that could not be written, before anything is measured."""
    for path in paths:
        if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
            raise typer.BadParameter(f"{path} cannot be written")


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Errors of a name are usage errors; those of the user's code show the user's lines."""
    try:
        yield
    except TargetError as e:
        raise typer.BadParameter(str(e)) from None
    except Exception as e:
        typer.echo(f"{what} failed:\n{users_traceback(e)}", err=True)
        raise typer.Exit(1) from None


def numbers(text: str | None, what: str) -> list[int | None]:
    """``"1,8,32"``; None stands for the default."""
    if text is None:
        return [None]
    try:
        out: list[int | None] = [int(v) for v in text.split(",")]
    except ValueError:
        out = []
    if not out or any(v is None or v < 1 for v in out):
        raise typer.BadParameter(f"{what} must be positive whole numbers such as 8 or 1,8,32, not {text!r}")
    return out


def console() -> Console:
    """Standard output; wide where it is no terminal."""
    made = Console()
    return made if made.is_terminal else Console(width=140)
