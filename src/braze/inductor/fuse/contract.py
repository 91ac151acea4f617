"""Matrix products with what follows them: a vendor's call and the pointwise kernel that reads its result, as one step
that may run as either those two or one kernel (``max_autotune`` only; timing decides).

Before::

    mm = aten.addmm(bias, x, w)                 # 4096 x 3072
    for i0 in range(32): for i1 in range(128): for i2 in range(3072):
        gelu[i0, i1, i2] = ... mm[i1 + 128*i0, i2] ...

After: one ``Extern`` with a :class:`Product` as its target; ``vendor`` is the program above, ``kernel`` the loops::

    p0 < 4096, p1 < 3072, q0 < 768
    v0 = reduce_sum(x[p0, q0] * w[q0, p1]) + bias[p1]
    gelu[p0 // 128, p0 % 128, p1] = ... v0 ...

The epilogue sees the product before it is rounded to 16 bits, as all fused values are. A kernel that makes a factor may
join, too (``prologue``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from braze.inductor.loops import (
    Axis,
    Buffer,
    Compute,
    Const,
    Extern,
    Index,
    Kernel,
    Load,
    Program,
    Reduce,
    Step,
    Store,
    Strided,
    Value,
    allocated,
    interpret_program,
    operands,
)
from braze.inductor.loops.interpret import buffers_in
from braze.inductor.loops.ref import axis_of, offset_of
from braze.ir import Expr, IntLike, Symbol, TensorType, product, symbol_of, symbols

from .group import group
from .joining import Body, Steps, sliced
from .match import complete, covers, match
from .ops import hint, nbytes
from .overwrite import candidates
from .prologue import Prologue, find_prologue
from .schedule import order, writes_of
from .split import rebound
from .tall import rechunked
from .traits import CYCLE, DIFFERENT_DEVICE, DIFFERENT_DOMAIN, OTHER_POINT, Reason

SHAPES = {
    torch.ops.aten.mm.default: (-1, 0, 1),
    torch.ops.aten.addmm.default: (0, 1, 2),
    torch.ops.aten.bmm.default: (-1, 0, 1),
    torch.ops.aten.baddbmm.default: (0, 1, 2),
}
"""The places of what is added (-1: nothing) and of both factors among a product's arguments."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LEAST = 16  # of each of a product's sizes: the smallest block that tensor cores take

SLICED = 2 << 20  # bytes of a product for which a kernel of many stores is divided; less gains less than a launch

NO_USER = Reason("no kernel reads the product")
WRITES_INPUT = Reason("the kernel that reads the product updates an input in place")
SCATTERS = Reason("the kernel that reads the product scatters")
TOO_SMALL = Reason(f"the product has a size below {LEAST}")
NO_TEMPLATE = Reason("there is no template for products of this dtype")
Log = list[tuple[str, Reason]]


@dataclass(eq=False)
class Product:
    """A matrix product and its epilogue as a callable step.

    ``kernel``: all of it in loop IR (x axes: the batch if there is one, rows, columns; r: the inner dim); ``vendor``:
    the steps that it stands for, as a program over the same inputs (the kernel's tensors in order of first use, then
    ``sizes``) with the same outputs."""

    kernel: Kernel
    vendor: Program
    sizes: tuple[Symbol, ...]
    several: bool = True

    @property
    def __name__(self) -> str:
        return self.kernel.name

    def __repr__(self) -> str:
        return self.kernel.name

    def fused(self) -> Program:
        """The program whose one step is the kernel."""
        return replace(self.vendor, steps=[self.kernel], buffers=self.kernel.writes, reuse={})

    def __call__(self, *args: Any) -> Any:
        """The meaning, by the reference interpreter."""
        return interpret_program(self.vendor, args)


