"""A matrix product with its epilogue to Triton source: tiles on tensor cores, then the loop IR's own expressions.

    pid = tl.program_id(0)                            # which tile: GROUP rows of tiles share columns in L2
    moffset = ...; noffset = ...
    acc = tl.zeros([BM, BN], tl.float32)
    for koffset in range(0, 768, BK):
        kindex = koffset + tl.arange(0, BK)
        v0 = tl.load(in_ptr0 + (768*mindex[:, None] + kindex[None, :]))
        v1 = tl.load(in_ptr1 + (768*nindex[None, :] + kindex[:, None]))
        acc = tl.dot(v0, v1, acc)
    v2 = tl.load(in_ptr2 + nindex)                    # the epilogue: any pointwise instructions
    ...

The kernel (``fuse.contract``) has x axes (batch,) rows, columns and one r axis; its one ``Reduce`` sums the product of
a value over (batch, rows, r) and one over (batch, r, columns), which may be computed from what is loaded (a prologue).
A mask is written only where a size is no multiple of its block.  ``Tile.persistent``: one program a multiprocessor
walks the tiles.  ``Tile.descriptors``: operands come by TMA, where their layout allows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from braze.errors import Unsupported
from braze.ir import Expr, IntLike, Symbol, coefficient, substitute, symbols
from braze.runtime.cuda_kernel import GridDim, Launch

from ..loops.canonical import flattened
from ..loops.ir import Compute, Const, Instr, Kernel, Load, Reduce, Store, Value, operands
from .product_tiles import Tile
from .triton_emit import Dims, Emitted, _Emitter, _group
from .triton_layout import Layout, analyse, nbytes
from .triton_tiling import Card, Dim, Tiling

NAMES = ("m", "k", "n")


def emit_product(kernel: Kernel, tile: Tile, card: Card) -> Emitted:
    """The kernel for one tiling. Unsupported where the tiling does not fit the kernel."""
    form = flattened(kernel)
    made = _Product(form.kernel, analyse(form.kernel), tile, card).emit()
    place = {b: n for n, b in enumerate(_buffers(form.kernel))}
    return Emitted(made.code, tuple(form.buffers[place[b]] for b in made.buffers), made.sizes)


def _buffers(kernel: Kernel) -> Iterable[object]:
    return dict.fromkeys(i.buffer for i in kernel.body if isinstance(i, (Load, Store)))


def _tiling(kernel: Kernel, tile: Tile, programs: int) -> Tiling:
    *batch, m, n = kernel.x
    (k,) = kernel.r
    sizes = {"BM": tile.m, "BK": tile.k, "BN": tile.n, "GROUP": tile.group}
    if tile.slices > 1:
        sizes["BS"] = tile.n // tile.slices
    if tile.persistent:
        sizes["PROGRAMS"] = programs
    blocks = tuple(Dim(name, (axis,), f"B{name.upper()}") for name, axis in zip(NAMES, (m, k, n)))
    scalars = (Dim("z", tuple(batch), ""),) if batch else ()
    return Tiling("product", blocks, scalars, (Launch(tuple(sizes.items()), tile.warps, tile.stages),))


class _Product(_Emitter):
    """State while a product is written. ``point``: the instructions that are run for each step along k."""

    def __init__(self, kernel: Kernel, layout: Layout, tile: Tile, card: Card) -> None:
        self.tile, self.card = tile, card
        super().__init__(kernel, layout, _tiling(kernel, tile, card.sms * tile.resident))
        (self.sum,) = [i for i in kernel.body if isinstance(i, Reduce)]
        self.left, self.right = (_unwidened(a) for a in self.sum.value.args)  # type: ignore[attr-defined]
        self.m, self.k, self.n = self.tiling.blocks
        needed = _needed(kernel, [self.left, self.right])
        self.point = self._along_k(needed)
        self.before = [i for i in needed if i not in self.point]
        self.rest = [i for i in kernel.body if i not in needed and i is not self.sum and i is not self.sum.value]
        self.rest = [i for i in self.rest if not self._widens(i)]
        self.looping = False
        self.descriptors: dict[Value, tuple[str, tuple[str, ...]]] = {}

    def _widens(self, i: Instr) -> bool:
        """The conversion of a factor to f32: the tensor cores' business."""
        return i in self.sum.value.args  # type: ignore[attr-defined]

    def _along_k(self, needed: list[Instr]) -> list[Instr]:
        point: dict[Instr, None] = {}
        for i in needed:
            here = self.k.flat in symbols(self.flat[i]) if i in self.flat else False
            if here or any(v in point for v in operands(i)):
                point[i] = None
        return list(point)

    # ---- shapes: three block dims, of which a value has at most two ----

    def along(self, text: str, have: Dims, want: Dims) -> str:
        if len(have) != 1 or len(want) < 2:
            return text
        places = ", ".join(":" if d.name in have else "None" for d in self.tiling.blocks if d.name in want)
        return f"({text})[{places}]" if not text.isidentifier() else f"{text}[{places}]"

    # ---- the program ----

    def emit(self) -> Emitted:
        if self.tile.descriptors:
            for v, rows in ((self.left, self.m), (self.right, self.n)):
                self._describe(v, rows)
        tiles = self._tiles()
        if self.tile.persistent:
            self.line(f"for pid in tl.range(tl.program_id(0), {tiles}, PROGRAMS, flatten=True):")
            self.indent += 1
        else:
            self.line("pid = tl.program_id(0)")
        self._place()
        self._multiply()
        self._epilogue()
        return self.result()

    def _epilogue(self) -> None:
        """What follows the product, for some columns at a time: each slice needs registers for itself alone."""
        self.names[self.sum], self.dims[self.sum] = "acc", frozenset("mn")
        if self.tile.slices == 1:
            self.straight(self.rest)
            return
        across = self._across()
        for i in self.rest:
            if i not in across:
                self.instr(i)
        self._split("acc", self.tile.slices)
        whole, atoms = self.tiling, dict(self.atoms)
        narrow = replace(self.n, block="BS")
        blocks = tuple(narrow if d is self.n else d for d in whole.blocks)
        self.tiling = replace(whole, blocks=blocks)
        for k in range(self.tile.slices):
            self.atoms = dict(atoms)
            if k:
                self.line("noffset += BS")
            self._along(narrow)
            self.names[self.sum] = f"acc{k}"
            self.straight([i for i in self.rest if i in across])
        self.tiling, self.atoms = whole, atoms

    def _across(self) -> set[Instr]:
        """The instructions of the epilogue that depend on the column."""
        out: set[Instr] = set()
        for i in self.rest:
            here = i in self.flat and self.n.flat in symbols(self.flat[i])
            if here or isinstance(i, (Const, Store)) or any(v in out or v is self.sum for v in operands(i)):
                out.add(i)
        return out

    def _split(self, name: str, count: int) -> None:
        """Columns of a block as ``count`` blocks, named by position from the left."""
        parts = [name]
        width = self.tile.n
        while len(parts) < count:
            width //= 2
            halves = []
            for part in parts:
                pair = [f"{part}l", f"{part}r"]
                text = f"tl.permute(tl.reshape({part}, [BM, 2, {width}]), [0, 2, 1])"
                self.line(f"{pair[0]}, {pair[1]} = tl.split({text})")
                halves += pair
            parts = halves
        for k, part in enumerate(parts):
            self.line(f"{name}{k} = {part}")

    def _tiles(self) -> str:
        """How many tiles of the result there are; their number along both axes gets lines of its own."""
        for d in (self.m, self.n):
            self.line(f"tiles_{d.name} = tl.cdiv({self.size(d.numel, d.name + 'numel')}, {d.block})")
        batch = [self.size(d.numel, "znumel") for d in self.tiling.scalars]
        return " * ".join(["tiles_m", "tiles_n", *batch])

    def _place(self) -> None:
        """From the program's number to its tile: GROUP rows of tiles, column by column."""
        tile = "pid"
        if self.tiling.scalars:
            self.line("zindex = pid // (tiles_m * tiles_n)" + (".to(tl.int64)" if self.wide else ""))
            self.line("tile = pid % (tiles_m * tiles_n)")
            tile = "tile"
        self.line(f"first = {tile} // (GROUP * tiles_n) * GROUP")
        self.line("rows = tl.minimum(tiles_m - first, GROUP)")
        self.line(f"moffset = (first + {tile} % (GROUP * tiles_n) % rows) * BM")
        self.line(f"noffset = {tile} % (GROUP * tiles_n) // rows * BN")
        for d in (self.m, self.n):
            self._along(d)

    def _along(self, d: Dim) -> None:
        """The index and the mask along rows or columns."""
        cast = ".to(tl.int64)" if self.wide else ""
        self.line(f"{d.name}index = ({d.name}offset + tl.arange(0, {d.block})){cast}")
        if d.name in self.masked:
            self.line(f"{d.name}mask = {d.name}index < {self.size(d.numel, d.name + 'numel')}")

    def _multiply(self) -> None:
        for i in self.before:
            self.instr(i)
        saved = dict(self.atoms)
        self.line("acc = tl.zeros([BM, BN], tl.float32)")
        self.line(f"for koffset in range(0, {self.size(self.k.numel, 'knumel')}, BK):")
        self.indent += 1
        self.looping = True
        if len(self.descriptors) < 2:
            self.line("kindex = koffset + tl.arange(0, BK)" + (".to(tl.int64)" if self.wide else ""))
            if "k" in self.masked:
                self.line(f"kmask = kindex < {self.size(self.k.numel, 'knumel')}")
        for i in self.point:
            self.instr(i)
        a, b = self.factor(self.left, "m"), self.factor(self.right, "n")
        exact = ', input_precision="tf32"' if self.left.dtype is torch.float32 else ""
        self.line(f"acc = tl.dot({a}, {b}, acc{exact})")
        self.looping = False
        self.indent -= 1
        self.atoms = saved

    def factor(self, v: Value, rows: str) -> str:
        """An operand of the tensor cores: the whole block, zero beyond the end of k."""
        whole: Dims = frozenset((rows, "k"))
        text = self.full(self.use(v), self.dim(v), whole)
        if "k" in self.masked and not isinstance(v, Load):
            zero = f"tl.zeros({self.shape(whole)}, {text}.dtype)"
            text = f"tl.where({self.along('kmask', frozenset('k'), whole)}, {text}, {zero})"
        return text

    def load(self, i: Load, eviction: str = "") -> None:
        if i in self.descriptors:
            self._load_described(i)
            return
        if not (self.looping and "k" in self.masked and i.mask is None):
            super().load(i, eviction)
            return
        pointer, dims = self.address(i)
        mask = self.mask(dims)
        self.define(i, f"tl.load({pointer}, mask={mask}, other=0)" if mask else f"tl.load({pointer})", dims)

    def stores(self, stores: list[Store]) -> None:
        """No barrier before them: what a product writes is fresh memory (``fuse.contract``)."""
        for s in stores:
            self.store(s)

    def store(self, i: Store) -> None:
        if i.mode == "sum":
            self._store_sum(i)
        else:
            super().store(i)

    def _store_sum(self, i: Store) -> None:
        """The sums of a tile's columns, which make one row of the result. Unsupported where the tile has other rows
        than the sums want."""
        e, m = self.flat[i], self.m.flat
        first, last, after = (substitute(e, {m: n}) for n in (0, self.tile.m - 1, self.tile.m))
        if first != last or first == after or "m" in self.masked:
            raise Unsupported("a tile's rows are not those of a partial sum")
        atoms, self.atoms = self.atoms, {}
        text, dims = self.index(e, {m: ("moffset", frozenset())})
        self.atoms = atoms
        value = self.full(self.use(i.value), self.dim(i.value), frozenset("mn"))
        mask = self.mask(dims)
        self.line(f"tl.store({self.pointer[i.buffer]} + {_group(text)}, tl.sum({value}, 0){mask and f', mask={mask}'})")

    # ---- TMA ----

    def _describe(self, v: Value, rows: Dim) -> None:
        """A tensor descriptor for a factor that lies in memory as TMA wants it: one stride is 1, the other a multiple
        of 16 bytes. Unsupported otherwise."""
        e = self.flat.get(v) if isinstance(v, Load) else None
        if not isinstance(v, Load) or e is None or v.mask is not None or v.indirect or self.tiling.scalars:
            raise Unsupported("TMA loads plain matrices")
        steps = [coefficient(e, rows.flat), coefficient(e, self.k.flat)]
        if None in steps or _without(e, rows.flat, self.k.flat) != 0 or 1 not in steps:
            raise Unsupported("TMA needs a matrix with neighbours in memory")
        inner = steps.index(1)
        far = steps[1 - inner]
        if not isinstance(far, int) or far * nbytes(v.buffer) % 16 or far * nbytes(v.buffer) >= 2**40 or far < 1:
            raise Unsupported("TMA needs rows that begin at multiples of 16 bytes")
        name, dims = f"matrix_{rows.name}", [rows, self.k] if inner else [self.k, rows]
        shape = ", ".join(self.size(d.numel, f"{d.name}numel") for d in dims)
        block = ", ".join(d.block for d in dims)
        self.line(f"{name} = tl.make_tensor_descriptor({self.pointer[v.buffer]}, [{shape}], [{far}, 1], [{block}])")
        self.descriptors[v] = name, tuple(d.name for d in dims)

    def _load_described(self, i: Load) -> None:
        name, dims = self.descriptors[i]
        text = f"{name}.load([{', '.join(f'{d}offset' for d in dims)}])"
        wanted = tuple(d.name for d in self.tiling.blocks if d.name in dims)
        self.define(i, text if dims == wanted else f"tl.trans({text})", frozenset(dims))

    # ---- the result ----

    def result(self) -> Emitted:
        made = super().result()
        code = made.code
        counts = (self._count(self.m), self._count(self.n), *(self._count(d) for d in self.tiling.scalars))
        grid = (GridDim(counts[0], "BM"), GridDim(counts[1], "BN"), *(GridDim(c, "") for c in counts[2:]))
        if self.tile.persistent:
            known = all(isinstance(c, int) for c in counts)
            most = self.card.sms * self.tile.resident
            tiles = replace(code, grid=grid).programs() if known else most
            grid = (GridDim(min(most, tiles), ""),)
        return replace(made, code=replace(code, grid=grid))


def _unwidened(v: Value) -> Value:
    """What the tensor cores multiply: the value before it is widened to f32."""
    if isinstance(v, Compute) and v.fn == "convert" and v.args[0].dtype in (torch.bfloat16, torch.float16):
        return v.args[0]
    return v


def _needed(kernel: Kernel, roots: list[Value]) -> list[Instr]:
    """The instructions that the roots need, they too, in order."""
    seen: set[object] = set()
    todo = list(roots)
    while todo:
        v = todo.pop()
        if v not in seen:
            seen.add(v)
            todo += operands(v)  # type: ignore[arg-type]
    return [i for i in kernel.body if i in seen]


def _without(e: IntLike, *away: Symbol) -> IntLike:
    for s in away:
        c = coefficient(e, s)
        assert c is not None
        e = e - c * Expr({(s,): 1})
    return e
