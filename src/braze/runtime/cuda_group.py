"""Many kernels of one form in one launch: a table of pointers in the card's memory, and the kernels that read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from braze.config import Config

from .cuda import load_kernels_cuda
from .cuda_kernel import TritonKernel


@dataclass(frozen=True)
class TritonGroup:
    """``entries``: pointers in the table. ``fillers`` write it: each with the arguments that follow the table, as
    numbers of the call's tensors. ``mains`` then run in order; ``shared``: what each takes after the table."""

    entries: int
    fillers: tuple[tuple[TritonKernel, tuple[int, ...]], ...]
    mains: tuple[TritonKernel, ...]
    shared: tuple[tuple[int, ...], ...]

    @property
    def kernels(self) -> tuple[TritonKernel, ...]:
        """Every launch, in order."""
        return (*(k for k, _ in self.fillers), *self.mains)

    @property
    def source(self) -> str:
        """The text of the kernels."""
        return "\n\n".join(k.source for k in self.mains)

    def bound(self, functions: Sequence[Callable[..., None]]) -> Callable[..., None]:
        """``f(*tensors)``, given a callable for each of ``kernels``."""
        takes = [numbers for _, numbers in self.fillers] + list(self.shared)
        launches = list(zip(functions, takes))
        entries = self.entries

        def run(*tensors: Any) -> None:
            table = torch.empty(entries, dtype=torch.int64, device=tensors[0].device)
            for f, numbers in launches:
                f(table, *[tensors[n] for n in numbers])

        return run


def load_group_cuda(
    group: TritonGroup, device: torch.device | int, config: Config | None = None
) -> Callable[..., None]:
    """The group as a callable. CompileError where Triton refuses a kernel."""
    return group.bound(load_kernels_cuda(group.kernels, device, config))
