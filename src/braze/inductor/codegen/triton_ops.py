"""How each elementwise primitive is spelled in Triton: one row an operation, a column a class of operand types.

Columns are looked up from the special to the general: the exact short dtype ("f32", "f64", "i64", ...), then its class
("float", "int", "uint", "bool"), then "int" for unsigned ones, then "any".  In a template ``{0}``, ``{1}``, ``{2}`` are
the operands and ``{t}`` is the Triton type of the result.  Names starting with ``bz_`` are device functions of
``triton_helpers.HELPERS``, which the emitter copies into the module that uses them.

Accuracy is that of ATen's CUDA kernels: IEEE division and square root, libdevice (the library behind CUDA's own math.h)
for the rest, no fast-math approximations.  All libdevice names used here exist for both cuda and hip.
"""

from __future__ import annotations

import torch

from braze.errors import Unsupported
from braze.ir import SHORT

TYPES: dict[torch.dtype, str] = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
    torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64",
    torch.bool: "tl.int1",
}
POINTERS: dict[torch.dtype, str] = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.uint16: "*u16",
    torch.uint32: "*u32",
    torch.uint64: "*u64",
    torch.bool: "*i1",
}
_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_NAN = "propagate_nan=tl.PropagateNan.ALL"


def _lib(name: str, args: int = 1) -> dict[str, str]:
    return {"float": f"libdevice.{name}({', '.join(('{0}', '{1}')[:args])})"}


def _test(symbol: str) -> dict[str, str]:
    # int1 compares as a signed number (True is -1), hence the detour over int8 for the ordering of bools.
    row = {"any": f"{{0}} {symbol} {{1}}"}
    if symbol not in ("==", "!="):
        row["bool"] = f"{{0}}.to(tl.uint8) {symbol} {{1}}.to(tl.uint8)"
    return row


OPS: dict[str, dict[str, str]] = {
    "neg": {"float": "{0} * -1.0", "int": "-{0}"},  # 0 - x would lose the sign of zero
    "abs": {"any": "tl.abs({0})"},
    "sign": {"uint": "({0} > 0).to({t})", "any": "({0} > 0).to({t}) - ({0} < 0).to({t})"},
    "reciprocal": {"f32": "tl.div_rn(1.0, {0})", "f64": "1.0 / {0}"},
    "sqrt": {"f32": "tl.sqrt_rn({0})", "f64": "tl.sqrt({0})"},
    "rsqrt": _lib("rsqrt"),
    "exp": _lib("exp"),
    "exp2": _lib("exp2"),
    "expm1": _lib("expm1"),
    "log": _lib("log"),
    "log2": _lib("log2"),
    "log10": _lib("log10"),
    "log1p": _lib("log1p"),
    "sin": _lib("sin"),
    "cos": _lib("cos"),
    "tan": _lib("tan"),
    "asin": _lib("asin"),
    "acos": _lib("acos"),
    "atan": _lib("atan"),
    "sinh": _lib("sinh"),
    "cosh": _lib("cosh"),
    "tanh": _lib("tanh"),
    "asinh": _lib("asinh"),
    "acosh": _lib("acosh"),
    "atanh": _lib("atanh"),
    "erf": _lib("erf"),
    "erfc": _lib("erfc"),
    "erfinv": _lib("erfinv"),
    "lgamma": _lib("lgamma"),
    "digamma": {"float": "bz_digamma({0})"},
    "sigmoid": {"f32": "tl.div_rn(1.0, 1.0 + libdevice.exp({0} * -1.0))", "f64": "1.0 / (1.0 + libdevice.exp(-{0}))"},
    "floor": _lib("floor"),
    "ceil": _lib("ceil"),
    "round": _lib("nearbyint"),
    "trunc": _lib("trunc"),
    "bitwise_not": {"bool": "{0} == 0", "u8": "{0} ^ 255", "int": "~{0}"},
    "clone": {"any": "{0}"},
    "add": {"any": "{0} + {1}"},
    "sub": {"any": "{0} - {1}"},
    "mul": {"any": "{0} * {1}"},
    "div": {"f32": "tl.div_rn({0}, {1})", "f64": "{0} / {1}"},
    "floor_div": {"float": "bz_floor_div({0}, {1})", "uint": "{0} // {1}", "int": "bz_floor_div_int({0}, {1})"},
    "trunc_div": {"int": "{0} // {1}"},  # integer // in Triton is C's division
    "fmod": {"float": "libdevice.fmod({0}, {1})", "int": "{0} % {1}"},
    "remainder": {"float": "bz_remainder({0}, {1})", "uint": "{0} % {1}", "int": "bz_remainder_int({0}, {1})"},
    "pow": {"float": "libdevice.pow({0}, {1})", "int": "bz_pow_int({0}, {1})"},
    "atan2": _lib("atan2", 2),
    "maximum": {"float": f"tl.maximum({{0}}, {{1}}, {_NAN})", "int": "tl.maximum({0}, {1})"},
    "minimum": {"float": f"tl.minimum({{0}}, {{1}}, {_NAN})", "int": "tl.minimum({0}, {1})"},
    "copysign": _lib("copysign", 2),
    "nextafter": _lib("nextafter", 2),
    "bitwise_and": {"any": "{0} & {1}"},
    "bitwise_or": {"any": "{0} | {1}"},
    "bitwise_xor": {"any": "{0} ^ {1}"},
    "shift_left": {"int": "bz_shift_left({0}, {1})"},
    "shift_right": {"int": "bz_shift_right({0}, {1})"},
    "eq": _test("=="),
    "ne": _test("!="),
    "lt": _test("<"),
    "le": _test("<="),
    "gt": _test(">"),
    "ge": _test(">="),
    "isnan": {"float": "{0} != {0}"},
    "isinf": {"float": "tl.abs({0}) == float('inf')"},
    "signbit": {
        "f32": "{0}.to(tl.int32, bitcast=True) < 0",
        "f64": "{0}.to(tl.int64, bitcast=True) < 0",
        "uint": "{0} < 0",
        "int": "{0} < 0",
    },
    "where": {"any": "tl.where({0}, {1}, {2})"},
    "bitcast": {"any": "{0}.to({t}, bitcast=True)"},
    "philox": {"any": "bz_uniform({0}, {1}, {2})"},
}
_INFIX = frozenset(
    ("add", "sub", "mul", "eq", "ne", "bitwise_and", "bitwise_or", "bitwise_xor", "lt", "le", "gt", "ge")
)


