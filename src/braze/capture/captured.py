"""What the bytecode interpreter hands to the frame hook for one frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from .guards import GuardSet
from .source import Source

if TYPE_CHECKING:
    from .frames import Session


@dataclass(slots=True)
class Captured:
    """Replacement code for a frame and when it may run.

    ``code`` is made with ``Emitter.replacing(original)``; its last argument is the tuple of the values at ``reads``.
    """

    code: CodeType
    guards: GuardSet
    reads: Sequence[Source] = ()


@dataclass(slots=True)
class Skip:
    """Run the original code, from now on: in this session, or (``everywhere``) in all of them. ``once``: now only, as
    when the call raises; capture is tried again, up to the recompile limit. ``guards``: while they hold."""

    reason: str
    everywhere: bool = False
    once: bool = False
    guards: GuardSet | None = None


CaptureFunction = Callable[[CodeType, FunctionType, tuple[Any, ...], "Session"], Captured | Skip]
