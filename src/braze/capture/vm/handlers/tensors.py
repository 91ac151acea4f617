"""Tensors: which attributes are facts known while tracing, which are tensors, and what must break the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from braze.fake import FakeTensor

from ..attributes import bind, find
from ..registry import BREAKS, HANDLERS, handles, simple
from ..signals import unsupported
from ..values.base import FALSE, NONE, TRUE, Const, Value, boolean
from ..values.floats import FloatValue
from ..values.sequences import TupleValue
from ..values.tensor import TensorValue

if TYPE_CHECKING:
    from ..tracer import Tracer

FACTS: dict[str, Any] = {
    **{
        name: (lambda t, _n=name: getattr(t, _n))
        for name in (
            "shape dtype device ndim is_cuda is_cpu is_sparse is_quantized is_meta is_mkldnn is_mps is_xpu is_nested "
            "requires_grad is_leaf itemsize nbytes output_nr is_complex_ is_sparse_csr is_xla is_vulkan is_mtia is_ipu "
            "is_maia is_inference_"
        ).split()
        if not name.endswith("_")
    },
    "layout": lambda t: torch.strided,
    "names": lambda t: (None,) * t.ndim,
}
VIEWS = frozenset(("T", "mT", "H", "mH", "real", "imag"))

_ITEM_HINT = "keep the value a tensor, or read it outside of the compiled function"
BREAKS.update(
    {
        torch.Tensor.tolist: ("Tensor.tolist()", _ITEM_HINT),
        torch.Tensor.numpy: ("Tensor.numpy()", _ITEM_HINT),
        torch.Tensor.data_ptr: ("Tensor.data_ptr()", "a traced tensor has no memory"),
        torch.Tensor.storage: ("Tensor.storage()", "a traced tensor has no memory"),
        torch.Tensor.untyped_storage: ("Tensor.untyped_storage()", "a traced tensor has no memory"),
        torch.Tensor.__deepcopy__: ("copying a tensor with copy.deepcopy()", "use .clone()"),
        torch.Tensor.__reduce_ex__: ("pickling a tensor", ""),
        torch.Tensor.set_: ("Tensor.set_()", ""),
        torch.Tensor.__repr__: ("the text of a tensor", "print it outside of the compiled function"),
        torch.Tensor.__format__: ("the text of a tensor", "print it outside of the compiled function"),
        torch.Tensor.__array__: ("a tensor as a numpy array", _ITEM_HINT),
        nn.Parameter: ("making an nn.Parameter", "create parameters outside of the compiled function"),
        torch.Tensor: ("the constructor torch.Tensor()", "use torch.tensor or torch.empty"),
    }
)
for _name in ("__bool__", "__int__", "__float__", "__index__", "__complex__"):
    BREAKS[getattr(torch.Tensor, _name)] = ("a Python number from a tensor", _ITEM_HINT)


def tensor_attribute(vm: Tracer, v: TensorValue, name: str) -> Value:
    """A method, a property of ``torch.Tensor``'s Python half, or an attribute that the program set on the tensor."""
    cls = v.cls
    if name == "grad":
        from .gradients import get_grad

        return get_grad(vm, v)
    if name == "data":
        out = vm.record(getattr, [v, Const("data")], {})
        assert isinstance(out, TensorValue)
        out.data_of = v
        return out
    if name == "grad_fn":
        from ..record import is_leaf

        if v.raw is not None and not is_leaf(v.raw):
            unsupported("reading .grad_fn of a tensor that was made outside of the compiled function")
        if v.fake(vm).grad_fn is None:
            if v.raw is not None and v.source is not None and v.raw.requires_grad:
                vm.guards.const(v.source.attr("is_leaf"), True)
            return NONE
        unsupported("reading .grad_fn", "only whether it is None is known, through .requires_grad")
    found = find(vm, cls, name)
    if v.raw is not None and name in getattr(v.raw, "__dict__", ()):
        vm.guards.type_(v.source, cls)
        assert v.source is not None
        return vm.wrap(v.raw.__dict__[name], v.source.instance_attr(name))
    if found is None:
        if v.raw is not None:
            vm.guards.no_attr(v.source, name)
        vm.raise_(AttributeError, f"{cls.__name__!r} object has no attribute {name!r}")
    if v.raw is None and name in ("_is_param",):
        vm.raise_(AttributeError, f"{cls.__name__!r} object has no attribute {name!r}")
    if isinstance(found.raw, property):
        return vm.wrap_static(found.raw.fget).call(vm, [v], {})
    if name in ("_base", "_version", "_cdata", "_backward_hooks", "_is_view"):
        unsupported(f"reading Tensor.{name}")
    return bind(vm, found, v, cls, name)


