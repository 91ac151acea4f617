"""Every break, recompile and guard failure says where, what, why, what to do, how often and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of

X = torch.ones(2, 3)
G: Any = 3


class Config:
    k = 1

    def __init__(self) -> None:
        self.a: Any = 1


def put(owner: Any, name: str, value: Any) -> Any:
    return lambda: setattr(owner, name, value)


def raising(x: Any, n: int) -> Any:
    if n > 3:
        raise ValueError("too many")
    return x * n


def optional(x: Any, y: Any = None) -> Any:
    return x if y is None else x * y


def writing(x: Any, y: Any) -> Any:
    x.add_(1)
    return y * 2


Calls = list[tuple[Callable[[], Any] | None, tuple[Any, ...]]]


def cases() -> dict[str, tuple[Callable[..., Any], Calls]]:
    """A program, and what is changed before each call with which arguments."""
    o, m, t = Config(), nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), torch.ones(3)
    shapes = [X, X.double(), X.clone().requires_grad_(), torch.ones(2), torch.ones(3, 2).t(), torch.ones(5, 3)]
    return {
        "no attribute": (lambda x: x.foo(), [(None, (X,))]),
        "raises": (raising, [(None, (X, 5)), (None, (X, 1))]),
        "value of a tensor": (lambda x: x * 2 if x.sum() > 1 else x, [(None, (X,))]),
        "printed": (lambda x: (print(end=""), x * 2), [(None, (X,))]),
        "size of data": (lambda x: x.nonzero() * 2, [(None, (X,))]),
        "mask": (lambda x: x[x > 0] * 2, [(None, (X,))]),
        "unique": (lambda x: torch.unique(x) * 2, [(None, (X,))]),
        "integer": (lambda x, i: x[: i.item()] * 2, [(None, (X, torch.tensor(k))) for k in (2, 0)]),
        "tensors": (lambda x: x * 2, [(None, (x,)) for x in shapes]),
        "attributes": (
            lambda x, o: x * o.a * o.k,
            [(None, (X, o)), *((c, (X, o)) for c in (put(o, "a", 2.5), put(o, "a", True), put(Config, "k", 5)))],
        ),
        "descriptor": (
            lambda x, o: x * o.a,
            [(None, (X, o)), (put(Config, "a", property(lambda s: 3, lambda s, v: None)), (X, o))],
        ),
        "global": (lambda x: x * G, [(None, (X,)), (lambda: globals().update(G=4.5), (X,))]),
        "list": (lambda x, v: x * len(v), [(None, (X, [1])), (None, (X, [1, 2])), (None, (X, (1, 2)))]),
        "dict": (lambda x, d: x * sum(d.values()), [(None, (X, {"a": 1})), (None, (X, {"b": 1}))]),
        "key": (lambda x, d: x * (2 if "k" in d else 3), [(None, (X, {})), (None, (X, {"k": 1}))]),
        "optional": (optional, [(None, (X,)), (None, (X, X)), (None, (X, 2)), (None, (X, True))]),
        "one object": (writing, [(None, (torch.ones(3), torch.ones(3))), (None, (t, t))]),
        "modes": (lambda x: x * 2, [(None, (X,)), (lambda: torch.set_grad_enabled(False), (X,))]),
        "functions": (lambda x, f: f(x), [(None, (X, f)) for f in (torch.sin, torch.cos, lambda t: t * 2)]),
        "modules": (lambda m, x: m(x), [(None, (m, X)), (m.eval, (m, X)), (lambda: m.append(nn.ReLU()), (m, X))]),
        "absent": (lambda x, o: x * (2 if hasattr(o, "z") else 3), [(None, (X, o)), (put(o, "z", 1), (X, o))]),
        "too many": (lambda x, s: x * len(s), [(None, (X, "a" * i)) for i in range(12)]),
    }


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    globals().update(G=3)
    Config.k = 1
    if "a" in vars(Config):
        del Config.a
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("name", cases())
def test_entries_are_complete(name: str) -> None:
    f, calls = cases()[name]
    compiled = braze.compile(f, backend="eager")
    for change, args in calls:
        if change is not None:
            change()
        try:
            compiled(*args)
        except (ValueError, AttributeError):
            pass
    log = log_of(compiled)
    assert log is not None
    assert log.breaks or log.recompiles
    for entry in [*log.breaks, *log.recompiles, *log.guard_failures]:
        assert entry.reason and entry.hint and entry.seconds > 0, entry
        assert entry.loc is not None and entry.loc.text and entry.loc.line, entry
        assert getattr(entry, "count", 1) >= 1, entry
    text = str(braze.explain(compiled, quiet=True)(*calls[0][1])) if name not in ("no attribute", "raises") else ""
    assert not text or any(e.loc is not None and e.loc.text in text for e in [*log.breaks, *log.recompiles])
    assert len(log.gave_up) == (name == "too many")
