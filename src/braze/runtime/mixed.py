"""A program in two parts: one on the host, whose scalars go over in one transfer, and one on the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Compiled = Callable[..., Any]


class Split(Protocol):
    """What this module needs of a split graph (``autograd.hostside.HostSplit``)."""

    @property
    def host_inputs(self) -> tuple[int, ...]: ...

    @property
    def device_inputs(self) -> tuple[int, ...]: ...

    @property
    def packs(self) -> tuple[tuple[torch.dtype, int], ...]: ...

    @property
    def moved(self) -> int: ...

    @property
    def host_outputs(self) -> tuple[int, ...]: ...

    @property
    def target(self) -> torch.device: ...


def joined(host: Compiled, device: Compiled, split: Split, steady: bool = False) -> Compiled:
    """``f(*inputs) -> outputs`` of the whole program.

    ``steady``: the scalars always lie at the same addresses, as a recorded ``device`` part (a CUDA graph) wants it. The
    host's program writes scalars straight into their places in the packs: 400 of them take 0.1 ms instead of 0.6.
    """
    with torch.inference_mode(False):
        packs = [torch.empty(count, dtype=dtype) for dtype, count in split.packs]
        there = [torch.empty_like(p, device=split.target) for p in packs] if steady else []
    places = [place for p in packs for place in p.unbind(0)]
    scalars = len(places)
    crossing = scalars + split.moved
    lock = threading.Lock()

    def send(values: Sequence[Any]) -> list[torch.Tensor]:
        """Packs on the device, with the values that the host's program left there or gives. Memory that is not pinned
        has been read when a copy returns, which does not wait for the device."""
        for place, v in zip(places, values):
            if v is not None:
                place.copy_(v)
        if steady:
            return [here.copy_(p, non_blocking=True) for here, p in zip(there, packs)]
        return [p.to(split.target, non_blocking=True, copy=True) for p in packs]

    def call(*inputs: Any) -> tuple[Any, ...]:
        with lock:
            found = _call(host, [*[inputs[i] for i in split.host_inputs], *places])
            sent = send(found)
        sent += [v.to(split.target) for v in found[scalars:crossing]]
        outs = list(_call(device, [*[inputs[i] for i in split.device_inputs], *sent]))
        for k, value in zip(split.host_outputs, found[crossing:]):
            outs[k] = value
        return tuple(outs)  # autograd takes a list for one gradient

    return call


def _call(f: Compiled, args: list[Any]) -> Any:
    return f(args) if getattr(f, "boxed", False) else f(*args)
