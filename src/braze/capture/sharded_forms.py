"""DTensors at the edges of a graph: a graph takes and gives their local parts.

Inside, calls are the program's own, on DTensors; tracing them goes through torch's dispatch of DTensors, so that what
is compiled is the arithmetic on local parts with functional collectives between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


def whole(
    local: Tensor, mesh: Any, placements: tuple[Any, ...], sizes: tuple[int, ...], strides: tuple[int, ...]
) -> Any:
    """The DTensor of which ``local`` is this rank's part."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(sizes), stride=tuple(strides))


def from_local(
    local: Tensor, mesh: Any, placements: Any, sizes: Any = None, strides: Any = None, grads: Any = None
) -> Any:
    """``DTensor.from_local`` without a check."""
    from torch.distributed.tensor import DTensor

    more = {} if grads is None else {"grad_placements": grads}
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=sizes, stride=strides, **more)


def redistribute(x: Any, mesh: Any = None, placements: Any = None, dtypes: dict[str, Any] | None = None) -> Any:
    """``DTensor.redistribute``. ``async_op`` is for eager: a graph waits late by itself."""
    return x.redistribute(mesh, placements, **(dtypes or {}))


def to_local(x: Any, grads: Any = None) -> Tensor:
    """``DTensor.to_local``."""
    out: Tensor = x.to_local(grad_placements=grads)
    return out


def full_tensor(x: Any, grads: Any = None) -> Tensor:
    """``DTensor.full_tensor``."""
    out: Tensor = x.full_tensor(grad_placements=grads)
    return out


def local_part(x: Any) -> Tensor:
    """``x.to_local()``, with its history also under no_grad: what a graph takes and gives for a DTensor."""
    with torch.enable_grad():
        out: Tensor = x.to_local()
    return out


@dataclass(frozen=True)
class Rewrapped:
    """An output of a graph as the DTensor that it is."""

    mesh: Any
    placements: tuple[Any, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def __call__(self, local: Tensor) -> Any:
        with torch.enable_grad():
            return whole(local, self.mesh, self.placements, self.sizes, self.strides)
