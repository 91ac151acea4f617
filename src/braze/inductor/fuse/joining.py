"""What joining steps works with: steps by what they read and write, parts of kernels, bodies in the making."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from braze.inductor.loops import Buffer, Compute, Kernel, Step, Store, Value

from .passes import live
from .schedule import reads_of, writes_of


class Steps:
    """Steps that are being replaced by others, and who reads and writes what. ``handed``: the program's outputs."""

    def __init__(self, steps: Sequence[Step], handed: set[Buffer]) -> None:
        self.handed = handed
        self._position: dict[Step, float] = {}
        self._readers: dict[Buffer, list[Step]] = {}
        self._writers: dict[Buffer, list[Step]] = {}
        for n, s in enumerate(steps):
            self._add(s, n)

    def _add(self, step: Step, position: float) -> None:
        self._position[step] = position
        for b in dict.fromkeys(reads_of(step)):
            self._readers.setdefault(b, []).append(step)
        for b in writes_of(step):
            self._writers.setdefault(b, []).append(step)

    def replace(self, old: Step, new: Sequence[Step]) -> None:
        """Put others, or none, in a step's place."""
        position = self._position.pop(old)
        for b in dict.fromkeys(reads_of(old)):
            self._readers[b].remove(old)
        for b in writes_of(old):
            self._writers[b].remove(old)
        for step in new:
            self._add(step, position)

    def positions(self) -> list[tuple[Step, int]]:
        """The steps, each with its place in the order that they had."""
        return [(s, n) for n, s in enumerate(sorted(self._position, key=lambda s: self._position[s]))]

    def readers(self, b: Buffer) -> list[Step]:
        return self._readers.get(b, [])

    def writers(self, b: Buffer) -> list[Step]:
        return self._writers.get(b, [])

    def reached(self, b: Buffer, past: Step) -> set[Buffer]:
        """What is made from a buffer by any way that does not lead through the step ``past``."""
        found: set[Buffer] = set()
        todo, seen = [b], {past}
        while todo:
            for step in self.readers(todo.pop()):
                if step not in seen:
                    seen.add(step)
                    new = set(writes_of(step)) - found
                    found |= new
                    todo += new
        return found


class Body:
    """A kernel body in the making."""

    def __init__(self) -> None:
        self.body: list[Any] = []

    def add(self, i: Any) -> Any:
        self.body.append(i)
        return i

    def convert(self, v: Value, dtype: torch.dtype) -> Value:
        """The value in another dtype."""
        return v if v.dtype is dtype else self.add(Compute("convert", (v,), dtype))


def sliced(kernel: Kernel, keep: set[Any]) -> tuple[Kernel, Kernel | None]:
    """A pointwise kernel's stores ``keep`` as a kernel of their own, and the rest; all of it, and None, where both
    would read the same buffers."""
    stores = {i for i in kernel.body if isinstance(i, Store)}
    if stores <= keep or kernel.r:
        return kernel, None
    first, second = _only(kernel, stores & keep), _only(kernel, stores - keep)
    return (kernel, None) if set(first.reads) & set(second.reads) else (first, second)


def _only(kernel: Kernel, keep: set[Any]) -> Kernel:
    body = live([i for i in kernel.body if not isinstance(i, Store) or i in keep])
    name = "_".join(["k", *[s.buffer.name for s in body if isinstance(s, Store)][:3]])
    return replace(kernel, name=name, body=body)
