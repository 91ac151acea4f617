"""Questions that shape rules ask about symbolic sizes.

Rules are pure functions of types, and their results are remembered.  One that must know more than the ranges say calls
:func:`ask` or :func:`number`: without an answer at hand that raises :class:`Undecided`, the mode has it decided (which
makes a guard), and calls the rule again.  Answers, and what was computed with them, are forgotten after the trace.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ..errors import Unsupported
from ..ir import Expr, IntLike, bounds
from ..ir.decisions import Decisions, proven

_ANSWERS: dict[tuple[str, IntLike, IntLike], bool] = {}
ONE_TRACE = [threading.RLock()]  # answers hold for one trace, and there is one at a time


def _after_fork() -> None:
    ONE_TRACE[0] = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
_DECIDER: list[Decisions | None] = [None]


@contextmanager
def deciding(decisions: Any) -> Iterator[None]:
    """Inside, questions are answered at once by what a trace took for granted: for the stages after it, whose types
    are settled. None: nobody answers."""
    if not isinstance(decisions, Decisions):
        yield
        return
    with ONE_TRACE[0]:
        before, _DECIDER[0] = _DECIDER[0], decisions
        try:
            yield
        finally:
            _DECIDER[0] = before
            if before is None and _ANSWERS:
                forget_answers()


class Undecided(Unsupported):
    """A shape rule needs to know whether ``a op b``."""

    def __init__(self, op: str, a: IntLike, b: IntLike, what: str = "") -> None:
        super().__init__(what or f"a shape depends on whether {a} {op} {b}", hint="mark the size as static")
        self.question = (op, a, b)


class Needed(Undecided):
    """A shape rule needs the value of ``e``."""

    def __init__(self, e: IntLike, what: str) -> None:
        super().__init__("==", e, 0, what)
        self.expr = e


def ask(op: str, a: IntLike, b: IntLike, what: str = "") -> bool:
    """Whether ``a op b`` (==, <, <=). ``what`` says what is not known where nobody answers."""
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        return a == b if op == "==" else a < b if op == "<" else a <= b
    known = proven(op, a, b)
    if known is None:
        known = _ANSWERS.get((op, a, b))
        if known is None and _DECIDER[0] is not None:
            known = _ANSWERS[op, a, b] = _DECIDER[0](op, a, b)
        if known is None:
            raise Undecided(op, a, b, what)
    return known


def number(e: IntLike, what: str) -> int:
    """The value of ``e``, which thereby becomes static."""
    if not isinstance(e, Expr):
        return e
    for (op, a, b), answer in _ANSWERS.items():
        if op == "==" and answer and a == e and not isinstance(b, Expr):
            return b
    raise Needed(e, what)


def agree(a: IntLike, b: IntLike, message: str) -> None:
    """Two sizes must be equal. RuntimeError with eager's message where they are not."""
    if not ask("==", a, b, message):
        raise RuntimeError(message)


def fits(a: IntLike, b: IntLike, message: str) -> None:
    """A size must not be more than another one. RuntimeError with eager's message where it is."""
    if not ask("<=", a, b, message):
        raise RuntimeError(message)


def positive(n: IntLike, what: str) -> IntLike:
    """A number that is a size where it is positive, and has another meaning (-1) elsewhere: then a fixed one."""
    if isinstance(n, Expr) and bounds(n)[0] < 1 and not ask("<", 0, n, what):
        return number(n, what)
    return n


def settle(e: Undecided, decide: Any) -> None:
    """Have a question answered. Raises it where ``decide`` answers none."""
    op, a, b = e.question
    if isinstance(e, Needed):
        if not isinstance(decide, Decisions):
            raise e
        b = decide.number(e.expr)
        _ANSWERS[op, a, b] = True
        return
    _ANSWERS[op, a, b] = decide(op, a, b)


def called(rule: Callable[..., Any], args: Any, kwargs: Any, decide: Any, resolve: Callable[[Any], Any]) -> Any:
    """``rule(*args, **kwargs)`` with its questions answered; ``resolve`` puts the answers into arguments."""
    for _ in range(_MOST_QUESTIONS):
        try:
            return rule(*args, **kwargs)
        except Undecided as e:
            settle(e, decide)
            args, kwargs = resolve(args), resolve(kwargs)
    _endless(rule)


_MOST_QUESTIONS = 256


def _endless(rule: Any) -> NoReturn:
    raise AssertionError(f"the shape rule {rule} never has enough answers")


def answered() -> bool:
    """Whether results of rules now depend on answers."""
    return bool(_ANSWERS)


FORGETTERS: list[Callable[[], None]] = []  # what drops results that depend on answers


def forget_answers() -> None:
    _ANSWERS.clear()
    for forget in FORGETTERS:
        forget()