def contract(program: Program, log: Log | None = None) -> Program:
    """The program with each matrix product joined to a pointwise kernel that reads it, where that is legal. ``log``
    collects (product, why it stays alone)."""
    steps = Steps(program.steps, set(buffers_in(program.outputs)))
    updated = set(candidates(program))
    for call in [s for s in program.steps if isinstance(s, Extern) and s.target in SHAPES]:
        parts = _parts(call, steps, updated)
        if isinstance(parts, Reason):
            if log is not None:
                log.append((str(call.outputs[0]), parts))
            continue
        at: Step = call if parts.epilogue is None else parts.epilogue
        steps.replace(at, [_product(call, parts)] + ([parts.rest] if parts.rest else []))
        gone: list[Step] = [p.kernel for p in parts.prologues.values()]
        for step in gone if at is call else [*gone, call]:
            steps.replace(step, [])
        for before, after in parts.folds:
            steps.replace(before, [after])
    done = order([(n, s) for s, n in steps.positions()])
    return group(replace(program, steps=done, buffers=allocated(done), groups=()))


@dataclass(eq=False)
class _Parts:
    """What joins a product: a kernel that reads it (of which ``part`` joins and ``rest`` stays, with ``env`` for its
    axes), and by argument what makes its factors. ``keep``: the product itself is wanted, too; ``folds``: kernels that
    change because the epilogue makes other partial sums."""

    epilogue: Kernel | None
    part: Kernel | None
    rest: Kernel | None
    env: dict[Symbol, IntLike]
    keep: bool
    prologues: dict[int, Prologue]
    folds: tuple[tuple[Kernel, Kernel], ...] = ()


def _parts(call: Extern, steps: Steps, updated: set[Buffer]) -> _Parts | Reason:
    out = call.outputs[0]
    reason = _multipliable(call)
    if reason is not None or out is None:
        return reason or NO_USER
    readers = steps.readers(out)
    parts = _Parts(None, None, None, {}, True, {})
    first: Reason = NO_USER
    for kernel in [s for s in readers if isinstance(s, Kernel)]:
        found = _epilogue(kernel, call, steps, updated)
        if not isinstance(found, Reason):
            parts = found
            break
        first = found if first is NO_USER else first
    for k, place in zip(SHAPES[call.target][1:], _factor_places(call)):
        found_prologue = find_prologue(call, call.args[k], place, steps)
        if isinstance(found_prologue, Prologue) and found_prologue.kernel is not parts.epilogue:
            parts.prologues[k] = found_prologue
    return parts if parts.epilogue is not None or parts.prologues else first


def _epilogue(kernel: Kernel, call: Extern, steps: Steps, updated: set[Buffer]) -> _Parts | Reason:
    """How the kernel joins."""
    (out,) = call.outputs
    assert out is not None
    folds: tuple[tuple[Kernel, Kernel], ...] = ()
    rest = None
    if kernel.r:
        cut = rechunked(kernel, out, steps)
        if isinstance(cut, Reason):
            return cut
        part, folds = cut.kernel, cut.folds
    else:
        dependent = _dependent(kernel, out) if nbytes(out) >= SLICED else set(kernel.body)
        part, rest = sliced(kernel, dependent)
    env = _legal(call, part, steps, kernel, updated)
    if isinstance(env, Reason):
        return env
    return _Parts(kernel, part, rest, env, out in steps.handed or len(steps.readers(out)) > 1, {}, folds)


def _multipliable(call: Extern) -> Reason | None:
    """None for a product that the template can do."""
    _, a, b = SHAPES[call.target]
    left, right, out = call.args[a], call.args[b], call.outputs[0]
    if out is None or out.type.dtype not in DTYPES or left.buffer.type.dtype is not out.type.dtype:
        return NO_TEMPLATE
    if any(hint(n) < LEAST for n in (*left.sizes[-2:], right.sizes[-1])):
        return TOO_SMALL
    return None


def _dependent(kernel: Kernel, out: Buffer) -> set[Any]:
    """The instructions that depend on ``out``."""
    depends: set[Any] = set()
    for i in kernel.body:
        if (isinstance(i, Load) and i.buffer is out) or any(v in depends for v in operands(i)):
            depends.add(i)
    return depends


