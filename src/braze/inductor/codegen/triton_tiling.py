"""How a kernel's axes are cut into blocks, and how large the blocks are, from shapes and a model of the card.

A tiling has block dims (the shape of the values in the generated code) and scalar dims (one value a program)::

    pointwise   flat        (x)      one contiguous run of elements
                tiled       (y, x)   a transpose, or values that are constant along the inner axis
    reduction   persistent  (x, r)   whole rows in registers: one pass over memory however many reductions
                looped      (x, r)   a loop over r for each reduction that depends on the one before
"""

from __future__ import annotations

from dataclasses import dataclass

from braze.ir import IntLike, Symbol, floordiv, mod, product, symbol, symbol_of
from braze.runtime.cuda_kernel import Launch

from ..loops.ir import Axis, Kernel, Load, Reduce
from .triton_layout import Layout, hint, nbytes

PERSISTENT_INNER = 16384  # elements of a row that a program keeps in registers
PERSISTENT_OUTER = 64  # rows of a column block likewise


@dataclass(frozen=True, slots=True)
class Card:
    """What the choices depend on. ``bandwidth`` in bytes/s as a copy measures it."""

    name: str
    sms: int
    bandwidth: float


H200 = Card("NVIDIA H200", 132, 4.3e12)


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
        return _tile(layout, inner, card, square=True)
    split = _row_split(kernel, layout)
    if split is not None:
        return _tile(layout, split, card, square=False)
    return _flat(layout, card)


