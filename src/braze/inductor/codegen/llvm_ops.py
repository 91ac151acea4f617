"""One row for each elementwise primitive: how to write it in LLVM IR. Keys are the loop IR's ``Compute.fn`` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from braze.errors import Unsupported
from braze.inductor.loops.ir import Compute

from . import llvm_math as m
from . import llvm_special as special
from .llvm_builder import BITS, ELEM, UNSIGNED, Builder, V, is_float


@dataclass(frozen=True)
class Site:
    """Where an operation is written: the builder, the instruction, and which math libraries there are."""

    b: Builder
    op: Compute
    vector_math: frozenset[str]

    @property
    def unsigned(self) -> bool:
        """True when the (first) operand is an unsigned integer or a bool."""
        return self.op.args[0].dtype in UNSIGNED

    @property
    def dtype(self) -> torch.dtype:
        return self.op.dtype


Emit = Callable[..., V]
OPS: dict[str, Emit] = {}


def emit_compute(site: Site, args: Sequence[V]) -> V:
    """The value of a ``Compute`` from its operands' values. Unsupported when there is no row for it."""
    row = OPS.get(site.op.fn)
    if row is None:
        raise Unsupported(f"the CPU code generator has no code for the primitive {site.op.fn!r}")
    return row(site, *args)


def _op(*names: str) -> Callable[[Emit], Emit]:
    def add(fn: Emit) -> Emit:
        for n in names:
            OPS[n] = fn
        return fn

    return add


# -- arithmetic


@_op("add")
def _add(s: Site, x: V, y: V) -> V:
    return s.b.add(x, y)


@_op("sub")
def _sub(s: Site, x: V, y: V) -> V:
    return s.b.sub(x, y)


@_op("mul")
def _mul(s: Site, x: V, y: V) -> V:
    return s.b.mul(x, y)


@_op("div")
def _div(s: Site, x: V, y: V) -> V:
    return s.b.div(x, y)


@_op("neg")
def _neg(s: Site, x: V) -> V:
    return s.b.neg(x)


@_op("abs")
def _abs(s: Site, x: V) -> V:
    if is_float(x.elem):
        return s.b.intrinsic("fabs", x)
    if s.unsigned:
        return x
    return s.b.select(s.b.compare("slt", x, s.b.like(x, 0)), s.b.neg(x), x)


@_op("sign")
def _sign(s: Site, x: V) -> V:
    b, zero, one = s.b, s.b.like(x, 0), s.b.like(x, 1)
    greater, less = ("ogt", "olt") if is_float(x.elem) else (("ugt", "ult") if s.unsigned else ("sgt", "slt"))
    lanes = x.lanes
    positive = b.select(b.compare(greater, x, zero), b.splat(one, lanes), b.splat(zero, lanes))
    if s.unsigned:
        return positive
    return b.select(b.compare(less, x, zero), b.splat(b.like(x, -1), lanes), positive)


@_op("reciprocal")
def _reciprocal(s: Site, x: V) -> V:
    return s.b.div(s.b.like(x, 1.0), x)


@_op("sqrt")
def _sqrt(s: Site, x: V) -> V:
    return s.b.intrinsic("sqrt", x)


@_op("rsqrt")
def _rsqrt(s: Site, x: V) -> V:
    return s.b.div(s.b.like(x, 1.0), s.b.intrinsic("sqrt", x))


@_op("floor", "ceil", "trunc")
def _rounding(s: Site, x: V) -> V:
    return s.b.intrinsic(s.op.fn, x)


@_op("round")
def _round(s: Site, x: V) -> V:
    return s.b.intrinsic("rint" if not s.b.features & {"sse4.1", "neon"} else "roundeven", x)


@_op("copysign")
def _copysign(s: Site, x: V, y: V) -> V:
    return s.b.intrinsic("copysign", x, y)


@_op("maximum")
def _maximum(s: Site, x: V, y: V) -> V:
    return extreme(s.b, "max", x, y, s.unsigned)


@_op("minimum")
def _minimum(s: Site, x: V, y: V) -> V:
    return extreme(s.b, "min", x, y, s.unsigned)


