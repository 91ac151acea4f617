"""Shorter spellings for values that are rounded to 16 bits before anyone sees them.

Exact ``erf``, ``exp`` and division take most of the instructions of a GELU or a SiLU in bf16 (41 an element, 25 so),
and such kernels are bound by instructions, not by memory.  The short ones are right to 1e-7 (``erf`` beside a constant)
or 6e-6 of the value (``exp`` of the largest arguments; 3e-7 up to 1; a softmax in bf16 takes 11 instructions an element
instead of 18), where bf16 rounds to 4e-3 and f16 to 5e-4.

They are used where every way from the value to memory is plain arithmetic that ends in a rounding to 16 bits: never
where it is compared or stored in 32 bits, and in reductions only as a sum of exponentials (a softmax), whose error is
no larger a share than theirs since none is negative. A sum of ``exp(x - max x)`` over 16-bit ``x`` (a cross-entropy's)
may have them whatever follows: a term's error is at most 2e-7 + 6e-8 (max x - x) of it, so that of the sum's logarithm
is below 1e-6 where it is large, and 1e-6 of it where it is small.
"""

from __future__ import annotations

import torch

from ..loops.ir import Compute, Const, Instr, Kernel, Reduce, Store, Value, operands

NARROW = (torch.float16, torch.bfloat16)
SHORT: dict[str, str] = {
    "erf": "bz_erf_short({0})",
    "exp": "libdevice.fast_expf({0})",
    "div": "{0} / {1}",
    "sigmoid": "1.0 / (1.0 + libdevice.fast_expf({0} * -1.0))",
}
"""By primitive, on f32."""
PLAIN = frozenset(("add", "sub", "mul", "div", "neg", "abs", "where", "maximum", "minimum"))


def short_values(kernel: Kernel) -> frozenset[Value]:
    """The values of a kernel that may be spelled short."""
    if not any(isinstance(i, Compute) and i.fn in SHORT for i in kernel.body):
        return frozenset()
    users: dict[Value, list[Instr]] = {}
    for i in kernel.body:
        for v in operands(i):
            users.setdefault(v, []).append(i)
    rounded: dict[Value, bool] = {}
    for i in reversed(kernel.body):
        if isinstance(i, Value):
            rounded[i] = all(_rounds(i, u, rounded) for u in users.get(i, ()))
    found = [i for i in kernel.body if isinstance(i, Compute) and i.fn in SHORT and rounded[i]]
    return frozenset(i for i in found if i.dtype is torch.float32 and (i.fn != "erf" or _offset(users[i])))


def _rounds(v: Value, user: Instr, rounded: dict[Value, bool]) -> bool:
    """Whether what a user makes of a value is rounded to 16 bits, and the value is nothing but an operand there."""
    if isinstance(user, Store):
        return (
            user.value is v and user.mask is not v and v.dtype in NARROW and all(w is not v for _, w in user.indirect)
        )
    if isinstance(user, Reduce):
        return user.kind == "sum" and isinstance(v, Compute) and v.fn == "exp" and (rounded[user] or _from_maximum(v))
    if not isinstance(user, Compute):
        return False
    if user.fn == "convert":
        return user.dtype in NARROW
    if user.fn == "where" and user.args[0] is v:
        return False
    return user.fn in PLAIN and user.dtype is torch.float32 and rounded[user]


def _from_maximum(v: Compute) -> bool:
    """Whether a value is exp(x - max x), x in 16 bits."""
    (d,) = v.args
    if not (isinstance(d, Compute) and d.fn == "sub"):
        return False
    x, most = d.args
    narrow = isinstance(x, Compute) and x.fn == "convert" and x.args[0].dtype in NARROW
    return narrow and isinstance(most, Reduce) and most.kind == "max" and most.value is x


def _offset(users: list[Instr]) -> bool:
    """True where a constant as large as the value is added at once: then only the absolute error counts."""
    return all(
        isinstance(u, Compute) and u.fn in ("add", "sub") and any(isinstance(a, Const) and _large(a) for a in u.args)
        for u in users
    )


def _large(a: Const) -> bool:
    return abs(float(a.value)) >= 0.5
