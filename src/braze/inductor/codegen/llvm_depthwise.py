"""The weight gradient of a depthwise convolution in channels_last, written by hand: oneDNN's takes 2 to 6 times as
long.

``gw[c, i, j] = sum over n, oh, ow of g[n, c, oh, ow] * x[n, c, oh * stride + i * dilation - padding, …]``

A unit of work is a block of channels and one row i of the window, or all of its rows where the images do not stay in
the cache.  It walks the rows of ``g`` and ``x`` once, for each j along the row, with channels in lanes; sums of one row
are added to those of the rows before, so that no chain of additions is longer than a row or the number of rows.  Sizes
are arguments: one kernel serves all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from braze.inductor.loops import Extern, Strided
from braze.runtime.cpu import Source, Target, host_target

from .llvm_builder import Builder, V
from .llvm_index import masked_load
from .llvm_plan import GRAIN_NS

MOST_PLACES = 64
"""Elements of a window: their sums stay on the stack."""
CACHED_BYTES = 1 << 20
"""Images up to this size are walked once for each row of the window."""
FEW_PLACES = 9
"""With windows of no more elements the vendor's kernel is as fast on larger images."""
NAMES = ("n", "h", "w", "c", "oh", "ow", "kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw", "span")
_TENSORS = 3  # g, x, gw


