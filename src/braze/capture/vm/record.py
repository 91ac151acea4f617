"""Torch calls: run on fake tensors to learn the result, and written into the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from braze.errors import Unsupported
from braze.fake import DataDependent, FakeTensor, fake_from, is_sharded, type_of, with_history
from braze.fake import fake_like as fake_like_real
from braze.fake.sharded import ENABLED
from braze.fake.symint import to_symint
from braze.ir import Node, TensorType

from .calls import name_of
from .floats import holds_float, record_float, widened
from .known import with_numbers
from .signals import Break, NotConst, unsupported
from .values.base import NONE, Const, Value
from .values.floats import FloatValue
from .values.mappings import DictValue, raw_key
from .values.objects import ObjectValue
from .values.sequences import ListValue, SequenceValue, SliceValue, TupleValue
from .values.symbolic import SymValue
from .values.tensor import TensorValue

if TYPE_CHECKING:
    from braze.capture.source import Source

    from .tracer import Tracer

_REPLACED = "a use of a tensor whose .data was replaced before in the compiled function"
_READS = {torch.Tensor.__contains__}
_ITEMS = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
_NO_MEMORY = "its data is not allocated yet"


def lower(vm: Tracer, v: Value) -> tuple[Any, Any]:
    """(argument in the graph, argument on fakes). NotConst for objects that a graph cannot hold."""
    if isinstance(v, TensorValue):
        if v.sets_data is not None:
            unsupported(_REPLACED)
        return v.node(vm), v.fake(vm)
    if isinstance(v, SymValue):
        e = v.expr(vm)
        return e, to_symint(e, vm.sizes)
    if isinstance(v, (Const, FloatValue)):
        raw = v.as_const(vm)
        return raw, raw
    if isinstance(v, SequenceValue):
        pairs = [lower(vm, x) for x in v.items(vm)]
        node, fake = [p[0] for p in pairs], [p[1] for p in pairs]
        if isinstance(v, ListValue):
            return node, fake
        if v.cls is not tuple and v.cls is not torch.Size and hasattr(v.cls, "_fields"):
            return v.cls(*node), v.cls(*fake)
        return tuple(node), tuple(fake)
    if isinstance(v, SliceValue):
        parts = [lower(vm, x) for x in (v.start, v.stop, v.step)]
        return slice(*(p[0] for p in parts)), slice(*(p[1] for p in parts))
    if isinstance(v, DictValue) and v.cls is dict:
        items = [(raw_key(k), lower(vm, x)) for k, x in v.items(vm)]
        return {k: p[0] for k, p in items}, {k: p[1] for k, p in items}
    if isinstance(v, ObjectValue) and isinstance(v.payload, (Const, TupleValue)):
        return lower(vm, v.payload)
    raise NotConst


def record(vm: Tracer, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a torch function. NotConst if an argument cannot be held by a graph; Break if it needs data or fails."""
    for name in ("alpha", "value"):  # numbers, which a tensor may give
        if isinstance(kwargs.get(name), TensorValue):
            from .handlers.tensors import number_of

            kwargs = {**kwargs, name: number_of(vm, kwargs[name]) or kwargs[name]}  # type: ignore[arg-type]
    if any(map(holds_float, args)) or kwargs and any(map(holds_float, kwargs.values())):
        return record_float(vm, target, args, kwargs)
    if vm.plan.capturable:
        args = widened(vm, target, args)
    low = [lower(vm, a) for a in args]
    named = {k: lower(vm, a) for k, a in kwargs.items()}
    try:
        out = target(*[p[1] for p in low], **{k: p[1] for k, p in named.items()})
    except DataDependent as e:
        new, also = [with_numbers(vm, a) for a in args], {k: with_numbers(vm, a) for k, a in kwargs.items()}
        if any(a is not b for a, b in zip((*args, *kwargs.values()), (*new, *also.values()))):
            if target in _ITEMS and isinstance(new[0], TensorValue):
                if len(new) == 2:
                    return tensor_item(vm, new[0], new[1])
                set_tensor_item(vm, new[0], new[1], new[2])
                return NONE
            return record(vm, target, new, also)
        unsupported(f"{name_of(target)}: {e.what}", _remedy(vm, target, args))
    except Unsupported as e:
        raise Break(f"{name_of(target)}: {e.what}", e.hint) from None
    except Exception as e:
        # the same call in eager raises the program's own error
        text = str(e).partition("\nException raised from")[0]  # else C++ frames follow
        if _NO_MEMORY in text:
            raise Break(f"{name_of(target)}: it looks at the memory of its arguments, and has no shape rule") from e
        raise Break(f"{name_of(target)} raised {type(e).__name__}: {text}") from e
    nodes = tuple(p[0] for p in low)
    fakes = [p[1] for p in (*low, *named.values())]
    v = result(vm, target, nodes, {k: p[0] for k, p in named.items()}, out, fakes)
    if isinstance(v, SequenceValue) and "out" in named and out is named["out"][1]:
        return kwargs["out"]
    return v


