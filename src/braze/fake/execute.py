"""The fall-back for operators without a rule: run the real kernel on zeros and read the result's metadata.

Exact where it works, since it is eager's own kernel, and slow: so a trace lists the operators that needed it. Only for
operators on a list: zeros must be safe arguments (no 1-based pivots), and no result's shape may depend on data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from .. import ir
from ..errors import Unsupported
from ..ir import Expr, TensorType, evaluate, map_leaves
from .questions import number
from .registry import DataDependent, Rule, may_execute

LIMIT = 64 << 20  # bytes of all the arguments


def by_execution(op: OpOverload) -> Rule:
    """A rule that runs ``op`` on zero-filled tensors of the arguments' types.

    Raises Unsupported for symbolic sizes, for arguments over 64 MiB, and when the kernel rejects zeros.
    """

    if torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags:
        raise DataDependent(f"{op} depends on the values of a tensor", hint="the trace cannot know its result")
    if not may_execute(op):
        raise Unsupported(f"{op} has no shape rule", hint="register a fake implementation: torch.library.register_fake")

    run_op = _functional(op)

    def run(*args: Any, **kwargs: Any) -> Any:
        types = [x for x in ir.leaves((args, kwargs)) if isinstance(x, TensorType)]
        numbers = [x for x in ir.leaves((args, kwargs)) if isinstance(x, Expr)]
        for n in (*numbers, *(n for t in types for n in (*t.sizes, *t.strides, t.offset))):
            if number(n, f"{op} has no shape rule, so its sizes must be static") != n:
                raise Unsupported(f"{op} has no shape rule, and its sizes stay symbolic")
        if sum(_extent(t) * t.dtype.itemsize for t in types) > LIMIT:
            raise Unsupported(f"{op} has no shape rule, and its arguments are too large to try it on zeros")
        device = next((t.device for t in types if t.device.type != "cpu"), None)
        stand_in = device is not None and not torch.cuda.is_available()
        try:
            out = _call(run_op, args, kwargs, stand_in)
        except (RuntimeError, ValueError, IndexError, NotImplementedError) as e:
            raise Unsupported(f"{op} has no shape rule, and its kernel does not run on zeros: {e}") from e
        home = device if stand_in else None
        return map_leaves(list(out) if isinstance(out, tuple) else out, lambda x: _type(op, x, home))

    return run


def _call(op: OpOverload, args: Any, kwargs: Any, stand_in: bool) -> Any:
    """The operator's results on tensors of zeros. Under grad mode, where some kernels give more."""
    real = map_leaves((list(args), kwargs), lambda x: _real(x, stand_in))
    with (
        torch.enable_grad(),
        torch._C._AutoDispatchBelowAutograd(),
        torch.random.fork_rng(enabled=torch.Tag.nondeterministic_seeded in op.tags),
    ):
        return op(*real[0], **real[1])


def _functional(op: OpOverload) -> OpOverload:
    """The overload without ``out=`` arguments that takes the same ones otherwise; ``op`` itself where it has none."""

    def inputs(o: OpOverload) -> list[tuple[str, str]]:
        written = [a.alias_info is not None and a.alias_info.is_write for a in o._schema.arguments]
        return [(a.name, str(a.type)) for a, w in zip(o._schema.arguments, written) if not (w and a.kwarg_only)]

    mine = inputs(op)
    if len(mine) == len(op._schema.arguments):
        return op
    packet = op._overloadpacket
    for name in packet.overloads():  # type: ignore[no-untyped-call]
        twin: OpOverload = getattr(packet, name)
        if len(twin._schema.arguments) == len(mine) and inputs(twin) == mine:
            return twin
    raise Unsupported(f"{op} has no shape rule and no form without out=")


def _extent(t: TensorType) -> int:
    if any(n == 0 for n in t.sizes):
        return evaluate(t.offset)
    last = sum((evaluate(n) - 1) * evaluate(s) for n, s in zip(t.sizes, t.strides))
    return last + evaluate(t.offset) + 1


def _real(x: Any, stand_in: bool) -> Any:
    if isinstance(x, TensorType):
        store = torch.zeros(_extent(x), dtype=x.dtype, device="cpu" if stand_in else x.device)
        return store.as_strided([evaluate(n) for n in x.sizes], [evaluate(s) for s in x.strides], evaluate(x.offset))
    return torch.device("cpu") if stand_in and isinstance(x, torch.device) else x


def _type(op: OpOverload, x: Any, home: torch.device | None) -> Any:
    if isinstance(x, torch.Tensor):
        t = ir.type_of(x).with_(requires_grad=False)
        return t.with_(device=home) if home is not None else t
    if x is None:
        return None
    raise DataDependent(f"{op} gives a Python value that may depend on data")
