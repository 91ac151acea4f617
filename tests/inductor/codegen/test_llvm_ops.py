"""Every elementwise primitive, on every dtype that it takes, against eager and against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from llvm_case import built, clone, elementwise

from braze.inductor.codegen.llvm_ops import OPS
from braze.prims import PRIMS
from braze.prims.elementwise import ANY, BITS, DTYPES, FLOATS, INTS

F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
UINTS = (torch.uint16, torch.uint32, torch.uint64)  # eager has few operators on them
DOMAIN = {  # where a function's float32 argument is drawn from, besides the special values
    "log": (0.0, 1e4),
    "log2": (0.0, 1e4),
    "log10": (0.0, 1e4),
    "log1p": (-1.0, 1e3),
    "asin": (-1.0, 1.0),
    "acos": (-1.0, 1.0),
    "atanh": (-1.0, 1.0),
    "acosh": (1.0, 1e4),
    "erfinv": (-1.0, 1.0),
    "exp": (-104.0, 89.0),
    "erf": (-4.5, 4.5),
}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 1e-45, -1e-42, 1e-38, 3e38, -3e38, 88.8, -103.9, 1e-8, -1e-5]
NONFINITE = [float("inf"), float("-inf"), float("nan")]
ULPS: dict[str, float] = {
    "lgamma": 8.0,
    "digamma": 8.0,
    "erfinv": 8.0,
    "tan": 4.0,
    "erfc": 8.0,
    "pow": 4.0,
}
ULPS_OF_F64 = {"digamma": 4096.0, "erfinv": 32.0}  # against eager, which errs itself; digamma cancels near its roots


def floats(fn: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    lo, hi = DOMAIN.get(fn, (-30.0, 30.0))
    wide = torch.rand(600, generator=g, dtype=F64) * (hi - lo) + lo
    small = torch.randn(400, generator=g, dtype=F64)
    tiny = torch.randn(80, generator=g, dtype=F64) * torch.logspace(-30, -1, 80, dtype=F64)
    return torch.cat([torch.tensor(SPECIAL + NONFINITE, dtype=F64), wide, small, tiny]).to(dtype)


def integers(dtype: torch.dtype, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (517,), generator=g).bool()
    info = torch.iinfo(dtype)
    few = torch.randint(max(info.min, -9), 10, (400,), generator=g)
    wide = torch.randint(max(info.min, -(2**62)), min(info.max, 2**62), (100,), generator=g)
    edge = torch.tensor([info.min, info.max, 0, 1, 2, 3, 5], dtype=torch.int64)
    return torch.cat([few, wide, edge]).to(dtype)


def ulps(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> float:
    """Largest error in units in the last place of ``dtype``; NaN and infinities must agree."""
    info = torch.finfo(dtype)
    rounded = want.to(dtype).double()
    odd = ~rounded.isfinite()
    assert torch.equal(got[odd].isnan(), rounded[odd].isnan()), "NaN differs"
    inf = odd & ~rounded.isnan()
    near = got[inf].double() != rounded[inf]  # one step from overflow counts as one ulp
    assert not (near & (got[inf].double().abs() < info.max * (1 - 4 * info.eps))).any(), "infinity differs"
    g, w = got[~odd].double(), want[~odd]
    step = (2.0 ** torch.floor(torch.log2(w.abs().clamp_min(info.smallest_normal))) * info.eps).clamp_min(
        info.tiny * info.eps
    )
    error = ((g - w).abs() / step).masked_fill(g.isinf() & (w.abs() > info.max * (1 - 2 * info.eps)), 1.0)
    return float(error.max()) if error.numel() else 0.0


UNARY_FLOAT = sorted(
    n
    for n, p in PRIMS.items()
    if p.family == "elementwise"
    and DTYPES.get(n) == FLOATS
    and n not in ("isnan", "isinf")
    and n in OPS
    and p.shape.__name__ == "same"
    and n not in ("div", "atan2", "copysign")
)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_float_functions_of_one_operand(dtype: torch.dtype) -> None:
    cases = [(fn, floats(fn, dtype, 1)) for fn in UNARY_FLOAT]
    made = [elementwise(fn, [x], dtype) for fn, x in cases]
    runs = built([k for k, _ in made])
    problems = []
    for (fn, x), (_, memory), run in zip(cases, made, runs):
        run(memory)
        got = list(memory.values())[-1]
        ref = getattr(torch, fn)
        want = ref(x.double()) if dtype == F32 else ref(x)
        eager = ref(x)
        mine, theirs = ulps(got, want, dtype), ulps(eager, want, dtype)
        signs = torch.signbit(got[want == 0]) == torch.signbit(want[want == 0])
        allowed = max(ULPS.get(fn, 2.0), ULPS_OF_F64.get(fn, 0.0) if dtype == F64 else 0.0)
        if mine > max(allowed, 2 * theirs) or not signs.all():
            problems.append(f"{fn}: {mine:.2f} ulp, eager {theirs:.2f}, signs of zeros {bool(signs.all())}")
    assert not problems, "\n".join(problems)


def _exact_remainder(fn: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """By the C library: eager's vector code gives NaN for large quotients."""
    with np.errstate(all="ignore"):
        r = torch.from_numpy(np.fmod(a.numpy(), b.numpy()))
    return r if fn == "fmod" else torch.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


