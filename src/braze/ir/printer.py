"""A graph as runnable Python, and back.

>>> import torch; from braze.ir import Graph, tensor_type, to_python
>>> g = Graph(); x = g.input("x", tensor_type((2, 3))); g.outputs = (g.call(torch.relu, (x,), val=x.val),)
>>> print(to_python(g))
def forward(x):  # x: f32[2, 3]
    relu = torch.relu(x)  # f32[2, 3]
    return (relu,)
"""

from __future__ import annotations

import importlib
import keyword
import operator
from typing import Any

import torch

from .expr import Expr
from .graph import Graph, Node
from .pause import modes_kept, switches_modes
from .types import TensorType


def spell_operator(op: torch._ops.OpOverload) -> str:
    """The overload as an expression, also one that Python's grammar has a word of (``aten.random.from``)."""
    packet = f"torch.ops.{op._schema.name.replace('::', '.')}"
    overload = op._overloadname
    return f'getattr({packet}, "{overload}")' if keyword.iskeyword(overload) else f"{packet}.{overload}"


class Names:
    """Prints targets and constants; what has no importable spelling goes into ``table`` as ``_c[i]``."""

    def __init__(self) -> None:
        self.table: list[Any] = []

    def slot(self, obj: Any) -> str:
        for i, o in enumerate(self.table):
            if o is obj:
                return f"_c[{i}]"
        self.table.append(obj)
        return f"_c[{len(self.table) - 1}]"

    def target(self, t: Any) -> str:
        if isinstance(t, torch._ops.OpOverload):
            return spell_operator(t)
        spelling = getattr(t, "qualified_name", None)
        if isinstance(spelling, str):
            return spelling
        name = getattr(t, "__name__", "")
        qual = getattr(t, "__qualname__", name)
        if t is getattr:
            return "getattr"
        if getattr(operator, name, None) is t:
            return f"operator.{name}"
        for path in (f"torch.Tensor.{name}", f"torch.{name}", f"torch.nn.functional.{name}"):
            if _resolve(path) is t:
                return path
        path = f"{getattr(t, '__module__', '')}.{qual}"
        return path if path.startswith("torch") and _resolve(path) is t else self.slot(t)

    def value(self, x: Any) -> str:
        if isinstance(x, Node):
            return x.name
        if type(x) is tuple:
            return "(" + ", ".join(map(self.value, x)) + ("," if len(x) == 1 else "") + ")"
        if type(x) is list:
            return "[" + ", ".join(map(self.value, x)) + "]"
        if type(x) is dict:
            return "{" + ", ".join(f"{self.value(k)}: {self.value(v)}" for k, v in x.items()) + "}"
        if isinstance(x, slice):
            return f"slice({self.value(x.start)}, {self.value(x.stop)}, {self.value(x.step)})"
        if isinstance(x, float) and type(x) is float:
            return repr(x) if x == x and abs(x) != float("inf") else f"float('{x}')"
        if x is None or x is Ellipsis or type(x) in (int, bool, str, bytes, complex, torch.dtype, torch.layout):
            return "..." if x is Ellipsis else repr(x)
        if isinstance(x, torch.memory_format):
            return str(x)
        if isinstance(x, torch.device):
            return f"torch.device({str(x)!r})"
        if isinstance(x, Expr):
            return str(x)
        return self.slot(x)


def _resolve(path: str) -> Any:
    parts = path.split(".")
    obj: Any = torch if parts[0] == "torch" else None
    for i, p in enumerate(parts[1:] if obj is not None else ()):
        nxt = getattr(obj, p, None)
        if nxt is None:
            try:
                nxt = importlib.import_module(".".join(parts[: i + 2]))
            except ImportError:
                return None
        obj = nxt
    return obj


def _describe(val: Any) -> str:
    if isinstance(val, (tuple, list)):
        return "(" + ", ".join(map(_describe, val)) + ")"
    return str(val) if isinstance(val, TensorType) or val is None else repr(val)


def _source(graph: Graph) -> tuple[str, list[Any]]:
    names = Names()
    params = ", ".join(n.name for n in graph.inputs)
    notes = ", ".join(f"{n.name}: {_describe(n.val)}" for n in graph.inputs)
    lines = [f"def {graph.name}({params}):" + (f"  # {notes}" if notes else "")]
    where = None
    for n in graph.nodes:
        if n.op == "input":
            continue
        if n.loc is not None and n.loc != where:
            lines.append(f"    # {n.loc}")
            where = n.loc
        if n.op == "const":
            body = names.slot(n.target)
        elif n.target is operator.getitem and isinstance(n.args[1], int):
            body = f"{names.value(n.args[0])}[{n.args[1]}]"
        else:
            args = [names.value(a) for a in n.args] + [f"{k}={names.value(v)}" for k, v in n.kwargs.items()]
            body = f"{names.target(n.target)}({', '.join(args)})"
        lines.append(f"    {n.name} = {body}  # {_describe(n.val)}")
    lines.append(f"    return {names.value(graph.outputs)}")
    return "\n".join(lines), names.table


def to_python(graph: Graph) -> str:
    """The graph as Python source. Objects without an importable spelling print as ``_c[i]``."""
    return _source(graph)[0]


def load_python(graph: Graph) -> Any:
    """The printed source, compiled: a function of the graph's inputs that gives its outputs. An exception leaves the
    modes that it switches as they were."""
    source, table = _source(graph)
    prims = importlib.import_module("braze.prims") if "prims." in source else None
    scope: dict[str, Any] = {"torch": torch, "operator": operator, "_c": table, "prims": prims}
    exec(compile(source, f"<braze {graph.name}>", "exec"), scope)  # noqa: S102
    run = scope[graph.name]
    if not switches_modes(graph):
        return run

    def call(*inputs: Any) -> Any:
        with modes_kept():
            return run(*inputs)

    return call
