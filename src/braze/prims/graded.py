"""Calls of operators whose kernel looks at the grad mode, made as in the mode that they were recorded in.

Compiled code runs without grad mode; there oneDNN's LSTM layer keeps no workspace, which its backward needs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from ..fake import rule_for


class Graded:
    """``graded(op)(*args)`` is ``op(*args)`` under grad mode, below autograd."""

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        self.__name__ = f"{op._schema.name.replace('::', '.')}.graded"

    def __repr__(self) -> str:
        return self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
            return self.op(*args, **kwargs)

    def shape(self, *args: Any, **kwargs: Any) -> Any:
        """The results' types."""
        return rule_for(self.op)(*args, **kwargs)


@lru_cache(None)
def graded(op: OpOverload) -> Graded:
    """The one graded form of ``op``."""
    return Graded(op)