BINARY_FLOAT = (
    "add",
    "sub",
    "mul",
    "div",
    "floor_div",
    "fmod",
    "remainder",
    "pow",
    "atan2",
    "maximum",
    "minimum",
    "copysign",
)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_float_functions_of_two_operands(dtype: torch.dtype) -> None:
    special = torch.tensor([*SPECIAL, *NONFINITE, 3.0, -7.0], dtype=dtype)
    a = torch.cat([special.repeat_interleave(len(special)), floats("", dtype, 2)])
    b = torch.cat([special.repeat(len(special)), floats("", dtype, 3)])
    names = [n for n in (*BINARY_FLOAT, "nextafter") if n in OPS]
    made = [elementwise(fn, [a, b], dtype) for fn in names]
    problems = []
    for fn, (_, memory), run in zip(names, made, built([k for k, _ in made])):
        run(memory)
        got = list(memory.values())[-1]
        eager = _exact_remainder(fn, a, b) if fn in ("fmod", "remainder") else PRIMS[fn].reference(a, b)
        exact = fn not in ("pow", "atan2")
        want = eager.double() if exact or dtype == F64 else PRIMS[fn].reference(a.double(), b.double())
        keep = ~(eager.isnan() != want.isnan())  # eager's own rounding of the operands decides
        error = ulps(got[keep], want[keep], dtype)
        theirs = ulps(eager[keep], want[keep], dtype)
        zero = (want == 0) & keep
        signs = torch.signbit(got[zero]) == torch.signbit(want[zero])
        if error > (0.0 if exact else max(ULPS.get(fn, 2.0), 2 * theirs)) or not signs.all():
            problems.append(f"{fn}: {error:.2f} ulp, signs {signs.sum()} of {signs.numel()}")
    assert not problems, "\n".join(problems)


def _operands(fn: str, dtype: torch.dtype) -> list[Any]:
    a, b = integers(dtype, 1), integers(dtype, 2)
    if fn in ("floor_div", "trunc_div", "fmod", "remainder"):
        b = torch.where(b == 0, torch.ones_like(b), b)
        if dtype.is_signed:
            a = torch.where((a == torch.iinfo(dtype).min) & (b == -1), torch.ones_like(a), a)
    if fn == "pow":
        b = b.clamp(-3, 9) if dtype.is_signed else b.clamp(0, 9)
    if fn in ("shift_left", "shift_right"):
        b = b.clamp(-2 if dtype.is_signed else 0, 70)
    return [a, b]


def _arity(fn: str) -> int:
    return 1 if fn in ("neg", "abs", "sign", "bitwise_not", "clone", "signbit") else 2


INT_FUNCTIONS = sorted(n for n, d in DTYPES.items() if torch.int64 in d and n not in ("where", "convert", "bitcast"))


