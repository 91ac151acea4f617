"""Strides as ATen computes them: memory formats, TensorIterator's output strides, view strides.

All functions take tuples of sizes and strides (ints or Expr, in elements) and are pure. An Expr size counts as
neither 0 nor 1: sizes that are 0 or 1 are specialised before a trace begins.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ..ir import Expr, IntLike, contiguous_strides, evaluate, known_eq, terms_of
from .questions import FORGETTERS, ask

Ints = tuple[IntLike, ...]

contiguous = lru_cache(65536)(contiguous_strides)
_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}  # dims of channels_last(_3d), innermost first


def less(a: IntLike, b: IntLike) -> bool:
    """a < b, asked where the ranges of the symbols leave it open."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return ask("<", *_cancelled(a, b), f"the order of the symbolic strides {a} and {b} is not known")


def _cancelled(a: IntLike, b: IntLike) -> tuple[IntLike, IntLike]:
    """Both without the positive symbols that every term of both has as factors: the order stays the same.

    Ranges alone do not order s and s*s.
    """
    terms = [list(terms_of(e)) for e in (a, b)]
    if not all(terms):
        return a, b
    common = [atom for atom in terms[0][0][1] if atom.lo > 0]
    for factors in (m for t in terms for _, m in t):
        common = _shared(common, list(factors))
    if not common:
        return a, b
    out = []
    for t in terms:
        total: IntLike = 0
        for c, m in t:
            rest = list(m)
            for atom in common:
                rest.remove(atom)
            total = total + (Expr({tuple(rest): c}) if rest else c)
        out.append(total)
    return out[0], out[1]


def dense_by(sizes: Ints, order: tuple[int, ...]) -> Ints:
    """Gapless strides with the dims of ``order`` laid out innermost first."""
    out: list[IntLike] = [0] * len(sizes)
    step: IntLike = 1
    for d in order:
        out[d] = step
        n = sizes[d]
        step = step * (max(n, 1) if isinstance(n, int) else n)
    return tuple(out)


def _shared(common: list[Any], factors: list[Any]) -> list[Any]:
    out = []
    for atom in common:
        if atom in factors:
            factors.remove(atom)
            out.append(atom)
    return out


@lru_cache(65536)
def channels_last(sizes: Ints) -> Ints:
    """The strides of channels_last (rank 4) or channels_last_3d (rank 5)."""
    return dense_by(sizes, _LAST[len(sizes)])


@lru_cache(65536)
def is_contiguous(sizes: Ints, strides: Ints) -> bool:
    """Row-major without gaps; strides of size-1 dims do not count."""
    return _gapless(sizes, strides, tuple(range(len(sizes) - 1, -1, -1)))


def _gapless(sizes: Ints, strides: Ints, order: tuple[int, ...]) -> bool:
    if any(known_eq(n, 0) for n in sizes):
        return True
    step: IntLike = 1
    for d in order:
        if not known_eq(sizes[d], 1):
            if not known_eq(strides[d], step):
                return False
            step = step * sizes[d]
    return True


@lru_cache(65536)
def is_channels_last(sizes: Ints, strides: Ints) -> bool:
    """Gapless in channels_last (rank 4 or 5) order, as ``is_contiguous(memory_format=channels_last)``."""
    if len(sizes) not in _LAST or any(known_eq(n, 0) for n in sizes):
        return False
    return _gapless(sizes, strides, _LAST[len(sizes)])


@lru_cache(65536)
def is_dense(sizes: Ints, strides: Ints) -> bool:
    """ATen's non-overlapping and dense: some order of the dims is gapless."""
    if is_contiguous(sizes, strides):
        return True
    order: list[int] = []
    for d in range(len(sizes)):
        if known_eq(sizes[d], 1):
            continue
        i = 0
        while i < len(order) and not less(strides[d], strides[order[i]]):
            i += 1
        order.insert(i, d)
    return _gapless(sizes, strides, tuple(order))


@lru_cache(65536)
def suggests_channels_last(sizes: Ints, strides: Ints) -> bool:
    """ATen's ``is_strides_like_channels_last`` behind ``suggest_memory_format`` (rank 4 and 5)."""
    if len(sizes) not in _LAST:
        return False
    low: IntLike = 0
    if known_eq(strides[1], 0):
        return False
    for d in _LAST[len(sizes)]:
        if known_eq(sizes[d], 0) or less(strides[d], low):
            return False
        # N111 and NC11 are ambiguous: contiguous wins
        if d == 0 and known_eq(low, strides[1]):
            return False
        low = strides[d]
        if not known_eq(sizes[d], 1):
            low = low * sizes[d]
    return True


def suggested(sizes: Ints, like: tuple[Ints, Ints]) -> Ints:
    """Strides for ``sizes`` in the suggested memory format of a tensor with sizes and strides ``like``."""
    return channels_last(sizes) if suggests_channels_last(*like) and len(sizes) in _LAST else contiguous(sizes)


def in_format(sizes: Ints, strides: Ints, fmt: torch.memory_format | None) -> Ints:
    """Strides of a fresh copy of a tensor in memory format ``fmt`` (None: preserve)."""
    if fmt is None or fmt is torch.preserve_format:
        return preserved(sizes, strides)
    if fmt is torch.contiguous_format:
        return contiguous(sizes)
    return channels_last(sizes)


@lru_cache(65536)
def preserved(sizes: Ints, strides: Ints) -> Ints:
    """Strides of ``empty_like`` with preserve_format: dense ones stay, others lose gaps and overlaps."""
    if is_dense(sizes, strides):
        return strides
    return dense_by(sizes, _sorted_dims(sizes, (strides,)))


