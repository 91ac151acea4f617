"""Marks on tensors: which sizes may vary. ``mark_dynamic`` and ``mark_static`` write them, capture reads them.

The marks of PyTorch's own compiler are recognised by name, here alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_MARKS = "_braze_sizes"
_PEER = "_dynamo" + "_"
_PEER_DYNAMIC = (_PEER + "dynamic_indices", _PEER + "weak_dynamic_indices", _PEER + "unbacked_indices")
_PEER_STATIC = _PEER + "static_indices"
_PEER_RANGES = _PEER + "dynamic_range"


@dataclass(frozen=True)
class Mark:
    """What was said of one dim. ``low`` and ``high``: the sizes that it may have (inclusive; None: any)."""

    dynamic: bool
    low: int | None = None
    high: int | None = None
    strict: bool = False


def mark_dynamic(
    t: torch.Tensor,
    dim: int | Sequence[int],
    *,
    min: int | None = None,  # noqa: A002
    max: int | None = None,  # noqa: A002
    strict: bool = False,
) -> None:
    """Say that sizes of an input vary from call to call: they are symbolic from the first compile on.

    ``min`` and ``max`` bound the sizes (inclusive) and become guards. A program that needs the size as a fixed number
    is compiled for that number all the same, and ``braze.explain`` says why; with ``strict=True`` that is an error
    (``braze.Unsupported``). Raises IndexError for a dim that the tensor does not have, ValueError for an empty range.
    """
    if min is not None and max is not None and min > max:
        raise ValueError(f"mark_dynamic: min={min} is more than max={max}")
    for d in _dims(t, dim):
        _marks(t)[d] = Mark(True, min, max, strict)


def mark_static(t: torch.Tensor, dim: int | Sequence[int] | None = None) -> None:
    """Say that sizes of an input (None: all) are compiled as fixed numbers, even if they change. IndexError for a dim
    that the tensor does not have."""
    for d in range(t.dim()) if dim is None else _dims(t, dim):
        _marks(t)[d] = Mark(False)


def _dims(t: torch.Tensor, dim: int | Sequence[int]) -> list[int]:
    out = []
    for d in [dim] if isinstance(dim, int) else dim:
        if not -t.dim() <= d < t.dim():
            raise IndexError(f"dim {d} of a tensor with {t.dim()} dims")
        out.append(d % t.dim())
    return out


def _marks(t: torch.Tensor) -> dict[int, Mark]:
    marks: dict[int, Mark] = t.__dict__.setdefault(_MARKS, {})
    return marks


def marks_of(t: torch.Tensor) -> dict[int, Mark]:
    """The marks of a tensor by dim; braze's own override the peer's."""
    d: dict[str, Any] = getattr(t, "__dict__", {})
    if not d:
        return {}
    out: dict[int, Mark] = {}
    for name in _PEER_DYNAMIC:
        out.update({i: Mark(True) for i in d.get(name, ())})
    for r in d.get(_PEER_RANGES, ()):
        low, high = getattr(r, "min", None), getattr(r, "max", None)
        out[r.dim] = Mark(True, low, high if high is None or high < 2**62 else None)
    out.update({i: Mark(False) for i in d.get(_PEER_STATIC, ())})
    out.update(d.get(_MARKS, {}))
    return out