@pytest.mark.parametrize("dtype", sorted((INTS | {torch.bool}) - set(UINTS), key=str), ids=str)
def test_integer_functions(dtype: torch.dtype) -> None:
    names = [fn for fn in INT_FUNCTIONS if dtype in DTYPES[fn]]
    cases = [_operands(fn, dtype)[: _arity(fn)] for fn in names]
    results = [PRIMS[fn].reference(*args) for fn, args in zip(names, cases)]
    made = [elementwise(fn, args, r.dtype) for fn, args, r in zip(names, cases, results)]
    for fn, want, (_, memory), run in zip(names, results, made, built([k for k, _ in made])):
        run(memory)
        torch.testing.assert_close(list(memory.values())[-1], want, rtol=0, atol=0, msg=lambda m, fn=fn: f"{fn}: {m}")


@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16], ids=str)
def test_float_tests_and_where(dtype: torch.dtype) -> None:
    a = floats("", F32, 1).to(dtype)
    b = a.flip(0)
    c = integers(torch.bool, 3).repeat(4)[: a.numel()]
    names = ["eq", "ne", "lt", "le", "gt", "ge"]
    cases: list[tuple[str, list[Any], torch.dtype]] = [(n, [a, b], torch.bool) for n in names]
    cases += [(n, [a], torch.bool) for n in ("isnan", "isinf", "signbit")] + [("where", [c, a, b], dtype)]
    made = [elementwise(*c) for c in cases]
    for (fn, args, _), (_, memory), run in zip(cases, made, built([k for k, _ in made])):
        run(memory)
        want = PRIMS[fn].reference(*args)
        torch.testing.assert_close(list(memory.values())[-1], want, rtol=0, atol=0, equal_nan=True)


def test_convert_between_all_dtypes() -> None:
    kinds = sorted(ANY - set(UINTS), key=str)
    cases = []
    for source in kinds:
        for target in kinds:
            if source.is_floating_point:
                x = floats("", F32, 5)
                if not target.is_floating_point and target != torch.bool:
                    x = x[x.isfinite() & (x.abs() < 100)]
                    x = x.abs() if target == torch.uint8 else x
                x = x.to(source)
            else:
                x = integers(source, 5)
            cases.append((x, target))
    made = [elementwise("convert", [x], target) for x, target in cases]
    for (x, target), (_, memory), run in zip(cases, made, built([k for k, _ in made])):
        run(memory)
        got = list(memory.values())[-1]
        torch.testing.assert_close(
            got, x.to(target), rtol=0, atol=0, equal_nan=True, msg=lambda m, x=x, t=target: f"{x.dtype} to {t}: {m}"
        )


def test_narrow_floats_round_to_nearest_even() -> None:
    bits = torch.arange(0, 2**16, dtype=torch.int32)
    every = torch.cat([(bits << 16) | low for low in (0x7FFF, 0x8000, 0x8001, 0)]).view(torch.float32)
    every = torch.cat([every, every[torch.randperm(len(every))]])  # subnormal numbers among others, and by themselves
    for target in (BF16, F16):
        k, memory = elementwise("convert", [every], target)
        built([k])[0](memory)
        got, want = list(memory.values())[-1], every.to(target)
        assert torch.equal(got.isnan(), want.isnan())
        number = ~want.isnan()
        assert torch.equal(got[number].view(torch.int16), want[number].view(torch.int16))


def test_all_primitives_have_a_row() -> None:
    missing = [n for n, p in PRIMS.items() if p.family == "elementwise" and n not in OPS]
    assert not missing, f"no CPU code for {missing}"


def test_bits_are_reinterpreted() -> None:
    x = floats("", F32, 7)
    k, memory = elementwise("bitcast", [x], torch.int32)
    built([k])[0](memory)
    assert torch.equal(list(memory.values())[-1], x.view(torch.int32))


def test_the_same_values_in_every_lane() -> None:
    """A function gives one result for one argument, wherever in the vector or its tail the argument sits."""
    for fn in ("exp", "tanh", "erf", "log", "sin", "pow"):
        x = torch.full((1037,), 0.7318)
        k, memory = elementwise(fn, [x] * (2 if fn == "pow" else 1), F32)
        built([k])[0](memory)
        assert list(memory.values())[-1].unique().numel() == 1


def test_bits_of_bool() -> None:
    assert torch.bool in BITS
    x = integers(torch.bool, 1)
    k, memory = elementwise("bitwise_not", [x], torch.bool)
    built([k])[0](memory)
    out = list(memory.values())[-1]
    assert torch.equal(out, ~x) and set(clone(out).view(torch.uint8).tolist()) <= {0, 1}
