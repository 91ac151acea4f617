"""Option types that several commands share, and their checks."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.console import Console

from braze.api import MODES as API_MODES

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
