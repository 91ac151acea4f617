"""Calls of operators that overwrite arguments and have no functional twin, as functions: ``copies, call, copies out``.

addone_(z)    ->    new = Functionalised(u.addone_)(z)[0]      # the new value of z
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from ..fake import rule_for
from ..ir import TensorType, contiguous_strides


class Functionalised:
    """A callable of ``op``'s arguments: copies those that it overwrites, calls it, and returns a tuple of its fresh
    results and then the copies. ``written`` holds the names of the overwritten arguments, in the schema's order."""

    several = True

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        self.arguments = [a.name for a in op._schema.arguments if not a.kwarg_only]
        marked = [a for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        self.written = [a.name for a in marked]
        self.fresh = [i for i, r in enumerate(op._schema.returns) if r.alias_info is None]
        self.__name__ = f"{op._schema.name.replace('::', '.')}.functionalised"

    def __repr__(self) -> str:
        return self.__name__

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(self.arguments, args)) | kwargs

    def _copies(self, given: dict[str, Any]) -> list[torch.Tensor]:
        """Replaces the overwritten arguments by copies; gives the copies, lists flattened."""
        out: list[torch.Tensor] = []
        for name in self.written:
            x = given.get(name)
            if isinstance(x, (list, tuple)):
                given[name] = [t.clone() for t in x]
                out += given[name]
            elif x is not None:
                given[name] = x.clone()
                out.append(given[name])
        return out

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = self._bind(args, kwargs)
        copies = self._copies(given)
        positional = [given.pop(n) for n in self.arguments if n in given]
        out = self.op(*positional, **given)
        several = out if isinstance(out, (tuple, list)) else (out,)
        return (*[several[i] for i in self.fresh], *copies)

    def shape(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The results' types."""
        out = rule_for(self.op)(*args, **kwargs)
        several = out if isinstance(out, (tuple, list)) else (out,)
        given = self._bind(args, kwargs)
        copies: list[TensorType] = []
        for name in self.written:
            x = given.get(name)
            copies += x if isinstance(x, (list, tuple)) else [] if x is None else [x]
        return (*[several[i] for i in self.fresh], *[_copied(t) for t in copies])


def _copied(t: TensorType) -> TensorType:
    from ..fake.layout import is_dense

    strides = t.strides if is_dense(t.sizes, t.strides) else contiguous_strides(t.sizes)
    return TensorType(t.sizes, strides, t.dtype, t.device)


@lru_cache(None)
def functionalised(op: OpOverload) -> Functionalised:
    """The one functional form of ``op``."""
    return Functionalised(op)
