"""Semantics that programs written against the interpreter found wrong. PYTEST_DONT_REWRITE (asserts in the cases)."""

# ruff: noqa: B018, B023, E731
from __future__ import annotations

import collections
import functools
import importlib.metadata
import importlib.util
import logging
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from vm_harness import check

import braze
from braze.api import log_of

X = torch.arange(6.0).reshape(2, 3)
CASES: list[Any] = []


def case(*args: Any, **kwargs: Any) -> Any:
    def register(f: Any) -> Any:
        CASES.append(pytest.param(f, args, kwargs, id=f.__name__))
        return f

    return register


class Printer(logging.Handler):
    def emit(self, record):
        print(record.getMessage())


LOG = logging.getLogger("braze-semantics")
LOG.propagate = False
HANDLER = Printer()
LOG.addHandler(HANDLER)


@dataclass
class Point:
    x: int
    y: Any = field(default=2, compare=False)


class Suppress:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append((kind is None, error is None, traceback is None))
        return True


class Keeps(Suppress):
    def __exit__(self, kind, error, traceback):
        self.kept = traceback
        return True


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).T


PARAMETRIZED = nn.Linear(3, 3)
parametrize.register_parametrization(PARAMETRIZED, "weight", Symmetric())


@functools.lru_cache(None)
def cached(n):
    return n * 2


# ---- messages written after the graph show what was there when they were made


@case(X, [1, {"k": 2}], {"a": [1]})
def message_of_containers(x, items, d):
    LOG.warning("%s %s", items, d)
    items.append(5)
    items[1]["k"] = 3
    d["a"].append(2)
    return x + 1


@case(X)
def message_of_a_tensor(x):
    y = x * 2
    LOG.warning("%s", y)
    y.add_(1)
    LOG.warning("%s", y)
    return y


@case(X, breaks=1)
def message_of_an_object(x):
    p = Point(1)
    LOG.warning("%s", p)
    p.x = 5
    return x + p.x


@case(X, breaks=None)
def filter_added_between_messages(x):
    y = x + 1
    LOG.warning("a")
    HANDLER.addFilter(lambda record: False)
    LOG.warning("b")
    HANDLER.filters.clear()
    return y * 2


@case(X, breaks=None)
def filter_removed_after_the_message(x):
    HANDLER.addFilter(lambda record: record.getMessage() != "hidden")
    y = x + 1
    LOG.warning("hidden")
    LOG.warning("shown")
    HANDLER.filters.clear()
    return y


# ---- exceptions


@case(X, [])
def exit_gets_a_traceback(x, log):
    with Suppress(log):
        raise ValueError
    with Suppress(log):
        x = x + 1
    return x


@case(X)
def tracebacks(x):
    try:
        raise ValueError
    except ValueError as e:
        return x + 1, e.__traceback__ is None, sys.exc_info()[2] is None, ValueError().__traceback__


@case(X, breaks=None)
def a_traceback_that_is_kept(x):
    k = Keeps([])
    with k:
        y = x + 1
        raise ValueError
    return y, type(k.kept).__name__


@case(X)
def notes(x):
    try:
        try:
            raise ValueError("v")
        except ValueError as e:
            e.add_note("n")
            e.add_note("m")
            raise
    except ValueError as e:
        return x + 1, e.__notes__


# ---- the library


@case(X)
def text_of_a_dataclass(x):
    p = Point(1)
    p.y = p
    return repr(Point(1, (2, "a"))), f"{p}", x + 1


@case(X)
def counters(x):
    c = collections.Counter("abca")
    c.update("b")
    c.subtract("c")
    return x + c["a"], c.most_common(1), c.total(), c["zz"], sorted((c + collections.Counter(a=1)).items())


@case(X, collections.deque([1, 2, 3], maxlen=4))
def deques(x, q):
    q.rotate()
    q.rotate(-2)
    q.extendleft([7, 8])
    made = collections.deque([1, 2, 3])
    made.rotate(4)
    return x + len(q), list(made)


