"""Transposes: blocks of an operand that is scattered in the lanes are read along its contiguous axis, transposed in
registers, and kept on the stack for the loop over that axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braze.inductor.loops.ir import Load
from braze.ir import coefficient

from . import llvm_index as ix
from .llvm_builder import V
from .llvm_plan import TILE, Tile

if TYPE_CHECKING:
    from .llvm_kernel import Writer


def declare_tiles(w: Writer) -> None:
    """Stack memory for the transposed blocks."""
    for n, i in enumerate(w.plan.tile.loads if w.plan.tile else ()):
        w.b.emit(f"%tile{n} = alloca [{TILE * TILE} x {ix.memory_elem(i.dtype)}], align 64")


def stage_tile(w: Writer, tile: Tile) -> tuple[V, V]:
    """Fill the blocks for the current lanes; the span of the tile's axis that they cover."""
    b = w.b
    lo = b.mul(w.scope.symbols[tile.block.index], b.const("i64", TILE))
    count = b.const("i64", TILE)
    full = isinstance(tile.axis.size, int) and tile.axis.size % TILE == 0
    if not full:
        left = b.sub(ix.scalar_index(b, tile.axis.size, w.scope), lo)
        count = b.select(b.compare("slt", left, count), left, count)
    if w.lanes.count == TILE:
        _stage(w, tile, lo, None if full else count)
    return lo, b.add(lo, count)


def _stage(w: Writer, tile: Tile, first: V, count: V | None) -> None:
    outer = w.scope
    w.scope = outer.copy()
    w.scope.symbols[tile.axis.index] = first
    b, vector = w.b, w.plan.vector
    assert vector is not None
    mask = None
    if count is not None:
        mask = b.compare("slt", b.iota("i32", TILE), b.cast("trunc", count, "i32"))
    for n, i in enumerate(tile.loads):
        base = ix.pointer(b, i.buffer, w.nest.offsets[i], w.scope, w.levels, 99)
        step = coefficient(w.nest.offsets[i], vector.index)
        assert step is not None
        rows = []
        for k in range(TILE):
            distance = ix.scalar_index(b, step * k, w.scope)
            if w.lanes.mask is not None and k:  # past the end: read the first row again
                distance = b.select(b.extract(w.lanes.mask, k), distance, b.const("i64", 0))
            rows.append(ix.row_load(b, i, base, distance, TILE, mask))
        for k, v in enumerate(b.transpose(rows)):
            at = b.let("ptr", 1, f"getelementptr inbounds {v.type}, ptr %tile{n}, i64 {k}")
            b.emit(f"store {v.typed}, {at.typed}, align {i.dtype.itemsize}")
    w.scope = outer


def staged_place(w: Writer, i: Load) -> ix.Place | None:
    """The transposed row of a staged load at the current element of the tile's axis; None for another load."""
    tile = w.plan.tile
    if tile is None or i not in tile.loads or w.lanes.count != TILE:
        return None
    b = w.b
    row = b.binary("and", w.scope.symbols[tile.axis.index], b.const("i64", TILE - 1))
    row_type = f"<{TILE} x {ix.memory_elem(i.dtype)}>"
    at = b.let("ptr", 1, f"getelementptr inbounds {row_type}, ptr %tile{tile.loads.index(i)}, {row.typed}")
    return ix.Place(at, 1, None)
