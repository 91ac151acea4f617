"""Random numbers in Triton: one Philox for four neighbours wherever a block dim runs along them.

Along the last block dim, or, in sums over columns, along the first: the draws of a quarter of the block are made and
put side by side.  Without this a dropout takes 60 instructions an element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braze.ir import Expr, IntLike, Symbol, substitute, symbol, symbol_of, symbols
from braze.ir.expr import Atom, Call

from ..loops.ir import Compute, Index

if TYPE_CHECKING:
    from .triton_emit import Dims, _Emitter


def philox(e: _Emitter, i: Compute) -> None:
    """The draw of each element."""
    seed, offset, index = i.args
    few = None
    if isinstance(index, Index) and not e.dims_of((seed, offset)):
        few = along_last(e, index) or along_first(e, index)
    dims = few[1] if few else e.dims_of(i.args)
    key = f"{e.use(seed, dims)}, {e.use(offset, dims)}"
    if few is None:
        e.define(i, f"bz_uniform({key}, {e.use(index, dims)})", dims)
    else:
        e.define(i, f"{few[2]}({key}, {few[0]})", dims)


def along_last(e: _Emitter, index: Index) -> tuple[str, Dims, str] | None:
    """index // 4 at every fourth element of the inner block dim, when the index is contiguous and aligned there: the
    text, its dims, and the function that makes the draws."""
    inner = e.tiling.blocks[-1]
    flat = e.flat[index]
    rest = flat - inner.flat_expr
    if inner.flat in symbols(rest) or isinstance(rest % 4, Expr) or rest % 4 != 0 or not _quartered(e, inner.block):
        return None
    own = frozenset((inner.name,))
    dims = e.index(rest // 4)[1] | own
    text, _ = e.index(rest // 4, want=dims)
    offset = {"r": "roffset // 4 + " if e.tiling.loop else ""}.get(inner.name, f"{inner.name}offset // 4 + ")
    arange = e.along(f"{offset}tl.arange(0, {inner.block} // 4)", own, dims)
    return arange if text == "0" else f"{arange} + ({text})", dims, "bz_uniform4"


def along_first(e: _Emitter, index: Index) -> tuple[str, Dims, str] | None:
    """The same along the first of two block dims, through quotients and remainders by multiples of four."""
    blocks = e.tiling.blocks
    if len(blocks) != 2 or not _quartered(e, blocks[0].block):
        return None
    outer, flat = blocks[0], e.flat[index]
    quarter = symbol("quarter", 0, 2**61)
    at = substitute(flat, {outer.flat: 4 * quarter})
    if _step(flat, outer.flat, quarter) != 1 or not _fourfold(at):
        return None
    name = symbol_of(quarter)
    assert name is not None
    dims = frozenset(d.name for d in blocks)
    text = f"({outer.name}offset // 4 + tl.arange(0, {outer.block} // 4))"
    counter, found = e.index(at // 4, {name: (text, frozenset((outer.name,)))}, dims)
    return (counter, dims, "bz_uniform4_first") if found == dims else None


def _quartered(e: _Emitter, block: str) -> bool:
    return all(c.block(block) % 4 == 0 for c in e.tiling.launches)


def _fourfold(e: IntLike) -> bool:
    rest = e % 4
    return not isinstance(rest, Expr) and rest == 0


def _step(e: IntLike, s: Symbol, quarter: IntLike) -> int | None:
    """By how much an expression grows with each step of ``s`` from one multiple of four to before the next; None where
    that is not the same everywhere."""
    if not isinstance(e, Expr):
        return 0
    total = 0
    for atoms, factor in e.terms.items():
        steps = [_atom_step(a, s, quarter) for a in atoms]
        if all(n == 0 for n in steps):
            continue
        if len(steps) != 1 or steps[0] is None:
            return None
        total += factor * steps[0]
    return total


def _atom_step(a: Atom, s: Symbol, quarter: IntLike) -> int | None:
    if isinstance(a, Symbol):
        return int(a is s)
    assert isinstance(a, Call)
    steps = [_step(x, s, quarter) for x in a.args]
    if all(n == 0 for n in steps):
        return 0
    divisor = a.args[1]
    aligned = steps[0] == 1 and isinstance(divisor, int) and divisor % 4 == 0
    if a.op not in ("floordiv", "mod") or not aligned or not _fourfold(substitute(a.args[0], {s: 4 * quarter})):
        return None
    return int(a.op == "mod")
