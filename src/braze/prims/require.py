"""``braze::require(ok, error, message)``: a check of values inside of a graph, kept in order as an effect.

Functions that look at values only to raise (``gaussian_nll_loss`` at the variance) need no graph break: the program
goes on as if the check held, and raises what eager raises where it does not.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import Unsupported
from ..fake import register
from ..ir import TensorType

ERRORS: dict[str, type[Exception]] = {"RuntimeError": RuntimeError, "ValueError": ValueError}

_library: Any = torch.library.Library("braze", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("require(Tensor ok, str error, str message) -> ()")


def _require(ok: torch.Tensor, error: str, message: str) -> None:
    if not ok:
        raise ERRORS[error](message)


def _shape(ok: TensorType, error: str, message: str) -> None:
    if ok.device.type != "cpu":  # reading it would wait for the device, in the midst of a CUDA graph
        raise Unsupported("a check of values on a GPU")


_library.impl("require", _require, "CompositeExplicitAutograd")
register(_shape, ["braze::require"])
require = torch.ops.braze.require
