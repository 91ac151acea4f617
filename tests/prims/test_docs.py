"""docs/primitives.md is what the table says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_page_is_current() -> None:
    script = ROOT / "scripts" / "gen_primitives.py"
    run = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert run.returncode == 0, "docs/primitives.md is not current: run python scripts/gen_primitives.py"
