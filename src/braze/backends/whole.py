"""One graph compiled: in one piece, or, where it mixes devices, as a host part and a device part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from braze.autograd.hostside import HostSplit, split_host
from braze.ir import Graph, Signature
from braze.runtime.cuda_graphs import graph_pair
from braze.runtime.mixed import joined

from .registry import Compiled, Request, Started

CompileSide = Callable[[Graph, Request, str], Started]


class Whole:
    """A compiled graph. ``call`` is the callable; ``recorded`` gives it with its device part as CUDA graphs."""

    def __init__(self, device: Compiled, host: Compiled | None = None, split: HostSplit | None = None) -> None:
        self.device, self.host, self.split = device, host, split
        self.call: Compiled = device if split is None or host is None else joined(host, device, split)

    def recorded(self, lazy: Any, sig: Signature) -> tuple[Compiled, Any, list[str]]:
        """(forward, backward thunk, notes) that replay CUDA graphs; the host part runs before each replay."""
        split = self.split
        if split is None or self.host is None:
            forward, lazy, recordings = graph_pair(self.device, lazy, sig)
            return forward, lazy, recordings.notes
        place = {i: k for k, i in enumerate(split.device_inputs)}
        mutated = tuple(replace(m, index=place.get(m.index, -1)) for m in sig.mutated)
        device, lazy, recordings = graph_pair(self.device, lazy, replace(sig, mutated=mutated))
        return joined(self.host, device, split, steady=True), lazy, recordings.notes


def start_whole(compile_side: CompileSide, graph: Graph, request: Request, side: str) -> Callable[[], Whole]:
    """Begin to compile one functional ATen graph; where it mixes devices, what only needs the CPU apart. The result
    waits for the end of it."""
    split = split_host(graph)
    if split is None:
        alone = compile_side(graph, request, side)
        return lambda: Whole(alone())
    host = compile_side(split.host, request, f"{side} on the host")
    device = compile_side(split.device, request, side)
    return lambda: Whole(device(), host(), split)
