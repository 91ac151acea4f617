"""Operators, comparisons, membership and hashing of objects whose classes are written in C, and of symbolic integers.

What the interpreter does not know is Python's to answer: it was taken for a TypeError, or for "not equal".
"""

from __future__ import annotations

import collections
import contextvars
import datetime
import decimal
import fractions
import math
import operator
import pathlib
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import braze
from braze.api import log_of

ARRAY = np.arange(3.0)
DAY, DATE = datetime.timedelta(1), datetime.datetime(2020, 1, 1)
HALF, TWO = fractions.Fraction(1, 2), decimal.Decimal(2)
DEQUE, BYTES, VIEW = collections.deque([1, 2]), bytearray(b"ab"), memoryview(b"ab")
ENTRIES = {"a": 1, "b": 2}
FROZEN = frozenset({0.5, 3})
PATH = pathlib.PurePosixPath("a")


class Text(str):
    pass


class Answer:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


TEXT, ANSWER = Text("a"), Answer()
SYMBOLIC = """
n & 3;n << 2;3 ^ n;n | 1;~n;.9 ** n;2 ** n;n ** .5;n ** n;n ** -1;n // -2;n % -3;7 // n;n // 2.5;n % 2.5
2.5 // n;-n ** 2;(-n) ** 3
(1+2j) * n;n * 1j;'a' * n;b'a' * n;n * [1];[1] * n;(1,) * n;n + np.int64(3);np.float32(2) * n
n * np.float64(.5);HALF * n;n * HALF
TWO * n;n * DAY;DAY * n;True << n;n @ 2;n + 'a';n < 'a';n == 1j;n < HALF;n < np.int64(4);operator.and_(n, 1)
operator.pow(.5, n)
n.__pow__(2);n in FROZEN;n in range(4);n in 'a';(n & 3) + 1;(n >> 1) * n;.9 ** (n & 3);[7, 8, 9, 10, 11, 12][n & 3]
"""
FOREIGN = """
ARRAY * 2;ARRAY + ARRAY;2 - ARRAY;ARRAY < 2;ARRAY == ARRAY;ARRAY != 1;-ARRAY;ARRAY @ ARRAY;ARRAY[ARRAY > 1]
ARRAY // 2;2 ** ARRAY
ARRAY.dtype == np.float64;np.float64 == ARRAY.dtype;ARRAY.dtype != np.float32;(x.numpy() + 1).tolist()
ARRAY == [0, 1, 2]
x == ARRAY[:2];x + ARRAY[:2];DAY + DAY;DAY * 2;2 * DAY;DATE + DAY;DATE - DATE;DAY < DAY
DAY == datetime.timedelta(1);DAY / DAY;DAY // 2
TWO + 1;2 * TWO;TWO < 3;TWO == 2;DEQUE + DEQUE;DEQUE * 2;DEQUE == [1, 2];DEQUE == collections.deque([1, 2])
BYTES + b'c';BYTES * 2
VIEW == b'ab';BYTES == b'ab';ENTRIES.keys() & ['a'];ENTRIES.items() == ENTRIES.items()
{DAY: 1}[datetime.timedelta(1)]
{DAY, datetime.timedelta(1)};DAY in {datetime.timedelta(1): 2};ANSWER == x;ANSWER in range(2);ANSWER in FROZEN
TEXT in 'abc';[1] in 'abc'
x in range(3);f == ARRAY;f == ANSWER;f != ANSWER;f in FROZEN;f // 2;f % 2;f * 1j;f * np.float64(2);f // n
n // f;x == ANSWER;x != ANSWER
PATH / 'b';'b' / PATH;PATH == pathlib.PurePosixPath('a');[] == ();[1] + (1,);{} | [];{1} - [1];None < 1
{}.keys() == set()
"""


def program(expression: str) -> Any:
    lines = (
        "def program(x, n, f):",
        f"    try: y = {expression}",
        "    except TypeError as e: y = repr(e)",
        "    return x + 1, y",
    )
    scope = dict(globals())
    exec(compile("\n".join(lines), f"<{expression}>", "exec"), scope)
    return scope["program"]


def shown(f: Any, n: int) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return repr(f(torch.ones(2), n, n / 2))
        except Exception as e:
            return f"{type(e).__name__}: {e}"


ALL = [e for text in (SYMBOLIC, FOREIGN) for line in text.strip().split("\n") for e in line.split(";")]