def extreme(b: Builder, kind: str, x: V, y: V, unsigned: bool = False) -> V:
    """The larger or smaller of two; NaN where either is NaN."""
    if is_float(x.elem):
        if _is_number(y):  # the other one is what a NaN leaves
            x, y = y, x
        best = b.upper(x, y) if kind == "max" else b.lower(x, y)  # y where either is NaN
        return best if _is_number(x) else b.select(b.is_nan(x), x, best)
    predicate = ("u" if unsigned else "s") + ("gt" if kind == "max" else "lt")
    if x.elem == "i1":
        return b.binary("or" if kind == "max" else "and", x, y)
    return b.select(b.compare(predicate, x, y), x, y)


def _is_number(v: V) -> bool:
    """A float constant that is no NaN."""
    if not (v.const and v.lanes == 1 and v.name.startswith("0x") and v.elem in ("float", "double")):
        return False
    return int(v.name, 16) & (2**63 - 1) <= 0x7FF << 52


# -- integer division and remainders


def _safe_divisor(s: Site, x: V, y: V) -> tuple[V, V]:
    """A divisor that cannot fault: 1 for 0, and for -1 (whose quotient is done by negation): (divisor, is -1)."""
    b = s.b
    zero = b.compare("eq", y, b.like(y, 0))
    if s.unsigned:
        return b.select(zero, b.splat(b.like(y, 1), y.lanes), y), V("false", "i1", 1, True)
    minus = b.compare("eq", y, b.like(y, -1))
    return b.select(b.binary("or", zero, minus), b.splat(b.like(y, 1), y.lanes), y), minus


def _int_trunc_div(s: Site, x: V, y: V) -> V:
    b = s.b
    x, y = b.unify(x, y)
    d, minus = _safe_divisor(s, x, y)
    q = b.binary("udiv" if s.unsigned else "sdiv", x, d)
    return q if s.unsigned else b.select(minus, b.neg(x), q)


def _int_fmod(s: Site, x: V, y: V) -> V:
    x, y = s.b.unify(x, y)
    d, _ = _safe_divisor(s, x, y)  # by -1 as by 1: the remainder is 0
    return s.b.binary("urem" if s.unsigned else "srem", x, d)


def _signs_differ(b: Builder, r: V, y: V) -> V:
    """r != 0 and sign(r) != sign(y), for integers."""
    apart = b.compare("slt", b.binary("xor", r, y), b.like(r, 0))
    return b.binary("and", apart, b.compare("ne", r, b.like(r, 0)))


@_op("trunc_div")
def _trunc_div(s: Site, x: V, y: V) -> V:
    return _int_trunc_div(s, x, y)


@_op("fmod")
def _fmod(s: Site, x: V, y: V) -> V:
    if is_float(x.elem):
        return m.library(s.b, "fmod", (x, y), s.vector_math)
    return _int_fmod(s, x, y)


@_op("remainder")
def _remainder(s: Site, x: V, y: V) -> V:
    b = s.b
    if is_float(x.elem):
        x, y = b.unify(x, y)
        r = m.library(b, "fmod", (x, y), s.vector_math)
        zero = b.like(r, 0.0)
        apart = b.binary("xor", b.compare("olt", r, zero), b.compare("olt", y, zero))
        return b.select(b.binary("and", apart, b.compare("une", r, zero)), b.add(r, y), r)
    x, y = b.unify(x, y)
    r = _int_fmod(s, x, y)
    return r if s.unsigned else b.select(_signs_differ(b, r, y), b.add(r, y), r)


@_op("floor_div")
def _floor_div(s: Site, x: V, y: V) -> V:
    b = s.b
    x, y = b.unify(x, y)
    if not is_float(x.elem):
        q = _int_trunc_div(s, x, y)
        if s.unsigned:
            return q
        return b.select(_signs_differ(b, _int_fmod(s, x, y), y), b.sub(q, b.like(q, 1)), q)
    zero = b.like(x, 0.0)
    r = m.library(b, "fmod", (x, y), s.vector_math)
    q = b.div(b.sub(x, r), y)
    apart = b.binary("xor", b.compare("olt", r, zero), b.compare("olt", y, zero))
    q = b.select(b.binary("and", apart, b.compare("une", r, zero)), b.sub(q, b.like(q, 1.0)), q)
    floor = b.intrinsic("floor", q)
    floor = b.select(b.compare("ogt", b.sub(q, floor), b.like(q, 0.5)), b.add(floor, b.like(q, 1.0)), floor)
    quotient = b.div(x, y)
    out = b.select(b.compare("une", q, zero), floor, b.intrinsic("copysign", b.splat(zero, x.lanes), quotient))
    return b.select(b.compare("oeq", y, zero), quotient, out)


