"""Special functions that no library exports: inverse error function and digamma, in f64 (f32 goes through it)."""

from __future__ import annotations

import math
from collections.abc import Callable

from . import llvm_math as m
from .llvm_builder import Builder, V

# Rational start for erfinv (Giles-style split at 0.7), refined by two Newton steps.
CENTRE = (-0.140543331, 0.914624893, -1.645349621, 0.886226899)
CENTRE_BELOW = (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0)
OUTER = (1.641345311, 3.429567803, -1.624906493, -1.970840454)
OUTER_BELOW = (1.637067800, 3.543889200, 1.0)
# Asymptotic series of digamma in 1/x**2: Bernoulli numbers over 2n, highest power first.
SERIES = (
    1.0 / 12.0,
    -691.0 / 32760.0,
    1.0 / 132.0,
    -1.0 / 240.0,
    1.0 / 252.0,
    -1.0 / 120.0,
    1.0 / 12.0,
)


def _in_double(fn: Callable[[Builder, V, frozenset[str]], V]) -> Callable[[Builder, V, frozenset[str]], V]:
    def run(b: Builder, x: V, available: frozenset[str]) -> V:
        if x.elem == "double":
            return fn(b, x, available)
        return b.cast("fptrunc", fn(b, b.cast("fpext", x, "double"), available), "float")

    return run


@_in_double
def erfinv(b: Builder, y: V, available: frozenset[str]) -> V:
    one = b.like(y, 1.0)
    a = b.intrinsic("fabs", y)
    z = b.mul(y, y)
    centre = b.div(b.mul(b.horner(z, CENTRE), y), b.horner(z, CENTRE_BELOW))
    tail = b.mul(b.sub(one, a), b.like(y, 0.5))
    w = b.intrinsic("sqrt", b.neg(m.library(b, "log", (tail,), available)))
    outer = b.intrinsic("copysign", b.div(b.horner(w, OUTER), b.horner(w, OUTER_BELOW)), y)
    x = b.select(b.compare("ole", a, b.like(y, 0.7)), centre, outer)
    for _ in range(2):
        error = b.sub(m.library(b, "erf", (x,), available), y)
        slope = b.mul(b.like(y, 2.0 / math.sqrt(math.pi)), m.library(b, "exp", (b.neg(b.mul(x, x)),), available))
        x = b.sub(x, b.div(error, slope))
    edge = b.intrinsic("copysign", b.splat(b.like(y, math.inf), y.lanes), y)
    x = b.select(b.compare("oeq", a, one), edge, x)
    x = b.select(b.compare("ule", a, one), x, b.like(y, math.nan))
    return b.select(b.compare("oeq", y, b.like(y, 0.0)), y, x)


@_in_double
def digamma(b: Builder, x: V, available: frozenset[str]) -> V:
    """Reflection for x < 0, recurrence up to 10, then the asymptotic series."""
    zero, one = b.like(x, 0.0), b.like(x, 1.0)
    below = b.compare("olt", x, zero)
    fraction = b.sub(x, b.intrinsic("trunc", x))
    cotangent = b.div(b.like(x, math.pi), m.library(b, "tan", (b.mul(fraction, b.like(x, math.pi)),), available))
    result = b.select(below, b.neg(cotangent), b.splat(zero, x.lanes))
    y = b.select(below, b.sub(one, x), x)
    for _ in range(10):
        small = b.compare("olt", y, b.like(x, 10.0))
        result = b.select(small, b.sub(result, b.div(one, y)), result)
        y = b.select(small, b.add(y, one), y)
    z = b.div(one, b.mul(y, y))
    series = b.mul(b.horner(z, SERIES), z)
    series = b.select(b.compare("olt", y, b.like(x, 1e17)), series, b.splat(zero, x.lanes))
    log = m.library(b, "log", (y,), available)
    result = b.add(result, b.sub(b.sub(log, b.div(b.like(x, 0.5), y)), series))
    pole = b.binary("and", below, b.compare("oeq", fraction, zero))
    result = b.select(pole, b.like(x, math.nan), result)
    at_zero = b.intrinsic("copysign", b.splat(b.like(x, math.inf), x.lanes), b.neg(x))
    return b.select(b.compare("oeq", x, zero), at_zero, result)
