"""Random operators as functions of the graph's seed: one row a family, all made of ``prims.philox_uniform``.

``native_dropout(x, 0.1, True)`` becomes ``u = philox_uniform(seed, k, ...); mask = u < 0.9; x * mask * (1 / 0.9)``.
A draw is in [0, 1) with 24 bits; double precision and integers use two draws (48 bits).  Operators without a row, and
those given a generator, stay as they are: library calls that draw when they run, and are never run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from ..errors import Unsupported
from ..fake import FakeTensor
from ..ir import IntLike, Node, TensorType
from ..prims.rng import philox_uniform
from .layout import conform, relayout, same_strides
from .record import Recorder, handles
from .schema import bind

aten = torch.ops.aten
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Sizes = Sequence[IntLike]
MANTISSA = {torch.float16: 11, torch.bfloat16: 8}


def _draw(rec: Recorder, sizes: Sizes, device: torch.device) -> Node:
    args = (rec.seed(device), rec.stream(), tuple(sizes), device)
    return rec.emit(philox_uniform, args, {}, philox_uniform.shape(args[0].val, *args[1:]))


def _draw_wide(rec: Recorder, sizes: Sizes, device: torch.device) -> Node:
    """48 random bits as float64."""
    high, low = (_cast(rec, _draw(rec, sizes, device), torch.float64) for _ in range(2))
    return rec.call(aten.add.Tensor, high, rec.call(aten.mul.Tensor, low, 2.0**-24))


def _cast(rec: Recorder, node: Node, dtype: torch.dtype) -> Node:
    return node if node.val.dtype == dtype else rec.call(aten._to_copy.default, node, dtype=dtype)


def _uniform(rec: Recorder, t: TensorType, low: float = 0.0, high: float = 1.0) -> Node:
    """Uniform in [low, high), never rounded up to ``high`` by a narrow dtype."""
    if t.dtype == torch.float64:
        u = _draw_wide(rec, t.sizes, t.device)
    else:
        u = _draw(rec, t.sizes, t.device)
    bits = MANTISSA.get(t.dtype)
    if bits:
        u = rec.call(aten.mul.Tensor, rec.call(aten.floor.default, rec.call(aten.mul.Tensor, u, 2.0**bits)), 2.0**-bits)
    if (low, high) != (0.0, 1.0):
        u = rec.call(aten.add.Tensor, rec.call(aten.mul.Tensor, u, float(high - low)), float(low))
    return _cast(rec, u, t.dtype)


def _below(rec: Recorder, t: TensorType, p: Any) -> Node:
    """True with probability ``p``: a number, or a node that broadcasts to the sizes of ``t``."""
    u = _draw(rec, t.sizes, t.device)
    if isinstance(p, Node):
        return rec.call(aten.lt.Tensor, u, p)
    return rec.call(aten.lt.Scalar, u, float(p))


def _normal(rec: Recorder, t: TensorType) -> Node:
    """Standard normal by Box and Muller."""
    draw = _draw_wide if t.dtype == torch.float64 else _draw
    u, v = draw(rec, t.sizes, t.device), draw(rec, t.sizes, t.device)
    log = rec.call(aten.log1p.default, rec.call(aten.neg.default, u))
    radius = rec.call(aten.sqrt.default, rec.call(aten.mul.Tensor, log, -2.0))
    return rec.call(aten.mul.Tensor, radius, rec.call(aten.cos.default, rec.call(aten.mul.Tensor, v, 2.0 * math.pi)))


def _integers(rec: Recorder, t: TensorType, low: int, high: int) -> Node:
    """Uniform integers in [low, high)."""
    if not (isinstance(low, int) and isinstance(high, int)) or high - low > 2**48:
        raise Unsupported(f"random integers in [{low}, {high})")
    if high <= low:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    scaled = rec.call(aten.mul.Tensor, _draw_wide(rec, t.sizes, t.device), float(high - low))
    whole = _cast(rec, rec.call(aten.floor.default, scaled), torch.int64)
    return _cast(rec, rec.call(aten.add.Tensor, whole, low), t.dtype)


def _exponential(rec: Recorder, t: TensorType, rate: float) -> Node:
    draw = _draw_wide if t.dtype == torch.float64 else _draw
    log = rec.call(aten.log1p.default, rec.call(aten.neg.default, draw(rec, t.sizes, t.device)))
    return rec.call(aten.mul.Tensor, log, -1.0 / rate)


Row = Callable[[Recorder, TensorType, Kwargs], Node]
ROWS: dict[str, Row] = {
    "uniform_": lambda rec, t, a: _uniform(rec, t, a["from"], a["to"]),
    "rand": lambda rec, t, a: _uniform(rec, t),
    "bernoulli_.float": lambda rec, t, a: _below(rec, t, a["p"]),
    "bernoulli_.Tensor": lambda rec, t, a: _below(rec, t, rec.lower(a["p"])),
    "bernoulli.p": lambda rec, t, a: _below(rec, t, a["p"]),
    "bernoulli.Tensor": lambda rec, t, a: _below(rec, t, rec.lower(a["p"])),
    "bernoulli": lambda rec, t, a: _below(rec, t, rec.lower(a["self"])),
    "normal_": lambda rec, t, a: _affine(rec, _normal(rec, t), a["std"], a["mean"]),
    "normal": lambda rec, t, a: _affine(rec, _normal(rec, t), rec.lower(a["std"]), rec.lower(a["mean"])),
    "randn": lambda rec, t, a: _normal(rec, t),
    "exponential_": lambda rec, t, a: _exponential(rec, t, a["lambd"]),
    "randint": lambda rec, t, a: _integers(rec, t, a.get("low", 0), a["high"]),
    "random_.to": lambda rec, t, a: _integers(rec, t, 0, a["to"]),
    "random_.from": lambda rec, t, a: _integers(rec, t, a["from"], _top(t) if a["to"] is None else a["to"]),
    "random_": lambda rec, t, a: _integers(rec, t, 0, _top(t)),
}


def _affine(rec: Recorder, node: Node, scale: Any, shift: Any) -> Node:
    if isinstance(scale, Node) or scale != 1:
        node = rec.call(aten.mul.Tensor, node, scale)
    if isinstance(shift, Node) or shift != 0:
        node = rec.call(aten.add.Tensor, node, shift)
    return node


def _top(t: TensorType) -> int:
    """The end of ``random_()``'s range, at most 2**48."""
    bits = {torch.float32: 24, torch.float64: 48, torch.bool: 1, torch.int64: 48, torch.int32: 31}
    return 1 << bits.get(t.dtype, MANTISSA.get(t.dtype, 8 * t.dtype.itemsize - 1))