def tensor_item(vm: Tracer, t: TensorValue, key: Value) -> Value:
    """``t[key]``. Symbolic integers in the key are calls of ``select``: indexing itself would ask for their numbers."""
    items = key.items(vm) if isinstance(key, TupleValue) else [key]
    dims = _symbolic_key(vm, items)
    if dims is None:
        return record(vm, torch.Tensor.__getitem__, [t, key], {})
    if any(isinstance(k, (TensorValue, ListValue)) for k in items):
        out, rest = _select_first(vm, t, items, dims)
        return record(vm, torch.Tensor.__getitem__, [out, TupleValue(rest)], {})
    whole = SliceValue(NONE, NONE, NONE)  # the strides of dims of size 1 are as if all were done in order
    rest = [whole if isinstance(k, SymValue) else k for k in items]
    if any(k is not whole for k in rest):
        t = record(vm, torch.Tensor.__getitem__, [t, TupleValue(rest)], {})  # type: ignore[assignment]
    given = {int: 0, type(None): 1}  # dims that they leave
    made = [
        d if isinstance(k, SymValue) or not isinstance(k, Const) else given.get(type(k.raw), d)
        for k, d in zip(items, dims)
    ]
    return _select_first(vm, t, items, made)[0]


def set_tensor_item(vm: Tracer, t: TensorValue, key: Value, value: Value) -> None:
    """``t[key] = value``, with symbolic integers as for :func:`tensor_item`."""
    items = key.items(vm) if isinstance(key, TupleValue) else [key]
    dims = _symbolic_key(vm, items)
    place: Value = t
    if dims is not None and any(isinstance(k, (TensorValue, ListValue)) for k in items):
        place, rest = _select_first(vm, t, items, dims)
        key = TupleValue(rest)
    elif dims is not None:
        place, key = tensor_item(vm, t, key), Const(Ellipsis)
    record(vm, torch.Tensor.__setitem__, [place, key, value], {})


def _symbolic_key(vm: Tracer, items: list[Value]) -> list[int] | None:
    """The dims that each item of an index takes; None where none is symbolic, or where one is for torch to judge."""
    if not any(isinstance(k, SymValue) for k in items):
        return None
    dims = [_dims_of(vm, k) for k in items]
    return None if None in dims else dims  # type: ignore[return-value]


def _select_first(vm: Tracer, t: Value, items: list[Value], dims: list[int]) -> tuple[Value, list[Value]]:
    """The tensor with the symbolic integers of the key selected, and the other items."""
    assert isinstance(t, TensorValue)
    open_dims = t.fake(vm).ndim - sum(dims)
    at, selected = 0, []
    for k, d in zip(items, dims):
        if isinstance(k, SymValue):
            selected.append((at, k))
        at += open_dims if isinstance(k, Const) and k.raw is Ellipsis else d
    for dim, k in reversed(selected):
        t = record(vm, torch.Tensor.select, [t, Const(dim), k], {})
    return t, [k for k in items if not isinstance(k, SymValue)]


def _dims_of(vm: Tracer, k: Value) -> int | None:
    """The dims that an item of an index takes; None for what is left to torch."""
    if isinstance(k, TensorValue):
        fake = k.fake(vm)
        mask = fake.dtype in (torch.bool, torch.uint8)
        return fake.ndim if mask else 1 if fake.ndim else None
    if isinstance(k, ListValue):
        flat = all(isinstance(x, Const) and type(x.raw) is int for x in k.items(vm))
        return 1 if flat else None
    if isinstance(k, Const) and not isinstance(k, SymValue) and (k.raw is None or k.raw is Ellipsis):
        return 0
    return 1 if isinstance(k, SliceValue) or isinstance(k, Const) and type(k.raw) in (int, slice) else None


def _remedy(vm: Tracer, target: Any, args: list[Value]) -> str:
    """What avoids the break of a call that needs the values of tensors."""
    if target in _ITEMS:
        keys = args[1].items(vm) if isinstance(args[1], TupleValue) else [args[1]]
        if any(isinstance(k, TensorValue) and not k.fake(vm).shape for k in keys):
            return "give the index a dimension, i.view(1), or use torch.index_select: both stay in the graph"
    return "keep the shape (torch.where, a mask to multiply by), or move it out of the compiled function"


