"""Which tilings of a matrix product are worth timing: a small model of the card ranks them.

A tile costs its work at the rate that tiles of its form reach; a launch takes as many rounds as there are tiles for
each multiprocessor.  The model is coarse (within a third on an H200), so the best few are timed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """Sizes of a product (hints for symbolic ones), and bytes of an element of its factors."""

    batch: int
    m: int
    n: int
    k: int
    itemsize: int


FORMS: dict[Tile, float] = {
    Tile(128, 256, 64, 8, 4, persistent=True, descriptors=True, slices=4): 0.8,
    Tile(128, 128, 64, 8, 3, persistent=True, descriptors=True, slices=4, resident=2): 0.78,
    Tile(128, 128, 64, 4, 3, persistent=True, descriptors=True, slices=4, resident=2): 0.76,
    Tile(256, 128, 64, 8, 4, persistent=True, descriptors=True, slices=4): 0.74,
    Tile(128, 256, 64, 8, 4, slices=4): 0.73,
    Tile(128, 128, 64, 8, 3, slices=2, resident=2): 0.7,
    Tile(128, 128, 64, 4, 3, slices=4, resident=2): 0.7,
    Tile(64, 128, 64, 4, 4, slices=2, resident=2): 0.6,
    Tile(128, 64, 64, 4, 4, slices=2, resident=2): 0.58,
    Tile(64, 64, 64, 4, 4, resident=4): 0.4,
    Tile(64, 64, 64, 4, 4, persistent=True, descriptors=True, resident=4): 0.38,
    Tile(64, 32, 64, 4, 4, resident=4): 0.25,
    Tile(32, 64, 64, 4, 4, resident=4): 0.25,
    Tile(16, 128, 64, 4, 4, resident=4): 0.2,
    Tile(16, 64, 128, 4, 3, resident=4): 0.15,
}
"""Tilings, and the share of the tensor cores' rate that an H200 full of them reaches (bf16)."""


def cost(shape: Shape, tile: Tile, share: float, card: Card) -> float:
    """Time of a launch, in units of one multiprocessor's rate: the rounds that it takes, each as long as the programs
    that share a multiprocessor."""
    tiles = shape.batch * -(-shape.m // tile.m) * -(-shape.n // tile.n)
    rounds = -(-tiles // (card.sms * tile.resident)) * min(tile.resident, -(-tiles // card.sms))
    return rounds * tile.m * tile.n * (shape.k + 128) / share  # the pipeline's start and the epilogue: two steps


def tiles_for(shape: Shape, card: Card, rows: int = 0) -> list[Tile]:
    """The tilings to time, the most promising first; with ``rows``, those of so many rows."""
    found = []
    for form, share in FORMS.items():
        fits = form.m < 2 * max(shape.m, 16) and form.n < 2 * max(shape.n, 16)
        if fits and rows in (0, form.m) and not (form.descriptors and shape.batch > 1):
            found.append((cost(shape, form, share, card), _steps(form, shape)))
    found.sort(key=lambda c: c[0])
    return [t for _, t in found[:MOST]]


def _steps(form: Tile, shape: Shape) -> Tile:
    """The form with steps along k that suit the shape: the same bytes for wider elements."""
    k = form.k * 2 // max(shape.itemsize, 2)
    while k > 16 and shape.k <= k // 2:
        k //= 2
    return replace(form, k=k)
