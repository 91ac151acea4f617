"""Activation functions and their derivatives, computed in float32 for 16-bit floats as the ATen kernels do."""

from __future__ import annotations

import math
from typing import Any

import torch

from braze.ir import Node

from ..builder import Builder
from ..elementwise import FLOATS
from ..prim import PRIMS
from ..registry import decomposes

_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


@decomposes("relu")
def relu(b: Builder, self: Node) -> Node:
    return self if self.val.dtype == torch.bool else b.maximum(self, 0)


@decomposes("relu6")
def relu6(b: Builder, self: Node) -> Node:
    return b.minimum(b.maximum(self, 0), 6)


@decomposes("threshold")
def threshold(b: Builder, self: Node, threshold: Any, value: Any) -> Node:
    return b.where(b.le(self, threshold), value, self)


@decomposes("threshold_backward")
def threshold_backward(b: Builder, grad_output: Node, self: Node, threshold: Any) -> Node:
    g, x = b.promoted(grad_output, self, dtype=b.out.dtype)
    return b.where(b.le(x, threshold), 0, g)


@decomposes("gelu")
def gelu(b: Builder, self: Node, approximate: str = "none") -> Node:
    x = b.compute(self)
    if approximate == "none":
        return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, _SQRT_HALF)), 1.0))
    return b.mul(b.mul(x, 0.5), b.add(b.tanh(_gelu_inner(b, x)), 1.0))


def _gelu_inner(b: Builder, x: Node) -> Node:
    cube = b.mul(b.mul(x, x), x)
    return b.mul(b.add(x, b.mul(cube, _TANH_CUBE)), _TANH_SCALE)


