"""Transposes: blocks of an operand that is scattered in the lanes are read along its contiguous axis and transposed in
registers, which the code for each element of that axis uses; where that code is long, they are kept on the stack for a
loop.

What is limited is how many cache lines are under way.  Along a long vector axis a unit walks one block, and asks for
the lines of later lanes early: no hardware sees that pattern.  They go to the second-level cache: in the first the
lines of a block, often a power of two apart, would fall into one set and drive each other out.  A short vector axis
(channels of an image) is walked inside of several blocks, whose lines follow each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from braze.inductor.loops.ir import Load
from braze.ir import coefficient

from . import llvm_index as ix
from .llvm_builder import V
from .llvm_plan import TILE, Tile

if TYPE_CHECKING:
    from .llvm_kernel import Writer

Body = Callable[[V, list[V]], Any]
AHEAD = 2 * TILE  # lanes whose lines are asked for: one block ahead hides less than a line takes from memory


def declare_tiles(w: Writer) -> None:
    """Stack memory for the transposed blocks."""
    for n, i in enumerate(w.plan.tile.loads if w.plan.tile else ()):
        w.b.emit(f"%tile{n} = alloca [{TILE * TILE} x {ix.memory_elem(i.dtype)}], align 64")


def walk_tile(w: Writer, tile: Tile, body: Body) -> None:
    """``body`` for each element of the tile's axis in the current block, TILE of them at a time."""
    b = w.b
    lo = b.mul(w.scope.symbols[tile.block.index], b.const("i64", tile.span))
    size = ix.scalar_index(b, tile.axis.size, w.scope)
    hi = b.add(lo, b.const("i64", tile.span))
    if not isinstance(tile.axis.size, int) or tile.axis.size % tile.span:
        hi = b.select(b.compare("slt", size, hi), size, hi)
    if w.lanes.count != TILE:
        b.loop(lo, hi, 1, body, runs=True)
        return
    whole = isinstance(tile.axis.size, int) and tile.axis.size % TILE == 0

    def some(first: V, _: list[V]) -> tuple[()]:
        if whole:
            _whole(w, tile, first, body)
            return ()
        left = b.sub(hi, first)
        full = b.compare("sge", left, b.const("i64", TILE))
        b.when(full, lambda: _whole(w, tile, first, body))
        b.when(b.binary("xor", full, b.const("i1", True)), lambda: _part(w, tile, first, left, body))
        return ()

    if tile.span == TILE:
        some(lo, [])
    else:
        b.loop(lo, hi, TILE, some, runs=True)


def _whole(w: Writer, tile: Tile, first: V, body: Body) -> None:
    """TILE elements: one after the other without a loop where there is little to do for each."""
    b = w.b
    if not tile.unroll:
        _keep(w, tile, _rows(w, tile, first, None))
        b.loop(first, b.add(first, b.const("i64", TILE)), 1, body, runs=True)
        return
    outer = w.scope
    w.scope = outer.copy()
    rows = _rows(w, tile, first, None)
    for k in range(TILE):
        w.staged = {i: v[k] for i, v in zip(tile.loads, rows)}
        body(b.add(first, b.const("i64", k)), [])
    w.staged = {}
    w.scope = outer


def _part(w: Writer, tile: Tile, first: V, count: V, body: Body) -> None:
    """Fewer than TILE elements."""
    b = w.b
    mask = b.compare("slt", b.iota("i32", TILE), b.cast("trunc", count, "i32"))
    outer = w.scope
    w.scope = outer.copy()
    _keep(w, tile, _rows(w, tile, first, mask))
    b.loop(first, b.add(first, count), 1, body, runs=True)
    w.scope = outer


def _rows(w: Writer, tile: Tile, first: V, mask: V | None) -> list[list[V]]:
    """Of each load the transposed block that begins at ``first`` of the tile's axis, as it is in memory."""
    outer = w.scope
    w.scope = outer.copy()
    w.scope.symbols[tile.axis.index] = first
    b, vector = w.b, w.plan.vector
    assert vector is not None
    out = []
    for i in tile.loads:
        base = ix.pointer(b, i.buffer, w.nest.offsets[i], w.scope, w.levels, 99)
        step = coefficient(w.nest.offsets[i], vector.index)
        assert step is not None
        rows = []
        for k in range(TILE):
            distance = ix.scalar_index(b, step * k, w.scope)
            if w.lanes.mask is not None and k:  # past the end: read the first row again
                distance = b.select(b.extract(w.lanes.mask, k), distance, b.const("i64", 0))
            rows.append(ix.row_load(b, i, base, distance, TILE, mask))
            if tile.prefetch and mask is None and w.lanes.mask is None:
                ix.prefetch(b, i, base, ix.scalar_index(b, step * (k + AHEAD), w.scope))
        out.append(b.transpose(rows))
    w.scope = outer
    return out


def _keep(w: Writer, tile: Tile, blocks: list[list[V]]) -> None:
    b = w.b
    for n, (i, rows) in enumerate(zip(tile.loads, blocks)):
        for k, v in enumerate(rows):
            at = b.let("ptr", 1, f"getelementptr inbounds {v.type}, ptr %tile{n}, i64 {k}")
            b.emit(f"store {v.typed}, {at.typed}, align {i.dtype.itemsize}")


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
