"""A generated GPU kernel as data: what the code generator hands to the runtime.  Imports nothing heavy.

Equal kernels (the same text, launch and types) compare and hash equal, so that twelve identical layers compile once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace


class Unaligned(RuntimeError):
    """A kernel that loads by TMA was given an address that is no multiple of 16 bytes."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One way to run a kernel: block sizes (the source's ``constexpr`` arguments), warps a program, pipeline stages."""

    blocks: tuple[tuple[str, int], ...]
    num_warps: int = 4
    num_stages: int = 1

    def block(self, name: str) -> int:
        return dict(self.blocks)[name]


@dataclass(frozen=True, slots=True)
class GridDim:
    """ceil(numel / block) programs.  ``numel`` is a number or the name of an integer argument; ``block`` names a
    ``constexpr``, "" means one element a program."""

    numel: int | str
    block: str


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A Triton function and how to launch it.

    ``signature``: (argument, Triton type) in call order: pointers, then integers; ``constexpr``s are in ``launch``.
    ``aligned``: every pointer is divisible by 16 bytes (the launcher checks, and falls back to ``unaligned()``).
    ``divisible``: (integer argument, power of two up to 16 that divides it at every call, as the shapes prove).
    ``assertions``: the source has ``tl.device_assert``, which needs the compiler's debug switch.
    The grid is one-dimensional: the product of ``grid``, the first entry fastest.
    """

    name: str
    source: str
    signature: tuple[tuple[str, str], ...]
    grid: tuple[GridDim, ...]
    launch: Launch
    candidates: tuple[Launch, ...] = ()
    aligned: bool = True
    assertions: bool = False
    divisible: tuple[tuple[str, int], ...] = ()

    @property
    def pointers(self) -> int:
        """How many arguments are tensors."""
        return sum(t.startswith("*") for _, t in self.signature)

    def with_launch(self, launch: Launch) -> TritonKernel:
        """The same source, launched otherwise."""
        return replace(self, launch=launch)

    def unaligned(self) -> TritonKernel:
        """The variant that assumes nothing of its pointers."""
        return replace(self, aligned=False)

    def programs(self, integers: dict[str, int] | None = None) -> int:
        """Programs of one launch, given the integer arguments by name."""
        n = 1
        for g in self.grid:
            size = g.numel if isinstance(g.numel, int) else (integers or {})[g.numel]
            n *= -(-size // self.launch.block(g.block)) if g.block else size
        return n

    def key(self, target: str) -> str:
        """Content hash of what is compiled, for a target such as "cuda:90" and a Triton version."""
        facts = (self.aligned, self.assertions, self.divisible)
        parts = (self.name, self.source, self.signature, self.launch, *facts, target)
        return hashlib.sha256(repr(parts).encode()).hexdigest()
