"""The fusion pipeline: one named line a pass."""

from __future__ import annotations

from dataclasses import replace

import torch

from braze.inductor.loops import Program, allocated

from .build import build_steps
from .columns import fold_columns
from .group import group
from .ops import Analysis
from .overlap import overlap
from .overwrite import last
from .placement import place
from .schedule import order
from .siblings import merge_columns, merge_edges, merge_siblings
from .spread import spread_groups
from .traits import DeviceTraits, traits_of
from .vertical import Log, grow, join_columns


def fuse(program: Program, traits: DeviceTraits | None = None, log: Log | None = None) -> Program:
    """The same program in few kernels. ``traits`` default to those of the program's device; ``log`` collects why
    neighbours stay apart."""
    traits = traits or traits_of(_device(program))
    analysis = Analysis(program)
    clusters = grow(analysis, traits, log)
    merge_siblings(clusters, traits)
    join_columns(clusters, traits, log)
    merge_columns(clusters, traits)
    merge_edges(clusters, traits)
    placement = place(clusters, traits)
    steps = order(last(fold_columns(build_steps(clusters, placement, traits), traits), program))
    steps = spread_groups(overlap(steps), traits)
    return group(replace(program, steps=steps, buffers=allocated(steps)))


def _device(program: Program) -> torch.device:
    """The device of most kernels: a GPU where there is one."""
    devices = {b.type.device for b in program.buffers}
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
