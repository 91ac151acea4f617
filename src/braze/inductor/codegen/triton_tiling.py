"""How a kernel's axes are cut into blocks, and how large the blocks are, from shapes and a model of the card.

A tiling has block dims (the shape of the values in the generated code) and scalar dims (one value a program)::

    pointwise   flat        (x)      one contiguous run of elements
                tiled       (y, x)   a transpose, or values that are constant along the inner axis
    reduction   persistent  (x, r)   whole rows in registers: one pass over memory however many reductions
                looped      (x, r)   a loop over r for each reduction that depends on the one before
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from braze.ir import IntLike, Symbol, floordiv, mod, product, symbol, symbol_of
from braze.runtime.cuda_kernel import Launch

from ..loops import point_level
from ..loops.ir import Axis, Compute, Kernel, Load, Reduce, Store, operands
from .triton_layout import Layout, hint, nbytes

PERSISTENT_INNER = 16384  # elements of a row in registers; at 32768 loops are faster (0.63 to 0.55 of the copy rate)
PERSISTENT_OUTER = 512  # rows of a block of columns likewise, where several passes over them become one
HEAVY = frozenset(("philox", "erf", "erfc", "tanh", "pow"))  # tens of instructions an element
SMALL_TILE = 512  # elements of two axes below which a program takes others too
COLUMN_ROWS = 64  # and where there is one pass anyway


@dataclass(frozen=True, slots=True)
class Card:
    """What the choices depend on: how many multiprocessors want work."""

    name: str
    sms: int


H200 = Card("NVIDIA H200", 132)


@lru_cache(maxsize=16)
def card_of(device: torch.device) -> Card:
    """The card that a device is; an H200 where there is none to ask."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return H200
    properties = torch.cuda.get_device_properties(device)
    return Card(properties.name, properties.multi_processor_count)


@dataclass(frozen=True, eq=False)
class Dim:
    """Axes flattened into one index. ``block`` is the constexpr's name, "" for a scalar dim."""

    name: str
    axes: tuple[Axis, ...]
    block: str

    @property
    def numel(self) -> IntLike:
        return product([a.size for a in self.axes])

    @property
    def flat(self) -> Symbol:
        s = symbol_of(self.flat_expr)
        assert s is not None
        return s

    @property
    def flat_expr(self) -> IntLike:
        n = self.numel
        return symbol(f"{self.name}index", 0, max(n - 1, 0) if isinstance(n, int) else 2**62)

    def parts(self) -> dict[Symbol, IntLike]:
        """Each axis' index as an expression of the flat one."""
        out: dict[Symbol, IntLike] = {}
        inner: IntLike = 1
        for k, a in reversed(list(enumerate(self.axes))):
            e = floordiv(self.flat_expr, inner)
            out[a.index] = mod(e, a.size) if k else e
            inner = inner * a.size
        return out


@dataclass(frozen=True, eq=False)
class Tiling:
    """``blocks``: block dims, outermost first (r last). ``scalars``: dims that are one value a program.

    ``programs``: the grid's dims, fastest first. ``loop``: r is walked in RBLOCK steps."""

    kind: str  # "flat" | "tiled" | "persistent" | "looped"
    blocks: tuple[Dim, ...]
    scalars: tuple[Dim, ...]
    launches: tuple[Launch, ...]  # the first is the choice; all leave the same masks

    @property
    def programs(self) -> tuple[Dim, ...]:
        return tuple(d for d in reversed(self.blocks) if d.name != "r") + self.scalars

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.blocks + self.scalars

    @property
    def loop(self) -> bool:
        return self.kind == "looped"


def pow2(n: int) -> int:
    """The smallest power of two >= n."""
    return 1 << max(n - 1, 0).bit_length()


def pow2_below(n: int) -> int:
    """The largest power of two <= n."""
    return 1 << (max(n, 1).bit_length() - 1)


def choose(kernel: Kernel, layout: Layout, card: Card = H200) -> Tiling:
    """The tiling of a kernel."""
    if any(isinstance(i, Reduce) for i in kernel.body) or kernel.r:
        return _reduction(kernel, layout, card)
    inner = _transposed_axis(layout)
    if inner is not None:
        return _square(layout, inner)
    if _row_split(layout):
        return _rowwise(layout, card)
    return _flat(kernel, layout, card)


