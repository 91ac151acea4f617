"""``braze doctor``: what slows a script down, found by running it, each with its cost and a one-line fix.

``environment`` looks at the installation, ``watch`` runs a script and notes what it does, ``checks`` judges.
"""

from __future__ import annotations

from pathlib import Path

from .checks import CHECKS, check_run
from .environment import check_machine, this_machine
from .finding import Finding
from .watch import Observation, observe

__all__ = ["CHECKS", "Finding", "Observation", "check_machine", "check_run", "diagnose", "observe", "this_machine"]


def diagnose(
    script: str | Path, arguments: list[str] | None = None, assume: str | None = None, steps: int = 30
) -> list[Finding]:
    """Run a script and judge it. ``assume="cuda"`` looks it over for a GPU; ``steps``: optimizer steps to watch."""
    return check_run(observe(Path(script), arguments or [], assume, steps))