@case(X)
def names_of_cached_functions(x):
    @functools.wraps(cached)
    def inner(n):
        return cached(n)

    return x + inner(2), inner.__name__, cached.__name__, cached.__wrapped__(3)


@case(X)
def cached_parametrizations(x):
    with parametrize.cached():
        y = PARAMETRIZED(x) + PARAMETRIZED(x)
    return y, PARAMETRIZED.weight


@case(X)
def packages(x):
    if importlib.util.find_spec("torch") is not None and importlib.util.find_spec("no_such_package") is None:
        x = x + 1
    try:
        importlib.metadata.version("no_such_package")
    except importlib.metadata.PackageNotFoundError:
        x = x * 2
    return x, importlib.metadata.version("torch")


# ---- tensors


@case(nn.Parameter(X + 1), X)
def data_is_assigned_in_place(p, t):
    p.data *= 0.5
    p.data -= 0.1 * t
    p.data[0] += 1
    return p + 1


@case(nn.Parameter(torch.ones(3, 3)), X, breaks=1)
def data_of_another_shape(p, t):
    d = p.data
    d.t_()
    y = t + 1
    p.data = d
    return y, p * 2


@pytest.mark.parametrize(("f", "args", "kwargs"), CASES)
def test_case(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    check(f, *args, **kwargs)


def test_hooks_of_leaves_run_once() -> None:
    import braze

    def f(p: torch.Tensor) -> torch.Tensor:
        (p * 2).sum().backward()
        assert p.grad is not None
        return p.grad + 1

    for backend in ("eager", "aot_eager"):
        p = torch.ones(3, requires_grad=True)
        calls: list[int] = []
        p.register_hook(lambda g: calls.append(1) or g * 3)
        assert braze.compile(f, backend=backend)(p).tolist() == [7.0] * 3
        assert p._backward_hooks and p.grad is not None and p.grad.tolist() == [6.0] * 3
        assert len(calls) == 1


class _Tagged(property):
    tag = "x"


class _Halved:
    def __init__(self, x):
        self._x = x

    @_Tagged
    def x(self):
        return self._x / 2

    @x.setter
    def x(self, value):
        self._x = value

    @_Tagged
    def missing(self):
        raise AttributeError("no")


def test_a_subclass_of_property() -> None:
    def f(x):
        a = _Halved(x)
        a.x = a.x + 1
        return a.x, getattr(a, "missing", None), _Halved.x.tag

    check(f, X)


def test_distributions_and_their_remedies() -> None:
    def f(logits, action, validate):
        d = torch.distributions.Categorical(logits=logits, validate_args=validate)
        return d.log_prob(action), d.entropy(), d.support.is_discrete

    logits, action = torch.arange(6.0).reshape(2, 3), torch.tensor([0, 2])
    for validate in (False, True):
        compiled = braze.compile(f, backend="eager")
        for _ in range(2):
            torch.testing.assert_close(compiled(logits, action, validate), f(logits, action, validate))
        breaks = log_of(compiled).breaks
        assert bool(breaks) == validate
        assert not validate or any("validate_args=False" in b.hint for b in breaks)


@pytest.mark.parametrize("store", [False, True])
def test_the_remedy_of_an_index_of_no_dimensions(store: bool) -> None:
    def f(x, i):
        x = x + 1
        i = i + (x[0, 0] * 0).long()  # computed, so nobody can read it before
        if store:
            x[:, i] = 7.0
            return x * 2
        return x[i] * 2

    compiled = braze.compile(f, backend="eager")
    for i in (0, 1, -1):
        torch.testing.assert_close(compiled(X, torch.tensor(i)), f(X, torch.tensor(i)))
    with pytest.raises(IndexError, match="out of bounds|out of range"):
        compiled(X, torch.tensor(3))
    assert "i.view(1)" in log_of(compiled).breaks[0].hint
