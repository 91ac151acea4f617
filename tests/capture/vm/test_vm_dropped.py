"""Generators that loops leave before their end clean up at that moment, whatever else the frame does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from vm_public import check

X = torch.arange(6.0).reshape(2, 3) + 1
Make = Callable[..., Iterator[torch.Tensor]]


def first(x: torch.Tensor, g: Make, log: list[str]) -> Any:
    for _ in g():
        break


def by_value(x: torch.Tensor, g: Make, log: list[str]) -> Any:
    for t in g():
        if t.sum() > 3:
            break


def returns(x: torch.Tensor, g: Make, log: list[str]) -> Any:
    for t in g():
        print(end="")
        if t.sum() > 3:
            return t


def to_the_end(x: torch.Tensor, g: Make, log: list[str]) -> Any:
    for _ in g(2):
        print(end="")
    else:
        log.append("else")


def nested(x: torch.Tensor, g: Make, log: list[str]) -> Any:
    for t in g():
        for u in g():
            print(end="")
            if u.sum() > 3:
                break
        log.append("inner")
        if t.sum() > 3:
            break


def enumerated(x: torch.Tensor, g: Make, log: list[str]) -> Any:
    for i, _ in enumerate(g()):
        print(end="")
        if i == 2:
            break


def raises(x: torch.Tensor, g: Make, log: list[str]) -> Any:
    try:
        for t in g():
            print(end="")
            if t.sum() > 3:
                raise ValueError
    except ValueError:
        log.append("caught")


def deleted(x: torch.Tensor, g: Make, log: list[str]) -> Any:
    it = g()
    next(it)
    print(end="")
    del it


BODIES = [first, by_value, returns, to_the_end, nested, enumerated, raises, deleted]


@contextlib.contextmanager
def noted(log: list[str]) -> Iterator[None]:
    log.append("in")
    try:
        yield
    finally:
        log.append("out")


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("managed", [False, True], ids=["finally", "with"])
def test_cleans_up_in_time(body: Callable[..., Any], managed: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        log: list[str] = []

        def g(n: int = 4) -> Iterator[torch.Tensor]:
            if managed:
                with noted(log):
                    for i in range(n):
                        yield x * i
                return
            try:
                for i in range(n):
                    yield x * i
            finally:
                log.append("end")

        out = body(x, g, log)
        log.append("after")
        return out, log, x * 2

    check(program, X)