def dtype_class(dtype: torch.dtype) -> str:
    """One of "float", "uint", "int", "bool"."""
    if dtype is torch.bool:
        return "bool"
    if dtype.is_floating_point:
        return "float"
    return "uint" if dtype in _UNSIGNED else "int"


def template(fn: str, dtype: torch.dtype) -> str:
    """The spelling of ``fn`` on operands of ``dtype``; Unsupported where there is none."""
    row = OPS.get(fn)
    if row is not None:
        kind = dtype_class(dtype)
        for column in (SHORT.get(dtype, str(dtype)), kind, "int" if kind == "uint" else "", "any"):
            if column in row:
                return row[column]
    raise Unsupported(f"no Triton code for {fn} on {dtype}", hint="keep this op an extern call")


def takes_literals(fn: str, dtype: torch.dtype) -> bool:
    """True where a Python number may stand for an operand of ``dtype``: next to an infix operator it takes the other
    operand's type; a function call first makes it an f32 or i32."""
    return dtype is not torch.bool and (fn in _INFIX or dtype in (torch.float32, torch.int32))


def convert(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """The conversion of a value, as ATen's ``to``."""
    if source is target:
        return text
    if target is torch.bool:
        return f"{text} != 0"
    if source is not torch.float32 and target in (torch.float16, torch.bfloat16):
        return f"{text}.to(tl.float32).to({TYPES[target]})"  # ATen rounds twice too
    return f"{text}.to({TYPES[target]})"


def literal(value: int | float | bool, dtype: torch.dtype) -> str:
    """A Python literal of a value of ``dtype``."""
    if dtype is torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        return str(int(value))
    v = float(value)
    return f"float('{v}')" if v != v or abs(v) == float("inf") else repr(v)


def constant(value: int | float | bool, dtype: torch.dtype) -> str:
    """A typed scalar."""
    return f"tl.full([], {literal(value, dtype)}, {TYPES[dtype]})"
