"""One model, eager against compiled: outputs and gradients against float64, graphs, breaks and their reasons.

Single precision tells rounding from error badly in networks that amplify it (batch norm over few samples), so a model
that is off is judged in double precision, where a miscompile still shows in full. Models that draw random numbers, or
that do not run in double precision, are judged by eager's single precision; random numbers are then eager's own.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import braze
from braze.api import log_of

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Result:
    """``error``: the largest difference from eager over what rounding allows (at most 1 is right)."""

    error: float
    graphs: int
    breaks: tuple[str, ...]
    fallbacks: tuple[str, ...]


def measure(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], single: bool = False) -> Result:
    """Forward and backward in training mode without dropout; ``single``: judged in single precision."""
    model = _without_dropout(model).train()
    twin, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    eager = _step(model, args, kwargs)
    fast = braze.compile(twin, options={"strict_random": single})
    got = _step(fast, args, kwargs)
    wide = [_wide(a) for a in args], {k: _wide(v) for k, v in kwargs.items()}
    want = eager if single else _step(copy.deepcopy(exact), *wide)
    error = _error(got, eager, want)
    if error > 1 and not single:
        again = _step(braze.compile(exact), *wide)
        error = max(_distance(again, want)) / (1e-7 * _scale(want))
    log = log_of(fast)
    breaks = tuple(sorted({f"{b.reason} ({b.loc})" for b in log.breaks}))
    return Result(error, len(log.graphs), breaks, tuple(g.fallback for g in log.graphs if g.fallback))


def _without_dropout(model: nn.Module) -> nn.Module:
    names = "p dropout dropout_prob attention_dropout activation_dropout drop_prob drop_rate attn_drop layerdrop"
    for m in model.modules():
        for name in names.split():
            if isinstance(getattr(m, name, None), float):
                setattr(m, name, 0.0)
    return model


def _step(model: Any, args: Any, kwargs: Any) -> list[torch.Tensor | None]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    out = _floats(model(*args, **kwargs))
    sum((t - 1).square().mean() for t in out if t.requires_grad).backward()  # type: ignore[union-attr]
    grads = [None if p.grad is None else p.grad.double() for p in model.parameters()]
    return [*(t.detach().double() for t in out), *grads]


def _floats(out: Any) -> Tensors:
    if isinstance(out, torch.Tensor):
        return [out] if out.is_floating_point() else []
    if isinstance(out, dict):
        out = tuple(out.values())
    return [t for v in out for t in _floats(v)] if isinstance(out, (list, tuple)) else []


def _wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _scale(values: list[torch.Tensor | None]) -> float:
    return max([float(t.abs().max()) for t in values if t is not None and t.numel()], default=1.0)


def _distance(a: list[torch.Tensor | None], b: list[torch.Tensor | None]) -> list[float]:
    assert len(a) == len(b)
    out = []
    for x, y in zip(a, b):
        if x is None or y is None or x.shape != y.shape:
            out.append(0.0 if x is None and y is None else float("inf"))
        else:
            out.append(float((x - y).abs().max()) if x.numel() else 0.0)
    return out


def _error(got: Any, eager: Any, want: Any) -> float:
    floor = max(1e-5 * _scale(want), 1e-30)
    return max(a / (4 * b + floor) for a, b in zip(_distance(got, want), _distance(eager, want)))
