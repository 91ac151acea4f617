"""``braze env``: versions and hardware, for a bug report."""

from __future__ import annotations

from rich.console import Console

from braze.bench.about import about


def env() -> None:
    """Print versions and hardware."""
    console = Console()
    for key, value in about().items():
        console.print(f"{key:13} {value}")