def _flat(layout: Layout, card: Card) -> Tiling:
    n = hint(layout.xnumel)
    launches = [Launch((("XBLOCK", b),), num_warps=w) for b, w in ((1024, 4), (512, 4), (2048, 8))]
    while n < launches[0].block("XBLOCK") * card.sms and launches[0].block("XBLOCK") > 128:
        block = launches[0].block("XBLOCK") // 2
        launches = [Launch((("XBLOCK", block),), num_warps=max(1, min(4, block // 64)))]
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


def _row_split(kernel: Kernel, layout: Layout) -> Axis | None:
    """The axis outside the inner one, where tiling (rows, inner) pays: some value is constant along long inner rows,
    or an indirect access is contiguous along them."""
    if len(layout.x) < 2:
        return None
    inner = layout.x[-1]
    n = hint(inner.size)
    if n < 64 or not isinstance(inner.size, int) or _waste(n, _row_block(n)) > 1.25:
        return None
    for a in layout.accesses:
        if layout.stride(a, inner) == 0 and layout.elements(a) > 1:
            return layout.x[-2]
        if a.indirect and layout.stride(a, inner) == 1:
            return layout.x[-2]
    return None


def _row_block(n: int) -> int:
    """The block along a row of n: the whole row when short, else the power of two that wastes least."""
    best = min((1024, 512, 256, 128), key=lambda b: (_waste(n, b) > 1.1, -b))
    return pow2(n) if n <= 1024 and _waste(n, pow2(n)) <= 1.1 else best


def _waste(n: int, block: int) -> float:
    return -(-n // block) * block / max(n, 1)


def _tile(layout: Layout, second: Axis, card: Card, square: bool) -> Tiling:
    """Blocks over (second axis, inner axis); the other axes are scalars (or join ``second`` where all are rows)."""
    inner = layout.x[-1]
    n, m = hint(inner.size), hint(second.size)
    if square:
        others = tuple(a for a in layout.x[:-1] if a is not second)
        total = 4096 if max((nbytes(a.buffer) for a in layout.accesses), default=4) <= 4 else 2048
        xb = min(64, pow2(n))
        yb = min(total // xb, pow2(m))
        xb = min(total // yb, pow2(n))
        choices = [(yb, xb, 8), (max(yb // 2, 1), xb, 4)]
        y, scalars = (second,), tuple(Dim(f"z{k}", (a,), "") for k, a in enumerate(reversed(others)))
    else:
        y, scalars = layout.x[:-1], ()
        xb = _row_block(n)
        yb = max(1, 1024 // xb)
        while yb > 1 and hint(product([a.size for a in y])) * _ceil(n, xb) < yb * card.sms:
            yb //= 2
        warps = max(1, min(4, xb * yb // 128))
        choices = [(yb, xb, warps)]
    if all(a == 1 for a, _, _ in choices):  # a block of one row would hold its row values once a column
        rows = (Dim("y", y, ""), *scalars)
        return Tiling("tiled", (Dim("x", (inner,), "XBLOCK"),), rows, tuple(_columns(b, w) for _, b, w in choices))
    launches = tuple(Launch((("YBLOCK", a), ("XBLOCK", b)), num_warps=w) for a, b, w in choices)
    return Tiling("tiled", (Dim("y", y, "YBLOCK"), Dim("x", (inner,), "XBLOCK")), scalars, launches)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _inner_reduction(layout: Layout) -> bool:
    """True when most loads are contiguous along r rather than along x."""
    if not layout.x or not layout.r:
        return True
    along_r = along_x = 0
    for a in layout.accesses:
        if isinstance(a, Load):
            size = layout.elements(a) * nbytes(a.buffer)
            if layout.stride(a, layout.r[-1]) == 1:
                along_r += size
            elif layout.stride(a, layout.x[-1]) == 1:
                along_x += size
    return along_r >= along_x


def _reduction(kernel: Kernel, layout: Layout, card: Card) -> Tiling:
    rows, r = hint(layout.xnumel), layout.rnumel
    inner = _inner_reduction(layout)
    limit = PERSISTENT_INNER if inner else PERSISTENT_OUTER
    whole = isinstance(r, int) and pow2(r) <= limit
    if inner:
        launches = _inner_launches(rows, hint(r), whole, card)
    else:
        launches = _outer_launches(rows, hint(r), whole, card)
    x, rdim = Dim("x", layout.x, "XBLOCK"), Dim("r", layout.r, "RBLOCK")
    if all(launch.block("XBLOCK") == 1 for launch in launches):
        launches = [Launch((("RBLOCK", c.block("RBLOCK")),), c.num_warps, c.num_stages) for c in launches]
        return Tiling("persistent" if whole else "looped", (rdim,), (Dim("x", layout.x, ""),), tuple(launches))
    return Tiling("persistent" if whole else "looped", (x, rdim), (), tuple(launches))


def _inner_launches(rows: int, r: int, whole: bool, card: Card) -> list[Launch]:
    if not whole:
        block = min(pow2(r), 2048)
        return [_rows(1, block, 8 if block >= 1024 else 4), _rows(1, min(pow2(r), 4096), 16)]
    block = pow2(r)
    xb = max(1, min(1024 // block, pow2(rows)))
    while xb > 1 and _ceil(rows, xb) < 2 * card.sms:
        xb //= 2
    warps = max(1, min(16, pow2_below(xb * block // 256)))
    out = [_rows(xb, block, warps)]
    if warps < 16 and xb * block >= 1024:
        out.append(_rows(xb, block, warps * 2))
    if xb == 1 and block <= 1024:
        out.append(_rows(1, block, max(1, warps // 2)))
    return out


def _outer_launches(rows: int, r: int, whole: bool, card: Card) -> list[Launch]:
    xb = min(64, pow2(rows))
    while xb > 32 and _ceil(rows, xb) < card.sms:
        xb //= 2
    rb = pow2(r) if whole else min(64, pow2(r))
    warps = max(1, min(8, pow2_below(xb * rb // 256)))
    return [_rows(xb, rb, warps)]


def _columns(xblock: int, warps: int) -> Launch:
    return Launch((("XBLOCK", xblock),), num_warps=warps)


def _rows(xblock: int, rblock: int, warps: int) -> Launch:
    return Launch((("XBLOCK", xblock), ("RBLOCK", rblock)), num_warps=warps)
