"""How control leaves the interpreter: user exceptions, breaks, and the end of a symbolic frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from braze.errors import Unsupported
from braze.ir import Loc

if TYPE_CHECKING:
    from .values.base import Value


class Raised(Exception):
    """An exception of the user's program, in flight between symbolic frames. ``value`` is the exception object."""

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value = value


class Break(Unsupported):
    """Something in the user's program that the graph cannot hold; becomes a graph break, or an error in full graph.

    ``loc`` is the user's line, filled in by the frame in which it happened. ``whole``: the instruction looks at its
    frame (``locals()``), which therefore must be the original one.
    """

    def __init__(self, what: str, hint: str = "", whole: bool = False) -> None:
        super().__init__(what, hint=hint)
        self.loc: Loc | None = None
        self.whole = whole


class StopHere(Exception):
    """The trace reached the moment at which an earlier pass found a break."""


class NotConst(Exception):
    """A value whose Python object is not known while tracing was asked for it."""


class Restart(Exception):
    """The trace must start over with what was learnt (kept in the plan). Carries nothing."""


class Unfinished(Exception):
    """The program dropped a generator (of this frame number) that has cleaning up to do where it stands."""

    def __init__(self, serial: int) -> None:
        super().__init__(serial)
        self.serial = serial


def unsupported(what: str, hint: str = "") -> NoReturn:
    raise Break(what, hint)