# -- bits


@_op("bitwise_and")
def _and(s: Site, x: V, y: V) -> V:
    return s.b.binary("and", x, y)


@_op("bitwise_or")
def _or(s: Site, x: V, y: V) -> V:
    return s.b.binary("or", x, y)


@_op("bitwise_xor")
def _xor(s: Site, x: V, y: V) -> V:
    return s.b.binary("xor", x, y)


@_op("bitwise_not")
def _not(s: Site, x: V) -> V:
    return s.b.binary("xor", x, s.b.like(x, True if x.elem == "i1" else -1))


@_op("shift_left")
def _shift_left(s: Site, x: V, y: V) -> V:
    b = s.b
    x, y = b.unify(x, y)
    inside = b.compare("ult", y, b.like(y, BITS[y.elem]))  # a negative count is a large unsigned one
    count = b.select(inside, y, b.splat(b.like(y, 0), y.lanes))
    return b.select(inside, b.binary("shl", x, count), b.splat(b.like(x, 0), x.lanes))


@_op("shift_right")
def _shift_right(s: Site, x: V, y: V) -> V:
    b = s.b
    x, y = b.unify(x, y)
    limit = b.like(y, BITS[y.elem] - 1)
    inside = b.compare("ule", y, limit)
    count = b.select(inside, y, b.splat(limit, y.lanes))
    if not s.unsigned:
        return b.binary("ashr", x, count)
    return b.select(inside, b.binary("lshr", x, count), b.splat(b.like(x, 0), x.lanes))


# -- comparisons and selection

_PREDICATES = {  # name -> float, signed, unsigned
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}


@_op(*_PREDICATES)
def _compare(s: Site, x: V, y: V) -> V:
    column = 0 if is_float(x.elem) else 2 if s.unsigned else 1
    return s.b.compare(_PREDICATES[s.op.fn][column], x, y)


@_op("isnan")
def _isnan(s: Site, x: V) -> V:
    return s.b.is_nan(x)


@_op("isinf")
def _isinf(s: Site, x: V) -> V:
    return s.b.compare("oeq", s.b.intrinsic("fabs", x), s.b.like(x, float("inf")))


@_op("signbit")
def _signbit(s: Site, x: V) -> V:
    bits = s.b.bits(x) if is_float(x.elem) else x
    if s.unsigned:
        return s.b.compare("ult", bits, s.b.like(bits, 0))
    return s.b.compare("slt", bits, s.b.like(bits, 0))


@_op("where")
def _where(s: Site, c: V, x: V, y: V) -> V:
    return s.b.select(c, x, y)


@_op("clone")
def _clone(s: Site, x: V) -> V:
    return x


# -- transcendental functions


_FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma"
    " sigmoid atan2 nextafter"
)


@_op(*_FUNCTIONS.split())
def _function(s: Site, *args: V) -> V:
    name, b = s.op.fn, s.b
    if args[0].elem == "float" and name in m.INLINE:
        return m.INLINE[name](b, args[0])
    if name == "sigmoid":
        e = m.library(b, "exp", (b.neg(args[0]),), s.vector_math)
        return b.div(b.like(e, 1.0), b.add(e, b.like(e, 1.0)))
    return m.library(b, name, args, s.vector_math)


@_op("erfinv")
def _erfinv(s: Site, x: V) -> V:
    return special.erfinv(s.b, x, s.vector_math)


@_op("digamma")
def _digamma(s: Site, x: V) -> V:
    return special.digamma(s.b, x, s.vector_math)


@_op("pow")
def _pow(s: Site, x: V, y: V) -> V:
    if is_float(x.elem):
        return m.library(s.b, "pow", (x, y), s.vector_math)
    bits, unsigned = BITS[x.elem], s.unsigned
    name = f"braze.{'u' if unsigned else 's'}pow{bits}"
    s.b.helpers.setdefault(name, _int_pow(name, x.elem, unsigned))
    return m.per_lane(s.b, name, (x, y))