def _flat(kernel: Kernel, layout: Layout, card: Card) -> Tiling:
    """Measured on an H200 (bf16): 16 elements a thread and 2048 a program are best or within 3% of it from 4 MB to
    700 MB; 8 elements a thread where arithmetic is heavy (random bits, erf: 0.43 instead of 0.34 of the copy rate)."""
    n = hint(layout.xnumel)
    block = 1024
    while n < block * card.sms and block > 128:
        block //= 2
    if block < 1024:  # too little for the whole card: latency counts, so few elements a thread
        launches = [_columns(block, block // 128)]
    elif n < 8 * 1024 * card.sms:
        launches = [_columns(1024, 2), _columns(1024, 4), _columns(2048, 8)]
    elif any(isinstance(i, Compute) and i.fn in HEAVY for i in kernel.body):
        launches = [_columns(2048, 8), _columns(1024, 4), _columns(512, 2)]
    else:
        launches = [_columns(2048, 4), _columns(1024, 2), _columns(4096, 8), _columns(512, 4)]
    return Tiling("flat", (Dim("x", layout.x, "XBLOCK"),), (), tuple(launches))


def _transposed_axis(layout: Layout) -> Axis | None:
    """An axis other than the inner one along which large accesses are contiguous, while they jump along the inner."""
    if len(layout.x) < 2:
        return None
    inner, total = layout.x[-1], hint(layout.xnumel)
    weight: dict[int, int] = {}
    for a in layout.accesses:
        s = layout.stride(a, inner)
        if s is None or s in (0, 1) or layout.elements(a) * 4 < total:
            continue
        for k, axis in enumerate(layout.x[:-1]):
            if layout.stride(a, axis) == 1 and hint(axis.size) >= 4:
                weight[k] = weight.get(k, 0) + nbytes(a.buffer)
    return layout.x[max(weight, key=lambda k: weight[k])] if weight else None


def _row_split(layout: Layout) -> bool:
    """True where tiling (rows, inner axis) pays: some value is constant along long rows, or an indirect access is
    contiguous along them."""
    if len(layout.x) < 2:
        return False
    inner = layout.x[-1]
    n = hint(inner.size)
    if n < 64 or not isinstance(inner.size, int) or _waste(n, _row_block(n)) > 1.25:
        return False
    steps = [(a, layout.stride(a, inner)) for a in layout.accesses]
    return any((s == 0 and layout.elements(a) > 1) or (a.indirect and s == 1) for a, s in steps)


def _row_block(n: int) -> int:
    """The block along a row of n: the whole row when short, else the power of two that wastes least."""
    best = min((1024, 512, 256, 128), key=lambda b: (_waste(n, b) > 1.1, -b))
    return pow2(n) if n <= 1024 and _waste(n, pow2(n)) <= 1.1 else best


def _waste(n: int, block: int) -> float:
    return -(-n // block) * block / max(n, 1)


def _square(layout: Layout, second: Axis) -> Tiling:
    """Blocks over (second axis, inner axis), so that accesses along either are contiguous; other axes are scalars."""
    inner = layout.x[-1]
    n, m = hint(inner.size), hint(second.size)
    wide = max((nbytes(a.buffer) for a in layout.accesses), default=4)
    total = 4096 if wide <= 4 else 2048
    yb = min(total // min(32, pow2(n)), pow2(m), 128)
    xb = min(total // yb, pow2(n), 128)
    others = [a for a in layout.x[:-1] if a is not second]
    if yb * xb < SMALL_TILE and others:  # such as the pixels of a patch by colours: many of these in a program
        yb = max(2048 // xb, 1)
        blocks = Dim("y", (*others, second), "YBLOCK"), Dim("x", (inner,), "XBLOCK")
        return Tiling("tiled", blocks, (), (_tile(yb, xb, 4), _tile(max(yb // 4, 1), xb, 2)))
    scalars = tuple(Dim(f"z{k}", (a,), "") for k, a in enumerate(reversed(others)))
    blocks = Dim("y", (second,), "YBLOCK"), Dim("x", (inner,), "XBLOCK")
    return Tiling("tiled", blocks, scalars, (_tile(yb, xb, 8), _tile(max(yb // 2, 1), xb, 4)))


def _rowwise(layout: Layout, card: Card) -> Tiling:
    """Blocks over (rows, inner axis): what is constant along a row is loaded once a row."""
    inner, rows = layout.x[-1], layout.x[:-1]
    n = hint(inner.size)
    total, xb = 1024, _row_block(n)
    if any(a.indirect for a in layout.accesses):  # many rows at once hide the way from index to element
        total, xb = 2048, 64 if n % 64 == 0 else min(xb, 128)
    yb = max(1, total // xb)
    while yb > 1 and hint(product([a.size for a in rows])) * _ceil(n, xb) < yb * card.sms:
        yb //= 2
    warps = max(1, min(4, xb * yb // 256))
    x = Dim("x", (inner,), "XBLOCK")
    if yb == 1:  # a block of one row would hold its row values once a column
        return Tiling("tiled", (x,), (Dim("y", rows, ""),), (_columns(xb, warps),))
    return Tiling("tiled", (Dim("y", rows, "YBLOCK"), x), (), (_tile(yb, xb, warps),))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _inner_reduction(layout: Layout) -> bool:
    """True when most of what is loaded is contiguous along r rather than along x."""
    if not layout.x or not layout.r:
        return True
    along_r = along_x = 0
    for a in layout.accesses:
        step = layout.stride(a, layout.r[-1])
        if isinstance(a, Load) and step != 0:
            size = layout.elements(a) * nbytes(a.buffer)
            if step == 1:
                along_r += size
            elif layout.stride(a, layout.x[-1]) == 1:
                along_x += size
    return along_r >= along_x


def _reduction(kernel: Kernel, layout: Layout, card: Card) -> Tiling:
    rows, r = hint(layout.xnumel), layout.rnumel
    inner = _inner_reduction(layout)
    limit = PERSISTENT_INNER if inner else PERSISTENT_OUTER if passes(kernel) > 1 else COLUMN_ROWS
    whole = isinstance(r, int) and pow2(r) <= limit
    if _crossed(kernel, layout):
        whole = isinstance(r, int) and pow2(r) <= (1024 if passes(kernel) > 1 else 64)
        block = pow2(hint(r)) if whole else min(64, pow2(hint(layout.r[-1].size)))
        xb = min(32, pow2(rows), max(1, 16384 // block))
        launches = [_rows(xb, block, 16 if xb * block > 4096 else 8)]
    elif not inner:
        launches = _outer_launches(rows, hint(r), whole, card, _point_loads(layout))
    elif whole:
        launches = _row_launches(rows, pow2(hint(r)), card, passes(kernel) == 1 and not _positions(kernel))
    else:
        launches = _loop_launches(layout)
    x, rdim = Dim("x", layout.x, "XBLOCK"), Dim("r", layout.r, "RBLOCK")
    if all(launch.block("XBLOCK") == 1 for launch in launches):
        launches = [Launch((("RBLOCK", c.block("RBLOCK")),), c.num_warps, c.num_stages) for c in launches]
        return Tiling("persistent" if whole else "looped", (rdim,), (Dim("x", layout.x, ""),), tuple(launches))
    return Tiling("persistent" if whole else "looped", (x, rdim), (), tuple(launches))


def passes(kernel: Kernel) -> int:
    """How often a loop walks the rows: once a level of reductions, once more to store points after the last."""
    level: dict[object, int] = {}
    most = 0
    points = point_level(kernel)
    for i in kernel.body:
        level[i] = max((level[v] + isinstance(v, Reduce) for v in operands(i)), default=0)
        if isinstance(i, Reduce) or (isinstance(i, Store) and i in points):
            most = max(most, level[i] + 1)
    return most


def _crossed(kernel: Kernel, layout: Layout) -> bool:
    """True when some large accesses of points are contiguous along x and others along r: a transpose on the way."""
    if not layout.x or not layout.r:
        return False
    along: set[str] = set()
    for a in layout.accesses:
        x, r = layout.stride(a, layout.x[-1]), layout.stride(a, layout.r[-1])
        if x != 0 and r != 0 and not a.indirect:
            along |= {"x"} if x == 1 else {"r"} if r == 1 else set()
    return len(along) == 2 and min(hint(layout.x[-1].size), hint(layout.r[-1].size)) >= 8


def _loop_launches(layout: Layout) -> list[Launch]:
    """Long rows, in wide steps (softmax of 32768: 0.97 of the copy rate, 0.90 in steps of 2048). Rows that do not begin
    at multiples of 16 bytes are loaded in small pieces, of which a thread then needs many on the way (cross-entropy
    over 30522: 0.58 with 64 elements a thread, 0.25 with four)."""
    loads = [a for a in layout.accesses if isinstance(a, Load) and layout.stride(a, layout.r[-1]) == 1]
    if any(hint(layout.rnumel) * nbytes(a.buffer) % 16 for a in loads):
        return [_rows(1, 8192, 4 if len(loads) == 1 else 8), _rows(1, 8192, 16)]
    return [_rows(1, 8192, 16), _rows(1, 2048, 16)]


def _positions(kernel: Kernel) -> bool:
    return any(isinstance(i, Reduce) and i.kind.startswith("arg") for i in kernel.body)


def _row_launches(rows: int, block: int, card: Card, single: bool) -> list[Launch]:
    """Whole rows. Measured on an H200: one warp a row of 1024, 32 elements a thread, reaches 0.92 to 0.99 of the copy
    rate in layer norm where four warps reach 0.68 to 0.87; where nothing but a fold is done (``single``) two rows a
    program reach 0.83, one row 0.57. Short rows share a program of four warps."""
    if rows < 2 * card.sms:  # the card is not full: more threads a row
        return [_rows(1, block, max(1, min(16, block // 256)))]
    if block > 256:
        warps = max(1, block // 1024)
        choices = [(2, 2), (1, 1)] if single and block <= 1024 else [(1, warps), (1, min(2 * warps, 16))]
        return [_rows(x, block, w) for x, w in dict.fromkeys(choices)]
    xb = 2048 // block
    while xb > 1 and _ceil(rows, xb) < 2 * card.sms:
        xb //= 2
    warps = max(1, min(4, pow2_below(xb * block // 256)))
    return [_rows(xb, block, warps), _rows(xb, block, min(2 * warps, 8))]


def _point_loads(layout: Layout) -> int:
    """How many loads move along r."""
    return sum(isinstance(a, Load) and layout.stride(a, layout.r[-1]) != 0 for a in layout.accesses)


def _outer_launches(rows: int, r: int, whole: bool, card: Card, loads: int) -> list[Launch]:
    """Blocks of columns. Where they fill the card, short steps beat tall ones (a plain sum, 16 rows: 0.79 of the copy
    rate, 64 rows: 0.57); where they do not, a program must have more on the way at once. Each thread gets 4 to 8
    elements: with 16, kernels of several operands spill registers and lose up to a factor of 5."""
    xb = min(64, pow2(rows))
    while xb > 32 and _ceil(rows, xb) < card.sms:
        xb //= 2
    if not whole:
        tall, narrow = _rows(xb, min(pow2(r), 4096 // xb), 16), _rows(32, min(pow2(r), 64), 8)
        short = _rows(xb, min(pow2(r), 16 if loads == 1 else 32), max(4, xb // 8))
        return [short, tall] if _ceil(rows, xb) >= 3 * card.sms else [narrow, tall, short]
    rb = pow2(r)
    while xb > 16 and xb * rb > 8192:
        xb //= 2
    return [_rows(xb, rb, max(1, min(16, pow2_below(xb * rb // 512))))]


def _columns(xblock: int, warps: int) -> Launch:
    return Launch((("XBLOCK", xblock),), num_warps=warps)


def _tile(yblock: int, xblock: int, warps: int) -> Launch:
    return Launch((("YBLOCK", yblock), ("XBLOCK", xblock)), num_warps=warps)


def _rows(xblock: int, rblock: int, warps: int) -> Launch:
    return Launch((("XBLOCK", xblock), ("RBLOCK", rblock)), num_warps=warps)