def _legal(
    call: Extern, kernel: Kernel, steps: Steps, whole: Kernel, updated: set[Buffer]
) -> dict[Symbol, IntLike] | Reason:
    """The kernel's axes over the product's; a Reason why it is no epilogue. ``whole``: the step that it is part of."""
    out = call.outputs[0]
    assert out is not None
    if kernel.device != out.type.device:
        return DIFFERENT_DEVICE
    stores = [i for i in kernel.body if isinstance(i, Store)]
    if any(s.mode != "set" for s in stores):
        return SCATTERS
    if any(s.buffer in updated for s in stores):
        return WRITES_INPUT
    if any(len(steps.writers(b)) > 1 for b in whole.writes):
        return SCATTERS
    if set(kernel.writes) & set(kernel.reads):
        return WRITES_INPUT
    if steps.reached(out, whole) & set(kernel.reads):
        return CYCLE
    return _domain(kernel, out)


def _domain(kernel: Kernel, out: Buffer) -> dict[Symbol, IntLike] | Reason:
    loads = [i for i in kernel.body if isinstance(i, Load) and i.buffer is out]
    if any(i.mask is not None or i.indirect or i.index != loads[0].index for i in loads):
        return OTHER_POINT
    sizes = {a.index: a.size for a in kernel.x + kernel.r}
    known = {axis.index: axis.size for axis in _axes(out)}
    env = match(loads[0].index, _place(out), sizes)
    if env is None and out.type.is_contiguous:  # rows of the one need not be rows of the other
        one, other = (offset_of(out.type.with_(offset=0), e) for e in (loads[0].index, _place(out)))
        env = match((one,), (other,), sizes)
        if env is not None and complete(env, sizes, known) and product(list(sizes.values())) == out.type.numel:
            return env
    if env is None:
        return OTHER_POINT
    if not complete(env, sizes, known) or covers(env, sizes, known) != known.keys():
        return DIFFERENT_DOMAIN
    return env


def _place(out: Buffer | None) -> tuple[IntLike, ...]:
    """The product's index over its own axes."""
    assert out is not None
    return tuple([axis_of(d, n, "p") for d, n in enumerate(out.type.sizes)])


def _axes(out: Buffer) -> list[Axis]:
    found = [(symbol_of(e), n) for e, n in zip(_place(out), out.type.sizes)]
    return [Axis(s, n) for s, n in found if s is not None]


def _factor_places(call: Extern) -> tuple[tuple[IntLike, ...], tuple[IntLike, ...]]:
    """Both factors' indices over the product's axes."""
    _, left, right = SHAPES[call.target]
    place = _place(call.outputs[0])
    q = axis_of(0, call.args[left].sizes[-1], "q")
    return (*place[:-1], q), (*place[:-2], q, place[-1])


def _product(call: Extern, parts: _Parts) -> Extern:
    """The step for a product and what joins it."""
    out = call.outputs[0]
    assert out is not None
    views = {k: _whole_of(a, k) for k, a in enumerate(call.args) if isinstance(a, Strided) and k not in parts.prologues}
    place = _place(out)
    b = Body()
    value = _accumulated(b, call, views, parts)
    new: dict[Any, Any] = {}
    for i in parts.part.body if parts.part is not None else ():
        new[i] = _moved(b, i, out, value, parts.env, new)
    if parts.keep:
        b.add(Store(out, place, b.convert(value, out.type.dtype)))
    size = call.args[SHAPES[call.target][1]].sizes[-1]
    k = symbol_of(axis_of(0, size, "q"))
    assert k is not None
    kernels = [p.kernel for p in parts.prologues.values()] + [k for k in (parts.part,) if k is not None]
    name = "_".join([str(call.target).split(".")[1], *[k.name.removeprefix("k_") for k in kernels]])
    origin = call.origin + tuple(o for kernel in kernels for o in kernel.origin)
    kernel = Kernel(name, tuple(_axes(out)), (Axis(k, size),), b.body, out.type.device, origin)
    return _step(kernel, call, parts, views)