def _int_pow(name: str, t: str, unsigned: bool) -> str:
    """Wrapping integer power by squaring. A negative exponent: 0, or +-1 for the bases +-1."""
    negative = (
        ""
        if unsigned
        else f"""  %neg = icmp slt {t} %e, 0
  br i1 %neg, label %negative, label %head
negative:
  %one = icmp eq {t} %x, 1
  %minus = icmp eq {t} %x, -1
  %odd0 = and {t} %e, 1
  %odd1 = icmp ne {t} %odd0, 0
  %sgn = select i1 %odd1, {t} -1, {t} 1
  %r0 = select i1 %minus, {t} %sgn, {t} 0
  %r1 = select i1 %one, {t} 1, {t} %r0
  ret {t} %r1
"""
    )
    jump = "  br label %head\n" if unsigned else ""
    return f"""define internal {t} @{name}({t} %x, {t} %e) nounwind {{
entry:
{negative}{jump}head:
  %n = phi {t} [ %e, %entry ], [ %n1, %body ]
  %base = phi {t} [ %x, %entry ], [ %base1, %body ]
  %acc = phi {t} [ 1, %entry ], [ %acc1, %body ]
  %more = icmp ne {t} %n, 0
  br i1 %more, label %body, label %done
body:
  %low = and {t} %n, 1
  %odd = icmp ne {t} %low, 0
  %times = mul {t} %acc, %base
  %acc1 = select i1 %odd, {t} %times, {t} %acc
  %base1 = mul {t} %base, %base
  %n1 = lshr {t} %n, 1
  br label %head
done:
  ret {t} %acc
}}"""


# -- constants and conversion


def constant(b: Builder, dtype: torch.dtype, value: float | int | bool) -> V:
    """A constant in register form: a bfloat16 is its bits."""
    if dtype == torch.bfloat16:
        return b.const("i16", int(torch.tensor(value, dtype=dtype).view(torch.int16).item()))
    return b.const(ELEM[dtype], value)


@_op("convert")
def _convert(s: Site, x: V) -> V:
    return convert(s.b, x, s.op.args[0].dtype, s.dtype)


@_op("bitcast")
def _bitcast(s: Site, x: V) -> V:
    elem = ELEM[s.dtype]
    return x if elem == x.elem else s.b.cast("bitcast", x, elem)


def convert(b: Builder, x: V, source: torch.dtype, target: torch.dtype) -> V:
    """``x`` of dtype ``source`` as dtype ``target``."""
    if source == target:
        return x
    if source == torch.bfloat16:
        wide = b.cast("zext", x, "i32")
        return convert(b, b.from_bits(b.binary("shl", wide, b.like(wide, 16))), torch.float32, target)
    if source == torch.float16:
        return convert(b, half_to_float(b, x), torch.float32, target)
    if target in (torch.bfloat16, torch.float16):
        single = convert(b, x, source, torch.float32)
        return float_to_bfloat(b, single) if target == torch.bfloat16 else float_to_half(b, single)
    elem = ELEM[target]
    if target == torch.bool:
        return b.compare("une" if is_float(x.elem) else "ne", x, b.like(x, 0))
    if is_float(x.elem):
        if is_float(elem):
            return b.cast("fpext" if elem == "double" else "fptrunc", x, elem)
        # Narrow integers go through i32 and wrap, as C's conversions do in eager.
        wide = b.cast("fptosi", x, elem if BITS[elem] >= 32 else "i32")
        return wide if wide.elem == elem else b.cast("trunc", wide, elem)
    if is_float(elem):
        return b.cast("uitofp" if source in UNSIGNED else "sitofp", x, elem)
    if BITS[elem] == BITS[x.elem] and x.elem != "i1":
        return x
    if BITS[elem] > BITS[x.elem] or x.elem == "i1":
        return b.cast("zext" if source in UNSIGNED else "sext", x, elem)
    return b.cast("trunc", x, elem)


SUBNORMAL = 0x20  # of the instruction that tells kinds of numbers apart


def float_to_bfloat(b: Builder, x: V) -> V:
    """f32 to bf16 bits, to nearest even. (``fptrunc`` to bfloat crashes LLVM without AVX512-BF16.)"""
    if x.lanes >= 32 and "avx512bf16" in b.features:
        return _hardware_bfloat(b, x)
    return _rounded_bfloat(b, x)


