"""The errors that a user of braze can meet. Each says what, where (file and line) and what to do."""

from __future__ import annotations


class BrazeError(Exception):
    """Base of braze's own errors."""


class Unsupported(BrazeError):
    """Something that braze cannot compile. Capture turns it into a graph break; ``fullgraph=True`` raises it.

    ``where`` is "file:line" in the user's program where known, ``hint`` is what to do about it.
    """

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__("\n".join(filter(None, [what, where and f"  at {where}", hint and f"  hint: {hint}"])))


class SymbolicFailure(BrazeError):
    """A graph with symbolic sizes could not be compiled: capture takes the sizes of the call at hand instead."""


class SizeFixed(Unsupported):
    """A size that was marked dynamic with ``strict=True`` is needed as a number. Raised, not fallen back from."""


class UnsupportedDevice(Unsupported):
    """A tensor lives on a device that braze generates no code for. Raised, not fallen back from: nothing would run."""


class CompileWarning(UserWarning):
    """One warning for a compile failure after which the program runs on in eager."""