# ---- queries: evaluated on the fake tensor, not written into the graph


def query(function: Any) -> None:
    """Register a function whose result is a fact about its tensor arguments."""

    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from ..record import lower

        fakes = [lower(vm, a)[1] for a in args]
        named = {k: lower(vm, a)[1] for k, a in kwargs.items()}
        try:
            out = function(*fakes, **named)
        except Exception as e:
            vm.raise_real(e)
        return vm.wrap(out, None)

    HANDLERS[function] = handler


for _name in (
    "size stride dim ndimension nelement numel is_contiguous is_floating_point is_complex is_signed "
    "element_size get_device is_same_size is_inference is_set_to has_names dense_dim sparse_dim"
).split():
    if hasattr(torch.Tensor, _name):
        query(getattr(torch.Tensor, _name))
for _name in (
    "is_floating_point is_complex is_signed numel can_cast promote_types result_type is_same_size is_inference"
).split():
    query(getattr(torch, _name))


def _lazy(function: Any) -> None:
    """Register a question about a flag that fakes do not have, and that only views of complex tensors have."""

    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        (x,) = (*args, *kwargs.values())
        assert isinstance(x, TensorValue)
        fake = x.fake(vm)
        base = fake if fake._base is None else fake._base
        if fake.is_complex() or base.is_complex() or vm.flagged_inputs:
            unsupported("whether a tensor is lazily conjugated or negated", "call .resolve_conj() or .resolve_neg()")
        return FALSE

    HANDLERS[function] = handler


for _owner in (torch.Tensor, torch):
    _lazy(getattr(_owner, "is_conj"))  # noqa: B009
    _lazy(getattr(_owner, "is_neg"))  # noqa: B009


def _keeps_lazy(function: Any) -> None:
    """Register a function whose result is lazily conjugated where its arguments are."""

    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        out = vm.record(function, args, kwargs)
        if vm.flagged_inputs and isinstance(out, TensorValue) and out.fake(vm).is_complex():
            unsupported(f"torch.{function.__name__} of a lazily conjugated input", "call .resolve_conj() first")
        return out

    HANDLERS[function] = handler


for _name in ("dot", "vdot"):
    _keeps_lazy(getattr(torch, _name))
    _keeps_lazy(getattr(torch.Tensor, _name))


# ---- where a tensor lies in its storage


def place(vm: Tracer, v: TensorValue) -> None:
    """Guard where the input that ``v`` is, or is a view of, begins in its storage; note it on the graph's input."""
    fake = v.fake(vm)
    base = fake._base
    owner = vm.by_fake.get(id(base)) if base is not None else v
    if owner is None or base is None and torch.is_inference_mode_enabled():  # views are not known there
        owners = [x for x in vm.inputs if isinstance(x, TensorValue) and x not in vm.float_inputs]
    else:
        owners = [owner]
    for x in owners:
        if x.raw is not None and x.source is not None:
            node = x.node(vm)
            if isinstance(node.val.offset, int):
                vm.guards.const(x.source.storage_offset(), node.val.offset)
                node.tags["placed"] = True


