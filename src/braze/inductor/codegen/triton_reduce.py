"""Reductions in Triton: the fold of a block along r, and accumulation over a loop.

Each row of ``KINDS`` gives the neutral element (by dtype), how two values combine, and how a block folds.  In a loop
every lane accumulates on its own and the lanes fold at the end, which makes a sum of n values as accurate as a cascade
of n / RBLOCK steps and a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..loops.ir import Reduce
from . import triton_ops as ops

if TYPE_CHECKING:
    from .triton_emit import _Emitter


@dataclass(frozen=True)
class Fold:
    """``neutral(dtype)``: literal text. ``combine``: template of two values; ``block``: of a value and the axis."""

    neutral: Callable[[torch.dtype], str]
    combine: str
    block: str


def _lowest(dtype: torch.dtype) -> str:
    return "float('-inf')" if dtype.is_floating_point else str(torch.iinfo(dtype).min)


def _highest(dtype: torch.dtype) -> str:
    return "float('inf')" if dtype.is_floating_point else str(torch.iinfo(dtype).max)


def _number(n: int) -> Callable[[torch.dtype], str]:
    return lambda dtype: f"{n}.0" if dtype.is_floating_point else str(n)


_TO_BOOL = "tl.{0}({{0}}.to(tl.int32), {{1}}) != 0"
KINDS: dict[tuple[str, str], Fold] = {
    ("sum", "float"): Fold(_number(0), "{0} + {1}", "tl.sum({0}, {1})"),
    ("sum", "int"): Fold(_number(0), "{0} + {1}", "tl.sum({0}, {1})"),
    ("prod", "float"): Fold(_number(1), "{0} * {1}", "tl.reduce({0}, {1}, bz_mul)"),
    ("prod", "int"): Fold(_number(1), "{0} * {1}", "tl.reduce({0}, {1}, bz_mul)"),
    ("max", "float"): Fold(_lowest, "bz_max_nan({0}, {1})", "tl.reduce({0}, {1}, bz_max_nan)"),
    ("min", "float"): Fold(_highest, "bz_min_nan({0}, {1})", "tl.reduce({0}, {1}, bz_min_nan)"),
    ("max", "int"): Fold(_lowest, "tl.maximum({0}, {1})", "tl.max({0}, {1})"),
    ("min", "int"): Fold(_highest, "tl.minimum({0}, {1})", "tl.min({0}, {1})"),
    ("any", "bool"): Fold(lambda _: "False", "{0} | {1}", _TO_BOOL.format("max")),
    ("all", "bool"): Fold(lambda _: "True", "{0} & {1}", _TO_BOOL.format("min")),
}
KINDS["max", "bool"] = KINDS["any", "bool"]
KINDS["min", "bool"] = KINDS["all", "bool"]
BEST = {"argmax": "bz_first_max", "argmin": "bz_first_min"}
_R = frozenset(("r",))
LAST = 2**31 - 1  # the position of nothing


def kind_of(dtype: torch.dtype) -> str:
    """The column of KINDS."""
    c = ops.dtype_class(dtype)
    return "int" if c == "uint" else c


def _row(i: Reduce) -> Fold:
    return KINDS[i.kind, kind_of(i.value.dtype)]


def _valid(e: _Emitter, text: str, neutral: str, dtype: torch.dtype) -> str:
    """The value with the lanes beyond the row replaced."""
    if "r" not in e.masked:
        return text
    if dtype not in (torch.float32, torch.int32):
        neutral = f"tl.full([], {neutral}, {ops.TYPES[dtype]})"
    mask = e.along("rmask", _R, frozenset(e.block))
    return f"tl.where({mask}, {text}, {neutral})"


def _narrow(text: str, dtype: torch.dtype) -> str:
    """Triton folds small integers as 32 bits."""
    small = not dtype.is_floating_point and dtype is not torch.bool and dtype.itemsize < 4
    return f"{text}.to({ops.TYPES[dtype]})" if small else text


def _folded(e: _Emitter, i: Reduce, text: str, axis: int) -> str:
    row, dtype = _row(i), i.value.dtype
    out = row.block.format(text, axis)
    return _narrow(out, dtype)


def fold(e: _Emitter, i: Reduce, text: str, axis: int) -> str:
    """The text of a reduction of whole rows."""
    if i.kind in BEST:
        value, dtype = _numeric(text, i.value.dtype)
        value = _valid(e, value, _worst(i, dtype), dtype)
        return _best(e, i, value, _position(e), axis)
    row = _row(i)
    return _folded(e, i, _valid(e, text, row.neutral(i.value.dtype), i.value.dtype), axis)


def _position(e: _Emitter) -> str:
    """Where in its row each lane is; lanes beyond the row come last."""
    text = f"tl.where(rmask, rindex, {LAST})" if "r" in e.masked else "rindex"
    return e.full(text, _R, frozenset(e.block))


def _numeric(text: str, dtype: torch.dtype) -> tuple[str, torch.dtype]:
    return (f"{text}.to(tl.int32)", torch.int32) if dtype is torch.bool else (text, dtype)


def _worst(i: Reduce, dtype: torch.dtype) -> str:
    return (_lowest if i.kind == "argmax" else _highest)(dtype)


def _best(e: _Emitter, i: Reduce, value: str, position: str, axis: int) -> str:
    pair = e.fresh()
    e.line(f"{pair}_value, {pair} = tl.reduce(({value}, {position}), {axis}, {BEST[i.kind]})")
    return f"{pair}.to(tl.int64)"


def start(e: _Emitter, i: Reduce) -> None:
    """The accumulator before the loop."""
    shape = e.shape(frozenset(e.block))
    name = e.fresh()
    e.names[i] = name
    if i.kind in BEST:
        dtype = torch.int32 if i.value.dtype is torch.bool else i.value.dtype
        e.line(f"{name} = tl.full({shape}, {_worst(i, dtype)}, {ops.TYPES[dtype]})")
        e.line(f"{name}_at = tl.full({shape}, {LAST}, {'tl.int64' if e.wide else 'tl.int32'})")
        return
    e.line(f"{name} = tl.full({shape}, {_row(i).neutral(i.value.dtype)}, {ops.TYPES[i.value.dtype]})")


def accumulate(e: _Emitter, i: Reduce) -> None:
    """One step of the loop."""
    name, text = e.names[i], e.folded(i)
    if i.kind in BEST:
        value, dtype = _numeric(text, i.value.dtype)
        value = _valid(e, value, _worst(i, dtype), dtype)
        e.line(f"{name}, {name}_at = {BEST[i.kind]}({name}, {name}_at, {value}, {_position(e)})")
        return
    row = _row(i)
    value = _valid(e, text, row.neutral(i.value.dtype), i.value.dtype)
    e.line(f"{name} = {row.combine.format(name, value)}")


def finish(e: _Emitter, i: Reduce) -> None:
    """The row value after the loop."""
    axis = len(e.tiling.blocks) - 1
    name = e.names[i]
    if i.kind in BEST:
        text = _best(e, i, name, f"{name}_at", axis)
    else:
        text = _folded(e, i, name, axis)
    e.define(i, text, frozenset(e.block) - {"r"})
