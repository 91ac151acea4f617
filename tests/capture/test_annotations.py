"""Types written in the body of a function."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple, Union, cast  # noqa: UP035

import torch

import braze
from braze.api import log_of


def annotated(x: Any) -> Any:
    parts = torch.jit.annotate(List[torch.Tensor], [])  # noqa: UP006
    kinds = Optional[int], Dict[str, List[int]], Callable[[int], int], Union[int, str], Tuple[int, ...]  # noqa: UP006, UP007, UP045
    for i in range(3):
        parts.append(cast(torch.Tensor, x) * i)
    return torch.stack(parts), kinds


def test_annotations_are_known() -> None:
    fast = braze.compile(annotated, backend="eager")
    x = torch.randn(2)
    got, want = fast(x), annotated(x)
    torch.testing.assert_close(got[0], want[0])
    assert got[1] == want[1] and not log_of(fast).breaks