def _rounded_bfloat(b: Builder, x: V) -> V:
    u = b.bits(x)
    odd = b.binary("and", b.binary("lshr", u, b.like(u, 16)), b.like(u, 1))
    r = b.binary("lshr", b.add(b.add(u, b.like(u, 0x7FFF)), odd), b.like(u, 16))
    r = b.select(b.is_nan(x), b.splat(b.like(u, 0x7FC0), x.lanes), r)
    return b.cast("trunc", r, "i16")


def _hardware_bfloat(b: Builder, x: V) -> V:
    """The machine's instruction, which takes subnormal numbers for zero: where a lane has one, in integers."""
    joined, small = "llvm.x86.avx512bf16.cvtne2ps2bf16.512", "llvm.x86.avx512.fpclass.ps.512"
    b.declare(joined, "<32 x bfloat>", ["<16 x float>"] * 2)
    b.declare(small, "<16 x i1>", ["<16 x float>", "i32"])
    pieces = [b.slice(x, k, 16) for k in range(0, x.lanes, 16)]
    out, any_small = [], None
    for low, high in zip(pieces[::2], pieces[1::2]):
        pair = b.let("bfloat", 32, f"call <32 x bfloat> @{joined}({high.typed}, {low.typed})")
        out.append(b.let("i16", 32, f"bitcast {pair.typed} to <32 x i16>"))
    for v in pieces:
        found = b.let("i1", 16, f"call <16 x i1> @{small}({v.typed}, i32 {SUBNORMAL})")
        any_small = found if any_small is None else b.binary("or", any_small, found)
    assert any_small is not None
    some = b.compare("ne", b.let("i16", 1, f"bitcast {any_small.typed} to i16"), b.const("i16", 0))
    return b.when(some, lambda: [_rounded_bfloat(b, x)], [b.concat(out)])[0]


def _hardware_half(b: Builder) -> bool:
    return bool(b.features & {"f16c", "neon"})


def half_to_float(b: Builder, x: V) -> V:
    """f16 to f32, exact. Without hardware: the exponent is rebiased by a multiplication."""
    if _hardware_half(b):
        return b.cast("fpext", x, "float")
    wide = b.cast("zext", b.bits(x), "i32")
    magnitude = b.binary("and", wide, b.like(wide, 0x7FFF))
    y = b.mul(b.from_bits(b.binary("shl", magnitude, b.like(wide, 13))), b.const("float", 2.0**112))
    bits = b.bits(y)
    special = b.compare("uge", magnitude, b.like(wide, 0x7C00))
    bits = b.select(special, b.binary("or", bits, b.like(bits, 0x7F800000)), bits)
    sign = b.binary("shl", b.binary("and", wide, b.like(wide, 0x8000)), b.like(wide, 16))
    return b.from_bits(b.binary("or", bits, sign))


def float_to_half(b: Builder, x: V) -> V:
    """f32 to f16, to nearest even."""
    if _hardware_half(b):
        return b.cast("fptrunc", x, "half")
    u = b.bits(x)
    sign = b.binary("and", b.binary("lshr", u, b.like(u, 16)), b.like(u, 0x8000))
    a = b.binary("and", u, b.like(u, 0x7FFFFFFF))
    odd = b.binary("and", b.binary("lshr", a, b.like(u, 13)), b.like(u, 1))
    normal = b.binary("lshr", b.add(b.add(a, b.like(u, (15 - 127) * 2**23 + 0xFFF)), odd), b.like(u, 13))
    # Subnormal results: adding 0.5 aligns the mantissa so that the hardware rounds it.
    shifted = b.bits(b.add(b.from_bits(a), b.const("float", 0.5)))
    small = b.sub(shifted, b.like(u, 0x3F000000))
    r = b.select(b.compare("ult", a, b.like(u, 113 << 23)), small, normal)
    lanes = x.lanes
    r = b.select(b.compare("uge", a, b.like(u, (127 + 16) << 23)), b.splat(b.like(u, 0x7C00), lanes), r)
    r = b.select(b.compare("ugt", a, b.like(u, 0x7F800000)), b.splat(b.like(u, 0x7E00), lanes), r)
    return b.from_bits(b.cast("trunc", b.binary("or", r, sign), "i16"))
