"""A program in two parts: one on the host, whose scalars go over in one transfer, and one on the device."""

from __future__ import annotations

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

    ``steady``: the scalars always lie at the same addresses, as a recorded ``device`` part (a CUDA graph) wants it.
    """
    packs: list[torch.Tensor] = []

    def send(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        out, at = [], 0
        for k, (dtype, count) in enumerate(split.packs):
            here = torch.stack([v if v.dtype == dtype else v.to(dtype) for v in values[at : at + count]])
            at += count
            if not steady:
                out.append(here.to(split.target))
                continue
            if len(packs) <= k:
                packs.append(torch.empty(count, dtype=dtype, device=split.target))
            out.append(packs[k].copy_(here))
        return out + [v.to(split.target) for v in values[at : at + split.moved]]

    crossing = sum(count for _, count in split.packs) + split.moved

    def call(*inputs: Any) -> tuple[Any, ...]:
        found = _call(host, [inputs[i] for i in split.host_inputs])
        outs = list(_call(device, [*[inputs[i] for i in split.device_inputs], *send(found[:crossing])]))
        for k, value in zip(split.host_outputs, found[crossing:]):
            outs[k] = value
        return tuple(outs)  # autograd takes a list for one gradient

    return call


def _call(f: Compiled, args: list[Any]) -> Any:
    return f(args) if getattr(f, "boxed", False) else f(*args)