@dataclass(frozen=True)
class Depthwise:
    """The call's tensors and the numbers of ``NAMES``; the last is how many rows of the window a unit takes."""

    g: Strided
    x: Strided
    sizes: tuple[int, ...]

    def source(self) -> tuple[str, Source]:
        """A content key and the kernel."""
        n, _, _, c, oh, ow, kh, kw = self.sizes[:8]
        target = host_target()
        widest = (4 if self.sizes[-1] == 1 else 2) * target.vector_bits // 32
        lanes = next(k for k in (widest, widest // 2, widest // 4) if c >= k or k == widest // 4)
        parallel = target.openmp and n * oh * ow * c * kh * kw / target.vector_bits * 32 > GRAIN_NS
        return f"depthwise gradient {lanes} {parallel}", _source(lanes, parallel, target)


def depthwise_gradient(e: Extern) -> Depthwise | None:
    """What the kernel needs of a vendor call that asks for such a weight gradient; None for any other call."""
    if e.target is not torch.ops.aten.convolution_backward.default or e.outputs[1] is None:
        return None
    g, x, w, _, stride, padding, dilation, transposed, _, groups, _ = e.args
    if transposed or len(w.sizes) != 4 or not _last(g) or not _last(x):
        return None
    c = x.sizes[1]
    if not groups == c == w.sizes[0] or w.sizes[1] != 1 or c < 2 or w.sizes[2] * w.sizes[3] > MOST_PLACES:
        return None
    made = e.outputs[1].type
    taps = w.sizes[2] * w.sizes[3]
    if not all(k == 1 or s == want for k, s, want in zip(w.sizes, made.strides, (taps, taps, w.sizes[3], 1))):
        return None
    n, _, h, wide = x.sizes
    cached = 4 * n * h * wide * c <= CACHED_BYTES
    if not cached and taps <= FEW_PLACES:
        return None
    span = 1 if cached else w.sizes[2]
    return Depthwise(g, x, (n, h, wide, c, *g.sizes[2:], *w.sizes[2:], *stride, *padding, *dilation, span))


def _last(t: Strided) -> bool:
    """Float32 images on the CPU, of known sizes, densely in channels_last."""
    u = t.buffer.type
    if u.dtype is not torch.float32 or u.device.type != "cpu" or len(t.sizes) != 4:
        return False
    if not all(isinstance(k, int) and k > 0 for k in (*t.sizes, *t.strides)):
        return False
    _, c, h, w = t.sizes
    return all(k == 1 or s == want for k, s, want in zip(t.sizes, t.strides, (h * w * c, 1, w * c, c)))


@lru_cache(maxsize=16)
def _source(lanes: int, parallel: bool, target: Target) -> Source:
    parts = [f'target triple = "{target.triple}"', _UNITS.replace("LANES", str(lanes))]
    helpers: dict[str, str] = {}
    for name, masked in (("whole", False), ("part", True)):
        b = Builder(target.flags, target.llvm_version)
        _Writer(b, lanes, masked).write()
        head = f"define internal void @{name}(ptr %args, i64 %block, i64 %i) nounwind {{\nentry:"
        parts.append("\n".join([head, *_slots(), *b.lines, "  ret void\n}"]))
        helpers |= b.declares
    b = Builder(target.flags, target.llvm_version)
    _write_units(b, lanes)
    head = "define void @work(ptr %args, i64 %begin, i64 %end) nounwind {\nentry:"
    parts.append("\n".join([head, *_slots(), *b.lines, "  ret void\n}"]))
    parts += [helpers[k] for k in sorted(helpers)]
    text = "; the weight gradient of a depthwise convolution\n" + "\n".join(parts) + "\n"
    return Source("k_depthwise_gradient", text, _TENSORS, len(NAMES), -1, parallel, parallel)


def _slots() -> list[str]:
    """Loads of the argument slots: %g, %x, %gw and the sizes by their names."""
    names = [("ptr", p) for p in ("g", "x", "gw")] + [("i64", s) for s in NAMES]
    lines = []
    for k, (t, name) in enumerate(names):
        lines.append(f"  %slot{k} = getelementptr inbounds i64, ptr %args, i64 {k}")
        lines.append(f"  %{name} = load {t}, ptr %slot{k}")
    return lines


_UNITS = """define i64 @units(ptr %args) nounwind {
entry:
  %slotc = getelementptr inbounds i64, ptr %args, i64 6
  %c = load i64, ptr %slotc
  %sloth = getelementptr inbounds i64, ptr %args, i64 9
  %kh = load i64, ptr %sloth
  %up = add i64 %c, LANES
  %more = sub i64 %up, 1
  %blocks = udiv i64 %more, LANES
  %slotspan = getelementptr inbounds i64, ptr %args, i64 17
  %span = load i64, ptr %slotspan
  %turns = udiv i64 %kh, %span
  %units = mul i64 %blocks, %turns
  ret i64 %units
}"""


def _size(name: str) -> V:
    return V(f"%{name}", "i64")


def _write_units(b: Builder, lanes: int) -> None:
    """Each unit by the function for whole blocks of channels, or for the last, smaller one."""

    def one(unit: V, _: list[V]) -> tuple[()]:
        turns = b.binary("udiv", _size("kh"), _size("span"))
        block, i = b.binary("udiv", unit, turns), b.mul(b.binary("urem", unit, turns), _size("span"))
        after = b.mul(b.add(block, b.const("i64", 1)), b.const("i64", lanes))
        whole = b.compare("sle", after, _size("c"))

        def call(name: str) -> None:
            b.emit(f"call void @{name}(ptr %args, {block.typed}, {i.typed})")

        b.when(whole, lambda: call("whole"))
        b.when(b.compare("sgt", after, _size("c")), lambda: call("part"))
        return ()

    b.loop(V("%begin", "i64"), V("%end", "i64"), 1, one, runs=True)


class _Writer:
    """The function of one unit: ``%block`` of channels, rows of the window from ``%i``."""

    def __init__(self, b: Builder, lanes: int, masked: bool) -> None:
        self.b, self.lanes = b, lanes
        self.zero, self.one = b.const("i64", 0), b.const("i64", 1)
        self.first = b.mul(V("%block", "i64"), b.const("i64", lanes))
        left = b.sub(_size("c"), self.first)
        self.mask = b.compare("slt", b.iota("i64", lanes), left) if masked else None
        self.count = left if masked else b.const("i64", lanes)
        self.sums = b.let("ptr", 1, f"alloca [{MOST_PLACES * lanes} x float], align 64")
        self.low = b.let("ptr", 1, f"alloca [{MOST_PLACES} x i64]")
        self.high = b.let("ptr", 1, f"alloca [{MOST_PLACES} x i64]")

    def write(self) -> None:
        b = self.b
        places = b.mul(_size("span"), _size("kw"))
        b.loop(self.zero, places, 1, self._clear)
        b.loop(self.zero, _size("kw"), 1, self._prepare)

        def image(n: V, _: list[V]) -> tuple[()]:
            def row(oh: V, _: list[V]) -> tuple[()]:
                def window(i: V, _: list[V]) -> tuple[()]:
                    at = b.mul(b.add(V("%i", "i64"), i), _size("dh"))
                    ih = b.sub(b.add(b.mul(oh, _size("sh")), at), _size("ph"))
                    inside = b.compare("ult", ih, _size("h"))  # a negative one is large
                    b.when(inside, lambda: self._rows(n, oh, ih, i))
                    return ()

                b.loop(self.zero, _size("span"), 1, window)
                return ()

            b.loop(self.zero, _size("oh"), 1, row)
            return ()

        b.loop(self.zero, _size("n"), 1, image)
        b.loop(self.zero, places, 1, self._finish)

    def _at(self, base: V, elem: str, *terms: V) -> V:
        at = terms[0]
        for t in terms[1:]:
            at = self.b.add(at, t)
        return self.b.let("ptr", 1, f"getelementptr inbounds {elem}, {base.typed}, {at.typed}")

    def _sums(self, place: V) -> V:
        return self._at(self.sums, "float", self.b.mul(place, self.b.const("i64", self.lanes)))

    def _offset(self, j: V) -> V:
        """Where output column 0 reads in a row, by column j of the window; it may be negative."""
        return self.b.sub(self.b.mul(j, _size("dw")), _size("pw"))

    def _clear(self, place: V, _: list[V]) -> Sequence[V]:
        zeros = self.b.splat(self.b.const("float", 0.0), self.lanes)
        self.b.emit(f"store {zeros.typed}, {self._sums(place).typed}, align 4")
        return ()

    def _prepare(self, j: V, _: list[V]) -> Sequence[V]:
        """The output columns [low, high) that read inside of the row."""
        b = self.b
        offset, step = self._offset(j), _size("sw")
        before = b.neg(offset)
        before = b.select(b.compare("sgt", before, self.zero), before, self.zero)
        low = b.binary("udiv", b.sub(b.add(before, step), self.one), step)
        room = b.sub(_size("w"), offset)
        some = b.compare("sgt", room, self.zero)
        room = b.select(some, room, self.zero)
        high = b.binary("udiv", b.sub(b.add(room, step), self.one), step)
        high = b.select(b.compare("slt", high, _size("ow")), high, _size("ow"))
        b.emit(f"store {low.typed}, {self._at(self.low, 'i64', j).typed}")
        b.emit(f"store {high.typed}, {self._at(self.high, 'i64', j).typed}")
        return ()

    def _load(self, p: V) -> V:
        if self.mask is None:
            return self.b.let("float", self.lanes, f"load <{self.lanes} x float>, {p.typed}, align 4")
        return masked_load(self.b, "float", p, 4, self.mask, self.b.splat(self.b.const("float", 0.0), self.lanes))

    def _rows(self, n: V, oh: V, ih: V, i: V) -> None:
        """One row of outputs and one of the window: for each column of the window the sum along it."""
        b, c = self.b, _size("c")
        g_row = b.mul(b.mul(b.add(b.mul(n, _size("oh")), oh), _size("ow")), c)
        x_row = b.mul(b.mul(b.add(b.mul(n, _size("h")), ih), _size("w")), c)
        g = self._at(V("%g", "ptr"), "float", g_row, self.first)
        x = self._at(V("%x", "ptr"), "float", x_row, self.first)
        x_step = b.mul(_size("sw"), c)

        def column(j: V, _: list[V]) -> tuple[()]:
            low, high = (b.let("i64", 1, f"load i64, {self._at(p, 'i64', j).typed}") for p in (self.low, self.high))
            start = b.mul(self._offset(j), c)

            def point(ow: V, sums: list[V]) -> Sequence[V]:
                left = self._load(self._at(g, "float", b.mul(ow, c)))
                right = self._load(self._at(x, "float", b.mul(ow, x_step), start))
                return [b.fma(left, right, sums[0])]

            (total,) = b.loop(low, high, 1, point, [b.splat(b.const("float", 0.0), self.lanes)])
            p = self._sums(b.add(b.mul(i, _size("kw")), j))
            old = b.let("float", self.lanes, f"load <{self.lanes} x float>, {p.typed}, align 4")
            b.emit(f"store {b.add(old, total).typed}, {p.typed}, align 4")
            return ()

        b.loop(self.zero, _size("kw"), 1, column)

    def _finish(self, k: V, _: list[V]) -> Sequence[V]:
        """The sums of one place of the window, for channels ``kh * kw`` apart."""
        b = self.b
        apart = b.mul(_size("kh"), _size("kw"))
        place = b.add(b.mul(V("%i", "i64"), _size("kw")), k)
        sums = self._sums(k)

        def lane(channel: V, _: list[V]) -> tuple[()]:
            value = b.let("float", 1, f"load float, {self._at(sums, 'float', channel).typed}")
            to = self._at(V("%gw", "ptr"), "float", b.mul(b.add(self.first, channel), apart), place)
            b.emit(f"store {value.typed}, {to.typed}")
            return ()

        b.loop(self.zero, self.count, 1, lane)
        return ()
