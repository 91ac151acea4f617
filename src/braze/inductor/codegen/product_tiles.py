"""Which tilings of a matrix product are worth timing: a small model of the card ranks them.

A tile of BM x BN costs what its tensor-core work and its loads cost; a launch takes as many rounds as there are tiles
for each multiprocessor.  The model is coarse (within a third on an H200), so the best few are timed.
"""

from __future__ import annotations

from dataclasses import dataclass

from .triton_tiling import Card

MOST = 6  # tilings that are timed


@dataclass(frozen=True, slots=True)
class Tile:
    """Block sizes of a product, warps and pipeline stages; see ``triton_product``."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    group: int = 8
    persistent: bool = False
    descriptors: bool = False
    slices: int = 1  # the epilogue runs on so many parts of a tile's columns, one after the other
    resident: int = 1  # programs of a multiprocessor at the same time, where they are persistent


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a product (hints for symbolic ones), bytes of an element of its factors, and extra bytes that its
    epilogue moves for an element of the result."""

    batch: int
    m: int
    n: int
    k: int
    itemsize: int
    epilogue: int = 0


EFFICIENCY = {
    (256, 128): 0.75,
    (128, 256): 0.8,
    (128, 128): 0.72,
    (128, 64): 0.55,
    (64, 128): 0.55,
    (64, 256): 0.6,
    (256, 64): 0.55,
    (64, 64): 0.38,
    (32, 64): 0.2,
    (64, 32): 0.2,
    (16, 64): 0.1,
    (16, 128): 0.15,
    (32, 128): 0.25,
}
"""The share of its tensor cores' rate that one multiprocessor reaches with such tiles (bf16, H200)."""


def warps_of(m: int, n: int) -> int:
    return 8 if m * n >= 128 * 256 else 4


def stages_of(m: int, n: int, k: int, itemsize: int, shared: int = 200 * 1024) -> int:
    """As many stages as shared memory holds, up to 4."""
    return max(2, min(4, shared // ((m + n) * k * itemsize)))


def rounds(shape: Shape, m: int, n: int, card: Card) -> float:
    """Seconds in units of one multiprocessor's full rate: work of the rounds that the launch takes."""
    tiles = shape.batch * -(-shape.m // m) * -(-shape.n // n)
    resident = 1 if m * n >= 128 * 128 else 2
    full = -(-tiles // (card.sms * resident)) * resident
    work = m * n * (shape.k + 2 * 64) / EFFICIENCY[m, n]  # filling the pipeline and the epilogue cost about two steps
    return full * work


def tiles_for(shape: Shape, card: Card) -> list[Tile]:
    """The tilings to time, the most promising first."""
    k = 64 if shape.itemsize == 2 else 32
    while k > 16 and shape.k <= k // 2:
        k //= 2
    ranked = sorted(EFFICIENCY, key=lambda t: rounds(shape, *t, card))
    ranked = [t for t in ranked if t[0] < 2 * max(shape.m, 16) and t[1] < 2 * max(shape.n, 16)]
    out = [Tile(m, n, k, warps_of(m, n), stages_of(m, n, k, shape.itemsize)) for m, n in ranked[:3]]
    for t in out[:2]:
        if shape.batch == 1:
            out.append(Tile(t.m, t.n, t.k, 8 if t.m * t.n >= 128 * 128 else 4, t.stages, 8, True, True))
    if shape.batch == 1 and (128, 256) not in ranked[:2] and shape.m >= 128 and shape.n >= 256:
        out.append(Tile(128, 256, k, 8, stages_of(128, 256, k, shape.itemsize), 8, True, True))
    return out[:MOST]
