"""Which functions of the interpreter hand on the result of a frame that they run, unchanged and as their last act."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
PASSING: set[CodeType] = set()


def passes_result(function: F) -> F:
    """Mark a function that gives what the call of a frame gives, and does nothing afterwards.

    Where only such functions are between two frames, the inner one can be left and entered again (a nested break).
    """
    PASSING.add(function.__code__)
    return function
