"""Types written with ``typing`` (``List[int]``): their subscripts are evaluated while tracing."""

from __future__ import annotations

import operator
import typing
from typing import TYPE_CHECKING

from ..registry import HANDLERS
from ..values.base import Value

if TYPE_CHECKING:
    from ..tracer import Tracer

_FORMS: tuple[type, ...] = tuple(
    {type(f) for f in (typing.Any, typing.Union, typing.List, typing.Callable, typing.Tuple)}  # noqa: UP006
)


def _subscript(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return vm.fold(operator.getitem, args, kwargs)


for _form in _FORMS:
    for _cls in _form.__mro__:
        if "__getitem__" in vars(_cls):
            HANDLERS[vars(_cls)["__getitem__"]] = _subscript