def _accumulated(b: Body, call: Extern, views: dict[int, Buffer], parts: _Parts) -> Value:
    """The product, and what is added to it, in f32."""
    added = SHAPES[call.target][0]
    f32 = torch.float32
    factors = []
    for k, at in zip(SHAPES[call.target][1:], _factor_places(call)):
        prologue = parts.prologues.get(k)
        factors.append(prologue.value(b, at) if prologue else b.add(Load(views[k], at)))
    x, y = (b.convert(v, f32) for v in factors)
    value: Value = b.add(Reduce("sum", b.add(Compute("mul", (x, y), f32)), f32))
    alpha, beta = call.kwargs.get("alpha", 1), call.kwargs.get("beta", 1)
    if alpha != 1:
        value = b.add(Compute("mul", (value, b.add(Const(float(alpha), f32))), f32))
    if added >= 0 and beta != 0:
        v, place = views[added], _place(call.outputs[0])
        lead = len(place) - v.type.rank
        index = tuple([0 if n == 1 else place[lead + d] for d, n in enumerate(v.type.sizes)])
        bias = b.convert(b.add(Load(v, index)), f32)
        if beta != 1:
            bias = b.add(Compute("mul", (bias, b.add(Const(float(beta), f32))), f32))
        value = b.add(Compute("add", (value, bias), f32))
    return value


def _moved(b: Body, i: Any, out: Buffer, value: Value, env: dict[Symbol, IntLike], new: dict[Any, Any]) -> Any:
    """An instruction of the epilogue over the product's axes, where the product is ``value``."""
    if isinstance(i, Load):
        if i.buffer is out:
            return value
        bound = {v: b.convert(new[v], v.dtype) for _, v in i.indirect}
        return b.add(rebound(i, new | bound, env))
    if isinstance(i, Compute):
        args = [new[a] for a in i.args]
        if i.fn == "convert" and args[0].dtype is i.dtype:
            return args[0]
        exact = [b.convert(v, a.dtype) if i.fn != "convert" else v for a, v in zip(i.args, args)]
        return b.add(Compute(i.fn, tuple(exact), i.dtype, i.attrs))
    if isinstance(i, Reduce):  # of a tile's rows: where it is stored, all of them add
        return new[i.value]
    made = rebound(i, new, env)
    if isinstance(made, Store):
        stored = b.convert(made.value, made.buffer.type.dtype)
        made = replace(made, value=stored, mode="sum" if isinstance(i.value, Reduce) else made.mode)
    return b.add(made)


def _whole_of(view: Strided, k: int) -> Buffer:
    """A buffer that is what a view shows."""
    t = view.buffer.type
    return Buffer(f"{view.buffer.name}_{k}", TensorType(view.sizes, view.strides, t.dtype, t.device))


def _step(kernel: Kernel, call: Extern, parts: _Parts, views: dict[int, Buffer]) -> Extern:
    out = call.outputs[0]
    given = {views[k]: call.args[k] for k in views}
    inputs = list(kernel.reads)
    inputs += [b for b in given if b not in inputs]  # with beta=0 a call takes what it does not read
    sizes = tuple(sorted(_sizes(kernel, inputs), key=lambda s: s.name))
    args = tuple([given.get(b) or _all(b) for b in inputs]) + tuple([Expr({(s,): 1}) for s in sizes])
    inner = replace(call, args=tuple([_all(views[k]) if k in views else a for k, a in enumerate(call.args)]))
    steps: list[Step] = [*[p.kernel for p in parts.prologues.values()], inner]
    steps += [parts.part] if parts.part is not None else []
    buffers = [b for s in steps for b in writes_of(s)]
    outputs = kernel.writes
    assert out is not None
    vendor = Program(kernel.name, (*inputs, *sizes), steps, tuple(map(_all, outputs)), buffers)
    return Extern(Product(kernel, vendor, sizes), args, {}, tuple(outputs), kernel.origin)


def _all(b: Buffer) -> Strided:
    return Strided(b, b.type.sizes, b.type.strides, b.type.offset)


def _sizes(kernel: Kernel, inputs: Sequence[Buffer]) -> set[Symbol]:
    """The symbolic sizes that the kernel or its buffers' types name."""
    own = {a.index for a in kernel.x + kernel.r}
    own |= {s for i in kernel.body if isinstance(i, (Load, Store)) for s, _ in i.indirect}
    places = [e for i in kernel.body if isinstance(i, (Load, Store)) for e in i.index]
    places += [i.expr for i in kernel.body if isinstance(i, Index)]
    types = [e for b in (*inputs, *kernel.writes) for e in (*b.type.sizes, *b.type.strides)]
    return symbols(*places, *types, *[a.size for a in kernel.x + kernel.r]) - own