def result(vm: Tracer, target: Any, nodes: tuple[Any, ...], named: dict[str, Any], out: Any, fakes: list[Any]) -> Value:
    """The value of what a call gave; written into the graph if it made or changed tensors."""
    if isinstance(out, torch.Tensor):
        known = vm.by_fake.get(id(out))
        node = vm.graph.call(target, nodes, named, type_of(out), vm.loc())
        if known is not None:
            return known
        return new_tensor(vm, node, out)
    if out is None:
        if any(isinstance(f, torch.Tensor) for f in fakes) or any(_has_tensor(f) for f in fakes):
            vm.graph.call(target, nodes, named, None, vm.loc())
        return NONE
    if isinstance(out, (tuple, list)) and _has_tensor(out):
        node = vm.graph.call(target, nodes, named, _types(out), vm.loc())
        return _items(vm, node, out)
    if isinstance(out, (str, bytes)):
        unsupported("the text of a tensor", "print it outside of the compiled function")
    if target in _READS or not _has_tensor(out):
        return vm.wrap(out, None)
    unsupported(f"{name_of(target)} gave a {type(out).__name__}")


def _has_tensor(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return True
    if isinstance(x, (tuple, list)):
        return any(_has_tensor(y) for y in x)
    return isinstance(x, dict) and any(_has_tensor(y) for y in x.values())


def _types(out: Any) -> Any:
    if isinstance(out, torch.Tensor):
        return type_of(out)
    if isinstance(out, (tuple, list)):
        return tuple(_types(x) for x in out)
    return out


def _items(vm: Tracer, node: Node, out: Any) -> Value:
    values: list[Value] = []
    for i, x in enumerate(out):
        if isinstance(x, torch.Tensor):
            known = vm.by_fake.get(id(x))
            values.append(known if known is not None else new_tensor(vm, vm.graph.getitem(node, i), x))
        elif _has_tensor(x):
            values.append(_items(vm, vm.graph.getitem(node, i), x))
        else:
            values.append(vm.wrap(x, None))
    return ListValue(values) if type(out) is list else TupleValue(values, type(out))


def new_tensor(vm: Tracer, node: Node, out: torch.Tensor) -> TensorValue:
    """The value of a new tensor of the graph."""
    if is_sharded(out):
        vm.sharded[node] = out
        v = TensorValue(node, cast(FakeTensor, out), type(out))
        vm.by_fake[id(out)] = v
        return v
    fake = out if isinstance(out, FakeTensor) else fake_from(type_of(out))
    v = TensorValue(node, fake)
    vm.by_fake[id(fake)] = v
    return v


def add_input(vm: Tracer, v: TensorValue) -> None:
    """Make an existing tensor an input of the graph."""
    from .handlers.sharded import add_pending, add_sharded

    raw, source = v.raw, v.source
    assert raw is not None and source is not None
    if raw.layout is torch.strided and (raw.is_conj() or raw.is_neg()):
        return add_flagged(vm, v, raw, source)
    if ENABLED and is_sharded(raw):
        return add_sharded(vm, v)
    if ENABLED and type(raw).__name__ == "AsyncCollectiveTensor":
        return add_pending(vm, v)
    if type(raw) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        unsupported(f"an input of the tensor subclass {type(raw).__name__}")
    leaf = is_leaf(raw)
    try:
        fake = fake_like_real(raw)
    except Unsupported as e:
        raise Break(e.what, e.hint) from None
    t = type_of(fake)
    sizes, strides = vm.sizes.tensor(source, raw)
    vm.guards.tensor(source, raw, sizes, strides)
    if sizes != t.sizes:
        t = t.with_(sizes=sizes, strides=strides)
        fake = fake_from(t, isinstance(raw, torch.nn.Parameter), vm.sizes)
    vm.by_fake[id(fake)] = v
    if not leaf and not raw.is_inference():
        fake = with_history(fake)
        vm.by_fake[id(fake)] = v
    v._fake, v._node = fake, vm.graph.input(input_name(source.name()), t)
    vm.inputs.append(v)


def is_leaf(raw: torch.Tensor) -> bool:
    """``raw.is_leaf``. A break where torch refuses to tell: for a view made without gradients, whose base was then
    written with them, any use but under no_grad is an error."""
    try:
        return raw.is_leaf
    except RuntimeError as e:
        text = str(e).partition(". ")[0]
        raise Break(
            f"a use of a view that torch forbids: {text}", "make the view and write its base in one mode"
        ) from e


def add_flagged(vm: Tracer, v: TensorValue, raw: torch.Tensor, source: Source) -> None:
    """Make a lazily conjugated or negated tensor an input of the graph: as the plain view of its memory, conjugated or
    negated by a call. Only the value that is read has a source: a gradient of the view is not the tensor's."""
    flags = [f for f, on in ((torch.conj, raw.is_conj()), (torch._neg_view, raw.is_neg())) if on]
    with torch._C._DisableTorchDispatch(), torch.enable_grad():  # the first use may be under another mode
        plain = unflagged(raw)
    vm.guards.tensor(source, raw, tuple(raw.shape), raw.stride())
    t = type_of(fake_like_real(plain))
    node = vm.graph.input(input_name(source.name()), t)
    fake: Any = fake_from(t)
    vm.inputs.append(TensorValue(node, fake, raw=plain, source=source))
    vm.flagged_inputs.append(vm.inputs[-1])
    first = [node]
    with torch.enable_grad():
        for f in flags:
            fake = cast(FakeTensor, f(fake))
            node = vm.graph.call(f, (node,), {}, type_of(fake))
            first.append(node)
    vm.graph.nodes[:] = [*first, *vm.graph.nodes[: -len(first)]]
    v._fake, v._node = fake, node
    vm.by_fake[id(fake)] = v


def unflagged(x: torch.Tensor) -> torch.Tensor:
    """The view of the same memory that is neither lazily conjugated nor negated."""
    x = x.conj() if x.is_conj() else x
    return torch._neg_view(x) if x.is_neg() else x


def add_float(vm: Tracer, v: FloatValue) -> TensorValue:
    """Make an existing float an input of the graph, as a 0-d float64 tensor."""
    assert v.source is not None and v.raw is not None
    vm.guards.type_(v.source, float)
    t = TensorType((), (), torch.float64, torch.device("cpu"))
    node = vm.graph.input(input_name(v.source.name()), t)
    out = TensorValue(node, fake_from(t), raw=torch.tensor(v.raw, dtype=torch.float64), source=v.source)
    vm.inputs.append(out)
    vm.float_inputs.append(out)
    return out


def input_name(text: str) -> str:
    """An identifier that reads like the source: ``self.layer[0].weight`` -> ``layer_0_weight``."""
    name = text.removeprefix("self.").replace("[", "_").replace("]", "").replace(".", "_")
    return "".join(c for c in name if c.isalnum() or c == "_").strip("_")[-60:] or "x"


def tensor_get(vm: Tracer, v: TensorValue, name: str) -> Value:
    """An attribute of a tensor: facts are constants, tensors (``.T``, ``.grad``) are calls, methods are bound."""
    from .handlers.sharded import attribute as sharded_attribute
    from .handlers.tensors import FACTS, VIEWS

    if v.sets_data is not None and name not in ("grad", "requires_grad"):
        unsupported(_REPLACED)
    if v.cls.__name__ == "DTensor" and (known := sharded_attribute(vm, v, name)) is not None:
        return known
    fact = FACTS.get(name)
    if name == "is_leaf" and v.raw is not None:
        leaf = is_leaf(v.raw)
        vm.guards.const(v.source.attr(name) if v.source is not None else None, leaf)
        return vm.wrap(leaf, None)
    if fact is not None:
        return vm.wrap(fact(v.fake(vm)), None)
    if name in VIEWS:
        return record(vm, getattr, [v, Const(name)], {})
    return vm.tensor_attribute(v, name)


def tensor_set(vm: Tracer, v: TensorValue, name: str, value: Value) -> None:
    from .handlers.gradients import set_data, set_grad, set_requires_grad

    if v.cls.__name__ == "DTensor":
        unsupported(f"assigning to the attribute {name!r} of a DTensor")
    if name == "data" and isinstance(value, TensorValue) and value.data_of is v:
        mine, theirs = type_of(v.fake(vm)), type_of(value.fake(vm))
        if (mine.sizes, mine.strides) == (theirs.sizes, theirs.strides):
            return  # of ``p.data *= 2``: the memory is written already
    setter = {"grad": set_grad, "requires_grad": set_requires_grad, "data": set_data}.get(name)
    if setter is None:
        unsupported(f"assigning to the attribute {name!r} of a tensor")
    setter(vm, v, value)
