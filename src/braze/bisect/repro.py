"""A graph and its inputs as a Python file that runs alone and exits with 1 while the stage is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from braze.ir import Graph, TensorType
from braze.ir.printer import Names
from braze.runtime.spelling import spell

from .stages import Inputs

HEAD = '''"""{title}

Exits with 1 while the stage {stage!r} gives another result than the graph means. Written by braze bisect.
"""

import sys
from pathlib import Path

import torch

from braze import prims
from braze.bisect.check import check
from braze.bisect.repro import random_input
from braze.ir import Graph, tensor_type
from braze.runtime.spelling import spelled

g = Graph({name!r})
'''


def write(
    path: Path, stage: str, graph: Graph, inputs: Inputs, title: str, wrong: Callable[[Graph, Inputs], bool]
) -> Path:
    """Write the file. Random inputs stand for the real ones where they show the problem too; else the values are
    spelled out, or kept in a ``.pt`` file beside when they are large."""
    types = [n.val for n in graph.inputs]
    plain = [random_input(t, k) for k, t in enumerate(types)]
    names = Names()
    lines = [HEAD.format(title=title, stage=stage, name=graph.name), _graph(graph, names)]
    if wrong(graph, plain):
        lines.append("inputs = [random_input(n.val, k) for k, n in enumerate(g.inputs)]")
    else:
        spelling = [_value(x) for x in inputs]
        if all(s is not None for s in spelling):
            lines += ["inputs = [", *(f"    {s}," for s in spelling), "]"]
        else:
            torch.save(list(inputs), path.with_suffix(".pt"))
            lines.append('inputs = torch.load(Path(__file__).with_suffix(".pt"))')
    lines.append(f"\nsys.exit(check({stage!r}, g, inputs))")
    if names.table:
        lines.insert(
            1, f"# {len(names.table)} objects have no spelling: set _c = [{', '.join(map(repr, names.table))}]\n"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def random_input(t: Any, seed: int) -> Any:
    """A tensor of a type with reproducible values: floats around 0, integers 0 or 1; a size is its hint."""
    if not isinstance(t, TensorType):
        return t
    make = torch.Generator().manual_seed(seed)
    sizes: list[Any] = list(t.sizes)
    if t.dtype.is_floating_point:
        value = torch.randn(sizes, generator=make, dtype=torch.float64)
    else:
        value = torch.randint(0, 2, sizes, generator=make)
    out = torch.empty_strided(sizes, list[Any](t.strides), dtype=t.dtype, device=t.device)
    return out.copy_(value)


def _value(x: Any) -> str | None:
    if not isinstance(x, torch.Tensor):
        return repr(x)
    text = spell(x)
    if text is None or len(text) > 1 << 15:
        return None
    return (
        text if x.is_contiguous() else f"{text}.as_strided({tuple(x.shape)}, {x.stride()})" if x.numel() <= 1 else None
    )


def _graph(graph: Graph, names: Names) -> str:
    lines = []
    for n in graph.nodes:
        if n.op == "input":
            lines.append(f"{n.name} = g.input({n.name!r}, {_type(n.val, names)})")
        elif n.op == "const":
            lines.append(f"{n.name} = g.const({names.slot(n.target)}, {_type(n.val, names)})")
        else:
            where = [f"# {n.loc}"] if n.loc is not None else []
            target = names.target(n.target)
            call = f"{n.name} = g.call({target}, {names.value(n.args)}, {names.value(n.kwargs)}, {_type(n.val, names)})"
            lines += [*where, call]
    return "\n".join([*lines, f"g.outputs = {names.value(graph.outputs)}"])


def _type(val: Any, names: Names) -> str:
    if isinstance(val, TensorType):
        grad = ", True" if val.requires_grad else ""
        sizes, strides = names.value(val.sizes), names.value(val.strides)
        return f"tensor_type({sizes}, {val.dtype}, {str(val.device)!r}, {strides}{grad})"
    if isinstance(val, (tuple, list)):
        return "(" + "".join(f"{_type(v, names)}, " for v in val) + ")"
    return names.value(val)
