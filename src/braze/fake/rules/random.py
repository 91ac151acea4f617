"""Random draws. Their values come from torch's generators at run time; only the types matter here."""

from __future__ import annotations

from typing import Any

import torch

from ...ir import TensorType
from ..registry import rule
from ..result import copy_of, fresh
from .pointwise import pointwise


@rule("native_dropout")
def native_dropout(x: TensorType, p: float, train: bool | None) -> Any:
    return copy_of(x), copy_of(x, None, torch.bool)


@rule("native_dropout_backward")
def native_dropout_backward(g: TensorType, mask: TensorType, scale: float) -> TensorType:
    return pointwise("same", (g, mask, scale))


@rule("_fused_dropout")
def fused_dropout(x: TensorType, p: float, generator: Any = None) -> Any:
    return copy_of(x), copy_of(x, None, torch.uint8)


@rule("bernoulli.default bernoulli.p bernoulli.Tensor poisson")
def bernoulli(x: TensorType, *rest: Any, generator: Any = None) -> TensorType:
    return fresh(x)


@rule("_standard_gamma _sample_dirichlet")
def gamma(x: TensorType, generator: Any = None) -> TensorType:
    return fresh(x)


@rule("_standard_gamma_grad")
def gamma_grad(x: TensorType, out: TensorType) -> TensorType:
    return pointwise("same", (x, out))


@rule("_dirichlet_grad")
def dirichlet_grad(x: TensorType, alpha: TensorType, total: TensorType) -> TensorType:
    return fresh(x)


@rule("binomial")
def binomial(count: TensorType, prob: TensorType, generator: Any = None) -> TensorType:
    return pointwise("first", (count, prob))


@rule("cauchy exponential geometric log_normal random uniform normal_functional")
def drawn(x: TensorType, *rest: Any, generator: Any = None) -> TensorType:
    return copy_of(x)


@rule("multinomial")
def multinomial(x: TensorType, n: Any, replacement: bool = False, *, generator: Any = None) -> TensorType:
    return fresh(x, (*x.sizes[:-1], n), torch.int64)
