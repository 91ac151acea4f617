"""Captured variables that may be unbound where they are read, after graph breaks: the error is the program's own."""

# ruff: noqa: B023, F821
from __future__ import annotations

from typing import Any

import pytest
import torch

import braze


def error(e: BaseException) -> tuple[str, str]:
    return type(e).__name__, str(e)


def bound_on_one_way(x: Any, bind: bool) -> Any:
    seen: list[Any] = []
    if bind:
        z = x + 1

    def inner() -> Any:
        return z

    print(end="")
    try:
        x = x + z
    except NameError as e:
        seen.append(error(e))
    print(end="")
    try:
        del z
    except NameError as e:
        seen.append(error(e))
    print(end="")
    try:
        x = x * inner()
    except NameError as e:
        seen.append(error(e))
    z = x * 3
    print(end="")
    return x + z, seen


def deleted_by_an_inner_function(x: Any, n: Any) -> Any:
    def drop() -> None:
        nonlocal q
        del q

    q = x + 1
    print(end="")
    r = q + 1
    drop()
    print(end="")
    return r + q


def bound_by_the_round_before(x: Any, n: Any) -> Any:
    for i in range(2):
        makers = [lambda: v for _ in range(2)]
        print(end="")
        if i == 0:
            try:
                x = x + v
            except UnboundLocalError:
                x = x + 5
        v = x * 2
        x = x + makers[0]()
    return x


def an_argument_that_is_deleted(x: Any, n: Any) -> Any:
    keep = lambda: x  # noqa: E731
    print(end="")
    y = x + keep()
    del x
    print(end="")
    try:
        y = y + x
    except NameError as e:
        return y, error(e)


def in_a_generator(x: Any, n: Any) -> Any:
    def steps() -> Any:
        f = lambda: w  # noqa: E731
        yield x + 1
        try:
            yield w
        except NameError as e:
            yield error(e)
        w = x
        yield f()

    out = []
    for step in steps():
        print(end="")
        out.append(step)
    return out


FORMS = [bound_on_one_way, deleted_by_an_inner_function, bound_by_the_round_before, an_argument_that_is_deleted]


def outcome(f: Any, *args: Any) -> Any:
    try:
        return f(*args)
    except Exception as e:
        return error(e)


@pytest.mark.parametrize("bind", [True, False])
@pytest.mark.parametrize("f", [*FORMS, in_a_generator])
def test_the_error_of_an_unbound_variable(f: Any, bind: bool) -> None:
    x = torch.arange(3.0)
    want = outcome(f, x, bind)
    compiled = braze.compile(f, backend="eager")
    for _ in range(2):
        got = outcome(compiled, x, bind)
        assert repr(got) == repr(want)
