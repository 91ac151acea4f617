"""What each step of a compiled program does: the user's lines behind it, bytes moved, arithmetic, memory held."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from braze.events import GraphRecord
from braze.inductor.codegen.host import last_uses
from braze.inductor.loops import Compute, Extern, Index, Kernel, Load, Program, Reduce, Store, Strided, canonical
from braze.inductor.loops.printer import point_level
from braze.ir import Expr, Graph, IntLike, Loc, Symbol, TensorType, map_leaves, symbols
from braze.ir.graph import leaves
from braze.prims.cost import cost_of


@dataclass
class Step:
    """One kernel or vendor call. ``nbytes``: memory read and written once; ``seconds`` 0 when not measured; ``bound``
    the time that the machine's measured rates allow at best; ``kind`` is "kernel" or "vendor"."""

    graph: str
    side: str
    index: int
    name: str
    kind: str
    ops: list[str]
    lines: list[tuple[str, int]]
    nbytes: int
    flops: int
    dtype: str = "float32"
    device: str = "cpu"
    seconds: float = 0.0
    bound: float = 0.0
    copies: int = 1  # steps of this program that are the same kernel

    @property
    def share(self) -> float:
        """The part of the roofline that was reached; 0 when not measured."""
        return self.bound / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share}


@dataclass(frozen=True)
class Moment:
    """Memory that a program holds for its own buffers while a step runs, in bytes."""

    step: int
    name: str
    nbytes: int


@dataclass
class Side:
    """The forward or backward program of one graph."""

    graph: str
    side: str
    steps: list[Step] = field(default_factory=list)
    memory: list[Moment] = field(default_factory=list)


def sides_of(record: GraphRecord) -> list[Side]:
    """Both programs of a graph, where it was compiled to any."""
    out = []
    for name, program in record.programs.items():
        steps = [_step(record.name, name, n, s) for n, s in enumerate(program.steps)]
        keys = [canonical(s).key if isinstance(s, Kernel) else str(s.target) for s in program.steps]
        for step, key in zip(steps, keys):
            step.copies = keys.count(key) if step.kind == "kernel" else 1
        out.append(Side(record.name, name, steps, memory_of(program)))
    return out


def _step(graph: str, side: str, index: int, step: Kernel | Extern) -> Step:
    locs = dict.fromkeys((loc.file, loc.line) for _, loc in step.origin if isinstance(loc, Loc))
    ops = list(dict.fromkeys(op for op, _ in step.origin))
    nbytes, flops = cost(step)
    if isinstance(step, Kernel):
        types = [b.type for b in (*step.writes, *step.reads)]
        name, device = step.name, step.device.type
    else:
        types = [b.type for b in step.outputs if b is not None]
        name = str(getattr(step.target, "qualified_name", step.target))
        device = types[0].device.type if types else "cpu"
    dtype = str(types[0].dtype).removeprefix("torch.") if types else "float32"
    kind = "kernel" if isinstance(step, Kernel) else "vendor"
    return Step(graph, side, index, name, kind, ops, list(locs), nbytes, flops, dtype, device)


def number(n: IntLike) -> int:
    """A size as a number; a symbolic one at the values it was first seen with."""
    if not isinstance(n, Expr):
        return n
    from braze.ir import evaluate

    return int(evaluate(n, {s.name: s.hint or 1 for s in symbols(n)}))


def cost(step: Kernel | Extern) -> tuple[int, int]:
    """(bytes, floating point operations) of a step."""
    kernel = step if isinstance(step, Kernel) else getattr(step.target, "kernel", None)  # a product and its epilogue
    return _kernel_cost(kernel) if isinstance(kernel, Kernel) else _extern_cost(step)  # type: ignore[arg-type]


def _kernel_cost(k: Kernel) -> tuple[int, int]:
    sizes = {a.index: number(a.size) for a in (*k.x, *k.r)}
    rows = _product(number(a.size) for a in k.x)
    points = rows * _product(number(a.size) for a in k.r)
    point = point_level(k)
    touched: dict[tuple[Any, bool], int] = {}
    flops = 0
    for i in k.body:
        if isinstance(i, (Load, Store)):
            axes: set[Symbol] = symbols(*i.index)
            elements = points if i.indirect else _product(n for a, n in sizes.items() if a in axes)
            most = number(i.buffer.type.nbytes)
            key = (i.buffer, isinstance(i, Store))
            seen = touched.get(key, 0) + elements * i.buffer.type.dtype.itemsize
            touched[key] = min(seen, most) if not i.indirect or isinstance(i, Store) else seen
        elif isinstance(i, Reduce):
            flops += points
        elif isinstance(i, Compute) and not isinstance(i, Index) and i.fn not in ("convert", "bitcast"):
            flops += points if i in point else rows
    return sum(touched.values()), flops


def _extern_cost(e: Extern) -> tuple[int, int]:
    graph = Graph()

    def node(x: Any) -> Any:
        if isinstance(x, Strided):
            t = x.buffer.type
            return graph.input("x", TensorType(x.sizes, x.strides, t.dtype, t.device))
        return x

    args, kwargs = map_leaves(e.args, node), map_leaves(e.kwargs, node)
    vals = tuple(b.type if b is not None else None for b in e.outputs)
    call = graph.call(e.target, args, kwargs, val=vals[0] if len(vals) == 1 else vals)
    try:
        found = cost_of(call)
    except (IndexError, AttributeError, TypeError, ValueError, KeyError):
        types = [x.val for x in leaves((args, kwargs)) if hasattr(x, "val")] + [v for v in vals if v is not None]
        return sum(number(t.nbytes) for t in types), 0
    return number(found.nbytes), number(found.flops)


def _product(values: Any) -> int:
    out = 1
    for v in values:
        out *= v
    return out


def memory_of(program: Program) -> list[Moment]:
    """Bytes of the program's own buffers after each step has its outputs: what the buffer plan holds."""
    inputs = {b for b in program.inputs if not isinstance(b, (Symbol, Expr, str))} | set(program.constants)
    last, held = last_uses(program), 0
    live: dict[Any, int] = {}
    out = []
    for n, step in enumerate(program.steps):
        writes = step.writes if isinstance(step, Kernel) else [b for b in step.outputs if b is not None]
        for b in writes:
            if b in inputs or b in live:
                continue
            old = program.reuse.get(b)
            live[b] = live.pop(old) if old in live else number(b.type.nbytes)
            held += 0 if old is not None and old not in inputs else live[b]
        out.append(Moment(n, step.name if isinstance(step, Kernel) else str(step.target), held))
        for b in last.get(n, ()):
            held -= live.pop(b, 0)
    return out