@pytest.mark.parametrize("expression", ALL)
def test_what_python_says(expression: str) -> None:
    f = program(expression)
    fast = braze.compile(f, backend="eager")
    for n in (3, 4, 5, 5):
        assert shown(fast, n) == shown(f, n)


@pytest.mark.parametrize("expression", ["n & 6", "1 ^ n", "n << 1", ".5 ** n", "1.0 ** n", "(n | 1) & 7"])
def test_an_int_that_changes_is_not_compiled_in(expression: str) -> None:
    f = program(expression)
    fast = braze.compile(f, backend="eager")
    for n in range(3, 9):
        assert shown(fast, n) == shown(f, n)
    log = log_of(fast)
    assert log is not None and not log.breaks and len(log.recompiles) == 1


def test_a_decay_is_an_input() -> None:
    def f(x: torch.Tensor, step: int) -> torch.Tensor:
        return x * 0.9**step

    fast = braze.compile(f, backend="eager")
    for step in range(1, 7):
        torch.testing.assert_close(fast(torch.ones(2), step), f(torch.ones(2), step))
    log = log_of(fast)
    assert log is not None and not log.breaks and len(log.recompiles) == 1


def test_what_an_array_says_of_itself() -> None:
    def f(x: torch.Tensor, a: Any) -> Any:
        if a.dtype == np.float64 or a.dtype in (np.float32, np.dtype("int8")):
            x = x * 2
        n, *rest = a.shape
        return x + n + a.ndim + a.size, rest, a.dtype.kind, len(a), len(a.shape)

    fast = braze.compile(f, backend="eager")
    x = torch.ones(2)
    for a in (*(np.zeros((2, 3)),) * 2, np.zeros((2, 3), np.int64), np.zeros(2, np.int8), np.zeros((3, 3))):
        assert repr(fast(x, a)) == repr(f(x, a))
    log = log_of(fast)
    assert log is not None and not log.breaks and len(log.recompiles) == 3


def test_a_number_of_numpy_is_known_by_its_value() -> None:
    def f(x: torch.Tensor, s: Any) -> Any:
        return x * float(s), s

    fast = braze.compile(f, backend="eager")
    for s in (np.float64(0.5), np.float64(0.5), np.float64(0.25), np.float64(0.5), np.float32(0.5), np.float32(0.5)):
        assert repr(fast(torch.ones(2), s)) == repr(f(torch.ones(2), s))
    log = log_of(fast)
    assert log is not None and not log.breaks and len(log.recompiles) == 2


WITH_DEFAULT: contextvars.ContextVar[int] = contextvars.ContextVar("WITH_DEFAULT", default=2)
WITHOUT: contextvars.ContextVar[int] = contextvars.ContextVar("WITHOUT")


def test_context_variables_have_defaults() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            x = x * WITHOUT.get()
        except LookupError:
            x = x + 7
        token = WITH_DEFAULT.set(WITH_DEFAULT.get() + 1)
        y = x * WITH_DEFAULT.get()
        WITH_DEFAULT.reset(token)
        return y, WITH_DEFAULT.get(), WITH_DEFAULT.get(5), WITHOUT.get(math.inf)

    fast = braze.compile(f, backend="eager")
    assert repr(fast(torch.ones(2))) == repr(f(torch.ones(2)))
    log = log_of(fast)
    assert log is not None and not log.breaks
    with_value = WITH_DEFAULT.set(9)
    try:
        assert repr(fast(torch.ones(2))) == repr(f(torch.ones(2)))
    finally:
        WITH_DEFAULT.reset(with_value)


assert operator  # named by the expressions


@pytest.mark.parametrize("of", ["attribute", "entry"])
def test_what_is_written_and_deleted_may_have_been_there_before(of: str) -> None:
    class Box:
        pass

    def f(x: torch.Tensor, b: Any) -> torch.Tensor:
        if of == "attribute":
            b.rate = 2
            x = x * b.rate
            del b.rate
        else:
            vars(b)["rate"] = 2
            del vars(b)["rate"]
        return x

    fast = braze.compile(f, backend="eager")
    for present in (False, True, False, True):
        b = Box()
        if present:
            b.rate = 3  # type: ignore[attr-defined]
        torch.testing.assert_close(fast(torch.ones(2), b), torch.ones(2) * (2 if of == "attribute" else 1))
        assert vars(b) == {}