@decomposes("gelu_backward")
def gelu_backward(b: Builder, grad_output: Node, self: Node, approximate: str = "none") -> Node:
    g, x = b.compute(grad_output), b.compute(self)
    if approximate == "none":
        cdf = b.mul(b.add(b.erf(b.mul(x, _SQRT_HALF)), 1.0), 0.5)
        pdf = b.mul(b.exp(b.mul(b.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
        return b.mul(g, b.add(cdf, b.mul(x, pdf)))
    t = b.tanh(_gelu_inner(b, x))
    left = b.mul(x, 0.5)
    inner = b.mul(b.add(b.mul(b.mul(x, x), 3 * _TANH_CUBE), 1.0), _TANH_SCALE)
    slope = b.mul(b.mul(left, b.sub(1.0, b.mul(t, t))), inner)
    return b.mul(g, b.add(b.mul(b.add(t, 1.0), 0.5), slope))


@decomposes("silu")
def silu(b: Builder, self: Node) -> Node:
    x = b.compute(self)
    return b.div(x, b.add(b.exp(b.neg(x)), 1.0))


@decomposes("silu_backward")
def silu_backward(b: Builder, grad_output: Node, self: Node) -> Node:
    g, x = b.compute(grad_output), b.compute(self)
    s = b.sigmoid(x)
    return b.mul(b.mul(g, s), b.add(b.mul(x, b.sub(1.0, s)), 1.0))


@decomposes("mish")
def mish(b: Builder, self: Node) -> Node:
    x = b.compute(self)
    return b.mul(x, b.tanh(b.log1p(b.exp(x))))


@decomposes("mish_backward")
def mish_backward(b: Builder, grad_output: Node, self: Node) -> Node:
    g, x = b.compute(grad_output), b.compute(self)
    s, t = b.sigmoid(x), b.tanh(b.log1p(b.exp(x)))
    return b.mul(g, b.add(t, b.mul(b.mul(x, s), b.sub(1.0, b.mul(t, t)))))


@decomposes("hardswish")
def hardswish(b: Builder, self: Node) -> Node:
    x = b.compute(self)
    return b.div(b.mul(x, b.minimum(b.maximum(b.add(x, 3.0), 0.0), 6.0)), 6.0)


@decomposes("hardswish_backward")
def hardswish_backward(b: Builder, grad_output: Node, self: Node) -> Node:
    g, x = b.compute(grad_output), b.compute(self)
    inner = b.mul(g, b.add(b.div(x, 3.0), 0.5))
    return b.where(b.le(x, -3.0), 0.0, b.where(b.lt(x, 3.0), inner, g))


@decomposes("hardsigmoid")
def hardsigmoid(b: Builder, self: Node) -> Node:
    return b.div(b.minimum(b.maximum(b.add(b.compute(self), 3.0), 0.0), 6.0), 6.0)


@decomposes("hardsigmoid_backward")
def hardsigmoid_backward(b: Builder, grad_output: Node, self: Node) -> Node:
    g, x = b.compute(grad_output), b.compute(self)
    return b.where(b.bitwise_and(b.gt(x, -3.0), b.lt(x, 3.0)), b.div(g, 6.0), 0.0)


@decomposes("hardtanh")
def hardtanh(b: Builder, self: Node, min_val: Any = -1, max_val: Any = 1) -> Node:
    return b.minimum(b.maximum(self, min_val), max_val)


@decomposes("hardtanh_backward")
def hardtanh_backward(b: Builder, grad_output: Node, self: Node, min_val: Any, max_val: Any) -> Node:
    return b.where(b.bitwise_or(b.le(self, min_val), b.ge(self, max_val)), 0, grad_output)


@decomposes("elu")
def elu(b: Builder, self: Node, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Node:
    x = b.compute(self)
    low = b.mul(b.expm1(_times(b, x, input_scale)), alpha * scale)
    return b.where(b.lt(x, 0.0), low, _times(b, x, scale))


def _times(b: Builder, x: Node, k: Any) -> Node:
    return x if k == 1 else b.mul(x, k)


@decomposes("elu_backward")
def elu_backward(
    b: Builder, grad_output: Node, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Node
) -> Node:
    g, x = b.compute(grad_output), b.compute(self_or_result)
    negative = alpha * scale
    if is_result:
        low = b.mul(b.mul(g, input_scale), b.add(x, negative))
    else:
        low = b.mul(b.mul(g, input_scale * negative), b.exp(_times(b, x, input_scale)))
    return b.where(b.le(x, 0.0), low, _times(b, g, scale))


@decomposes("celu")
def celu(b: Builder, self: Node, alpha: Any = 1.0) -> Node:
    return elu(b, self, alpha, 1.0, 1.0 / alpha)


@decomposes("leaky_relu")
def leaky_relu(b: Builder, self: Node, negative_slope: Any = 0.01) -> Node:
    return b.where(b.gt(self, 0), self, b.mul(self, negative_slope))


@decomposes("leaky_relu_backward")
def leaky_relu_backward(b: Builder, grad_output: Node, self: Node, negative_slope: Any, self_is_result: bool) -> Node:
    return b.where(b.gt(self, 0), grad_output, b.mul(grad_output, negative_slope))


@decomposes("_prelu_kernel")
def prelu(b: Builder, self: Node, weight: Node) -> Node:
    return b.where(b.gt(self, 0), self, b.mul(weight, self))


@decomposes("_prelu_kernel_backward")
def prelu_backward(b: Builder, grad_output: Node, self: Node, weight: Node) -> tuple[Node, Node]:
    up = b.gt(self, 0)
    return b.where(up, grad_output, b.mul(weight, grad_output)), b.where(up, 0.0, b.mul(self, grad_output))


@decomposes("log_sigmoid_forward")
def log_sigmoid_forward(b: Builder, self: Node) -> tuple[Node, Node]:
    x = b.compute(self)
    z = b.exp(b.neg(b.abs(x)))
    buffer = b.out[1]
    kept = z if buffer.sizes == self.val.sizes else b.full_like(buffer, 0.0)
    return b.sub(b.minimum(x, 0.0), b.log1p(z)), kept


@decomposes("log_sigmoid_backward")
def log_sigmoid_backward(b: Builder, grad_output: Node, self: Node, buffer: Node) -> Node:
    g, x = b.compute(grad_output), b.compute(self)
    z = b.exp(b.neg(b.abs(x)))
    ratio = b.div(z, b.add(z, 1.0))
    return b.mul(g, b.where(b.lt(x, 0.0), b.sub(1.0, ratio), ratio))


@decomposes("softplus")
def softplus(b: Builder, self: Node, beta: Any = 1, threshold: Any = 20) -> Node:
    x = b.compute(self)
    scaled = _times(b, x, beta)
    soft = b.log1p(b.exp(scaled))
    return b.where(b.gt(scaled, threshold), x, soft if beta == 1 else b.div(soft, beta))


@decomposes("softplus_backward")
def softplus_backward(b: Builder, grad_output: Node, self: Node, beta: Any, threshold: Any) -> Node:
    g, x = b.compute(grad_output), b.compute(self)
    scaled = _times(b, x, beta)
    z = b.exp(scaled)
    return b.where(b.gt(scaled, threshold), g, b.div(b.mul(g, z), b.add(z, 1.0)))


@decomposes("hardshrink")
def hardshrink(b: Builder, self: Node, lambd: Any = 0.5) -> Node:
    return b.where(b.bitwise_and(b.ge(self, -lambd), b.le(self, lambd)), 0.0, self)


@decomposes("hardshrink_backward")
def hardshrink_backward(b: Builder, grad_out: Node, self: Node, lambd: Any) -> Node:
    return b.where(b.bitwise_and(b.ge(self, -lambd), b.le(self, lambd)), 0.0, grad_out)


@decomposes("softshrink")
def softshrink(b: Builder, self: Node, lambd: Any = 0.5) -> Node:
    x = b.compute(self)
    low = b.where(b.lt(x, -lambd), b.add(x, lambd), b.mul(x, 0.0))
    return b.where(b.gt(x, lambd), b.sub(x, lambd), low)


@decomposes("softshrink_backward")
def softshrink_backward(b: Builder, grad_output: Node, self: Node, lambd: Any) -> Node:
    return hardshrink_backward(b, grad_output, self, lambd)


def _halves(b: Builder, x: Node, dim: int) -> tuple[Node, Node]:
    dim %= x.val.rank
    n = x.val.sizes[dim]
    return b.slice(x, dim, 0, n // 2), b.slice(x, dim, n // 2, n)


@decomposes("glu")
def glu(b: Builder, self: Node, dim: int = -1) -> Node:
    x, gate = _halves(b, self, dim)
    return b.mul(b.compute(x), b.sigmoid(b.compute(gate)))


@decomposes("glu_backward")
def glu_backward(b: Builder, grad_output: Node, self: Node, dim: int) -> Node:
    x, gate = (b.compute(t) for t in _halves(b, self, dim))
    g = b.compute(grad_output)
    s = b.sigmoid(gate)
    first = b.mul(s, g)
    second = b.mul(b.mul(b.mul(b.sub(1.0, s), s), g), x)
    d = self.val.dtype
    return b.call(PRIMS["cat"], (b.convert(first, d), b.convert(second, d)), dim % self.val.rank)


@decomposes("rrelu_with_noise_backward")
def rrelu_with_noise_backward(
    b: Builder, grad_output: Node, self: Node, noise: Node, lower: Any, upper: Any, training: bool, self_is_result: bool
) -> Node:
    if training and upper - lower > 1e-6:
        return b.mul(noise, grad_output)
    return leaky_relu_backward(b, grad_output, self, (lower + upper) / 2, self_is_result)


@decomposes("native_dropout_backward")
def native_dropout_backward(b: Builder, grad_output: Node, mask: Node, scale: float) -> Any:
    if grad_output.val.dtype not in FLOATS:
        return NotImplemented
    g = b.compute(grad_output)
    return b.mul(g, b.mul(b.convert(mask, g.val.dtype), scale))


@decomposes("_masked_scale")
def masked_scale(b: Builder, self: Node, mask: Node, scale: float) -> Node:
    x = b.compute(self)
    return b.mul(b.mul(x, b.convert(mask, x.val.dtype)), scale)
