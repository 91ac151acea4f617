"""A loop-IR kernel to Triton source.

The running example's softmax, ``x: i0 < 64, r: r0 < 256``, becomes (one line a value, one program a few rows)::

    @triton.jit
    def persistent_sub_exp_div(in_ptr0, out_ptr0, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)
        rindex = tl.arange(0, RBLOCK)
        v0 = tl.load(in_ptr0 + (256*xindex[:, None] + rindex[None, :]))
        v1 = tl.reduce(v0, 1, bz_max_nan)
        v2 = v0 - v1[:, None]
        v3 = libdevice.exp(v2)
        v4 = tl.sum(v3, 1)
        v5 = tl.div_rn(v3, v4[:, None])
        tl.store(out_ptr0 + (256*xindex[:, None] + rindex[None, :]), v5)

A value that varies along one block dim is a vector, put along its dim where it meets the block (so a row's value is
loaded once a thread, not once a column).  The text names nothing of the program (buffers are ``in_ptr0``...), so equal
layers give equal text.  All loads of a kernel come before its stores where that is not a matter of values: a store may
go to the memory of a load's buffer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from braze.errors import Unsupported
from braze.ir import Expr, IntLike, Symbol, bounds, substitute, symbols, to_str
from braze.ir.expr import Atom, Call
from braze.runtime.cuda_kernel import GridDim, TritonKernel

from ..loops.canonical import canonical
from ..loops.ir import Buffer, Compute, Const, Index, Instr, Kernel, Load, Reduce, Store, Value, operands
from . import triton_ops as ops
from .triton_fast import SHORT, short_values
from .triton_helpers import helper_source
from .triton_layout import Layout, analyse, fits_int32
from .triton_looped import emit_looped
from .triton_random import philox
from .triton_reduce import accumulate, finish, fold, start
from .triton_tiling import Card, Dim, Tiling, card_of, choose

Dims = frozenset[str]
Bound = dict[Symbol, tuple[str, Dims]]
NONE: Dims = frozenset()
HEADER = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"


@dataclass(frozen=True)
class Emitted:
    """A kernel's code, and what a call passes: the tensors, then the integers (host expressions), in order."""

    code: TritonKernel
    buffers: tuple[Buffer, ...]
    sizes: tuple[IntLike, ...]


PROGRAM = "tl.program_id(0)"


def emit_triton(kernel: Kernel, card: Card | None = None) -> Emitted:
    """The kernel as Triton source with its launch. Unsupported for what Triton cannot say. ``card``: the one to choose
    block sizes for, its device's if not given.

    Kernels that differ in names alone give one code, emitted once."""
    form, card = canonical(kernel), card or card_of(kernel.device)
    accesses = dict.fromkeys(i.buffer for i in form.kernel.body if isinstance(i, (Load, Store)))
    found = _EMITTED.get((form.key, card))
    if found is None:
        layout = analyse(form.kernel)
        made = _Emitter(form.kernel, layout, choose(form.kernel, layout, card)).emit()
        place = {b: i for i, b in enumerate(accesses)}
        found = _EMITTED[form.key, card] = made, tuple(place[b] for b in made.buffers)
    made, order = found
    return Emitted(made.code, tuple(form.buffers[i] for i in order), made.sizes)


_EMITTED: dict[tuple[str, Card], tuple[Emitted, tuple[int, ...]]] = {}


def emit_part(kernel: Kernel, card: Card | None = None) -> Emitted:
    """A canonical kernel as a function that is no launch of its own: its program's number is its first argument. The
    buffers are in the order of ``kernel``'s first uses."""
    layout = analyse(kernel)
    return _Emitter(kernel, layout, choose(kernel, layout, card or card_of(kernel.device)), "program").emit()


