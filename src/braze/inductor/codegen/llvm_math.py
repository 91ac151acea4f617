"""Elementary functions on vectors of f32, inline, and calls of vector or scalar math libraries for the rest.

Inline functions are within about 1 to 2 ulp on the whole range, infinities, NaN, signed zeros and subnormal numbers
included.  Polynomials are weighted minimax fits; the comments give their relative error.  All else goes to the SLEEF
functions that torch exports (those that ATen itself calls), or lane by lane to the C library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .llvm_builder import Builder, V, vec_type

LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # the high part has few bits: n * LN2_HIGH is exact
LOG2E = 1.4426950408889634
ROUNDER = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer, which is then in the low mantissa bits
EXP = (0.0013950539287179708, 0.008368917740881443, 0.04166620597243309, 0.166665181517601, 0.5)  # 3e-9
EXPM1 = (0.0013946497347205877, 0.00836661085486412, 0.04166628047823906, 0.1666654348373413, 0.5)  # 1e-8
LOG = (
    -0.07634496688842773,
    0.1276157647371292,
    -0.13160182535648346,
    0.14201757311820984,
    -0.16623356938362122,
    0.20001226663589478,
    -0.2500081956386566,
    0.3333333134651184,
)  # 6e-9
ERF = (
    1.3345229490369093e-05,
    -0.00016963903908617795,
    0.0009126860531978309,
    -0.002404424361884594,
    0.00023077407968230546,
    0.027632400393486023,
    -0.1482771784067154,
    -0.9184476137161255,
    0.37209296226501465,
)  # 4e-9 of erf: log2(erfc(x)) / x + 2, 0 < x < 4
EXP2M1 = (
    0.00015403516590595245,
    0.00133907375857234,
    0.009618237614631653,
    0.05550357326865196,
    0.24022649228572845,
    0.6931471824645996,
)  # 1e-8: (2**x - 1) / x, |x| < 0.5


def _reduce(b: Builder, x: V) -> tuple[V, V, V]:
    """x = n * ln2 + r with |r| <= ln2 / 2: (r, n as float, the float whose low bits hold n)."""
    shifted = b.fma(x, b.like(x, LOG2E), b.like(x, ROUNDER))
    n = b.sub(shifted, b.like(x, ROUNDER))
    r = b.fma(n, b.like(x, -LN2_HIGH), x)
    return b.fma(n, b.like(x, -LN2_LOW), r), n, shifted


def _exp_poly(b: Builder, r: V) -> V:
    p = b.horner(r, EXP)
    p = b.fma(p, b.mul(r, r), r)
    return b.add(p, b.like(r, 1.0))


def _scale(b: Builder, p: V, shifted: V) -> V:
    """p * 2**n, for |n| so small that the result is a normal number."""
    e = b.binary("shl", b.bits(shifted), V("23", "i32", 1, True))
    return b.from_bits(b.add(b.bits(p), e))


def exp(b: Builder, x: V) -> V:
    x = b.upper(b.like(x, -104.0), b.lower(b.like(x, 89.0), x))
    r, n, shifted = _reduce(b, x)
    p = _exp_poly(b, r)
    if "avx512f" in b.features and x.lanes >= 16:
        return by_pieces(b, 16, _scalef, p, n)
    # 2**n in two factors: n spans the subnormal range, where one factor would underflow.
    whole = b.sub(b.bits(shifted), V(str(0x4B400000), "i32", 1, True))
    half = b.binary("ashr", whole, V("1", "i32", 1, True))
    for part in (half, b.sub(whole, half)):
        e = b.binary("shl", b.add(part, V("127", "i32", 1, True)), V("23", "i32", 1, True))
        p = b.mul(p, b.from_bits(e))
    return p


def _scalef(b: Builder, p: V, n: V) -> V:
    name = "llvm.x86.avx512.mask.scalef.ps.512"
    b.declare(name, p.type, [p.type, p.type, p.type, "i16", "i32"])
    return b.let(p.elem, 16, f"call {p.type} @{name}({p.typed}, {n.typed}, {p.type} zeroinitializer, i16 -1, i32 4)")


def by_pieces(b: Builder, width: int, fn: Callable[..., V], *args: V) -> V:
    """Apply a function of ``width`` lanes to operands with any multiple of that."""
    lanes = args[0].lanes
    if lanes == width:
        return fn(b, *args)
    return b.concat([fn(b, *(b.slice(a, i, width) for a in args)) for i in range(0, lanes, width)])


def expm1(b: Builder, x: V) -> V:
    limited = b.upper(b.like(x, -40.0), b.lower(b.like(x, 89.0), x))
    r, _, shifted = _reduce(b, limited)
    p = b.fma(b.horner(r, EXPM1), b.mul(r, r), r)
    n = b.sub(b.bits(shifted), V(str(0x4B400000), "i32", 1, True))
    # 2**n * p + (2**n - 1) with the halves of 2**n: n may be 128.
    e = b.binary("shl", b.add(n, V("126", "i32", 1, True)), V("23", "i32", 1, True))
    half = b.from_bits(e)
    y = b.fma(half, p, b.sub(half, b.like(x, 0.5)))
    y = b.add(y, y)
    return b.select(b.compare("oeq", x, b.like(x, 0.0)), x, y)  # keeps -0.0


def _expm1_positive(b: Builder, x: V) -> V:
    """expm1 for 0 <= x < 80 (or NaN)."""
    r, _, shifted = _reduce(b, x)
    p = b.fma(b.horner(r, EXPM1), b.mul(r, r), r)
    one = _scale(b, b.splat(b.like(x, 1.0), x.lanes), shifted)
    return b.fma(one, p, b.sub(one, b.like(x, 1.0)))


def tanh(b: Builder, x: V) -> V:
    a = b.lower(b.like(x, 10.0), b.intrinsic("fabs", x))
    e = _expm1_positive(b, b.add(a, a))
    return b.intrinsic("copysign", b.div(e, b.add(e, b.like(x, 2.0))), x)


def sigmoid(b: Builder, x: V) -> V:
    return b.div(b.like(x, 1.0), b.add(exp(b, b.neg(x)), b.like(x, 1.0)))


def log(b: Builder, x: V) -> V:
    tiny = b.compare("olt", x, b.like(x, 2.0**-126))
    scaled = b.select(tiny, b.mul(x, b.like(x, 2.0**23)), x)
    root_half = V(str(0x3F3504F3), "i32", 1, True)
    offset = b.sub(b.bits(scaled), root_half)
    e = b.cast("sitofp", b.binary("ashr", offset, V("23", "i32", 1, True)), "float")
    e = b.sub(e, b.select(tiny, b.like(x, 23.0), b.like(x, 0.0)))
    mantissa = b.add(b.binary("and", offset, V(str(0x7FFFFF), "i32", 1, True)), root_half)
    f = b.sub(b.from_bits(mantissa), b.like(x, 1.0))
    square = b.mul(f, f)
    y = b.mul(b.horner(f, LOG), b.mul(square, f))
    y = b.fma(e, b.like(x, LN2_LOW), y)
    y = b.fma(square, b.like(x, -0.5), y)
    y = b.fma(e, b.like(x, LN2_HIGH), b.add(f, y))
    y = b.select(b.compare("ult", x, b.like(x, math.inf)), y, x)  # inf; NaN is handled below
    y = b.select(b.compare("ogt", x, b.like(x, 0.0)), y, b.like(x, -math.inf))
    return b.select(b.compare("oge", x, b.like(x, 0.0)), y, b.like(x, math.nan))


def log1p(b: Builder, x: V) -> V:
    u = b.add(x, b.like(x, 1.0))
    lost = b.sub(x, b.sub(u, b.like(x, 1.0)))  # what the rounding of 1 + x dropped
    inside = b.binary("and", b.compare("olt", u, b.like(x, math.inf)), b.compare("ogt", u, b.like(x, 0.0)))
    correction = b.select(inside, b.div(lost, u), b.like(x, 0.0))
    y = b.add(log(b, u), correction)
    return b.select(b.compare("oeq", x, b.like(x, 0.0)), x, y)  # keeps -0.0


def erf(b: Builder, x: V) -> V:
    """1 - 2**z with z = log2(erfc(|x|)), by way of 2**z - 1, so that small results keep their relative accuracy."""
    t = b.lower(b.like(x, 4.0), b.intrinsic("fabs", x))  # erf(4) rounds to 1
    z = b.fma(b.horner(t, ERF), t, b.mul(t, b.like(x, -2.0)))
    shifted = b.add(z, b.like(x, ROUNDER))
    f = b.sub(z, b.sub(shifted, b.like(x, ROUNDER)))
    power = _scale(b, b.splat(b.like(x, 1.0), x.lanes), shifted)
    p = b.mul(b.horner(f, EXP2M1), f)
    return b.intrinsic("copysign", b.fma(b.neg(power), p, b.sub(b.like(x, 1.0), power)), x)


INLINE: dict[str, Callable[[Builder, V], V]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": erf,
}
"""Functions of one f32 operand that have inline code."""

LIBRARY: dict[str, str] = {
    "exp": "exp_u10",
    "exp2": "exp2_u10",
    "expm1": "expm1_u10",
    "log": "log_u10",
    "log2": "log2_u10",
    "log10": "log10_u10",
    "log1p": "log1p_u10",
    "sin": "sin_u10",
    "cos": "cos_u10",
    "tan": "tan_u10",
    "asin": "asin_u10",
    "acos": "acos_u10",
    "atan": "atan_u10",
    "tanh": "tanh_u10",
    "atanh": "atanh_u10",
    "erf": "erf_u10",
    "erfc": "erfc_u15",
    "pow": "pow_u10",
    "atan2": "atan2_u10",
    "lgamma": "lgamma_u10",
    "nextafter": "nextafter",
}
"""C library name -> SLEEF function and accuracy. (Its sinh, cosh, asinh and acosh overflow too early, and its fmod
fails for large quotients: the C library's are used.)"""

AS_EAGER = {"sin": "u35", "cos": "u35"}
"""What eager calls for f32 where that is faster and less accurate (3.5 ulp) than the above."""


def library(b: Builder, name: str, args: Sequence[V], available: frozenset[str]) -> V:
    """Call a math function of the libraries on all lanes; ``available`` are the SLEEF names that exist."""
    args = b.unify(*args)
    kind = "f" if args[0].elem == "float" else "d"
    base, _, accuracy = LIBRARY.get(name, "").partition("_")
    ways = [AS_EAGER[base], accuracy] if kind == "f" and base in AS_EAGER else [accuracy]
    for way in ways if base else ():
        for width in _widths(b, kind):
            symbol = f"Sleef_{base}{kind}{width}" + (f"_{way}" if way else "")
            if symbol in available:
                return _vector_call(b, symbol, width, args)
    return per_lane(b, name + ("f" if kind == "f" else ""), args)


def _widths(b: Builder, kind: str) -> list[int]:
    """Lane counts of the library's vector functions that the machine's registers hold, widest first."""
    if "avx512f" in b.features:
        bits = [512, 256]
    elif "avx2" in b.features:
        bits = [256]
    else:
        bits = [128]
    return [n // (32 if kind == "f" else 64) for n in bits]


def _vector_call(b: Builder, symbol: str, width: int, args: Sequence[V]) -> V:
    elem, lanes = args[0].elem, args[0].lanes
    vec = vec_type(elem, width)
    b.declare(symbol, vec, [vec] * len(args))

    def piece(b: Builder, *parts: V) -> V:
        return b.let(elem, width, f"call {vec} @{symbol}({', '.join(p.typed for p in parts)})")

    if lanes < width:
        padded = [_pad(b, a, width) for a in args]
        out = piece(b, *padded)
        return b.extract(out, 0) if lanes == 1 else b.slice(out, 0, lanes)
    return by_pieces(b, width, piece, *args)


def _pad(b: Builder, v: V, width: int) -> V:
    if v.lanes == 1:
        return b.splat(v, width)
    mask = ", ".join(f"i32 {i % v.lanes}" for i in range(width))
    return b.let(v.elem, width, f"shufflevector {v.typed}, {v.type} poison, <{width} x i32> <{mask}>")


def per_lane(b: Builder, symbol: str, args: Sequence[V]) -> V:
    """Call a scalar function for each lane, in a loop inside a helper function (so that the code stays small)."""
    args = b.unify(*args)
    elem, lanes = args[0].elem, args[0].lanes
    if symbol not in b.helpers:
        b.declare(symbol, elem, [elem] * len(args))
    if lanes == 1:
        return b.let(elem, 1, f"call {elem} @{symbol}({', '.join(a.typed for a in args)})")
    vec = vec_type(elem, lanes)
    helper = f"lanes{lanes}.{symbol}"
    if helper not in b.helpers:
        b.helpers[helper] = _lane_loop(helper, symbol, elem, lanes, len(args))
    return b.let(elem, lanes, f"call {vec} @{helper}({', '.join(a.typed for a in args)})")


def _lane_loop(helper: str, symbol: str, elem: str, lanes: int, count: int) -> str:
    vec = vec_type(elem, lanes)
    params = ", ".join(f"{vec} %a{i}" for i in range(count))
    lines = [f"define internal {vec} @{helper}({params}) nounwind {{", "entry:"]
    for i in range(count):
        lines += [f"  %m{i} = alloca {vec}", f"  store {vec} %a{i}, ptr %m{i}"]
    lines += [f"  %out = alloca {vec}", "  br label %loop", "loop:", "  %i = phi i64 [ 0, %entry ], [ %n, %loop ]"]
    for i in range(count):
        lines += [
            f"  %p{i} = getelementptr inbounds {elem}, ptr %m{i}, i64 %i",
            f"  %x{i} = load {elem}, ptr %p{i}",
        ]
    call = ", ".join(f"{elem} %x{i}" for i in range(count))
    lines += [
        f"  %y = call {elem} @{symbol}({call})",
        f"  %q = getelementptr inbounds {elem}, ptr %out, i64 %i",
        f"  store {elem} %y, ptr %q",
        "  %n = add nuw nsw i64 %i, 1",
        f"  %c = icmp ult i64 %n, {lanes}",
        "  br i1 %c, label %loop, label %done",
        "done:",
        f"  %r = load {vec}, ptr %out",
        f"  ret {vec} %r",
        "}",
    ]
    return "\n".join(lines)
