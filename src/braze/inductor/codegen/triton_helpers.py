"""Device functions that generated Triton modules copy in when they need them, by name. Text: a module stands alone.

Each is plain Triton; ``float`` helpers take f32 and f64, ``_int`` helpers every integer type.
"""

from __future__ import annotations

import re

HELPERS: dict[str, str] = {
    "bz_floor_div": '''
@triton.jit
def bz_floor_div(a, b):
    """Floor division of floats with ATen's fix-ups."""
    m = libdevice.fmod(a, b)
    q = bz_divide(a - m, b)
    q = tl.where((m != 0.0) & ((b < 0.0) != (m < 0.0)), q - 1.0, q)
    f = libdevice.floor(q)
    f = tl.where(q - f > 0.5, f + 1.0, f)
    exact = bz_divide(a, b)
    f = tl.where(q == 0.0, libdevice.copysign(q * 0.0, exact), f)
    return tl.where(b == 0.0, exact, f)
''',
    "bz_divide": '''
@triton.jit
def bz_divide(a, b):
    """IEEE division."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b
''',
    "bz_floor_div_int": '''
@triton.jit
def bz_floor_div_int(a, b):
    """Signed division rounded down."""
    return a // b - ((a % b != 0) & ((a < 0) != (b < 0))).to(a.dtype)
''',
    "bz_remainder": '''
@triton.jit
def bz_remainder(a, b):
    """The remainder with the divisor's sign."""
    m = libdevice.fmod(a, b)
    return tl.where((m != 0.0) & ((b < 0.0) != (m < 0.0)), m + b, m)
''',
    "bz_remainder_int": '''
@triton.jit
def bz_remainder_int(a, b):
    """The remainder with the divisor's sign."""
    m = a % b
    return tl.where((m != 0) & ((m < 0) != (b < 0)), m + b, m)
''',
    "bz_pow_int": '''
@triton.jit
def bz_pow_int(a, b):
    """Integer power by squaring, wrapping; a negative exponent gives 0, or +-1 for the bases +-1."""
    width: tl.constexpr = a.dtype.primitive_bitwidth
    out = a * 0 + 1
    base = a
    e = b
    for _ in tl.static_range(width):
        out = tl.where((e & 1) != 0, out * base, out)
        base = base * base
        e = e >> 1
    odd = tl.where((b & 1) != 0, a, a * a)
    return tl.where(b < 0, tl.where((a == 1) | (a + 1 == 0), odd, a * 0), out)
''',
    "bz_shift_left": '''
@triton.jit
def bz_shift_left(a, b):
    """a << b; 0 when b is negative or not below the width."""
    inside = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(inside, a << tl.where(inside, b, b * 0), a * 0)
''',
    "bz_shift_right": '''
@triton.jit
def bz_shift_right(a, b):
    """a >> b, arithmetic when signed; a shift out of range leaves the sign."""
    width: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < width)
    if a.dtype.is_int_signed():
        return a >> tl.where(inside, b, b * 0 + (width - 1))
    else:
        return tl.where(inside, a >> tl.where(inside, b, b * 0), a * 0)
''',
    "bz_digamma": '''
@triton.jit
def bz_digamma(x):
    """Derivative of lgamma: reflection below 0, recurrence up to 10, then the asymptotic series."""
    PI: tl.constexpr = 3.141592653589793
    whole = libdevice.floor(x) == x
    low = x < 0.0
    frac = x - libdevice.trunc(x)
    reflected = bz_divide(x * 0.0 + PI, libdevice.tan(frac * PI))
    y = tl.where(low, 1.0 - x, x)
    out = y * 0.0
    for _ in tl.static_range(10):
        small = y < 10.0
        out = tl.where(small, out - bz_divide(y * 0.0 + 1.0, y), out)
        y = tl.where(small, y + 1.0, y)
    z = bz_divide(y * 0.0 + 1.0, y * y)
    p = z * 8.33333333333333333333e-2 + -2.10927960927960927961e-2
    p = p * z + 7.57575757575757575758e-3
    p = p * z + -4.16666666666666666667e-3
    p = p * z + 3.96825396825396825397e-3
    p = p * z + -8.33333333333333333333e-3
    p = p * z + 8.33333333333333333333e-2
    tail = tl.where(y < 1.0e17, z * p, z * 0.0)
    out = out + libdevice.log(y) - bz_divide(y * 0.0 + 0.5, y) - tail
    out = tl.where(low, out - reflected, out)
    nan = x * float("nan")
    out = tl.where(low & whole, nan, out)
    out = tl.where(x == 0.0, libdevice.copysign(x * 0.0 + float("inf"), x * -1.0), out)
    return tl.where(tl.abs(x) == float("inf"), tl.where(low, nan, x), out)
''',
    "bz_erf_short": '''
@triton.jit
def bz_erf_short(x):
    """erf(x) to 1e-7: 1 - 2**(t * p(t)) for t = |x| up to 4, from where it is 1."""
    t = tl.minimum(tl.abs(x), 4.0, propagate_nan=tl.PropagateNan.ALL)
    p = t * -4.535830157692544e-05 + 0.00044550522579811513
    p = p * t + -0.0014894339255988598
    p = p * t + -0.0007746419869363308
    p = p * t + 0.028253691270947456
    p = p * t + -0.14848162233829498
    p = p * t + -0.9184163808822632
    p = p * t + -1.6279085874557495
    return libdevice.copysign(1.0 - tl.exp2(p * t), x)
''',
    "bz_words": '''
@triton.jit
def bz_words(seed, offset, counter):
    """The four 32-bit words of Philox4x32-10 for a 64-bit counter and offset."""
    counter = counter.to(tl.int64)
    c0 = (counter & 0xFFFFFFFF).to(tl.uint32)
    c1 = ((counter >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c2 = (offset & 0xFFFFFFFF).to(tl.uint32) + c0 * 0
    c3 = ((offset >> 32) & 0xFFFFFFFF).to(tl.uint32) + c0 * 0
    return tl.philox(seed, c0, c1, c2, c3)
''',
    "bz_unit": '''
@triton.jit
def bz_unit(word):
    """A 32-bit word to an f32 in [0, 1)."""
    return (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
''',
    "bz_uniform": '''
@triton.jit
def bz_uniform(seed, offset, index):
    """The draw number ``index`` of a stream: one Philox an element."""
    w0, w1, w2, w3 = bz_words(seed, offset, index >> 2)
    low = (index & 1) == 0
    return bz_unit(tl.where((index & 2) == 0, tl.where(low, w0, w1), tl.where(low, w2, w3)))
''',
    "bz_uniform4": '''
@triton.jit
def bz_uniform4(seed, offset, counter):
    """The draws 4*counter + (0, 1, 2, 3) in a last dim of four times the length: one Philox for four."""
    w0, w1, w2, w3 = bz_words(seed, offset, counter)
    return bz_unit(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))
''',
    "bz_uniform4_first": '''
@triton.jit
def bz_uniform4_first(seed, offset, counter):
    """The same in the first dim."""
    return tl.trans(bz_uniform4(seed, offset, tl.trans(counter)))
''',
    "bz_max_nan": '''
@triton.jit
def bz_max_nan(a, b):
    """The larger; NaN wins."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
''',
    "bz_min_nan": '''
@triton.jit
def bz_min_nan(a, b):
    """The smaller; NaN wins."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
''',
    "bz_mul": '''
@triton.jit
def bz_mul(a, b):
    """The product."""
    return a * b
''',
    "bz_first_max": '''
@triton.jit
def bz_first_max(a, i, b, j):
    """The larger of two (value, position) pairs; the first NaN wins, else the earlier of equals."""
    better = ((a > b) | ((a != a) & (b == b))) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(better, a, b), tl.where(better, i, j)
''',
    "bz_first_min": '''
@triton.jit
def bz_first_min(a, i, b, j):
    """The smaller of two (value, position) pairs; the first NaN wins, else the earlier of equals."""
    better = ((a < b) | ((a != a) & (b == b))) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(better, a, b), tl.where(better, i, j)
''',
}
_NAME = re.compile(r"\bbz_\w+")


def helper_source(body: str) -> str:
    """The device functions that ``body`` uses, directly or not, in definition-before-use order."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        for inner in _NAME.findall(HELPERS[name]):
            if inner != name:
                visit(inner)
        order.append(name)

    for name in dict.fromkeys(_NAME.findall(body)):
        visit(name)
    return "\n".join(["", *(HELPERS[n] for n in order)])