def _compare(a: int, b: int, sizes: Ints, operands: tuple[Ints, ...]) -> int:
    """1 when dim a must lie outside of dim b, -1 inside, 0 when the operands leave it open."""
    for strides in operands:
        s, t = strides[a], strides[b]
        if known_eq(s, 0) or known_eq(t, 0):
            continue
        if not known_eq(s, t):
            return -1 if less(s, t) else 1
        if not known_eq(sizes[a], sizes[b]) and less(sizes[b], sizes[a]):
            return 1
    return 0


def _sorted_dims(sizes: Ints, operands: tuple[Ints, ...]) -> tuple[int, ...]:
    """Dims innermost first: TensorIterator's insertion sort by the operands' strides, in their order."""
    perm = list(range(len(sizes) - 1, -1, -1))
    for i in range(1, len(perm)):
        at = i
        for j in range(i - 1, -1, -1):
            c = _compare(perm[j], perm[at], sizes, operands)
            if c > 0:
                perm[j], perm[at] = perm[at], perm[j]
                at = j
            elif c < 0:
                break
    return tuple(perm)


def broadcast(shapes: tuple[Ints, ...]) -> Ints:
    """The broadcast shape. RuntimeError, as in eager, when the shapes do not match."""
    rank = max(len(s) for s in shapes)
    out: list[IntLike] = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, rank - len(shape)):
            m = out[i]
            if known_eq(n, m) or known_eq(n, 1):
                continue
            if known_eq(m, 1):
                out[i] = n
            elif not ask("==", n, m, f"broadcasting sizes {m} and {n}, whose equality is not known"):
                raise RuntimeError(
                    f"The size of tensor a ({m}) must match the size of tensor b ({n}) at non-singleton dimension {i}"
                )
    return tuple(out)


@lru_cache(65536)
def iterate(*operands: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Sizes and strides of a pointwise result for operands given as (sizes, strides): TensorIterator's rules."""
    first, first_strides = operands[0]
    if all(o[0] == first for o in operands):
        if all(is_contiguous(*o) for o in operands):
            return first, contiguous(first)
        if len(first) == 4 and all(is_channels_last(*o) for o in operands):
            return first, channels_last(first)
        if all(o[1] == first_strides for o in operands) and is_dense(first, first_strides):
            return first, first_strides
        sizes = first
    else:
        sizes = broadcast(tuple(o[0] for o in operands))
    order = _sorted_dims(sizes, tuple(_expanded(o, sizes) for o in operands))
    if order == tuple(range(len(sizes) - 1, -1, -1)):
        return sizes, contiguous(sizes)
    out: list[IntLike] = [0] * len(sizes)
    step: IntLike = 1
    for d in order:  # a size of 0 gives strides of 0 here
        out[d] = step
        step = step * sizes[d]
    return sizes, tuple(out)


def _expanded(operand: tuple[Ints, Ints], sizes: Ints) -> Ints:
    mine, strides = operand
    pad = len(sizes) - len(mine)
    return (0,) * pad + tuple(
        0 if known_eq(n, 1) and not known_eq(m, 1) else s for n, s, m in zip(mine, strides, sizes[pad:])
    )


@lru_cache(65536)
def view_strides(sizes: Ints, strides: Ints, new: Ints) -> Ints | None:
    """Strides that show a tensor as ``new`` (same number of elements) without a copy, or None."""
    if not sizes:
        return (1,) * len(new)
    if any(known_eq(n, 0) for n in sizes):
        return strides if sizes == new else contiguous(new)
    if is_contiguous(sizes, strides) and sizes != new and not any(known_eq(n, 1) for n in sizes):
        return contiguous(new)
    return _chunked(sizes, strides, new)


def _chunked(sizes: Ints, strides: Ints, new: Ints) -> Ints | None:
    out: list[IntLike] = [0] * len(new)
    at = len(new) - 1
    base = strides[-1]
    have: IntLike = 1  # elements of the present gapless chunk of old dims
    used: IntLike = 1  # elements of it that new dims took
    for d in range(len(sizes) - 1, -1, -1):
        have = have * sizes[d]
        if d > 0 and (known_eq(sizes[d - 1], 1) or known_eq(strides[d - 1], have * base)):
            continue
        while at >= 0 and (not known_eq(used, have) or known_eq(new[at], 1)):
            out[at] = used * base
            used = used * new[at]
            at -= 1
            if isinstance(used, int) and isinstance(have, int) and used > have:
                return None
        if not known_eq(used, have):
            return None
        if d > 0:
            base, have, used = strides[d - 1], 1, 1
    return tuple(out) if at == -1 else None


def forget() -> None:
    """Drop every remembered result: some depended on answers that hold no longer."""
    for f in (contiguous, channels_last, is_contiguous, is_channels_last, is_dense, suggests_channels_last, preserved):
        f.cache_clear()
    iterate.cache_clear()
    view_strides.cache_clear()


FORGETTERS.append(forget)


def _now(n: IntLike) -> int:
    return n if isinstance(n, int) else evaluate(n)


def overlaps(sizes: Ints, strides: Ints) -> bool:
    """Whether elements may share memory. Symbolic strides are compared by their hints, and a symbolic size counts as 2
    at least: windows over a tensor overlap though there is one of them now."""
    if any(isinstance(n, int) and n == 0 for n in sizes):
        return False
    pairs = [(s, n) for n, s in zip(sizes, strides) if not (isinstance(n, int) and n == 1)]
    now = [(_now(s), n if isinstance(n, int) else max(_now(n), 2)) for s, n in pairs]
    end = 1
    for stride, size in sorted(now):
        if stride < end:
            return True
        end += (size - 1) * stride
    return False
