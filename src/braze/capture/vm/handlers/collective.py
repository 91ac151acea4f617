"""Collectives of ``torch.distributed``: functional ones are calls of the graph, in-place ones such calls and a copy.

A process group is a constant, guarded by identity; a graph holds its name.  What cannot be in a graph
(``async_op=True``, point to point, barriers, a rank that is not of the group) breaks it, with the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from braze.capture import collective_forms as forms

from ..registry import BREAKS, HANDLERS, NAMED
from ..signals import NotConst, unsupported
from ..values.base import FALSE, NONE, TRUE, Const, Value
from ..values.sequences import ListValue, TupleValue
from ..values.statics import FunctionValue
from ..values.tensor import TensorValue
from ..wrap import WRAPPERS

if TYPE_CHECKING:
    from ..tracer import Tracer

_C10D = "torch.distributed.distributed_c10d"
_FUNCTIONAL = "torch.distributed._functional_collectives"
_SAFE = "use torch.distributed._functional_collectives, or call it outside of the compiled function"


def _world(vm: Tracer) -> Any:
    """The default process group, guarded to stay the one it is."""
    member = dist.distributed_c10d.GroupMember
    value = vm.wrap(member.WORLD, vm.sources.const(member, "GroupMember").attr("WORLD"))
    return value.as_const(vm)


def _group_of(vm: Tracer, value: Value) -> Any:
    """The process group of an argument: a group, its name, None (all ranks), a mesh of one dim, or (mesh, dim)."""
    if vm.is_none(value):
        return _world(vm)
    if isinstance(value, TupleValue):
        mesh, dim = value.items(vm)
        return _mesh_group(vm, mesh, dim.as_const(vm))
    try:
        raw = value.as_const(vm)
    except NotConst:
        return _mesh_group(vm, value, 0)
    if isinstance(raw, str):
        return _resolved(raw)
    return raw


def _resolved(name: str) -> Any:
    return torch._C._distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]


def _mesh_group(vm: Tracer, mesh: Value, dim: int) -> Any:
    if not isinstance(getattr(mesh, "raw", None), dist.device_mesh.DeviceMesh):
        unsupported("a collective whose group is not known while compiling", "pass a ProcessGroup or a DeviceMesh")
    names = mesh.get_attr(vm, "_dim_group_names").as_python(vm)
    return _resolved(names[dim])


def _member(vm: Tracer, value: Value, what: str = "a collective") -> Any:
    """The process group of an argument, which this rank is in."""
    group = _group_of(vm, value)
    if not isinstance(group, dist.ProcessGroup):
        unsupported(f"{what} in a group that this rank is not in, or without a process group")
    return group


# ---- functional collectives: their Python is inlined, what it asks of the process is answered here


def _resolve(vm: Tracer, raw: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Const(str(_member(vm, [*args, *kwargs.values()][0]).group_name))


def _group_size(vm: Tracer, raw: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Const(_group_of(vm, [*args, *kwargs.values()][0]).size())


def _complete(vm: Tracer, raw: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return vm.record(torch.ops._c10d_functional.wait_tensor.default, args, kwargs)


NAMED.update(
    {
        "_are_we_tracing": (_FUNCTIONAL, lambda vm, raw, args, kwargs: TRUE),
        "_resolve_group": (_FUNCTIONAL, _resolve),
        "_resolve_group_name": (_FUNCTIONAL, _resolve),
        "_group_or_group_name": (_FUNCTIONAL, _resolve),
        "_maybe_wrap_tensor": (_FUNCTIONAL, _complete),
        "_get_group_size_by_name": (_C10D, _group_size),
    }
)


# ---- in-place collectives


def _reduction(vm: Tracer, op: Value | None) -> Value:
    if op is None:
        return Const("sum")
    raw = op.as_const(vm)
    name = str(getattr(raw, "name", raw)).rpartition(".")[2].lower()
    if name not in ("sum", "avg", "product", "min", "max", "band", "bor", "bxor"):
        unsupported(f"a collective that reduces by {name}")
    return Const(name)


def _source(vm: Tracer, given: dict[str, Value], group: Any) -> Value:
    if "group_src" in given and not vm.is_none(given["group_src"]):
        return Const(given["group_src"].as_const(vm))
    return Const(dist.get_group_rank(group, given["src"].as_const(vm)))


def _differentiable(vm: Tracer, value: Value) -> bool:
    if isinstance(value, (ListValue, TupleValue)):
        return any(_differentiable(vm, x) for x in value.items(vm))
    return isinstance(value, TensorValue) and torch.is_grad_enabled() and value.fake(vm).requires_grad


def _in_place(function: Any, form: Callable[..., None], tensors: str) -> None:
    """Inline ``form`` for ``function``, whose arguments ``tensors`` are tensors or lists of them."""
    names, signature = tensors.split(), inspect.signature(function)
    wanted = list(inspect.signature(form).parameters)

    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            given = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError as e:
            vm.raise_real(e)
        what = f"torch.distributed.{function.__name__}()"
        try:
            if "async_op" in given and given["async_op"].truth(vm):
                unsupported(f"{what} with async_op=True", "leave it out: a graph runs collectives beside other work")
            group = _member(vm, given.get("group", NONE), what)
            if any(_differentiable(vm, given[n]) for n in names):
                unsupported(f"{what} of a tensor that requires grad", "detach it, or use a functional collective")
            known: dict[str, Value] = {"group": Const(str(group.group_name)), "size": Const(group.size())}
            if "op" in wanted:
                known["op"] = _reduction(vm, given.get("op"))
            if "src" in wanted:
                known["src"] = _source(vm, given, group)
        except NotConst:
            unsupported(f"{what} with an argument that is not known while compiling", _SAFE)
        values = [known[n] if n in known else given.get(n, NONE) for n in wanted]
        return vm.inline_function(FunctionValue(form), values, {})  # type: ignore[arg-type]

    HANDLERS[function] = handler


def _query(function: Any) -> None:
    """A question about a group, answered while tracing: the group is guarded."""

    def handler(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = [*args, *kwargs.values()]
        if len(given) > 1:
            vm.unsupported_call(function, "several arguments")
        group = _group_of(vm, given[0] if given else NONE)
        try:
            return Const(function(group))
        except Exception as e:
            vm.raise_real(e)

    HANDLERS[function] = handler


def _is_initialized(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return FALSE if _world(vm) is None else TRUE


def _fill() -> None:
    pairs: tuple[tuple[str, Callable[..., None], str], ...] = (
        ("all_reduce", forms.all_reduce, "tensor"),
        ("broadcast", forms.broadcast, "tensor"),
        ("all_gather", forms.all_gather, "tensor_list tensor"),
        ("all_gather_into_tensor", forms.all_gather_into_tensor, "output_tensor input_tensor"),
        ("reduce_scatter", forms.reduce_scatter, "output input_list"),
        ("reduce_scatter_tensor", forms.reduce_scatter_tensor, "output input"),
        ("all_gather_single", forms.all_gather_into_tensor, "output_tensor input_tensor"),
        ("reduce_scatter_single", forms.reduce_scatter_tensor, "output input"),
        ("all_to_all_single", forms.all_to_all_single, "output input"),
    )
    for name, form, tensors in pairs:
        if hasattr(dist, name):  # the names of later versions
            _in_place(getattr(dist, name), form, tensors)
    for name in "get_rank get_world_size get_backend".split():
        _query(getattr(dist, name))
    HANDLERS[dist.is_initialized] = _is_initialized
    HANDLERS[dist.is_available] = lambda vm, args, kwargs: TRUE
    others = "barrier monitored_barrier send recv isend irecv batch_isend_irecv reduce gather scatter all_to_all"
    others += " all_gather_object broadcast_object_list gather_object scatter_object_list all_gather_coalesced"
    for name in f"{others} all_reduce_coalesced".split():
        if hasattr(dist, name):
            BREAKS[getattr(dist, name)] = (f"torch.distributed.{name}()", _SAFE)
    WRAPPERS[dist.ProcessGroup] = lambda vm, raw, source: Const(raw, source)
    for t in (dist.ReduceOp, dist.ReduceOp.RedOpType):
        WRAPPERS[t] = lambda vm, raw, source: Const(raw, source)


if dist.is_available():
    _fill()
