"""What the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One problem. ``cost`` says whether it was measured or is an estimate; ``fix`` is one line."""

    check: str
    what: str
    cost: str
    fix: str
    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """``train.py:12``, or nothing."""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}" if self.file else ""


def measured(seconds: float, whole: float, per: str = "of the run") -> str:
    """A cost that was timed."""
    share = f" ({100 * seconds / whole:.0f}% {per})" if whole > 0 else ""
    return f"measured: {1e3 * seconds:.1f} ms{share}"


def estimated(text: str) -> str:
    """A cost that was not."""
    return f"estimated: {text}"