class _Emitter:
    """State while one kernel is written: the lines, and the name and block dims of each value."""

    def __init__(self, kernel: Kernel, layout: Layout, tiling: Tiling, program: str = PROGRAM) -> None:
        self.kernel, self.layout, self.tiling, self.program = kernel, layout, tiling, program
        self.wide = not fits_int32(layout)
        self.lines: list[str] = []
        self.indent = 1
        self.names: dict[Value, str] = {}
        self.dims: dict[Value, Dims] = {}
        self.atoms: dict[Atom, tuple[str, Dims]] = {}
        self.counter = 0
        self.assertions = False
        self.block = {d.name: d for d in tiling.blocks}
        parts: dict[Symbol, IntLike] = {}
        for d in tiling.dims:
            parts.update(d.parts())
        self.flat = {i: substitute(e, parts) for i, e in layout.offsets.items()}
        self.buffers = list(dict.fromkeys([*kernel.reads, *kernel.writes]))
        self.pointer = self._pointers()
        self.sizes: dict[IntLike, str] = {}
        self.short = short_values(kernel)
        self.masked = {d.name for d in tiling.blocks if self._needs_mask(d)}

    def _pointers(self) -> dict[Buffer, str]:
        reads, writes = set(self.kernel.reads), set(self.kernel.writes)
        out: dict[Buffer, str] = {}
        count = {"in": 0, "out": 0, "in_out": 0}
        for b in self.buffers:
            kind = "in_out" if b in reads and b in writes else "in" if b in reads else "out"
            out[b] = f"{kind}_ptr{count[kind]}"
            count[kind] += 1
        return out

    def _needs_mask(self, dim: Dim) -> bool:
        n = dim.numel
        return not isinstance(n, int) or any(n % c.block(dim.block) for c in self.tiling.launches) or n == 0

    # ---- text ----

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def fresh(self) -> str:
        self.counter += 1
        return f"v{self.counter - 1}"

    def define(self, value: Value, text: str, dims: Dims) -> None:
        name = self.fresh()
        self.line(f"{name} = {text}")
        self.names[value], self.dims[value] = name, dims

    def shape(self, dims: Dims) -> str:
        """The block shape of a value that varies along ``dims``."""
        return "[" + ", ".join(d.block for d in self.tiling.blocks if d.name in dims) + "]"

    def along(self, text: str, have: Dims, want: Dims) -> str:
        """A value that varies along ``have`` as an operand of one that varies along ``want``."""
        if len(have) != 1 or len(want) < 2:
            return text
        (name,) = have
        places = ", ".join(":" if d.name == name else "None" for d in self.tiling.blocks)
        return f"{_group(text)}[{places}]"

    def full(self, text: str, have: Dims, want: Dims) -> str:
        """The same with the whole shape of ``want``."""
        return text if have == want else f"tl.broadcast_to({self.along(text, have, want)}, {self.shape(want)})"

    def mask(self, dims: Dims, extra: Value | None = None) -> str:
        """The condition under which an element along ``dims`` exists; "" for always."""
        inside = [d.name for d in self.tiling.blocks if d.name in dims and d.name in self.masked]
        parts = [self.along(f"{n}mask", frozenset((n,)), dims) for n in inside]
        if extra is not None:
            parts.append(self.use(extra, dims))
        return " & ".join(parts)

    def use(self, value: Value, want: Dims = NONE, literals: bool = False) -> str:
        """The name of a value, as an operand of one that varies along ``want``; a constant's text, plain where the
        context gives it its type."""
        if isinstance(value, Const):
            return (ops.literal if literals else ops.constant)(value.value, value.dtype)
        if isinstance(value, Index) and value not in self.names:
            self.index_value(value)  # written where it is used: often only its expression is
        return self.along(self.names[value], self.dims[value], want)

    def dim(self, value: Value) -> Dims:
        """The block dims along which a value varies."""
        if isinstance(value, Index) and value not in self.dims:
            self.use(value)
        return self.dims.get(value, NONE)

    def dims_of(self, values: Iterable[Value]) -> Dims:
        return NONE.union(*map(self.dim, values))

    # ---- index expressions ----

    def index(self, e: IntLike, bound: Bound | None = None, want: Dims = NONE) -> tuple[str, Dims]:
        """An index expression as text, and the block dims along which it varies (with ``want``)."""
        if not isinstance(e, Expr):
            return str(e), NONE
        parts = {a: (bound or {}).get(a) or self.atom(a, bound) for a in _atoms(e)}  # type: ignore[call-overload]
        own = NONE.union(*(d for _, d in parts.values()))
        dims = want | own
        return to_str(e, lambda a: self.along(parts[a][0], parts[a][1], dims)), own

    def atom(self, a: Atom, bound: Bound | None) -> tuple[str, Dims]:
        """One factor of an index expression; a quotient or remainder gets a line of its own."""
        found = self.atoms.get(a)
        if found is not None:
            return found
        if isinstance(a, Symbol):
            return self._symbol(a)
        assert isinstance(a, Call)
        dims = self.index(a.args[0], bound)[1] | self.index(a.args[1], bound)[1]
        (x, _), (y, _) = self.index(a.args[0], bound, dims), self.index(a.args[1], bound, dims)
        base = next(iter(dims)) if len(dims) == 1 else "i"
        name = f"{base}{self.counter}"
        self.counter += 1
        self.line(f"{name} = {_call_text(a, x, y)}")
        if not (bound and symbols(Expr({(a,): 1})) & set(bound)):
            self.atoms[a] = name, dims
        return name, dims

    def _symbol(self, s: Symbol) -> tuple[str, Dims]:
        for d in self.tiling.dims:
            if s is d.flat:
                return s.name, frozenset((d.name,)) if d.block else NONE
        return self.size(Expr({(s,): 1}), f"ks{len(self.sizes)}"), NONE

    def size(self, e: IntLike, name: str) -> str:
        """A host integer as text: itself, or an argument."""
        return str(e) if isinstance(e, int) else self.sizes.setdefault(e, name)

    # ---- the program ----

    def emit(self) -> Emitted:
        self.prologue()
        if self.tiling.loop:
            emit_looped(self)
        else:
            with self.r_index(None):
                self.straight(self.kernel.body)
        return self.result()

    def prologue(self) -> None:
        """The index and mask of every dim but r."""
        programs = self.tiling.programs
        cast = ".to(tl.int64)" if self.wide else ""
        rest = self.program + cast
        if len(programs) > 1:
            self.line(f"pid = {rest}")
            rest = "pid"
        for k, d in enumerate(programs):
            count = self.size(d.numel, f"{d.name}numel")
            here = rest
            if k < len(programs) - 1:
                blocks = f"tl.cdiv({count}, {d.block})" if d.block else count
                here, rest = f"{rest} % {blocks}", f"pid_{k}"
                self.line(f"pid_{k} = {'pid' if k == 0 else f'pid_{k - 1}'} // {blocks}")
                here = f"({here})" if d.block else here
            if not d.block:
                self.line(f"{d.name}index = {here}")
                continue
            self.line(f"{d.name}offset = {here} * {d.block}")
            self.line(f"{d.name}index = {d.name}offset + tl.arange(0, {d.block})")
            if d.name in self.masked:
                self.line(f"{d.name}mask = {d.name}index < {count}")

    @contextmanager
    def r_index(self, offset: str | None) -> Iterator[None]:
        """The scope of r's index: at ``offset`` (a loop), or the whole row."""
        if "r" not in self.block:
            yield
            return
        saved = dict(self.atoms)
        start = f"{offset} + " if offset else ""
        self.line(f"rindex = {start}tl.arange(0, RBLOCK)")
        if "r" in self.masked:
            self.line(f"rmask = rindex < {self.size(self.block['r'].numel, 'rnumel')}")
        yield
        self.atoms = saved

    def straight(self, body: Iterable[Instr]) -> None:
        """The instructions in order, stores last."""
        stores = []
        for i in body:
            if isinstance(i, Store):
                stores.append(i)
            else:
                self.check_order(i, stores)
                self.instr(i)
        self.stores(stores)

    def check_order(self, i: Instr, stores: list[Store]) -> None:
        if isinstance(i, Load) and any(s.buffer is i.buffer for s in stores):
            raise Unsupported(f"{self.kernel.name} loads {i.buffer} after it stored it")

    def stores(self, stores: list[Store]) -> None:
        full = frozenset(self.block)
        read = {self.flat[i] for i in self.kernel.body if isinstance(i, Load)}
        if any(self.flat[s] in read and self.store_dims(s) < full for s in stores):
            # row values are held by many threads and stored by one, perhaps to the memory that they came from
            self.line("tl.debug_barrier()")
        for s in stores:
            self.store(s)

    def instr(self, i: Instr) -> None:
        """One instruction in straight-line code."""
        if isinstance(i, Load):
            self.load(i)
        elif isinstance(i, Compute):
            self.compute(i)
        elif isinstance(i, Reduce):
            self.reduce(i)
        elif isinstance(i, Store):
            self.store(i)

    # ---- instructions ----

    def index_value(self, i: Index) -> None:
        text, dims = self.index(self.flat[i])
        t = ops.TYPES[i.dtype]
        if not isinstance(self.flat[i], Expr):
            self.define(i, f"tl.full([], {text}, {t})", NONE)
        else:
            self.define(i, f"{_group(text)}.to({t})", dims)

    def bind(self, indirect: tuple[tuple[Symbol, Value], ...]) -> Bound:
        """Indirect index symbols to the text of their values."""
        out = {}
        for s, v in indirect:
            text = self.use(v)
            if v.dtype is torch.int64 and not self.wide and not isinstance(v, Const):
                text = f"{text}.to(tl.int32)"
            out[s] = (text, self.dim(v))
        return out

    def address(self, i: Load | Store, want: Dims = NONE) -> tuple[str, Dims]:
        """Pointer text and its dims, at least ``want``."""
        if i.mask is not None:
            want = want | self.dim(i.mask)
        bound = self.bind(i.indirect)
        want = want | self.index(self.flat[i], bound)[1]
        text, dims = self.index(self.flat[i], bound, want)
        if dims != want:
            text, dims = f"{_group(text)} + tl.zeros({self.shape(want)}, tl.int32)", want  # the text is along them
        pointer = self.pointer[i.buffer]
        return (pointer if text == "0" else f"{pointer} + {_group(text)}"), dims

    def load(self, i: Load, eviction: str = "") -> None:
        pointer, dims = self.address(i)
        mask = self.mask(dims, i.mask)
        args = [pointer]
        if mask:
            args.append(f"mask={mask}")
        if i.mask is not None:
            args.append(f"other={ops.literal(i.other, i.dtype)}")
        if eviction and dims:
            args.append(f"eviction_policy={eviction!r}")
        self.define(i, f"tl.load({', '.join(args)})", dims)

    def compute(self, i: Compute) -> None:
        special = {"convert": self.convert, "check_index": self.check_index, "philox": self.philox}.get(i.fn)
        if special is not None:
            special(i)
            return
        kind = next((a.dtype for a in i.args[i.fn == "where" :] if not isinstance(a, Const)), i.args[-1].dtype)
        literals = ops.takes_literals(i.fn, kind) and not all(isinstance(a, Const) for a in i.args)
        dims = self.dims_of(i.args)
        args = [self.use(a, dims, literals and (k > 0 or i.fn != "where")) for k, a in enumerate(i.args)]
        spelling = SHORT[i.fn] if i in self.short else ops.template(i.fn, kind)
        text = spelling.format(*args, t=ops.TYPES[i.dtype])
        self.define(i, text, dims)

    def convert(self, i: Compute) -> None:
        (a,) = i.args
        self.define(i, ops.convert(self.use(a), a.dtype, i.dtype), self.dims_of(i.args))

    def check_index(self, i: Compute) -> None:
        """Wraps a negative index; traps out of bounds, before any address is made of it."""
        (a,) = i.args
        size, _ = self.index(dict(i.attrs)["size"])
        v, dims = self.use(a), self.dims_of(i.args)
        self.define(i, f"tl.where({v} < 0, {v} + {size}, {v})", dims)
        name, mask = self.names[i], self.mask(dims)
        guard = f", mask={mask}" if mask else ""
        self.line(f'tl.device_assert(({name} >= 0) & ({name} < {size}), "index out of bounds"{guard})')
        self.assertions = True

    def philox(self, i: Compute) -> None:
        philox(self, i)

    def reduce(self, i: Reduce) -> None:
        """A fold over whole rows."""
        axis = len(self.tiling.blocks) - 1
        text = fold(self, i, self.folded(i), axis)
        dims = frozenset(self.block) - {"r"}
        self.define(i, text, dims)

    def folded(self, i: Reduce) -> str:
        """The operand with the full block shape."""
        return self.full(self.use(i.value), self.dim(i.value), frozenset(self.block))

    def store_dims(self, i: Store) -> Dims:
        used = symbols(self.flat[i])
        dims = {d.name for d in self.tiling.blocks if d.flat in used} | self.dims_of(operands(i))
        if i.mode != "set":  # every point adds, also those that share an element
            dims |= {d.name for d in self.tiling.blocks if d.name != "r"}
        return frozenset(dims)

    def store(self, i: Store) -> None:
        pointer, dims = self.address(i, self.store_dims(i))
        mask = self.mask(dims, i.mask)
        value = self.use(i.value, dims)
        if i.value.dtype is not i.buffer.type.dtype:
            raise Unsupported(f"{self.kernel.name} stores {i.value.dtype} to {i.buffer} of {i.buffer.type.dtype}")
        guard = f", mask={mask}" if mask else ""
        if i.mode == "set":
            self.line(f"tl.store({pointer}, {value}{guard})")
        elif i.mode == "atomic_add":
            if i.value.dtype in (torch.bool, torch.int8, torch.uint8, torch.int16):
                raise Unsupported(f"no atomic add for {i.value.dtype} on a GPU", hint="accumulate in int32")
            value = self.full(self.use(i.value), self.dim(i.value), dims)
            self.line(f"tl.atomic_add({pointer}, {value}{guard}, sem='relaxed')")
        else:
            raise Unsupported(f"store mode {i.mode!r}")

    # ---- looped reductions (the loops are in triton_looped) ----

    def start(self, i: Reduce) -> None:
        start(self, i)

    def accumulate(self, i: Reduce) -> None:
        accumulate(self, i)

    def finish(self, i: Reduce) -> None:
        finish(self, i)

    # ---- the result ----

    def result(self) -> Emitted:
        kind = self.tiling.kind
        fns = dict.fromkeys(i.fn for i in self.kernel.body if isinstance(i, Compute) and i.fn != "convert")
        folds = dict.fromkeys(i.kind for i in self.kernel.body if isinstance(i, Reduce))
        name = "_".join([kind, *list(folds)[:3], *list(fns)[:5]])
        sizes = list(self.sizes)
        signature = [(self.pointer[b], ops.POINTERS[b.type.dtype]) for b in self.buffers]
        signature += [(self.sizes[e], "i32" if bounds(e)[1] < 2**31 else "i64") for e in sizes]
        blocks = [f"{n}: tl.constexpr" for n, _ in self.tiling.launches[0].blocks]
        params = ", ".join(["program"] * (self.program != PROGRAM) + [n for n, _ in signature] + blocks)
        body = "\n".join(self.lines) or "    pass"
        helpers = helper_source(body)
        source = f'{HEADER}{helpers}\n\n@triton.jit\ndef {name}({params}):\n    """{self.describe()}"""\n{body}\n'
        grid = tuple(GridDim(self._count(d), d.block) for d in self.tiling.programs)
        launches = self.tiling.launches
        divisible = tuple((self.sizes[e], n) for e in sizes if (n := _divisor(e)) > 1)
        rest = True, self.assertions, divisible
        code = TritonKernel(name, source, tuple(signature), grid, launches[0], launches[1:], *rest)
        return Emitted(code, tuple(self.buffers), tuple(sizes))

    def _count(self, d: Dim) -> int | str:
        n = d.numel
        return n if isinstance(n, int) else self.sizes[n]

    def describe(self) -> str:
        dims = ", ".join(f"{d.name} < {_size_text(d.numel)}" for d in self.tiling.dims)
        return f"{self.tiling.kind}: {dims}"


