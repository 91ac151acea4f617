"""Networks' steps captured without a card: on meta tensors (no memory, whatever the size), then typed for CUDA.

training("resnet50")[0].program        # the model's loss, forward and backward: kernels and vendor calls
whole_step("bert")                     # forward, loss, backward and AdamW in one region
training("vit", dynamic=True)          # symbolic sizes
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from networks import NETWORKS, Network, without_dropout

import braze
from braze import pipeline
from braze.autograd import channels_last, partition, trace_joint
from braze.autograd.hostside import HostSplit, split_host
from braze.autograd.masks import drop_full_masks
from braze.backends import inductor
from braze.backends.inductor import policy_of
from braze.fake.questions import deciding
from braze.inductor.fuse import fuse, plan
from braze.inductor.loops import Program, lower
from braze.ir import Graph, Signature, TensorType, map_leaves
from braze.prims.decompose import decompose

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fake"))
import cuda_typed

__all__ = ["CUDA", "Network", "Part", "program_of", "training", "whole_step", "without_dropout"]
CUDA = torch.device("cuda", 0)
_PLAIN_ATTENTION = F.scaled_dot_product_attention


@dataclass(frozen=True)
class Part:
    """One functional ATen graph ("forward", "backward", or "… on the host") and its planned program. ``signature`` is
    the pair's, ``inputs`` the meta tensors and sizes of the capture, ``halves`` how two devices share the work."""

    side: str
    graph: Graph
    program: Program
    signature: Signature
    inputs: tuple[Any, ...]
    halves: HostSplit | None = None


class _Captured(BaseException):
    """Not an Exception: the pipeline would compile in another way."""


def capture(run: Callable[..., Any], inputs: Sequence[Any], then: Callable[[Any], Any], dynamic: bool | None) -> Any:
    """``then(request)`` of the request that compiling ``run(*inputs)`` makes of the backend. It is called within the
    capture, which settles what ``then`` asks about symbolic sizes."""
    cuda_typed.enable()
    made: list[Any] = []

    def take(request: Any, *rest: Any) -> Any:
        made.append(then(request))
        raise _Captured

    old = inductor.compile_joint, pipeline.check_devices
    inductor.compile_joint, pipeline.check_devices = take, lambda types: None
    try:
        braze.compile(run, fullgraph=True, dynamic=dynamic)(*inputs)
    except _Captured:
        pass
    finally:
        inductor.compile_joint, pipeline.check_devices = old
    (result,) = made
    return result


def there(x: Any) -> Any:
    """Types and devices of meta tensors as the card's. A number in a tensor stays on the host."""
    if isinstance(x, torch.device):
        return CUDA if x.type == "meta" else x
    if isinstance(x, TensorType):
        return x.with_(device=CUDA) if x.device.type == "meta" else x
    return x


def attention(
    q: Any, k: Any, v: Any, mask: Any = None, p: float = 0.0, is_causal: bool = False, *, scale: Any = None, **rest: Any
) -> Any:
    """``F.scaled_dot_product_attention`` with the kernel that torch chooses on a card: without one it sees none fit."""
    if torch.is_autocast_enabled("cuda"):
        q, k, v = (t.to(torch.get_autocast_dtype("cuda")) for t in (q, k, v))
    if mask is not None:
        return _PLAIN_ATTENTION(q, k, v, mask, p, is_causal, scale=scale, **rest)
    if q.dtype is torch.float32:
        call = torch.ops.aten._scaled_dot_product_efficient_attention
        return call(q, k, v, None, q.requires_grad, p, is_causal, scale=scale)[0]
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, p, is_causal, False, scale=scale)[0]


def typed(graph: Graph) -> Graph:
    """A captured graph on the card, with the card's attention."""
    graph = drop_full_masks(graph)
    for n in graph.nodes:
        n.args, n.kwargs, n.val = map_leaves((n.args, n.kwargs, n.val), there)
        if n.target is _PLAIN_ATTENTION:
            n.target = attention
    return graph


def split(request: Any, budget: float = 1.0) -> list[Part]:
    """The request's forward and backward as the backend makes them."""
    graph = typed(request.graph)
    F.scaled_dot_product_attention = attention  # for torch's own functions that call it
    try:
        joint = channels_last(trace_joint(graph, list(map(there, request.types))))
    finally:
        F.scaled_dot_product_attention = _PLAIN_ATTENTION
    with deciding(graph.decide):
        aot = partition(joint, budget)
        sides: list[tuple[str, Graph, HostSplit | None]] = []
        for side, g in (("forward", aot.forward), ("backward", aot.backward)):
            halves = split_host(g) if g is not None else None
            if halves is not None:
                sides.append((f"{side} on the host", halves.host, halves))
            if g is not None:
                sides.append((side, g if halves is None else halves.device, halves))
        return [Part(side, g, program_of(g), aot.signature, tuple(request.inputs), h) for side, g, h in sides]


def program_of(graph: Graph) -> Program:
    """The graph's kernels and vendor calls, planned."""
    return plan(fuse(lower(decompose(graph, policy_of(graph)))))


def on_meta(name: str, small: bool = False) -> Network:
    """A network without memory."""
    with torch.device("meta"):
        return NETWORKS[name](small)


def _loss(case: Network, precision: str) -> Callable[..., torch.Tensor]:
    def loss(*xs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            return case.loss(case.model(*xs[:-1]), xs[-1])

    return loss


def _decoded(case: Network, precision: str) -> Callable[..., torch.Tensor]:
    def decode(*xs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            return case.model(*xs[:-1])  # type: ignore[no-any-return]

    return decode


def training(
    network: str | Network,
    small: bool = False,
    dynamic: bool | None = None,
    precision: str = "bf16",
    budget: float = 1.0,
) -> list[Part]:
    """The forward and backward of a network (on meta); the forward alone of one that decodes."""
    case = on_meta(network, small) if isinstance(network, str) else network
    case.model.train(not case.decode)
    run = (_decoded if case.decode else _loss)(case, precision)
    return capture(run, (*case.inputs, case.target), partial(split, budget=budget), dynamic)  # type: ignore[no-any-return]


def adamw(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """With its default for a card: many tensors at once."""
    return torch.optim.AdamW(parameters, lr=1e-4, foreach=True)


def whole_step(
    network: str | Network,
    small: bool = False,
    dynamic: bool | None = None,
    precision: str = "bf16",
    make_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] = adamw,
) -> list[Part]:
    """Forward, loss, backward and the optimizer's step of a network in one graph."""
    case = on_meta(network, small) if isinstance(network, str) else network
    loss_of = _loss(case, precision)
    optimizer = make_optimizer(case.model.train().parameters())

    def step(*xs: torch.Tensor) -> torch.Tensor:
        loss = loss_of(*xs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return capture(step, (*case.inputs, case.target), split, dynamic)  # type: ignore[no-any-return]