def define_as(rec: Recorder, out: FakeTensor, node: Node) -> None:
    """``out`` holds ``node``, cast and laid out as ``out`` says."""
    node = conform(rec, node, out.val, None)
    if not same_strides(out.val.sizes, node.val.strides, out.val.strides):
        node = relayout(rec, node, out.val, node)
    rec.define(out, node)


@handles("uniform_.default rand.default rand.generator rand_like.default rand_like.generator")
@handles("bernoulli_.float bernoulli_.Tensor bernoulli.p bernoulli.Tensor bernoulli.default")
@handles("normal_.default normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor normal.float_float")
@handles("randn.default randn.generator randn_like.default randn_like.generator exponential_.default")
@handles("randint.default randint.generator randint.low randint.low_generator")
@handles("randint_like.default randint_like.low_dtype randint_like.generator randint_like.low_generator_dtype")
@handles("random_.default random_.to random_.from")
def _by_row(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    bound = bind(op, args, kwargs)
    if bound.get("generator") is not None:
        rec.by_schema(op, args, kwargs, out)
        return
    name = op._schema.name.removeprefix("aten::")
    row = ROWS.get(f"{name}.{op._overloadname}") or ROWS[name.removesuffix("_like")]
    node = row(rec, out.val, bound)
    if name.endswith("_"):
        rec.write(args[0], node)
    else:
        define_as(rec, out, node)


@handles("native_dropout.default _fused_dropout.default")
def _dropout(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    bound = bind(op, args, kwargs)
    x, keep = rec.lower(args[0]), bound["p"]
    if op._schema.name == "aten::native_dropout":
        keep = 1.0 - bound["p"] if bound["train"] is not False else 1.0
    mask = _below(rec, x.val, keep)
    scaled = rec.call(aten.mul.Tensor, rec.call(aten.mul.Tensor, x, mask), 1.0 / keep if keep else 0.0)
    define_as(rec, out[0], scaled)
    define_as(rec, out[1], mask)


@handles("native_dropout_backward.default _masked_scale.default")
def _dropout_backward(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    grad, mask, scale = bind(op, args, kwargs).values()
    masked = rec.call(aten.mul.Tensor, rec.lower(grad), rec.lower(mask))
    define_as(rec, out, rec.call(aten.mul.Tensor, masked, float(scale)))


@handles("rrelu_with_noise.default rrelu_with_noise_.default")
def _rrelu(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Leaky ReLU of a random slope; ``noise`` keeps the slopes for the backward."""
    bound = bind(op, args, kwargs)
    if bound["generator"] is not None:
        raise Unsupported(f"{op} with its own generator")
    x, low, high = rec.lower(args[0]), bound["lower"], bound["upper"]
    if bound["training"]:
        slope = _uniform(rec, x.val, low, high)
        noise = rec.call(aten.where.ScalarOther, rec.call(aten.le.Scalar, x, 0), slope, 1.0)
        rec.write(args[1], noise)
        node = rec.call(aten.mul.Tensor, x, noise)
    else:
        node = rec.call(aten.leaky_relu.default, x, (low + high) / 2)
    if out is args[0]:
        rec.write(args[0], node)
    else:
        define_as(rec, out, node)


@handles("randperm.default randperm.generator")
def _randperm(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    if kwargs.get("generator") is not None:
        rec.by_schema(op, args, kwargs, out)
        return
    node = rec.call(aten.sort.default, _draw_wide(rec, out.val.sizes, out.val.device))
    define_as(rec, out, rec.getitem(node, 1))


@handles("multinomial.default")
def _multinomial(rec: Recorder, op: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    bound = bind(op, args, kwargs)
    if bound["generator"] is not None:
        rec.by_schema(op, args, kwargs, out)
        return
    weights, n = rec.lower(args[0]), bound["num_samples"]
    t: TensorType = weights.val
    if n == 1 or not bound["replacement"]:
        # the smallest of exponential variables with these rates is at each place in proportion to its rate
        time = rec.call(aten.clamp.default, _exponential(rec, t, 1.0), 2.0**-25)
        first = rec.call(aten.topk.default, rec.call(aten.div.Tensor, weights, time), n)
        define_as(rec, out, rec.getitem(first, 1))
        return
    total = rec.call(aten.cumsum.default, weights, -1)
    last = rec.call(aten.slice.Tensor, total, -1, -1)
    steps = rec.call(aten.div.Tensor, total, last)
    u = _cast(rec, _draw(rec, out.val.sizes, t.device), steps.val.dtype)
    define_as(rec, out, rec.call(aten.searchsorted.Tensor, steps, u, right=True))
