"""What fusion must know of a device, as data, and why two kernels may not become one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class DeviceTraits:
    """The numbers that fusion weighs. Bytes and element counts.

    ``parallel_rows``: independent rows that fill the machine; a reduction with fewer is split.
    ``row_bytes``: the largest row that stays in fast memory between two passes over it.
    ``line_elems``: neighbouring columns that a column reduction handles together.
    ``split_points``: a reduction of fewer points is never split.
    ``launch_bytes``: memory traffic that costs as much as one more kernel.
    ``split_pieces``: a stored concatenation of at least so many points becomes one kernel a piece (0: never).
    ``fold_rows``: a kernel that walks rows in memory order also sums its columns, in partial sums of about so many rows
    that one thread makes (0: never).
    ``split_columns``: a column reduction gives each unit of the machine so many columns, or is split along its rows
    (0: ``line_elems``).
    ``short_axis``: a reduction over several axes reduces the innermost one apart where it has at most so many elements
    (0: never).
    ``far_step``: columns with a larger step, in bytes, fight for the same cache sets and pages.
    ``flop_bytes``: memory traffic, in bytes, that costs as much as one arithmetic instruction on one element.
    ``min_chunk``: a split reduction's chunks have at least so many points.
    ``column_stores``: a sum down the columns may also store what it adds (blocks of columns are written well).
    """

    parallel_rows: int
    row_bytes: int
    line_elems: int
    split_points: int
    flop_bytes: float
    launch_bytes: int
    split_pieces: int = 0
    min_chunk: int = 1024
    column_stores: bool = False
    fold_rows: int = 0
    far_step: int = 2048
    split_columns: int = 0
    short_axis: int = 0


CPU = DeviceTraits(
    2,
    row_bytes=512 * 1024,
    line_elems=16,
    split_points=1 << 15,
    flop_bytes=0.3,
    launch_bytes=16 * 1024,
    split_pieces=4096,
    fold_rows=64,
    split_columns=96,
    short_axis=64,
)
CUDA = DeviceTraits(
    264,
    row_bytes=128 * 1024,
    line_elems=64,
    split_points=1 << 14,
    flop_bytes=0.05,
    launch_bytes=2 << 20,
    min_chunk=128,
    column_stores=True,
)

DEFAULTS = {"cpu": CPU, "cuda": CUDA}


def traits_of(device: torch.device, threads: int = 0) -> DeviceTraits:
    """The traits of a device; a CPU is filled by ``threads`` rows (0: torch's number of threads)."""
    if device.type == "cpu":
        return replace(CPU, parallel_rows=threads or torch.get_num_threads())
    return DEFAULTS.get(device.type, CUDA)


@dataclass(frozen=True)
class Reason:
    """Why two kernels stay apart."""

    text: str

    def __str__(self) -> str:
        return self.text


DIFFERENT_DEVICE = Reason("they run on different devices")
DIFFERENT_DOMAIN = Reason("their iteration domains have no one-to-one map")
DIFFERENT_REDUCTION = Reason("they reduce over different axes")
OTHER_POINT = Reason("one reads the other's result at another point")
CYCLE = Reason("a step between them depends on one and feeds the other")
LONG_ROW = Reason("the second pass would read a row that is too long to keep")
SPLIT_ROW = Reason("the reduction is split over the machine, so its result is known only afterwards")
ROWS_APART = Reason("the rows are short runs of memory with other rows' in between, which are summed together")
TOO_BIG = Reason("the merged kernel would touch too many buffers")
NO_GAIN = Reason("merging saves no memory traffic")
STORED_ANYWAY = Reason("the pointwise result is stored or read elsewhere too, and the sum runs across its rows")