def _atoms(e: Expr) -> dict[Atom, None]:
    """The factors of an expression, each once."""
    return {a: None for m in e.terms for a in m}


def _group(text: str) -> str:
    """In parentheses where it is more than a name or a number."""
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _divisor(e: IntLike) -> int:
    """The largest power of two, up to 16, that divides a size whatever its symbols are."""
    return math.gcd(16, *e.terms.values()) if isinstance(e, Expr) else 1


def _size_text(n: IntLike) -> str:
    return str(n) if isinstance(n, int) else "?"


def _call_text(a: Call, x: str, y: str) -> str:
    """floordiv and mod round down; Triton's // and % round to zero, so a negative dividend is shifted up first."""
    if a.op in ("min", "max"):
        return f"tl.{a.op}imum({x}, {y})"
    symbol = "//" if a.op == "floordiv" else "%"
    low, divisor = bounds(a.args[0])[0], a.args[1]
    x, y = _group(x), _group(y)
    if low >= 0:
        return f"{x} {symbol} {y}"
    if not isinstance(divisor, int) or low < -(2**30):
        raise Unsupported(f"the index {a} may be negative without a known bound")
    k = -(low // divisor)
    up = f"({x} + {k * divisor}) {symbol} {y}"
    return f"{up} - {k}" if a.op == "floordiv" else up