@handles(torch.Tensor.storage_offset)
def storage_offset(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (v,) = args
    assert isinstance(v, TensorValue)
    place(vm, v)
    return vm.wrap(v.fake(vm).storage_offset(), None)


def _strided(function: Any) -> None:
    """Register a function that takes places in a storage."""

    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        x = args[0] if args else kwargs.get("self", kwargs.get("input"))
        explicit = [*args[3:], kwargs.get("storage_offset", NONE)]
        if isinstance(x, TensorValue) and not all(v is NONE for v in explicit):
            place(vm, x)
        return vm.record(function, args, kwargs)

    HANDLERS[function] = handler


for _name in ("as_strided", "as_strided_", "as_strided_scatter", "as_strided_copy"):
    for _owner in (torch.Tensor, torch, torch.ops.aten):
        if hasattr(_owner, _name):
            _strided(getattr(_owner, _name))
    _strided(getattr(torch.ops.aten, _name).default)


@handles(torch.matmul)
def matmul(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """With ``out=``, ATen resizes it to a folded product and back: a copy says the same."""
    out = kwargs.get("out", NONE)
    if not isinstance(out, TensorValue):
        return vm.record(torch.matmul, args, kwargs)
    given = [*args, *kwargs.values()]
    tracked = torch.is_grad_enabled() and any(isinstance(v, TensorValue) and v.fake(vm).requires_grad for v in given)
    product = vm.record(torch.matmul, args, {k: v for k, v in kwargs.items() if k != "out"})
    assert isinstance(product, TensorValue)
    x, y = product.fake(vm), out.fake(vm)
    if tracked or x.shape != y.shape or x.dtype != y.dtype:
        return vm.record(torch.matmul, args, kwargs)
    vm.record(torch.Tensor.copy_, [out, product], {})
    return out


@handles(torch.Tensor.item)
def item(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a floating-point tensor: a float of the graph. Other numbers break."""
    (t,) = args
    assert isinstance(t, TensorValue)
    found = vm.known_number(t) or vm.input_number(t) or number_of(vm, t)
    if found is None:
        unsupported("Tensor.item()", _ITEM_HINT)
    return found


def number_of(vm: Tracer, t: TensorValue, whole: bool = False) -> FloatValue | None:
    """The float that a floating-point tensor of one element holds; None for other tensors. With ``whole`` integers are
    converted too."""
    fake = t.fake(vm)
    if (
        not fake.dtype.is_floating_point
        and not (whole and not fake.dtype.is_complex)
        or any(n != 1 for n in fake.shape)
    ):
        return None
    x: Value = vm.record(torch.Tensor.detach, [t], {}) if fake.requires_grad else t
    if fake.ndim:
        x = vm.record(torch.Tensor.reshape, [x, TupleValue([])], {})
    copy: dict[str, Value] = {"dtype": Const(torch.float64), "copy": TRUE}
    out = vm.record(torch.Tensor.to, [x], copy)
    assert isinstance(out, TensorValue)
    return FloatValue(tensor=out)


@handles(torch.is_tensor)
def is_tensor(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return boolean(isinstance(args[0], TensorValue))


@handles(torch.Tensor.__len__)
def tensor_len(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    assert isinstance(args[0], TensorValue)
    return args[0].first_size(vm)


@handles(torch.Tensor.__iter__)
def tensor_iter(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0].iterate(vm)


@handles(torch.Tensor.__hash__)
def tensor_hash(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    unsupported("hash() of a tensor")


@handles(torch.Tensor.type)
def tensor_type(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) > 1 or kwargs:
        return vm.record(torch.Tensor.type, args, kwargs)
    t = args[0]
    assert isinstance(t, TensorValue)
    fake = t.fake(vm)
    return Const(str(torch.empty(0, dtype=fake.dtype).type()) if not isinstance(fake, FakeTensor) else _type_name(fake))


_TYPE_NAMES = {
    torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor",
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
    torch.int64: "LongTensor",
    torch.int32: "IntTensor",
    torch.int16: "ShortTensor",
    torch.int8: "CharTensor",
    torch.uint8: "ByteTensor",
    torch.bool: "BoolTensor",
}


def _type_name(fake: FakeTensor) -> str:
    device = fake.device.type
    return f"torch.{'' if device == 'cpu' else device + '.'}{_TYPE_NAMES[fake.dtype]}"


@simple(torch.broadcast_shapes)
def broadcast_shapes(vm: Tracer, *shapes: Value) -> Value:
    out: list[Value] = []
    for shape in shapes:
        items = vm.unpack(shape) if not shape.is_const() or isinstance(shape, TupleValue) else [shape]
        out = _broadcast(vm, out, items)
    return TupleValue(out, torch.Size)


def _broadcast(vm: Tracer, a: list[Value], b: list[Value]) -> list[Value]:
    n = max(len(a), len(b))
    a, b = [Const(1)] * (n - len(a)) + a, [Const(1)] * (n - len(b)) + b
    out = []
    for x, y in zip(a, b):
        p, q = x.as_const(vm), y.as_const(vm)
        if p != q and 1 not in (p, q):
            vm.raise_(RuntimeError, "Shape mismatch: objects cannot be broadcast to a single shape")
        out.append(x if q == 1 else y)
    return out
